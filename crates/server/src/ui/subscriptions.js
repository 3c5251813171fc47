// Subscriptions: state, document and actions.

import { h, link, replace } from './dom.js';
import * as api from './api.js';
import { act, failed } from './dialog.js';
import { bytes, count, cut, plural, visible } from './format.js';
import { json, write } from './data.js';
import { button, chip, command, empty, facts, hash, heading, panel, since, table } from './table.js';
import { breaker } from './webhooks.js';

const OWNERS = [/^lambda\.([^.]+)\.(.+)$/, /^webhook\.(.+)$/];

export function page(place, route) {
  return route.name === 'subscriptions' ? list(place, route) : one(place, route);
}

const isManaged = (name) => OWNERS.some((owner) => owner.test(name));

async function list(place, { signal }) {
  const ns = api.namespace;
  const body = h('div');
  replace(place, heading('Subscriptions', ns !== '*' && button('New subscription…', { role: 'developer', ns, kind: 'primary', onclick: () => edit(ns, null) })), body);
  const draw = async () => {
    const { items, more } = await api.listAll('subscriptions', { ns, signal });
    replace(body, items.length ? table('Subscriptions', [
      { name: 'Name', cell: ({ metadata }) => link(hash(['subscription', metadata.namespace, metadata.name]), ns === '*' ? `${metadata.namespace}/${metadata.name}` : metadata.name) },
      { name: 'Phase', cell: ({ status }) => chip(status.phase) },
      { name: 'Ordering', cell: ({ spec }) => spec.ordering },
      { name: 'Target', cell: ({ spec }) => h('span.mono', null, cut(target(spec), 50)) },
      { name: 'Pending', class: 'num', cell: ({ status }) => count(status.waiting) },
      { name: 'Oldest', class: 'num', cell: ({ status }) => since(status.oldest) },
      { name: 'Parked', class: 'num', cell: ({ status }) => count(status.parked) },
      { name: 'Dead letters', class: 'num', cell: ({ status }) => count(status.deadLetters) },
      { name: 'Delivered', class: 'num', cell: ({ status }) => count(status.delivered) },
      { name: 'Breaker', cell: ({ status }) => breaker(status.breaker) },
    ], items, ({ metadata }) => metadata.name)
      : empty('No subscriptions.', 'A subscription selects events by their type and delivers them to a target.', command('klambda apply -f examples/orders.yaml')),
    more && h('p.notice', null, 'Only the first 1,000 are listed.'));
  };
  await draw();
  api.repeat(2000, signal, () => draw().catch(() => {}));
}

function target(spec) {
  const { url, function: name, endpoint } = spec.target ?? {};
  return visible(url ?? (name ? `function ${name.name ?? name}` : endpoint ? 'webhook endpoint' : JSON.stringify(spec.target ?? '')));
}

async function one(place, { parts: [ns, name], signal }) {
  const title = heading(`Subscription ${name}`);
  const state = h('div');
  const document = h('div');
  replace(place, title, state, document);
  const draw = async () => {
    const item = await api.get(`subscriptions/${api.path(name)}`, { ns, signal });
    replace(title.querySelector('.actions'), actions(ns, item, draw));
    replace(state, about(item, ns));
    if (!document.firstChild) replace(document, panel('Document', json({ metadata: item.metadata, spec: item.spec })));
  };
  try {
    await draw();
  } catch (problem) {
    return failed(state, problem);
  }
  api.repeat(1500, signal, () => draw().catch(() => {}));
}

function about({ metadata, spec, status }, ns) {
  const lanes = Object.entries(status.lanes).filter(([, n]) => n > 0);
  const [, , owner] = OWNERS[0].exec(metadata.name) ?? [];
  const [, endpoint] = OWNERS[1].exec(metadata.name) ?? [];
  return [
    panel('', h('p', null, chip(status.phase), ' ', spec.ordering, ', ', h('span.mono', null, target(spec))), facts([
      ['Owner', owner ? link(hash(['function', ns, owner]), `function ${owner}`) : endpoint ? link(hash(['webhook', ns, endpoint]), `endpoint ${endpoint}`) : null],
      ['Pending', `${count(status.waiting)} (${bytes(status.waitingBytes)})`], ['Not read yet', status.unread && plural(status.unread.events, 'event')],
      ['In flight', count(status.inFlight)], ['Oldest pending', status.oldest && since(status.oldest)],
      ['Dead letters', link(hash(['letters'], { subscription: metadata.name, in: ns }), count(status.deadLetters))],
      ['Delivered', count(status.delivered)], ['Breaker', breaker(status.breaker)],
    ])),
    lanes.length > 0 && panel('Lanes', h('ul.legend', null, lanes.map(([state, n]) => h('li', null, link(hash(['lanes'], { subscription: metadata.name, state, in: ns }), [chip(state), ' ', count(n)]))))),
    status.messages.length > 0 && panel('Messages', h('ul', null, status.messages.map((message) => h('li', null, visible(message))))),
  ];
}

function actions(ns, item, draw) {
  const { metadata: { name }, spec } = item;
  const verb = spec.paused ? 'resume' : 'pause';
  const steer = () => act({
    title: `${spec.paused ? 'Resume' : 'Pause'} subscription ${name}?`,
    text: spec.paused ? 'Deliveries continue.' : 'No new delivery starts. Events keep their order and wait.',
    verb: spec.paused ? 'Resume' : 'Pause',
    run: async () => {
      await api.post(`subscriptions/${api.path(name)}/${verb}`, undefined, { ns });
      await draw();
      return spec.paused ? 'Resumed.' : 'Paused.';
    },
  });
  return [
    button(spec.paused ? 'Resume' : 'Pause', { role: 'operator', ns, k: 'pause', kind: spec.paused ? 'primary' : '', onclick: steer }),
    !isManaged(name) && button('Edit…', { role: 'developer', ns, k: 'edit', onclick: () => edit(ns, item) }),
    !isManaged(name) && button('Delete…', { role: 'developer', ns, kind: 'danger', k: 'delete', onclick: () => remove(ns, name) }),
  ];
}

const EXAMPLE = {
  filters: [{ prefix: { type: 'order.' } }],
  target: { url: 'http://127.0.0.1:9000/' },
  ordering: 'ordered',
  orderingPolicy: { key: { attribute: 'partitionkey' } },
};

function edit(ns, item) {
  const fixed = item?.metadata.name;
  return act({
    title: fixed ? `Edit subscription ${fixed}` : 'New subscription',
    text: 'The server checks the whole document before it changes anything.',
    verb: fixed ? 'Apply' : 'Create',
    wide: true,
    fields: [
      ...(fixed ? [] : [{ name: 'name', label: 'Name', required: true, value: 'orders' }]),
      { name: 'spec', label: 'Spec (JSON)', type: 'textarea', rows: 16, value: write(item?.spec ?? EXAMPLE), required: true },
    ],
    run: async ({ name = fixed, spec }) => {
      const document = `{"apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": ${JSON.stringify(name)}}, "spec": ${spec}}`;
      const headers = fixed ? {} : { 'if-none-match': '*' };
      await api.put(`subscriptions/${api.path(name)}`, document, { ns, headers });
      if (fixed) dispatchEvent(new HashChangeEvent('hashchange'));
      else location.hash = hash(['subscription', ns, name]);
      return fixed ? 'Applied.' : `Subscription ${name} created.`;
    },
  });
}

function remove(ns, name) {
  return act({
    title: `Delete subscription ${name}?`,
    text: 'Events that come later are not delivered to its target.',
    verb: 'Delete',
    danger: true,
    fields: [{ name: 'how', label: 'Pending events', type: 'select', options: ['refuse if there are any', 'deliver them first', 'drop them and the dead letters'] }],
    run: async ({ how }) => {
      await api.del(`subscriptions/${api.path(name)}`, { ns, query: { drain: how.startsWith('deliver') || undefined, discard: how.startsWith('drop') || undefined } });
      location.hash = '#/subscriptions';
      return `Subscription ${name} deleted.`;
    },
  });
}
