// Data of events: JSON folded and coloured, text, and bytes as hex.

import { h } from './dom.js';
import { bytes as size, count, plural, visible } from './format.js';
import { copyButton } from './dialog.js';

const NODES_MAX = 3000;
const TEXT_MAX = 4000;
const HEX_MAX = 4096;

const isRaw = (value) => typeof JSON.isRawJSON === 'function' && JSON.isRawJSON(value);

export const write = (value) => JSON.stringify(value, null, 2);

/** Objects and lists that can be folded. Deep parts start folded. */
export function json(value) {
  const budget = { left: NODES_MAX };
  return h('div.json', null, node(value, 0, budget, null));
}

/** `name` is the member that the value belongs to. */
function node(value, depth, budget, name) {
  budget.left -= 1;
  if (!isRaw(value) && Array.isArray(value)) return folded(value.map((item, at) => [at, item]), '[', ']', depth, budget, name);
  if (!isRaw(value) && value !== null && typeof value === 'object') return folded(Object.entries(value), '{', '}', depth, budget, name);
  return [name, scalar(value)];
}

function scalar(value) {
  if (value === null) return h('span.null', null, 'null');
  if (isRaw(value)) return h('span.number', null, value.rawJSON);
  if (typeof value === 'string') return h('span.string', null, JSON.stringify(cutText(value)));
  return h(`span.${typeof value}`, null, String(value));
}

const cutText = (text) => (text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX)}… (${count(text.length)} characters)` : text);

function folded(entries, open, close, depth, budget, label) {
  if (!entries.length) return [label, open + close];
  const isList = open === '[';
  const shown = [];
  for (const [name, value] of entries) {
    if (budget.left <= 0) break;
    const own = isList ? null : h('span.name', null, `${JSON.stringify(visible(name))}: `);
    shown.push(h('li', null, node(value, depth + 1, budget, own)));
  }
  const missing = entries.length - shown.length;
  if (missing) shown.push(h('li', null, `… ${count(missing)} more`));
  return h('details', { open: depth < 3 },
    h('summary', null, label, open, h('span.hint', null, ` ${plural(entries.length, isList ? 'item' : 'member')} ${close}`)),
    h('ul', null, shown), close);
}

/** 16 bytes in a line: offset, hex, and printable characters. */
export function hex(array) {
  const lines = [];
  for (let at = 0; at < Math.min(array.length, HEX_MAX); at += 16) {
    const row = [...array.subarray(at, at + 16)];
    const digits = row.map((byte) => byte.toString(16).padStart(2, '0')).join(' ').padEnd(48);
    const text = row.map((byte) => (byte > 31 && byte < 127 ? String.fromCharCode(byte) : '.')).join('');
    lines.push(`${at.toString(16).padStart(6, '0')}  ${digits} ${text}`);
  }
  const more = array.length > HEX_MAX ? [`… ${size(array.length - HEX_MAX)} more`] : [];
  return h('pre.hex', { tabindex: '0', 'aria-label': 'Data as hex' }, [...lines, ...more].join('\n'));
}

export function decode64(text) {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

/** The data of an event in the form that suits it. */
export function payload(event) {
  if (event.data !== undefined && typeof event.data !== 'string') return json(event.data);
  if (typeof event.data === 'string') {
    return /json/.test(event.datacontenttype ?? 'json') ? json(event.data) : h('pre.text', { tabindex: '0', 'aria-label': 'Data as text' }, cutText(event.data));
  }
  if (event.data_base64 === undefined) return h('p.muted', null, 'The event has no data.');
  const array = decode64(event.data_base64);
  return h('div', null, h('p.muted', null, `${size(array.length)} of ${event.datacontenttype ?? 'unknown type'}`), hex(array));
}

/** The attributes and the data of an event. */
export function eventView(event) {
  const { data, data_base64: binary, ...attributes } = event;
  return h('div.event', null,
    h('dl.facts', null, Object.entries(attributes).map(([name, value]) => h('div', null, h('dt', null, visible(name)), h('dd.mono', null, visible(value))))),
    h('div.row', null, h('h3', null, 'Data'), copyButton(() => write(event), 'Copy event')),
    payload(event));
}

/** Offers a text as a file. */
export function download(name, text, type = 'application/x-ndjson') {
  const url = URL.createObjectURL(new Blob([text], { type }));
  h('a', { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
