// Webhook endpoints: health, deliveries, secrets and recovery. And the page of a receiver, who sees one endpoint.

import { h, link, replace } from './dom.js';
import * as api from './api.js';
import { act, secret, toast } from './dialog.js';
import { ago, count, cut, duration, plural, until, visible } from './format.js';
import { json, write } from './data.js';
import { button, chip, command, empty, facts, filters, hash, heading, laneLink, panel, since, table, tabs, time } from './table.js';

const SHOWN_MAX = 200;

export function page(place, route) {
  const pages = { webhooks: list, webhook: one, receiver };
  return pages[route.name](place, route);
}

async function list(place, { signal }) {
  const ns = api.namespace;
  const body = h('div');
  replace(place, heading('Webhook endpoints', ns !== '*' && button('New endpoint…', { role: 'developer', ns, kind: 'primary', onclick: () => create(ns) })), body);
  const draw = async () => {
    const { items, more } = await api.listAll('webhooks/endpoints', { ns, signal });
    replace(body, items.length ? table('Webhook endpoints', [
      { name: 'Name', cell: ({ metadata }) => link(hash(['webhook', metadata.namespace, metadata.name]), ns === '*' ? `${metadata.namespace}/${metadata.name}` : metadata.name) },
      { name: 'State', cell: ({ status }) => chip(status.phase) },
      { name: 'Address', cell: ({ spec }) => h('span.mono', null, cut(spec.url, 60)) },
      { name: 'Pending', class: 'num', cell: ({ status }) => count(status.waiting) },
      { name: 'Parked', class: 'num', cell: ({ status }) => count(status.parked) },
      { name: 'Dead letters', class: 'num', cell: ({ status }) => count(status.deadLetters) },
      { name: 'Last success', class: 'num', cell: ({ status }) => ago(status.lastSuccessAt) },
      { name: 'Breaker', cell: ({ status }) => breaker(status.breaker) },
    ], items, ({ metadata }) => metadata.name)
      : empty('No webhook endpoints.', 'An endpoint calls another system, signed and in order per workflow.', command('klambda webhook create partner --url https://partner.example/hooks --types "order.*"')),
    more && h('p.notice', null, 'Only the first 1,000 are listed.'));
  };
  await draw();
  api.repeat(2000, signal, () => draw().catch(() => {}));
}

export const breaker = ({ state, nextProbe }) => [chip(state, { closed: 'good', open: 'bad' }[state] ?? 'warn'), nextProbe && ` next call ${until(nextProbe)}`];

function create(ns) {
  return act({
    title: 'New webhook endpoint',
    verb: 'Create',
    fields: [
      { name: 'name', label: 'Name', required: true },
      { name: 'url', label: 'Address', required: true, placeholder: 'https://partner.example/hooks' },
      { name: 'types', label: 'Event types, separated by commas', value: '*', required: true },
      { name: 'workflowKey', label: 'Workflow key', value: 'partitionkey', hint: 'An attribute, or a JSON pointer such as /order/id.' },
    ],
    run: async ({ name, url, types, workflowKey }) => {
      const made = await api.post('webhooks/endpoints', { name, url, types: types.split(',').map((type) => type.trim()).filter(Boolean), workflowKey }, { ns });
      location.hash = hash(['webhook', ns, name]);
      if (made.secret ?? made.publicKey) setTimeout(() => reveal(made), 0);
      return `Endpoint ${name} created.`;
    },
  });
}

function reveal(made) {
  secret(made.secret ? 'Signing secret' : 'Public key', 'Give it to the receiver, who checks signatures with it. It is shown only now.', made.secret ?? made.publicKey);
}

// ---- one endpoint ---------------------------------------------------------------------------------------------

const VIEWS = [['', 'State'], ['deliveries', 'Deliveries'], ['document', 'Document']];

async function one(place, { parts: [ns, name, view = ''], query, signal }) {
  const context = { ns, name, address: `webhooks/endpoints/${api.path(name)}`, may: (role) => api.can(role, ns) };
  const title = heading(`Endpoint ${name}`);
  const body = h('div');
  replace(place, title, tabs('Views', VIEWS, view, (to) => hash(['webhook', ns, name, ...(to ? [to] : [])])), body);
  const draw = async () => {
    const item = await api.get(context.address, { ns, signal });
    replace(title.querySelector('.actions'), actions(context, item, draw));
    if (view === '') replace(body, state(item, ns));
    if (view === 'document' && !body.firstChild) replace(body, panel('Document', json({ metadata: item.metadata, spec: item.spec })));
  };
  await draw();
  if (view === 'deliveries') await deliveries(context, body, query, signal, hash(['webhook', ns, name, 'deliveries']));
  api.repeat(2000, signal, () => draw().catch(() => {}));
}

function state({ metadata, spec, status }, ns) {
  const { statistics } = status;
  return [
    panel('', h('p', null, chip(status.phase), ' ', status.disabled ? ['since ', since(status.disabled.since), `, because: ${visible(status.disabled.reason)}`] : status.failingSince ? ['failing for ', since(status.failingSince)] : ''), facts([
      ['Address', h('span.mono', null, visible(spec.url))], ['Types', (spec.types ?? []).map(visible).join(', ')],
      ['Pending', count(status.waiting)], ['In flight', count(status.inFlight)], ['Parked workflows', count(status.parked)],
      ['Dead letters', link(hash(['letters'], { subscription: `webhook.${metadata.name}`, in: ns }), count(status.deadLetters))],
      ['Delivered', count(status.delivered)], ['Last success', ago(status.lastSuccessAt)], ['Breaker', breaker(status.breaker)],
      ['Oldest pending', status.oldest && since(status.oldest)],
    ])),
    status.messages.length > 0 && panel('Messages', h('ul', null, status.messages.map((message) => h('li', null, visible(message))))),
    statistics && panel('Latest calls', facts([
      ['Calls', count(statistics.calls)], ['Failed', count(statistics.failed)], ['Success rate', statistics.successRate == null ? null : `${(100 * statistics.successRate).toFixed(1)}%`],
      ['Median', statistics.durationP50Ms == null ? null : duration(statistics.durationP50Ms)], ['99%', statistics.durationP99Ms == null ? null : duration(statistics.durationP99Ms)],
      ['Last failure', statistics.lastFailureAt && ago(statistics.lastFailureAt)], ['Failing workflows', count(statistics.failingWorkflows)],
    ])),
  ];
}

function actions(context, { status, spec }, draw) {
  const { ns, address, name } = context;
  const steer = (verb, text) => act({
    title: `${verb[0].toUpperCase()}${verb.slice(1)} endpoint ${name}?`,
    text,
    verb: verb[0].toUpperCase() + verb.slice(1),
    run: async () => {
      await api.post(`${address}/${verb}`, undefined, { ns });
      await draw();
      return `Done: ${verb}.`;
    },
  });
  const isDisabled = !!status.disabled;
  return [
    isDisabled && button('Enable', { role: 'operator', ns, kind: 'primary', k: 'enable', onclick: () => steer('enable', 'Every workflow continues where it stopped.') }),
    button('Test…', { role: 'operator', ns, k: 'test', onclick: () => test(context) }),
    button('Recover…', { role: 'operator', ns, k: 'recover', onclick: () => recover(context) }),
    spec.paused ? button('Resume', { role: 'operator', ns, k: 'resume', onclick: () => steer('resume', 'Deliveries continue in order.') })
      : button('Pause', { role: 'operator', ns, k: 'pause', onclick: () => steer('pause', 'Events keep their numbers and wait.') }),
    !isDisabled && button('Disable', { role: 'operator', ns, kind: 'danger', k: 'disable', onclick: () => steer('disable', 'Nothing is sent until it is enabled. Events keep their numbers and wait.') }),
    button('Rotate secret…', { role: 'developer', ns, k: 'rotate', onclick: () => rotate(context) }),
    api.me.requiresToken && button('Link for the receiver…', { role: 'developer', ns, k: 'link', onclick: () => receiverLink(context) }),
    button('Delete…', { role: 'developer', ns, kind: 'danger', k: 'delete', onclick: () => remove(context) }),
  ];
}

function test({ ns, address, name }) {
  return act({
    title: `Send a test event to ${name}?`,
    text: 'Calls the endpoint once with a signed event of type webhook.test. It has no number and is not in the feed.',
    verb: 'Send',
    run: async () => {
      const result = await api.post(`${address}/test`, undefined, { ns });
      if (!result.succeeded) throw new Error(`The call failed after ${result.durationMs} ms: ${result.error ?? `HTTP ${result.status} ${cut(result.body ?? '', 200)}`}`);
      return `The endpoint answered ${result.status} after ${result.durationMs} ms.`;
    },
  });
}

function recover({ ns, address, isReceiver }) {
  return act({
    title: 'Send failed events again?',
    text: 'Sends everything again that failed or was skipped since a time, in the order of each workflow.',
    verb: 'Recover',
    fields: [
      { name: 'since', label: 'Since', required: true, value: new Date(Date.now() - 864e5).toISOString().slice(0, 19) + 'Z' },
      { name: 'dryRun', label: 'Only count (dry run)', type: 'checkbox', value: false },
    ],
    run: async ({ since: from, dryRun }) => {
      const job = await api.post(`${address}/recover`, { since: from, dryRun }, { ns });
      if (dryRun) return { stay: `Dry run: ${plural(job.selected, 'event')} of ${plural(job.keys, 'workflow')} would be sent again.` };
      if (!isReceiver) location.hash = hash(['replay', ns, job.id]);
      return `Recovery ${job.id} started.`;
    },
  });
}

function rotate({ ns, address, name }) {
  return act({
    title: `Rotate the signing secret of ${name}?`,
    text: 'Creates a new key. The old one signs too until the end of the overlap, so that the receiver has time to change.',
    verb: 'Rotate',
    fields: [{ name: 'overlap', label: 'Overlap', value: '24h', required: true }],
    run: async ({ overlap }) => {
      const made = await api.post(`${address}/rotate`, undefined, { ns, query: { overlap } });
      setTimeout(() => reveal(made), 0);
    },
  });
}

function receiverLink({ ns, address, name }) {
  return act({
    title: `Link for the receiver of ${name}`,
    text: 'Until the link expires, anyone who has it can see the deliveries of this endpoint, send its events again and rotate its secret.',
    verb: 'Create link',
    fields: [{ name: 'expires', label: 'Valid for', value: '1h', required: true }],
    run: async ({ expires }) => {
      const made = await api.post(`${address}/link`, undefined, { ns, query: { expires } });
      setTimeout(() => secret('Link for the receiver', `Valid until ${made.expiresAt}. It is shown only now.`, location.origin + made.page), 0);
    },
  });
}

function remove({ ns, address, name }) {
  return act({
    title: `Delete endpoint ${name}?`,
    text: 'Deletes the endpoint with its signing secret and its tokens. Dead letters stay.',
    verb: 'Delete',
    danger: true,
    fields: [{ name: 'how', label: 'Pending events', type: 'select', options: ['refuse if there are any', 'deliver them first', 'drop them'] }],
    run: async ({ how }) => {
      const query = { drain: how.startsWith('deliver') || undefined, discard: how.startsWith('drop') || undefined };
      await api.del(address, { ns, query });
      location.hash = '#/webhooks';
      return `Endpoint ${name} deleted.`;
    },
  });
}

// ---- deliveries -----------------------------------------------------------------------------------------------

async function deliveries(context, place, query, signal, base) {
  const { ns, address, isReceiver } = context;
  const asked = { status: query.status, workflowId: query.workflowId, eventId: query.eventId };
  const items = [];
  const body = h('div');
  replace(place, filters([
    { name: 'status', label: 'Outcome', options: [['', 'any'], ['ok', 'delivered'], ['failed', 'failed']] },
    { name: 'workflowId', label: 'Workflow' },
    { name: 'eventId', label: 'Event' },
  ], query, (given) => {
    const search = new URLSearchParams(given).toString();
    location.hash = search ? `${base}?${search}` : base;
  }), body);
  const may = isReceiver ? api.me.role === 'endpoint-admin' : api.can('operator', ns);
  const draw = () => replace(body, items.length ? table('Deliveries', [
    { name: 'Time', cell: (one) => time(one.time) },
    { name: 'Outcome', cell: (one) => [chip(one.outcome), one.resend && ' resend'] },
    { name: 'Event', cell: (one) => h('span.mono', null, visible(one.eventId ?? '(removed)')) },
    { name: 'Type', cell: (one) => visible(one.type ?? '') },
    { name: 'Workflow', cell: (one) => (one.workflowId == null ? '' : isReceiver ? h('span.mono', null, visible(one.workflowId)) : laneLink(ns, `webhook.${context.name}`, one.workflowId)) },
    { name: 'Number', class: 'num', cell: (one) => one.sequenceNumber ?? '' },
    { name: 'Attempt', class: 'num', cell: (one) => one.attempt },
    { name: 'Status', class: 'num', cell: (one) => one.status ?? '' },
    { name: 'Took', class: 'num', cell: (one) => duration(one.durationMs) },
    { name: 'Answer', class: 'wide', cell: (one) => cut(one.answer ?? one.error ?? '', 120) },
    may && { name: 'Action', class: 'act', cell: (one) => one.eventId && h('button.small', { type: 'button', 'data-k': `${one.time}${one.eventId}${one.attempt}`, onclick: () => resend(context, one) }, 'Send again…') },
  ].filter(Boolean), items) : empty('No deliveries.', 'Every call of the endpoint appears here.'));
  let [cursor] = [undefined];
  do {
    const page = await api.get(`${address}/deliveries`, { ns, signal, query: { ...asked, limit: SHOWN_MAX, cursor } });
    items.push(...page.items);
    cursor = page.next;
  } while (cursor && items.length < SHOWN_MAX);
  draw();
  api.follow(api.address(`${address}/deliveries`, { ns, query: asked }), signal, (one) => {
    items.unshift(one);
    items.length = Math.min(items.length, SHOWN_MAX);
    requestAnimationFrame(draw);
  });
}

function resend({ ns, address }, one) {
  return act({
    title: `Send event ${cut(one.eventId, 40)} again?`,
    text: 'Sends the same body with a new signature, beside its workflow. The numbers and the order do not change.',
    verb: 'Send again',
    run: async () => {
      const result = await api.post(`${address}/resend`, { eventId: one.eventId }, { ns });
      if (result.replay) return `It is a dead letter: replay ${result.replay} sends it in its place.`;
      if (!result.succeeded) throw new Error(`The call failed: ${result.error ?? `HTTP ${result.status}`}`);
      return `The endpoint answered ${result.status}.`;
    },
  });
}

// ---- the page of a receiver -----------------------------------------------------------------------------------

async function receiver(place, { signal }) {
  const { endpoint: name, namespaces: [ns], role } = api.me;
  const context = { ns, name, address: `webhooks/endpoints/${api.path(name)}`, isReceiver: true };
  const isAdmin = role === 'endpoint-admin';
  const body = h('div');
  const admin = (text, onclick) => isAdmin && h('button', { type: 'button', onclick }, text);
  replace(place,
    heading(`Webhook endpoint ${name}`, admin('Recover…', () => recover(context)), admin('Rotate secret…', () => rotate(context)), admin('Acknowledge…', () => acknowledge(context))),
    h('p.muted', null, 'Every call of your endpoint, newest first.'), body);
  await deliveries(context, body, Object.fromEntries(new URLSearchParams(location.hash.split('?')[1] ?? '')), signal, '#/deliveries');
}

function acknowledge({ ns }) {
  return act({
    title: 'Acknowledge events?',
    text: 'You have every event up to one, for example from the feed, and need no more calls for them.',
    verb: 'Acknowledge',
    fields: [
      { name: 'through', label: 'Up to event id', required: true },
      { name: 'workflowId', label: 'Only of this workflow' },
    ],
    run: async ({ through, workflowId }) => {
      const done = await api.post('webhooks/ack', { through, ...(workflowId ? { workflowId } : {}) }, { ns });
      toast(write(done));
      return `${plural(done.events, 'pending event')} acknowledged.`;
    },
  });
}
