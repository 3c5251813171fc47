// What needs a person now, and how the server does. All of it comes from one stream.

import { h, link, replace, svg } from './dom.js';
import * as api from './api.js';
import { bytes, count, duration, plural, rate, short } from './format.js';
import { chip, hash, heading, panel, since } from './table.js';

const KEPT = 120;
const STATES = ['running', 'open', 'retrying', 'gap', 'parked', 'paused'];
const PHASES = ['Ready', 'Deploying', 'Building', 'Pending', 'Failed', 'Deleting'];

export async function page(place, { signal }) {
  const ns = api.namespace;
  const notice = h('div');
  const attention = h('section.attention', { 'aria-live': 'polite', 'aria-label': 'Needs attention' });
  const numbers = h('div.cards');
  const more = h('div.halves');
  replace(place, heading('Overview'), notice, attention, numbers, more);
  const seen = [];
  let attentionKey = '';
  api.follow(api.address('overview', { ns }), signal, (snapshot) => {
    if (signal.aborted) return;
    seen.push({ at: Date.parse(snapshot.at), snapshot });
    if (seen.length > KEPT) seen.shift();
    const key = JSON.stringify(snapshot.attention.map(({ message, name, kind }) => [kind, name, message]));
    if (key !== attentionKey) replace(attention, needs(snapshot));
    attentionKey = key;
    replace(numbers, cards(seen));
    replace(more, lanes(snapshot), functions(snapshot), endpoints(snapshot), store(snapshot));
  }, (problem) => replace(notice, problem && h('div.notice.bad', { role: 'alert' }, `${problem.message} Trying again…`)));
}

// ---- what needs a person --------------------------------------------------------------------------------------

const ACTIONS = {
  lanesParked: ['See lanes', ({ namespace, name }) => hash(['lanes'], { state: 'parked', subscription: name, in: namespace })],
  deadLetters: ['See dead letters', ({ namespace, name }) => hash(['letters'], { subscription: name, in: namespace })],
  breakerOpen: ['See subscription', ({ namespace, name }) => hash(['subscription', namespace, name])],
  behind: ['See subscription', ({ namespace, name }) => hash(['subscription', namespace, name])],
  endpointDisabled: ['See endpoint', ({ namespace, name }) => hash(['webhook', namespace, name])],
  endpointFailing: ['See endpoint', ({ namespace, name }) => hash(['webhook', namespace, name])],
  functionFailed: ['See function', ({ namespace, name }) => hash(['function', namespace, name])],
  storeFull: ['See server', () => '#/server'],
  storeFailed: ['See server', () => '#/server'],
};
const WORDS = {
  lanesParked: 'parked', deadLetters: 'dead letters', breakerOpen: 'breaker open', behind: 'behind', endpointDisabled: 'disabled',
  endpointFailing: 'failing', functionFailed: 'failed', storeFull: 'disk full', storeFailed: 'store failed',
};

function needs({ attention }) {
  if (!attention.length) {
    return h('div.allgood', null, h('span.tick', { 'aria-hidden': 'true' }, '✓'), h('p', null, h('strong', null, 'Nothing needs attention. '), 'No parked lanes, dead letters, open breakers or failures.'));
  }
  return [
    h('h2', null, 'Needs attention ', h('span.count', null, attention.length === 100 ? '100+' : count(attention.length))),
    h('ul', null, attention.map((item) => {
      const [verb, target] = ACTIONS[item.kind] ?? ['See', () => '#/overview'];
      const where = item.name && `${item.namespace && api.namespace === '*' ? `${item.namespace}/` : ''}${item.name}`;
      const kind = ['deadLetters', 'behind'].includes(item.kind) ? 'warn' : 'bad';
      return h('li', null, chip(WORDS[item.kind] ?? item.kind, kind), h('span.what', null, where && h('b', null, where, ' '), item.message), h('span.muted.age', null, item.since && since(item.since)),
        link(target(item), verb, { class: 'button', 'aria-label': `${verb}: ${where ?? ''} ${item.message}`, 'data-k': `${item.kind}/${item.namespace}/${item.name}` }));
    })),
  ];
}

// ---- numbers --------------------------------------------------------------------------------------------------

function cards(seen) {
  const { snapshot } = seen.at(-1);
  const now = window(seen, 5000);
  const quick = latency(window(seen, 60000));
  const alive = STATES.reduce((sum, state) => sum + snapshot.lanes[state], 0);
  return [
    card('Events in', rate(now.perSecond('accepted')), 'per second', line(seen, 'accepted')),
    card('Events out', rate(now.perSecond('delivered')), 'per second', line(seen, 'delivered')),
    card('Latency', quick.p50 == null ? '–' : `≤ ${duration(quick.p50)}`, quick.p50 == null ? 'no delivery in the last minute' : `median; 99% ≤ ${duration(quick.p99)}`),
    card('Pending', short(snapshot.waiting), `${bytes(snapshot.waitingBytes)}, ${count(snapshot.inFlight)} in flight`),
    card('Oldest pending', snapshot.oldest ? since(snapshot.oldest) : '–', snapshot.oldest ? 'since it was accepted' : 'nothing waits'),
    card('Dead letters', short(snapshot.deadLetters), link(hash(['letters']), 'see them'), null, snapshot.deadLetters ? 'warn' : ''),
    card('Busy lanes', short(alive), `${count(snapshot.lanes.parked)} parked`, null, snapshot.lanes.parked ? 'bad' : ''),
  ];
}

function card(name, value, note, picture, kind) {
  return h('div.card', { class: kind }, h('h3', null, name), h('p.value', null, value), h('p.muted', null, note), picture);
}

/** The change over the last milliseconds. */
function window(seen, ms) {
  const last = seen.at(-1);
  const first = seen.find((one) => one.at >= last.at - ms) ?? last;
  const seconds = (last.at - first.at) / 1000;
  return {
    first: first.snapshot,
    last: last.snapshot,
    perSecond: (name) => (seconds > 0 ? Math.max(0, last.snapshot[name] - first.snapshot[name]) / seconds : null),
  };
}

function latency({ first, last }) {
  const isRecent = last.latency.count > first.latency.count;
  const base = isRecent ? first.latency : { count: 0, buckets: [] };
  const total = last.latency.count - base.count;
  const at = (share) => last.latency.buckets.find((bucket, n) => bucket.count - (base.buckets[n]?.count ?? 0) >= total * share)?.maxMs;
  return total > 0 && isRecent ? { p50: at(0.5), p99: at(0.99) } : {};
}

function line(seen, name) {
  const rates = seen.slice(1).map((one, at) => {
    const before = seen[at];
    return (Math.max(0, one.snapshot[name] - before.snapshot[name]) * 1000) / Math.max(1, one.at - before.at);
  });
  const top = Math.max(1, ...rates);
  const x = (at) => (160 * (KEPT - rates.length + at)) / (KEPT - 1);
  const points = rates.map((one, at) => `${x(at).toFixed(1)},${(31 - (28 * one) / top).toFixed(1)}`).join(' ');
  return svg('svg', { viewBox: '0 0 160 32', class: 'spark', role: 'img', 'aria-label': `The last minute, at most ${rate(top)} per second`, preserveAspectRatio: 'none' },
    svg('polyline', { points, fill: 'none' }));
}

// ---- states ---------------------------------------------------------------------------------------------------

function bar(label, parts) {
  const total = parts.reduce((sum, [, n]) => sum + n, 0);
  let x = 0;
  const pieces = parts.filter(([, n]) => n > 0).map(([name, n, kind]) => {
    const width = Math.max(0.8, (100 * n) / total);
    const piece = svg('rect', { x, y: 0, width, height: 10, class: `piece ${kind}` }, svg('title', null, `${name}: ${count(n)}`));
    x += width;
    return piece;
  });
  return svg('svg', { viewBox: `0 0 ${Math.max(100, x)} 10`, class: 'bar', preserveAspectRatio: 'none', role: 'img', 'aria-label': label }, pieces);
}

const KINDS = { running: 'good', open: 'calm', retrying: 'warn', gap: 'warn', parked: 'bad', paused: 'muted', Ready: 'good', Failed: 'bad', Deploying: 'warn', Building: 'warn', Pending: 'calm', Deleting: 'muted' };

function legend(entries, target) {
  return h('ul.legend', null, entries.map(([name, n]) => h('li', null, h('span.dot', { class: KINDS[name] ?? 'calm', 'aria-hidden': 'true' }), target ? link(target(name), name, { 'data-k': `legend-${name}` }) : name, ' ', h('b', null, count(n)))));
}

function lanes({ lanes: by }) {
  const entries = STATES.map((state) => [state, by[state], KINDS[state]]);
  const total = entries.reduce((sum, [, n]) => sum + n, 0);
  return panel('Lanes by state', total ? bar('Lanes by state', entries) : h('p.muted', null, 'No lane has pending events.'), legend(entries, (state) => hash(['lanes'], { state })));
}

function functions({ functions: by }) {
  const entries = PHASES.filter((phase) => by[phase]).map((phase) => [phase, by[phase], KINDS[phase]]);
  if (!entries.length) return panel('Functions', h('p.muted', null, 'No functions. ', link('#/functions', 'How to create one')));
  return panel('Functions by phase', bar('Functions by phase', entries), legend(entries, () => '#/functions'));
}

function endpoints({ endpoints: by, subscriptions }) {
  const entries = [['ready', by.ready, 'good'], ['failing', by.failing, 'warn'], ['disabled', by.disabled, 'bad']];
  const total = entries.reduce((sum, [, n]) => sum + n, 0);
  return panel('Subscriptions and webhooks', h('p', null, link('#/subscriptions', plural(subscriptions, 'subscription')), ', ', link('#/webhooks', plural(total, 'webhook endpoint'))),
    total ? bar('Webhook endpoints by health', entries) : null,
    total ? h('ul.legend', null, entries.map(([name, n, kind]) => h('li', null, h('span.dot', { class: kind, 'aria-hidden': 'true' }), name, ' ', h('b', null, count(n))))) : null);
}

function store({ server }) {
  if (!server) return null;
  const { memory, disk } = server;
  const share = memory.usedBytes / memory.limitBytes;
  return panel('Store',
    h('p', null, `${bytes(server.logBytes)} of log, ${disk.freeBytes == null ? 'free space unknown' : `${bytes(disk.freeBytes)} free`}`),
    h('p', null, `${bytes(memory.usedBytes)} of ${bytes(memory.limitBytes)} memory`),
    bar('Memory in use', [['used', share, share > 0.9 ? 'bad' : 'good'], ['free', 1 - share, 'muted']]));
}
