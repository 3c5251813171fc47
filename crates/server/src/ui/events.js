// The log: live, searchable, one event with its fate, and sending.

import { h, link, replace } from './dom.js';
import * as api from './api.js';
import { act, failed } from './dialog.js';
import { count, cut, duration, plural, until, visible } from './format.js';
import { eventView, write } from './data.js';
import { button, chip, command, empty, eventLink, filters, hash, heading, laneLink, panel, table, time } from './table.js';

const SHOWN_MAX = 200;
const PAGE = 200;
const DRAW_MS = 250;
const SCANNED_MAX = 20000;

export function page(place, route) {
  return route.name === 'event' ? one(place, route) : list(place, route);
}

// ---- the log --------------------------------------------------------------------------------------------------

async function list(place, { query, signal }) {
  const ns = api.namespace;
  const go = (given) => {
    if (given.id && ns !== '*') location.hash = hash(['event', ns, given.id], { source: given.source });
    else location.hash = hash(['events'], given);
  };
  const body = h('div');
  const live = h('button.small', { type: 'button', 'aria-pressed': 'true', 'data-k': 'live' }, 'Live');
  const note = h('p.muted', { role: 'status' });
  replace(place,
    heading('Events', button('Send event…', { role: 'producer', ns: ns === '*' ? 'default' : ns, kind: 'primary', onclick: () => send(ns === '*' ? 'default' : ns) })),
    filters([
      { name: 'id', label: 'Id' },
      { name: 'type', label: 'Type', placeholder: 'order.*' },
      { name: 'source', label: 'Source' },
      { name: 'key', label: 'Key' },
      { name: 'since', label: 'Since', placeholder: '10m or a time', size: 12 },
    ], query, go),
    h('div.row', null, live, note), body);
  const wanted = matcher(query);
  const items = [];
  const rows = new WeakMap();
  let isLive = true;
  live.addEventListener('click', () => {
    isLive = !isLive;
    live.setAttribute('aria-pressed', String(isLive));
    if (isLive) schedule();
  });
  let isPlanned = false;
  const draw = () => {
    isPlanned = false;
    if (!signal.aborted) replace(body, content(items, ns, query, rows));
  };
  // Many events may come at once; they are drawn together.
  const schedule = () => {
    if (!isPlanned && isLive) setTimeout(draw, DRAW_MS);
    isPlanned = isPlanned || isLive;
  };
  const scanned = await older(ns, query, wanted, items, signal);
  note.textContent = scanned.isAll ? '' : `Searched the newest ${plural(scanned.count, 'event')}.`;
  draw();
  const after = scanned.last;
  api.follow(api.address('events', { ns, query: { type: query.type, after } }), signal, (item) => {
    if (!wanted(item)) return;
    items.unshift(item);
    items.length = Math.min(items.length, SHOWN_MAX);
    schedule();
  }, (problem) => { if (problem) note.textContent = problem.message; });
}

/** The newest events that match. Type is filtered by the server, the rest here. */
async function older(ns, query, wanted, items, signal) {
  let [before, scanned, last] = [undefined, 0, undefined];
  for (;;) {
    const page = await api.get('events', { ns, signal, query: { order: 'desc', before, type: query.type, limit: PAGE } });
    scanned += page.items.length;
    last ??= page.items[0]?.position;
    for (const item of page.items) if (wanted(item) && items.length < SHOWN_MAX) items.push(item);
    before = page.next;
    const isPast = page.items.length && wanted.isPast(page.items.at(-1));
    if (!before || isPast || items.length >= SHOWN_MAX || scanned >= SCANNED_MAX) {
      return { count: scanned, isAll: !before || isPast, last };
    }
  }
}

function matcher({ id, source, key, since }) {
  const from = instant(since);
  const wanted = ({ event, acceptedAt }) => (!id || event.id === id)
    && (!source || event.source.includes(source))
    && (!key || [event.partitionkey, event.subject].includes(key))
    && (!from || Date.parse(acceptedAt) >= from);
  wanted.isPast = ({ acceptedAt }) => !!from && Date.parse(acceptedAt) < from;
  return wanted;
}

const UNITS = { s: 1e3, m: 6e4, h: 36e5, d: 864e5 };

function instant(text) {
  if (!text) return 0;
  const [, n, unit] = /^(\d+)([smhd])$/.exec(text.trim()) ?? [];
  return n ? Date.now() - n * UNITS[unit] : Date.parse(text) || 0;
}

function content(items, ns, query, rows) {
  if (!items.length && Object.keys(query).length) return empty('No event matches.', 'New events that match appear here.');
  if (!items.length) {
    return empty('The log is empty.', 'Send the first event, with the button above or in a terminal:', command("klambda event send --type order.placed --key order-42 --data '{\"total\": 7}'"));
  }
  return table('Events', [
    { name: 'Accepted', cell: (item) => time(item.acceptedAt) },
    { name: 'Position', class: 'num', cell: (item) => count(item.position) },
    ns === '*' && { name: 'Namespace', cell: (item) => item.namespace ?? '(deleted)' },
    { name: 'Id', cell: ({ event, namespace }) => eventLink(namespace ?? ns, event.id, event.source) },
    { name: 'Type', cell: ({ event }) => cut(event.type, 60) },
    { name: 'Source', cell: ({ event }) => cut(event.source, 40) },
    { name: 'Key', cell: ({ event }) => cut(event.partitionkey ?? event.subject ?? '', 40) },
    { name: 'Data', class: 'mono', cell: ({ event }) => cut(event.data === undefined ? (event.data_base64 ? 'binary' : '') : JSON.stringify(event.data), 80) },
  ].filter(Boolean), items, (item) => `${item.position}`, rows);
}

// ---- one event ------------------------------------------------------------------------------------------------

async function one(place, { parts: [ns, id], query, signal }) {
  const body = h('div');
  const title = heading(`Event ${cut(id, 60)}`);
  replace(place, title, body);
  let seen = '';
  const draw = async () => {
    const found = await api.get(`events/${api.path(id)}`, { ns, query: { source: query.source }, signal, exact: true });
    const text = write(found);
    if (text === seen) return;
    seen = text;
    replace(title.querySelector('.actions'), button('Send again…', { role: 'producer', ns, kind: 'primary', k: 'again', onclick: () => send(ns, found.event) }));
    replace(body, fates(found, ns), panel('Event', h('p.muted', null, `Position ${count(found.position)}, accepted `, time(found.acceptedAt)), eventView(found.event)));
  };
  try {
    await draw();
  } catch (problem) {
    return failed(body, problem);
  }
  api.repeat(1500, signal, () => draw().catch(() => {}));
}

function fates({ fates: all }, ns) {
  if (!all.length) return panel('Deliveries', h('p.muted', null, 'No subscription matched this event when it was accepted.'));
  return panel('Deliveries', all.map((fate) => h('section.fate', null,
    h('h3', null, link(hash(['subscription', ns, fate.subscription]), fate.subscription), ' ', chip(fate.fate)),
    h('p', null,
      fate.key != null && ['lane ', laneLink(ns, fate.subscription, fate.key), fate.laneSequence ? `, number ${count(fate.laneSequence)}` : '', '. '],
      fate.attempts ? `${plural(fate.attempts, 'attempt')}. ` : '',
      fate.reason ? `${visible(fate.reason)}. ` : '',
      fate.nextAttempt ? `Next attempt ${until(fate.nextAttempt)}. ` : '',
      fate.deadLetter && link(hash(['letter', ns, fate.deadLetter]), 'See the dead letter')),
    attempts(fate))));
}

function attempts({ subscription, attemptLog: log, more }) {
  if (!log?.length) return null;
  return [table(`Attempts for ${subscription}`, [
    { name: 'Attempt', cell: (one) => one.attempt },
    { name: 'At', cell: (one) => time(one.at) },
    { name: 'Outcome', cell: (one) => chip(one.outcome) },
    { name: 'Status', class: 'num', cell: (one) => one.status ?? '' },
    { name: 'Took', class: 'num', cell: (one) => duration(one.durationMs) },
    { name: 'Answer', class: 'wide', cell: (one) => visible(one.answer ?? one.error ?? '') },
  ], log), more && h('p.muted', null, 'Older attempts are not listed.')];
}

// ---- sending --------------------------------------------------------------------------------------------------

const BASE = ['specversion', 'id', 'source', 'type', 'partitionkey', 'subject', 'datacontenttype', 'data', 'data_base64', 'time'];

export function send(ns, event) {
  const rest = event ? Object.fromEntries(Object.entries(event).filter(([name]) => !BASE.includes(name))) : {};
  return act({
    title: event ? `Send event ${cut(event.id, 40)} again?` : 'Send an event',
    text: event ? 'This sends a copy with a new id, as a new event of its key. To deliver a failed event in its old place, replay its dead letter.' : null,
    verb: 'Send',
    wide: true,
    fields: [
      { name: 'type', label: 'Type', required: true, value: event?.type ?? 'order.placed' },
      { name: 'source', label: 'Source', required: true, value: event?.source ?? '/page' },
      { name: 'id', label: 'Id', required: true, value: newId(), hint: 'An id that is known is skipped as a duplicate.' },
      { name: 'key', label: 'Key (partitionkey)', value: event?.partitionkey ?? event?.subject ?? '' },
      { name: 'more', label: 'More attributes as JSON', value: Object.keys(rest).length ? JSON.stringify(rest) : '' },
      { name: 'data', label: event?.data_base64 ? 'Data (base64)' : 'Data (JSON, or text)', type: 'textarea', rows: 6, value: event?.data_base64 ?? (event?.data === undefined ? '{}' : write(event.data)) },
    ],
    run: async ({ type, source, id, key, more, data }) => {
      const made = { specversion: '1.0', id, source, type, ...(more.trim() ? api.parse(more, true) : {}) };
      if (key) made.partitionkey = key;
      if (event?.data_base64) Object.assign(made, { datacontenttype: event.datacontenttype, data_base64: data.trim() });
      else if (data.trim()) Object.assign(made, typed(data));
      const body = JSON.stringify(made);
      const answer = await api.post('events', body, { ns, headers: { 'content-type': 'application/cloudevents+json' } });
      const [result] = answer.results;
      location.hash = hash(['event', ns, id], { source });
      return result.status === 'accepted' ? `Accepted at position ${result.position}.` : `Skipped: ${result.reason}.`;
    },
  });
}

function typed(text) {
  try {
    return { datacontenttype: 'application/json', data: api.parse(text, true) };
  } catch {
    return { datacontenttype: 'text/plain', data: text };
  }
}

function newId() {
  const random = crypto.getRandomValues(new Uint8Array(8));
  return [...random].map((byte) => byte.toString(16).padStart(2, '0')).join('');
}
