// Numbers, times and sizes for people.

const whole = new Intl.NumberFormat('en');
const compact = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });

export const count = (n) => (n == null ? '–' : whole.format(n));
export const short = (n) => (n == null ? '–' : n < 10000 ? whole.format(n) : compact.format(n));
export const plural = (n, thing) => `${count(n)} ${thing}${n === 1 ? '' : 's'}`;

export function rate(n) {
  if (n == null || !Number.isFinite(n)) return '–';
  if (n >= 100) return short(Math.round(n));
  return n === 0 ? '0' : n.toFixed(n < 10 ? 1 : 0);
}

export function bytes(n) {
  if (n == null) return '–';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) {
    n /= 1024;
    unit += 1;
  }
  return `${unit === 0 ? n : n.toFixed(n < 10 ? 1 : 0)} ${units[unit]}`;
}

export function duration(ms) {
  if (ms == null) return '–';
  if (ms < 0) ms = 0;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const s = ms / 1000;
  if (s < 60) return `${s < 10 ? s.toFixed(1) : Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} m ${Math.floor(s % 60)} s`;
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} m`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

const since = (time) => Date.now() - Date.parse(time);
export const age = (time) => (time ? duration(since(time)) : '–');
export const ago = (time) => (time ? `${duration(since(time))} ago` : 'never');
export const until = (time) => (time ? `in ${duration(-since(time))}` : '–');

export function clock(time) {
  if (!time) return '–';
  const at = new Date(time);
  const day = at.toDateString() === new Date().toDateString() ? '' : `${at.toISOString().slice(0, 10)} `;
  const part = (n, width = 2) => String(n).padStart(width, '0');
  return `${day}${part(at.getHours())}:${part(at.getMinutes())}:${part(at.getSeconds())}.${part(at.getMilliseconds(), 3)}`;
}

/** A sentence of the server, with its times as people read them. */
export const humane = (text) => visible(text).replace(/\d{4}-\d\d-\d\dT[\d:.]+Z/g, (time) => clock(time).slice(0, -4));

/** Hides characters that would change how the text around them is read. */
export function visible(text) {
  return String(text ?? '').replace(/[\u0000-\u001f\u007f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g, '\ufffd');
}

export function cut(text, length = 80) {
  const shown = visible(text);
  return shown.length > length ? `${shown.slice(0, length - 1)}…` : shown;
}
