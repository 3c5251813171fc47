// Tokens, the audit log, namespaces, and the server itself.

import { h, link, replace } from './dom.js';
import * as api from './api.js';
import { act, secret } from './dialog.js';
import { ago, bytes, count, duration, visible } from './format.js';
import { button, chip, empty, facts, heading, pager, panel, table, time } from './table.js';

const ROLES = ['viewer', 'operator', 'producer', 'developer', 'admin'];

export function page(place, route) {
  const pages = { tokens, audit, namespaces, server };
  return pages[route.name](place, route);
}

// ---- tokens ---------------------------------------------------------------------------------------------------

async function tokens(place, { signal }) {
  const body = h('div');
  replace(place, heading('Tokens', api.me.requiresToken && h('button.primary', { type: 'button', onclick: () => create(draw) }, 'New token…')), body);
  const draw = async () => {
    const { items } = await api.listAll('tokens', { signal });
    if (!api.me.requiresToken) {
      replace(body, empty('This server requires no tokens.', 'Everyone on this machine may do everything. Start the server with a token file to give roles to people and programs: klambda serve --token-file FILE.'));
      return;
    }
    replace(body, items.length ? table('Tokens', [
      { name: 'Name', cell: (token) => token.name },
      { name: 'Role', cell: (token) => chip(token.role, 'calm') },
      { name: 'Namespaces', cell: (token) => (token.endpoint ? `endpoint ${token.endpoint} of ${token.namespaces}` : token.namespaces === '*' ? 'all' : token.namespaces.join(', ')) },
      { name: 'Created', class: 'num', cell: (token) => ago(token.createdAt) },
      { name: 'Created by', cell: (token) => visible(token.createdBy) },
      { name: 'Last used', class: 'num', cell: (token) => ago(token.lastUsedAt) },
      { name: 'Expires', cell: (token) => (token.expiresAt ? time(token.expiresAt) : 'never') },
      { name: 'Action', cell: (token) => h('button.small.danger', { type: 'button', 'data-k': token.name, 'aria-label': `Delete token ${token.name}`, onclick: () => remove(token, draw) }, 'Delete…') },
    ], items, (token) => token.name) : empty('No tokens were created.', 'The tokens of the token file are not listed.'));
  };
  await draw();
}

function create(draw) {
  return act({
    title: 'New token',
    verb: 'Create',
    fields: [
      { name: 'name', label: 'Name', required: true },
      { name: 'role', label: 'Role', type: 'select', options: ROLES, value: 'viewer' },
      { name: 'namespaces', label: 'Namespaces, separated by commas', required: true, value: api.me.namespaces?.join(', ') ?? '*', hint: '* for all namespaces' },
      { name: 'expires', label: 'Expires', value: '90d', hint: 'Empty: valid until it is deleted' },
    ],
    run: async ({ name, role, namespaces: names, expires }) => {
      const list = names.split(',').map((one) => one.trim()).filter(Boolean);
      const body = { name, role, namespaces: names.trim() === '*' ? '*' : list, ...(expires.trim() ? { expires: expires.trim() } : {}) };
      const made = await api.post('tokens', body);
      await draw();
      setTimeout(() => secret(`Token ${name}`, 'It is shown only now.', made.token), 0);
    },
  });
}

function remove(token, draw) {
  return act({
    title: `Delete token ${token.name}?`,
    text: 'The token stops working immediately, and its sessions and streams end.',
    verb: 'Delete',
    danger: true,
    run: async () => {
      await api.del(`tokens/${api.path(token.name)}`);
      await draw();
      return `Token ${token.name} deleted.`;
    },
  });
}

// ---- audit log ------------------------------------------------------------------------------------------------

async function audit(place, { signal }) {
  const ns = api.namespace;
  const history = [];
  let [cursor, next] = [undefined, null];
  const body = h('div');
  replace(place, heading('Audit log'), h('p.muted', null, 'Who changed what, newest first.'), body);
  const move = (where) => {
    if (where === 'on') history.push(cursor);
    cursor = where === 'on' ? next : history.pop();
    draw();
  };
  const draw = async () => {
    const page = await api.get('audit', { ns, signal, query: { cursor, limit: 100 } });
    next = page.next;
    replace(body, page.items.length ? table('Audit log', [
      { name: 'Time', cell: (one) => time(one.time) },
      { name: 'Who', cell: (one) => visible(one.who) },
      { name: 'Action', cell: (one) => one.verb },
      { name: 'Kind', cell: (one) => one.kind },
      { name: 'Namespace', cell: (one) => one.namespace ?? '' },
      { name: 'Name', class: 'wide mono', cell: (one) => visible(one.name) },
      { name: 'From', cell: (one) => one.from },
    ], page.items, (one) => String(one.number)) : empty('Nothing was changed yet.', 'Every change over REST appears here. Sending events does not.'), pager(history, next, move));
  };
  await draw();
}

// ---- namespaces -----------------------------------------------------------------------------------------------

const LIMITS = ['eventsPerSecond', 'backlog', 'subscriptions', 'functions'];

async function namespaces(place, { signal }) {
  const body = h('div');
  replace(place, heading('Namespaces', api.can('admin') && h('button.primary', { type: 'button', onclick: () => change(null, draw) }, 'New namespace…')), body);
  const draw = async () => {
    const { items } = await api.listAll('namespaces', { signal });
    replace(body, table('Namespaces', [
      { name: 'Name', cell: ({ metadata }) => h('button.link', { type: 'button', 'data-k': metadata.name, onclick: () => enter(metadata.name) }, metadata.name) },
      { name: 'Subscriptions', class: 'num', cell: ({ status }) => count(status.subscriptions) },
      { name: 'Pending', class: 'num', cell: ({ status }) => count(status.waiting) },
      { name: 'Dead letters', class: 'num', cell: ({ status }) => count(status.deadLetters) },
      { name: 'Limits', class: 'wide', cell: ({ spec }) => Object.entries(spec?.limits ?? {}).filter(([, value]) => value != null).map(([name, value]) => `${name} ${count(value)}`).join(', ') || 'those of the server' },
      api.can('admin') && { name: 'Action', cell: (item) => [h('button.small', { type: 'button', 'aria-label': `Limits of ${item.metadata.name}`, onclick: () => change(item, draw) }, 'Limits…'), ' ',
        item.metadata.name !== 'default' && h('button.small.danger', { type: 'button', 'aria-label': `Delete ${item.metadata.name}`, onclick: () => removeNamespace(item.metadata.name, draw) }, 'Delete…')] },
    ].filter(Boolean), items, ({ metadata }) => metadata.name));
  };
  await draw();
}

function enter(name) {
  const select = document.getElementById('namespace');
  select.value = name;
  api.choose(name);
  location.hash = '#/overview';
}

function change(item, draw) {
  const name = item?.metadata.name;
  return act({
    title: name ? `Limits of namespace ${name}` : 'New namespace',
    text: 'Without a limit, only the limits of the server apply.',
    verb: name ? 'Apply' : 'Create',
    fields: [...(name ? [] : [{ name: 'name', label: 'Name', required: true }]),
      ...LIMITS.map((limit) => ({ name: limit, label: limit, type: 'number', min: 0, value: item?.spec?.limits?.[limit] ?? '' }))],
    run: async ({ name: given = name, ...values }) => {
      const limits = Object.fromEntries(LIMITS.filter((limit) => values[limit] !== undefined).map((limit) => [limit, values[limit]]));
      await api.put(`namespaces/${api.path(given)}`, { spec: { limits } }, { headers: name ? {} : { 'if-none-match': '*' } });
      await draw();
      return name ? 'Applied.' : `Namespace ${given} created. Reload the page to choose it.`;
    },
  });
}

function removeNamespace(name, draw) {
  return act({
    title: `Delete namespace ${name}?`,
    text: 'It must be empty.',
    verb: 'Delete',
    danger: true,
    run: async () => {
      await api.del(`namespaces/${api.path(name)}`);
      await draw();
      return `Namespace ${name} deleted.`;
    },
  });
}

// ---- server ---------------------------------------------------------------------------------------------------

async function server(place, { signal }) {
  const body = h('div');
  replace(place, heading('Server', button('Back up…', { role: 'admin', onclick: backup })), body);
  const draw = async () => {
    const status = await api.get('status', { signal });
    replace(body,
      status.failure && h('div.notice.bad', { role: 'alert' }, h('strong', null, 'The store failed. '), visible(status.failure)),
      status.disk.full && h('div.notice.bad', { role: 'alert' }, 'The disk is full. New events are refused. Free space, or lower retention.'),
      panel('', facts([
        ['Version', status.version], ['Uptime', duration(status.uptimeSeconds * 1000)], ['Listens on', status.listening], ['Data folder', h('code', null, status.dataFolder)],
        ['Subscriptions', count(status.subscriptions)], ['Pending', count(status.waiting)], ['In flight', count(status.inFlight)],
        ['Parked lanes', count(status.parked)], ['Dead letters', count(status.deadLetters)],
        ['Log', bytes(status.logBytes)], ['Positions', status.positions.last == null ? 'none' : `${count(status.positions.first)} to ${count(status.positions.last)}`],
        ['Free on disk', bytes(status.disk.freeBytes)], ['Memory', `${bytes(status.memory.usedBytes)} of ${bytes(status.memory.limitBytes)}`],
        ['You are', `${api.me.name}, ${api.me.role} in ${api.me.namespaces?.join(', ') ?? 'all namespaces'}`],
      ])),
      !api.me.requiresToken && panel('More', h('ul', null, h('li', null, link('/api/v1/docs', 'REST API')), h('li', null, link('/metrics', 'Metrics')))));
  };
  await draw();
  api.repeat(2000, signal, () => draw().catch(() => {}));
}

function backup() {
  return act({
    title: 'Back up the data folder?',
    text: 'Downloads a consistent copy as a tar archive, without the key file of secrets.',
    verb: 'Download',
    run: async () => {
      const response = await api.call('POST', '/api/v1/backup', { raw: true });
      if (!response.ok) throw new api.Problem(response.status, await response.json().catch(() => null));
      const url = URL.createObjectURL(await response.blob());
      h('a', { href: url, download: 'klambda-backup.tar' }).click();
      setTimeout(() => URL.revokeObjectURL(url), 1000);
      return 'The backup was downloaded.';
    },
  });
}
