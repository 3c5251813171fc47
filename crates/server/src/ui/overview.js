// What needs a person now, and how the server does. All of it comes from one stream.

import { h, link, replace, svg } from './dom.js';
import * as api from './api.js';
import { bytes, count, duration, plural, rate, short, visible } from './format.js';
import { act } from './dialog.js';
import { card, change, keep, line, quantiles } from './rates.js';
import { button, chip, hash, heading, panel, since } from './table.js';

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
    keep(seen, snapshot);
    const key = JSON.stringify(snapshot.attention.map(({ message, name, kind }) => [kind, name, message]));
    if (key !== attentionKey) replace(attention, needs(snapshot));
    attentionKey = key;
    replace(numbers, cards(seen));
    replace(more, lanes(snapshot), functions(snapshot), endpoints(snapshot), store(snapshot));
  }, (problem) => replace(notice, problem && h('div.notice.bad', { role: 'alert' }, `${problem.message} Trying again…`)));
}

// ---- what needs a person --------------------------------------------------------------------------------------

const subscription = ({ namespace, name }) => hash(['subscription', namespace, name]);
const endpoint = ({ namespace, name }) => hash(['webhook', namespace, name]);

// [chip, link, its target, the action]
const KINDS_OF_NEED = {
  storeFailed: ['store failed', 'See server', () => '#/server'],
  storeFull: ['disk full', 'See server', () => '#/server'],
  lanesParked: ['lanes parked', 'See lanes', ({ namespace, name }) => hash(['lanes'], { state: 'parked', subscription: name, in: namespace }), replay],
  breakerOpen: ['breaker open', 'See subscription', subscription],
  behind: ['behind', 'See subscription', subscription],
  endpointDisabled: ['endpoint disabled', 'See endpoint', endpoint, enable],
  endpointFailing: ['endpoint failing', 'See endpoint', endpoint],
  functionFailed: ['function failed', 'See build log', ({ namespace, name }) => hash(['function', namespace, name, 'build']), rebuild],
  deadLetters: ['dead letters', 'See dead letters', ({ namespace, name }) => hash(['letters'], { subscription: name, in: namespace }), replay],
};

/** Each action is one that the page of the thing has, too. */
function replay({ namespace: ns, name }, k) {
  const open = async () => (await import('./letters.js')).replayDialog(ns, { subscription: name }, `all dead letters of ${name}`);
  return button('Replay…', { role: 'operator', ns, kind: 'small', k, onclick: open });
}

function enable({ namespace: ns, name }, k) {
  return button('Enable…', { role: 'operator', ns, kind: 'small', k, onclick: () => act({
    title: `Enable endpoint ${name}?`,
    text: 'Every workflow continues where it stopped.',
    verb: 'Enable',
    run: async () => {
      await api.post(`webhooks/endpoints/${api.path(name)}/enable`, undefined, { ns });
      return `Endpoint ${name} is enabled.`;
    },
  }) });
}

function rebuild({ namespace: ns, name }, k) {
  return button('Rebuild…', { role: 'developer', ns, kind: 'small', k, onclick: () => act({
    title: `Rebuild ${name}?`,
    text: 'Fetches and builds it again, even if nothing changed.',
    verb: 'Rebuild',
    run: async () => (await api.post(`lambda/functions/${api.path(name)}/rebuild`, undefined, { ns })).message,
  }) });
}

function needs({ attention }) {
  if (!attention.length) {
    return h('div.allgood', null, h('span.tick', { 'aria-hidden': 'true' }, '✓'), h('p', null, h('strong', null, 'Nothing needs attention. '), 'No parked lanes, dead letters, open breakers or failures.'));
  }
  return [
    h('h2', null, 'Needs attention ', h('span.count', null, attention.length === 100 ? '100+' : count(attention.length))),
    h('ul', null, attention.map(need)),
  ];
}

function need(item) {
  const [word, verb, target, action] = KINDS_OF_NEED[item.kind] ?? [item.kind, 'See server', () => '#/server'];
  const where = item.name && `${item.namespace && api.namespace === '*' ? `${item.namespace}/` : ''}${item.name}`;
  const kind = ['deadLetters', 'behind'].includes(item.kind) ? 'warn' : 'bad';
  const k = `${item.kind}/${item.namespace}/${item.name}`;
  return h('li', null, chip(word, kind),
    h('span.what', null, where && h('b', null, where, ' '), visible(item.message)),
    h('span.muted.age', null, item.since && since(item.since)),
    h('span.do', null,
      action?.(item, `${k}/act`),
      link(target(item), verb, { class: 'button', 'aria-label': `${verb}: ${where ?? ''} ${item.message}`, 'data-k': k })));
}

// ---- numbers --------------------------------------------------------------------------------------------------

function cards(seen) {
  const { snapshot } = seen.at(-1);
  const now = change(seen, 5000);
  const quick = quantiles(change(seen, 60000), 'latency');
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
