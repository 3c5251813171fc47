// Functions and agents: phase, conditions, revisions, logs, invocation, code and manifest.

import { h, link, replace } from './dom.js';
import * as api from './api.js';
import { act, failed } from './dialog.js';
import { ago, count, cut, duration, rate, visible } from './format.js';
import { json, write } from './data.js';
import { card, change, keep, line, quantiles } from './rates.js';
import { button, chip, command, empty, facts, hash, heading, panel, table, tabs, time } from './table.js';

const LINES_MAX = 1000;
const KINDS = { function: 'functions', agent: 'agents' };

export function page(place, route) {
  return route.name === 'functions' ? list(place, route) : one(place, route);
}

const kindOf = (item) => (item.kind === 'LambdaAgent' ? 'agent' : 'function');

async function list(place, { signal }) {
  const ns = api.namespace;
  const body = h('div');
  replace(place, heading('Functions and agents', ns !== '*' && button('New function…', { role: 'developer', ns, kind: 'primary', onclick: () => create(ns) })), body);
  const draw = async () => {
    const [functions, agents] = await Promise.all(['functions', 'agents'].map((kind) => api.listAll(`lambda/${kind}`, { ns, signal })));
    const items = [...functions.items, ...agents.items];
    replace(body,
      items.length ? table('Functions and agents', [
        { name: 'Name', cell: (item) => link(hash([kindOf(item), item.metadata.namespace, item.metadata.name]), ns === '*' ? `${item.metadata.namespace}/${item.metadata.name}` : item.metadata.name) },
        { name: 'Kind', cell: kindOf },
        { name: 'Phase', cell: (item) => chip(item.status?.phase ?? 'Pending') },
        { name: 'Language', cell: (item) => item.spec.runtime?.language ?? item.spec.source?.type ?? '' },
        { name: 'Replicas', class: 'num', cell: (item) => count(item.status?.serviceStatus?.replicas ?? 0) },
        { name: 'Revision', class: 'num', cell: (item) => item.status?.revisions?.at(-1)?.number ?? '' },
        { name: 'Condition', class: 'wide', cell: (item) => cut(problemOf(item) ?? 'everything is ready', 140) },
      ], items, (item) => item.metadata.name)
        : empty('No functions.', 'A function handles events in its own process. Create one from a folder:', command('klambda init hello && klambda apply -f hello/function.yaml')),
      (functions.more || agents.more) && h('p.notice', null, 'Only the first 1,000 are listed.'));
  };
  await draw();
  api.repeat(2000, signal, () => draw().catch(() => {}));
}

/** Functions have no agent, and say so in a condition. */
const judged = (item) => (item.status?.conditions ?? []).filter((condition) => condition.reason !== 'NotConfigured');
const problemOf = (item) => (judged(item).find((condition) => condition.status === 'False') ?? judged(item).find((condition) => condition.status === 'Unknown'))?.message;

const EXAMPLE = `{
  "metadata": {"name": "hello"},
  "spec": {
    "source": {"type": "inline", "inline": {"code": "exports.handler = async (event) => ({ hello: event.data });"}},
    "runtime": {"language": "nodejs"}
  }
}`;

function create(ns) {
  return act({
    title: 'New function',
    text: 'The server builds and starts it in the background.',
    verb: 'Create',
    wide: true,
    fields: [{ name: 'document', label: 'Document (JSON)', type: 'textarea', rows: 12, value: EXAMPLE, required: true }],
    run: async ({ document }) => {
      const made = await api.post('lambda/functions', document, { ns });
      location.hash = hash(['function', ns, made.name]);
      return made.message;
    },
  });
}

// ---- one function ---------------------------------------------------------------------------------------------

const VIEWS = [['', 'State'], ['revisions', 'Revisions'], ['logs', 'Logs'], ['build', 'Build log'], ['manifest', 'Code and manifest']];

async function one(place, { name: kind, parts: [ns, name, view = ''], signal }) {
  const address = `lambda/${KINDS[kind]}/${api.path(name)}`;
  const title = heading(`${kind === 'agent' ? 'Agent' : 'Function'} ${name}`);
  const body = h('div');
  replace(place, title, tabs('Views', VIEWS, view, (to) => hash([kind, ns, name, ...(to ? [to] : [])])), body);
  const context = { kind, ns, name, address, body, signal };
  const draw = async () => {
    const item = await api.get(address, { ns, signal });
    replace(title.querySelector('.actions'),
      button('Invoke…', { role: 'producer', ns, kind: 'primary', k: 'invoke', onclick: () => invoke(context) }),
      button('Rebuild…', { role: 'developer', ns, k: 'rebuild', onclick: () => rebuild(context) }),
      button('Delete…', { role: 'developer', ns, kind: 'danger', k: 'delete', onclick: () => remove(context) }));
    return item;
  };
  try {
    const item = await draw();
    const views = { '': state, revisions, logs, build: logs, manifest };
    await (views[view] ?? state)(context, item, draw, view);
  } catch (problem) {
    failed(body, problem);
  }
}

async function state({ address, body, ns, name, signal }, first, read) {
  const [about, numbers, failure] = [h('div'), h('div.cards', { 'aria-label': 'Calls', role: 'group' }), h('div')];
  const seen = [];
  replace(body, about, numbers, failure);
  const draw = (item) => {
    const { status = {}, spec } = item;
    replace(about,
      panel('', h('p', null, chip(status.phase ?? 'Pending'), ' ', problemOf(item) ?? 'everything is ready'), steps(judged(item)), facts([
        ['Generation', item.metadata.generation],
        ['Applied by', status.appliedBy && visible(status.appliedBy)],
        ['Commit', status.buildStatus?.commit], ['Build', status.buildStatus?.hash && h('code', null, status.buildStatus.hash.slice(0, 16))],
        ['Events', spec.triggers?.length ? link(hash(['subscription', ns, `lambda.${ns}.${name}`]), 'subscription of its triggers') : 'no triggers: it can only be invoked'],
      ])));
    replace(failure, status.logLines?.length ? panel('Log of the last failure', h('pre.text.log', { tabindex: '0', 'aria-label': 'Log of the last failure' }, status.logLines.map(visible).join('\n'))) : null);
  };
  const measure = async () => {
    keep(seen, await api.get(`${address}/metrics`, { ns, signal }));
    replace(numbers, cards(seen));
  };
  draw(first);
  await measure();
  api.repeat(1000, signal, () => Promise.all([read().then(draw), measure()]).catch(() => {}));
}

/** The newest rates, and totals since the server started. */
function cards(seen) {
  const { last } = change(seen, 0);
  const now = change(seen, 10000);
  const quick = quantiles(change(seen, 60000), 'duration');
  const all = quantiles({ first: { duration: { count: 0, buckets: [] } }, last }, 'duration');
  const { p50, p99 } = quick.p50 == null ? all : quick;
  const failed = now.more('calls') ? now.more('errors') / now.more('calls') : null;
  return [
    card('Calls', rate(now.perSecond('calls')), `per second; ${count(last.calls)} in all`, line(seen, 'calls')),
    card('Errors', failed == null ? count(last.errors) : `${(100 * failed).toFixed(failed < 0.1 ? 1 : 0)}%`, failed == null ? 'in all' : `of the last 10 s; ${count(last.errors)} in all`, null, (failed ?? 0) > 0 ? 'bad' : ''),
    card('Duration', p50 == null ? '–' : `≤ ${duration(p50)}`, p50 == null ? 'no call yet' : `median; 99% ≤ ${duration(p99)}${quick.p50 == null ? ', since the start' : ''}`),
    card('Replicas', count(last.replicas), last.replicas ? 'ready' : 'starts with the next call'),
    card('Cold starts', count(last.coldStarts), 'calls that waited for a replica'),
  ];
}

/** The conditions in the order in which they become true. */
function steps(conditions) {
  return h('ol.steps', { 'aria-label': 'Conditions' }, conditions.map((condition) => h('li', { class: { True: 'good', False: 'bad' }[condition.status] ?? 'warn' },
    h('b', null, condition.type.replace(/Ready$/, '')), h('span', null, condition.status === 'True' ? 'ready' : condition.reason), condition.status !== 'True' && h('small', null, visible(condition.message)), h('small.muted', null, ago(condition.lastTransitionTime)))));
}

async function revisions(context) {
  const { address, body, ns, signal } = context;
  const { items } = await api.get(`${address}/revisions`, { ns, signal });
  items.reverse();
  replace(body, items.length ? table('Revisions', [
    { name: 'Revision', class: 'num', cell: (one) => one.number },
    { name: 'State', cell: (one) => (one.serving ? chip('serving') : '') },
    { name: 'Created', cell: (one) => time(one.createdAt) },
    { name: 'Applied by', cell: (one) => visible(one.appliedBy ?? '') },
    { name: 'Version', cell: (one) => h('code', null, (one.version ?? '').slice(0, 12)) },
    { name: 'Spec', class: 'wide', cell: (one) => h('details', null, h('summary', null, 'show'), json(one.spec)) },
    { name: 'Action', cell: (one) => !one.serving && button('Roll back…', { role: 'developer', ns, kind: 'small', onclick: () => rollback(context, one) }) },
  ], items) : empty('No revisions yet.', 'A version becomes a revision when it serves for the first time.'));
}

function rollback({ address, ns, kind, name }, revision) {
  return act({
    title: `Roll back to revision ${revision.number}?`,
    text: 'The server uses the kept artifact of that revision. Nothing is fetched or built.',
    verb: 'Roll back',
    run: async () => {
      await api.post(`${address}/rollback`, { revision: revision.number }, { ns });
      location.hash = hash([kind, ns, name]);
      return `Rolling back to revision ${revision.number}.`;
    },
  });
}

/** Follows the log. Lines that come together are drawn once. */
async function logs({ address, body, ns, signal }, _item, _read, view) {
  const lines = [];
  const isBuild = view === 'build';
  const area = h('pre.log', { tabindex: '0', 'aria-label': isBuild ? 'Build log' : 'Log' });
  const note = h('p.muted', { role: 'status' }, 'Following the log.');
  replace(body, note, area);
  let isPlanned = false;
  const draw = () => {
    isPlanned = false;
    const isAtEnd = area.scrollTop + area.clientHeight >= area.scrollHeight - 30;
    replace(area, lines.length ? lines.map(logLine) : 'No lines yet.');
    if (isAtEnd) area.scrollTop = area.scrollHeight;
  };
  draw();
  const query = isBuild ? { build: true, follow: true } : { tail: 200, follow: true };
  api.follow(api.address(`${address}/logs`, { ns, query }), signal, (one) => {
    lines.push(one);
    if (lines.length > LINES_MAX) lines.shift();
    if (!isPlanned) requestAnimationFrame(draw);
    isPlanned = true;
  }, (problem) => { note.textContent = problem ? problem.message : 'Following the log.'; });
}

function logLine(one) {
  const at = one.time.slice(11, 23);
  const who = one.replica == null ? '' : ` ${one.replica}`;
  const [level, text] = message(one.text);
  return h('span.line', { class: ['error', 'fatal'].includes(level) ? 'stderr' : one.stream, title: text === one.text ? undefined : visible(one.text) }, h('span.muted', null, `${at}${who} ${level} `), visible(text), '\n');
}

/** The loggers of the wrappers write JSON. People read its message. */
function message(text) {
  try {
    const { level, message: said } = text.startsWith('{') ? JSON.parse(text) : {};
    return typeof said === 'string' ? [String(level ?? ''), said] : ['', text];
  } catch {
    return ['', text];
  }
}

async function manifest({ body, ns, address, signal, kind }, item) {
  const { status, ...document } = item;
  const source = item.spec.source?.inline?.code;
  replace(body,
    source && panel('Code', h('pre.text.log', { tabindex: '0', 'aria-label': 'Code' }, source)),
    panel('Manifest', h('div.row', null, button('Edit…', { role: 'developer', ns, onclick: () => edit({ address, ns, kind }, document, signal) })), json(document)));
}

function edit({ address, ns, kind }, document) {
  const { name, resourceVersion } = document.metadata;
  return act({
    title: `Edit ${kind} ${name}`,
    text: 'The server merges this into the spec. Set a member to null to remove it. If the build fails, the previous version keeps serving.',
    verb: 'Apply',
    wide: true,
    fields: [{ name: 'spec', label: 'Spec (JSON)', type: 'textarea', rows: 18, value: write(document.spec), required: true }],
    run: async ({ spec }) => {
      const body = `{"metadata": {"resourceVersion": ${JSON.stringify(resourceVersion)}}, "spec": ${spec}}`;
      const done = await api.put(address, body, { ns });
      location.hash = hash([kind, ns, name]);
      return `${kind} ${done.change}.`;
    },
  });
}

function invoke({ address, ns, name }) {
  const answer = h('div');
  return act({
    title: `Invoke ${name}`,
    text: 'Calls the handler once and shows its answer. An invocation is not part of the log.',
    body: answer,
    verb: 'Invoke',
    wide: true,
    fields: [{ name: 'body', label: 'Data (JSON)', type: 'textarea', rows: 6, value: '{"name": "world"}' }],
    run: async ({ body }) => {
      const started = performance.now();
      const response = await api.call('POST', api.address(`${address}/invoke`, { ns }), { body, raw: true });
      const text = await response.text();
      const took = Math.round(performance.now() - started);
      replace(answer, h('p', null, chip(String(response.status), response.ok ? 'good' : 'bad'), ` after ${took} ms`), shown(text, response.headers.get('content-type')));
      return { stay: 'The handler was called. Invoke it again, or cancel.' };
    },
  });
}

function shown(text, type) {
  if (!text) return h('p.muted', null, 'The answer is empty.');
  try {
    if (/json/.test(type ?? '')) return json(api.parse(text));
  } catch { /* shown as text */ }
  return h('pre.text', { tabindex: '0', 'aria-label': 'Answer' }, cut(text, 4000));
}

function rebuild({ address, ns, name }) {
  return act({
    title: `Rebuild ${name}?`,
    text: 'Fetches and builds it again, even if nothing changed. The current version keeps serving meanwhile.',
    verb: 'Rebuild',
    run: async () => (await api.post(`${address}/rebuild`, undefined, { ns })).message,
  });
}

function remove({ address, ns, name }) {
  return act({
    title: `Delete ${name}?`,
    text: 'It accepts no new events and has up to 30 seconds for the pending ones. Events that are left become dead letters.',
    verb: 'Delete',
    danger: true,
    run: async () => {
      await api.del(address, { ns });
      location.hash = '#/functions';
      return `${name} is being deleted.`;
    },
  });
}
