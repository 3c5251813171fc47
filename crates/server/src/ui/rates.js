// Rates and durations from counters that only grow: the difference of two snapshots.

import { h, svg } from './dom.js';
import { rate } from './format.js';

const KEPT = 120;

/** Adds a snapshot with its time `at`. A counter that shrinks means that the server started again. */
export function keep(seen, snapshot) {
  seen.push({ at: Date.parse(snapshot.at), snapshot });
  if (seen.length > KEPT) seen.shift();
}

/** The change over the last milliseconds. */
export function change(seen, ms) {
  const last = seen.at(-1);
  const first = seen.find((one) => one.at >= last.at - ms) ?? last;
  const seconds = (last.at - first.at) / 1000;
  const more = (name) => Math.max(0, last.snapshot[name] - first.snapshot[name]);
  return { first: first.snapshot, last: last.snapshot, more, perSecond: (name) => (seconds > 0 ? more(name) / seconds : null) };
}

/** Upper bounds of the median and of 99% of the durations in a change. Empty if there were none. */
export function quantiles({ first, last }, name) {
  const total = last[name].count - first[name].count;
  if (total <= 0) return {};
  const at = (share) => last[name].buckets.find((bucket, n) => bucket.count - (first[name].buckets[n]?.count ?? 0) >= total * share)?.maxMs;
  return { p50: at(0.5), p99: at(0.99) };
}

export function card(name, value, note, picture, kind) {
  return h('div.card', { class: kind }, h('h2', null, name), h('p.value', null, value), h('p.muted', null, note), picture);
}

/** The rate of a counter over time. */
export function line(seen, name) {
  const rates = seen.slice(1).map((one, at) => {
    const before = seen[at];
    return (Math.max(0, one.snapshot[name] - before.snapshot[name]) * 1000) / Math.max(1, one.at - before.at);
  });
  const top = Math.max(1, ...rates);
  const x = (at) => (160 * (KEPT - rates.length + at)) / (KEPT - 1);
  const points = rates.map((one, at) => `${x(at).toFixed(1)},${(31 - (28 * one) / top).toFixed(1)}`).join(' ');
  return svg('svg', { viewBox: '0 0 160 32', class: 'spark', role: 'img', 'aria-label': `Rate over time, at most ${rate(top)} per second`, preserveAspectRatio: 'none' },
    svg('polyline', { points, fill: 'none' }));
}
