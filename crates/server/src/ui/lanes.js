// The list of lanes, and the search for a key.

import { h, replace } from './dom.js';
import * as api from './api.js';
import { count, cut, humane, plural, rate, visible } from './format.js';
import { chip, command, empty, eventLink, filters, hash, heading, laneLink, pager, since, table, tabs } from './table.js';

const SORTS = [['', 'All'], ['depth', 'Deepest'], ['age', 'Oldest'], ['rate', 'Busiest']];
const STATES = ['open', 'running', 'retrying', 'gap', 'parked', 'paused'];
const SEARCHED_MAX = 50;

export function page(place, route) {
  return route.name === 'search' ? search(place, route) : list(place, route);
}

async function list(place, { query, signal }) {
  const ns = query.in ?? api.namespace;
  const { state = '', subscription = '', sort = '' } = query;
  const history = [];
  let cursor;
  let next = null;
  const body = h('div');
  const go = (given) => { location.hash = hash(['lanes'], { in: query.in, sort, ...given }); };
  const fields = [{ name: 'state', label: 'State', options: [['', 'any'], ...STATES.map((one) => [one, one])] }];
  if (ns !== '*') fields.push({ name: 'subscription', label: 'Subscription', placeholder: 'any' });
  replace(place,
    heading('Lanes'),
    tabs('Order', SORTS, sort, (one) => hash(['lanes'], { ...query, sort: one })),
    filters(fields, query, go),
    body);
  const draw = async () => {
    const page = await api.get('lanes', { ns, signal, query: { state, subscription, sort, cursor, limit: sort ? undefined : 50 } });
    next = page.next;
    replace(body, content(page, { state, subscription, sort }), pager(history, next, move));
  };
  const move = (where) => {
    if (where === 'on') history.push(cursor);
    cursor = where === 'on' ? next : history.pop();
    draw();
  };
  await draw();
  api.repeat(2000, signal, () => draw().catch(() => {}));
}

function content({ items, next, partial }, { state, subscription, sort }) {
  if (!items.length && next) return h('p.muted', null, 'No matching lane on this page. See the next one.');
  if (!items.length && (state || subscription)) return empty('No lane matches.', 'Remove the filter to see the others.');
  if (!items.length) {
    return empty('No lane has pending events.', 'A lane appears while events of its key wait or are delivered. Search for a key to see an idle lane.',
      command("klambda event send --type order.placed --key order-42 --data '{\"total\": 7}'"));
  }
  return [
    partial && h('p.notice', null, 'There are too many lanes to compare all of them. These are the top of those that were compared.'),
    sort && h('p.muted', null, `The first ${count(items.length)} by ${sort}.`),
    table('Lanes', columns(), items, (item) => `${item.namespace}/${item.subscription}/${item.key}`),
  ];
}

export function columns() {
  return [
    { name: 'Key', cell: (one) => laneLink(one.namespace, one.subscription, one.key) },
    { name: 'Subscription', cell: (one) => h('a', { href: hash(['subscription', one.namespace, one.subscription]) }, api.namespace === '*' ? `${one.namespace}/${one.subscription}` : one.subscription) },
    { name: 'State', cell: (one) => chip(one.state) },
    { name: 'Pending', class: 'num', cell: (one) => count(one.depth) },
    { name: 'Oldest', class: 'num', cell: (one) => since(one.oldest) },
    { name: 'Events/s', class: 'num', cell: (one) => rate(one.eventsPerSecond) },
    { name: 'Waits for', class: 'wide', cell: (one) => cut(humane(one.waitsFor), 120) },
  ];
}

/** A key can have a lane in each subscription. An id belongs to one event. */
async function search(place, { query, signal }) {
  const text = query.q ?? '';
  const found = h('div');
  replace(place, heading(`Search: ${cut(text, 60)}`), found);
  const ns = api.namespace === '*' ? '*' : api.namespace;
  const { items, more } = await api.listAll('subscriptions', { ns, most: SEARCHED_MAX, signal });
  const lanes = [];
  let at = 0;
  const worker = async () => {
    while (at < items.length) {
      const { namespace, name } = items[at++].metadata;
      const lane = await api.get('lanes', { ns: namespace, query: { subscription: name, key: text }, signal }).catch(() => null);
      if (lane?.state && (lane.depth > 0 || lane.laneSequence > 0 || lane.timeline?.length)) lanes.push(lane);
    }
  };
  const names = api.namespace === '*' ? [...new Set(items.map((item) => item.metadata.namespace))] : [api.namespace];
  const events = Promise.all(names.map((name) => api.get(`events/${api.path(text)}`, { ns: name, signal }).then((event) => ({ name, event }), () => null)));
  await Promise.all([worker(), worker(), worker(), worker()]);
  const hits = (await events).filter(Boolean);
  replace(found,
    h('h2', null, 'Lanes'),
    lanes.length ? table('Lanes', columns(), lanes) : h('p.muted', null, 'No subscription has a lane with this key.'),
    more && h('p.notice', null, `Only the first ${plural(SEARCHED_MAX, 'subscription')} were searched.`),
    h('h2', null, 'Events'),
    hits.length ? h('ul', null, hits.map(({ name, event }) => h('li', null, eventLink(name, event.event.id, event.event.source), ` ${visible(event.event.type)} from ${visible(event.event.source)}`)))
      : h('p.muted', null, 'No recent event has this id.'));
}
