// Dead letters: find, inspect, edit, replay, export and import. And replays with their progress.

import { append, h, link, replace } from './dom.js';
import * as api from './api.js';
import { act, failed, toast } from './dialog.js';
import { ago, count, cut, plural, visible } from './format.js';
import { download, eventView, write } from './data.js';
import { button, chip, empty, eventLink, facts, filters, hash, heading, laneLink, pager, panel, table, tabs, time } from './table.js';

const REASONS = ['retries-exhausted', 'poison', 'unavailable', 'timeout', 'validation', 'late', 'gap', 'overflow', 'skipped'];
const EXPORT_MAX = 10000;
const IMPORT_BATCH = 100;

export function page(place, route) {
  const pages = { letters: list, letter: one, replays, replay };
  return pages[route.name](place, route);
}

const views = (current) => tabs('Views', [['letters', 'Dead letters'], ['replays', 'Replays']], current, (name) => `#/${name}`);

// ---- the list -------------------------------------------------------------------------------------------------

async function list(place, { query, signal }) {
  const ns = query.in ?? api.namespace;
  const asked = { subscription: query.subscription, key: query.key, type: query.type, reason: query.reason };
  const chosen = new Set();
  const history = [];
  let [cursor, next, items] = [undefined, null, []];
  const bar = h('div.row.selection');
  const body = h('div');
  const isOne = ns !== '*';
  const selector = () => (chosen.size ? { ids: [...chosen] } : Object.fromEntries(Object.entries(asked).filter(([, value]) => value)));
  const fields = [
    isOne && { name: 'subscription', label: 'Subscription' },
    { name: 'key', label: 'Key' },
    { name: 'type', label: 'Type' },
    { name: 'reason', label: 'Reason', options: [['', 'any'], ...REASONS.map((reason) => [reason, reason])] },
  ].filter(Boolean);
  replace(place,
    heading('Dead letters', isOne && button('Import…', { role: 'producer', ns, onclick: () => importFile(ns) })),
    views('letters'),
    filters(fields, query, (given) => { location.hash = hash(['letters'], { in: query.in, ...given }); }),
    bar, body);
  const drawBar = () => {
    const what = chosen.size ? `${count(chosen.size)} selected` : 'all that match';
    const chosenSelector = () => (Object.keys(selector()).length ? selector() : { all: true });
    replace(bar,
      h('span', null, what),
      isOne && button('Replay…', { role: 'operator', ns, kind: 'primary', k: 'replay', disabled: !items.length, onclick: () => replayDialog(ns, chosenSelector(), what) }),
      button('Export', { k: 'export', disabled: !items.length, onclick: () => exportFile(ns, asked, chosen) }),
      isOne && button('Delete…', { role: 'operator', ns, kind: 'danger', k: 'delete', disabled: !items.length, onclick: () => purge(ns, chosenSelector(), what, async () => { chosen.clear(); await draw(); }) }),
      chosen.size > 0 && h('button.small', { type: 'button', 'data-k': 'none', onclick: () => { chosen.clear(); drawAll(); } }, 'Select none'));
  };
  const drawAll = () => {
    drawBar();
    replace(body, content(items, ns, asked, chosen, drawAll), pager(history, next, move));
  };
  const draw = async () => {
    const page = await api.get('dlq', { ns, signal, query: { ...asked, cursor, limit: 50 } });
    ({ items, next } = page);
    drawAll();
  };
  const move = (where) => {
    if (where === 'on') history.push(cursor);
    cursor = where === 'on' ? next : history.pop();
    draw();
  };
  await draw();
  api.repeat(3000, signal, () => draw().catch(() => {}));
}

function content(items, ns, asked, chosen, changed) {
  if (!items.length && Object.values(asked).some(Boolean)) return empty('No dead letter matches.', 'Remove the filter to see the others.');
  if (!items.length) return empty('No dead letters.', 'An event becomes a dead letter when its attempts are used up, or when its target refuses it for good. It is kept here until you replay or delete it.');
  const isAll = items.every((item) => chosen.has(item.id));
  const toggle = (ids, on) => {
    for (const id of ids) if (on) chosen.add(id); else chosen.delete(id);
    changed();
  };
  const box = (label, checked, k, onchange) => h('input', { type: 'checkbox', 'aria-label': label, checked, 'data-k': k, onchange });
  return table('Dead letters', [
    ns !== '*' && { name: 'Select', head: box('Select all on this page', isAll, 'all', (event) => toggle(items.map((item) => item.id), event.target.checked)), cell: (item) => box(`Select ${item.id}`, chosen.has(item.id), item.id, (event) => toggle([item.id], event.target.checked)) },
    { name: 'Dead letter', cell: (item) => link(hash(['letter', item.namespace, item.id]), item.id, { class: 'mono' }) },
    { name: 'Key', cell: (item) => (item.key == null ? '' : laneLink(item.namespace, item.subscription, item.key)) },
    { name: 'Event', cell: (item) => eventLink(item.namespace, item.eventId, item.source) },
    { name: 'Type', cell: (item) => cut(item.type, 50) },
    { name: 'Reason', cell: (item) => item.reason },
    { name: 'Attempts', class: 'num', cell: (item) => item.attempts },
    { name: 'Failed', class: 'num', cell: (item) => ago(item.failedAt) },
    { name: 'Blocks', cell: (item) => (item.holdsLane ? chip('lane', 'bad') : '') },
    { name: 'Error', class: 'wide', cell: (item) => cut(item.lastError, 100) },
  ].filter(Boolean), items, (item) => item.id);
}

function purge(ns, selector, what, done) {
  return act({
    title: 'Delete dead letters?',
    text: `Deletes ${what}. Their events will never be delivered.`,
    verb: 'Delete',
    danger: true,
    fields: [{ name: 'holders', label: 'Also those that block their lane: the lane continues without them', type: 'checkbox', value: !!selector.ids }],
    run: async ({ holders }) => {
      const { purged } = await api.post('dlq/purge', { selector, holders }, { ns });
      await done();
      return `${plural(purged, 'dead letter')} deleted.`;
    },
  });
}

// ---- export and import ----------------------------------------------------------------------------------------

/** The same lines as `klambda dlq export`. */
async function exportFile(ns, asked, chosen) {
  try {
    const { items, more } = await api.listAll('dlq', { ns, query: asked, most: EXPORT_MAX });
    const wanted = chosen.size ? items.filter((item) => chosen.has(item.id)) : items;
    const lines = [];
    for (const item of wanted) {
      const letter = await api.get(`dlq/${api.path(item.id)}`, { ns: item.namespace, exact: true }).catch(() => null);
      if (letter) lines.push(JSON.stringify(exported(letter)));
    }
    download('dead-letters.jsonl', `${lines.join('\n')}\n`);
    toast(`${plural(lines.length, 'dead letter')} exported${more ? `; the file has only the first ${count(EXPORT_MAX)}` : ''}.`);
  } catch (problem) {
    toast(problem.message, 'bad');
  }
}

function exported({ id, subscription, key, reason, lastError, attempts, failedAt, edits, editedBy, editedAt, event }) {
  return { ...event, deadLetter: { id, subscription, key, reason, lastError, attempts, failedAt, edits, editedBy, editedAt } };
}

function importFile(ns) {
  return act({
    title: 'Import events',
    text: 'Sends the events of a file with one JSON event per line, such as an export. The server skips events that it still knows; replay those instead.',
    verb: 'Send',
    fields: [{ name: 'file', label: 'File', type: 'file', accept: '.jsonl,.ndjson,.json', required: true }],
    run: async ({ file }) => {
      const events = read(await file.text());
      const total = { accepted: 0, skipped: 0, rejected: 0 };
      for (let at = 0; at < events.length; at += IMPORT_BATCH) {
        const batch = JSON.stringify(events.slice(at, at + IMPORT_BATCH));
        const { results } = await sendBatch(ns, batch);
        for (const result of results) total[result.status] += 1;
      }
      return `${count(total.accepted)} accepted, ${count(total.skipped)} skipped, ${count(total.rejected)} rejected.`;
    },
  });
}

async function sendBatch(ns, body) {
  try {
    return await api.post('events', body, { ns, headers: { 'content-type': 'application/cloudevents-batch+json' } });
  } catch (problem) {
    if (problem.body.results) return problem.body;
    throw problem;
  }
}

function read(text) {
  const lines = text.split('\n').map((line) => line.trim());
  return lines.flatMap((line, at) => {
    if (!line) return [];
    try {
      const { deadLetter, ...event } = api.parse(line, true);
      return [event];
    } catch {
      throw new Error(`Line ${at + 1} is not a JSON event.`);
    }
  });
}

// ---- one dead letter ------------------------------------------------------------------------------------------

async function one(place, { parts: [ns, id], signal }) {
  const body = h('div');
  const title = heading(`Dead letter ${cut(id, 60)}`);
  replace(place, title, body);
  const draw = async () => {
    const letter = await api.get(`dlq/${api.path(id)}`, { ns, signal, exact: true });
    replace(title.querySelector('.actions'),
      button('Replay…', { role: 'operator', ns, kind: 'primary', onclick: () => replayDialog(ns, { ids: [id] }, `dead letter ${id}`) }),
      button('Edit…', { role: 'operator', ns, onclick: () => edit(ns, letter, draw) }),
      button('Delete…', { role: 'operator', ns, kind: 'danger', onclick: () => remove(ns, letter) }));
    replace(body,
      panel('', facts([
        ['Subscription', link(hash(['subscription', ns, letter.subscription]), letter.subscription)],
        ['Lane', letter.key == null ? null : laneLink(ns, letter.subscription, letter.key)],
        ['Event', eventLink(ns, letter.eventId, letter.source)],
        ['Reason', letter.reason],
        ['Attempts', count(letter.attempts)],
        ['Failed', [time(letter.failedAt), ` (${ago(letter.failedAt)})`]],
        ['Accepted', time(letter.acceptedAt)],
        ['Blocks its lane', letter.holdsLane ? 'yes: the events behind it wait' : 'no'],
        ['Edited', letter.edits && `${plural(letter.edits, 'time')}, last by ${visible(letter.editedBy)} ${ago(letter.editedAt)}`],
      ]), h('h2', null, 'Last error'), h('pre.text', { tabindex: '0', 'aria-label': 'Last error' }, visible(letter.lastError || 'none'))),
      panel(letter.edits ? 'Event as the next delivery sends it' : 'Event', eventView(letter.event)),
      letter.original && panel('Event as it was accepted', eventView(letter.original)));
  };
  try {
    await draw();
  } catch (problem) {
    failed(body, problem);
  }
}

function edit(ns, letter, done) {
  return act({
    title: `Edit dead letter ${cut(letter.id, 40)}`,
    text: 'The next delivery of this dead letter sends the edited event. The log keeps the original, and records who edited it. Id, source, key and sequence must stay the same.',
    verb: 'Save',
    wide: true,
    fields: [
      { name: 'event', label: 'Event (CloudEvents JSON)', type: 'textarea', rows: 16, value: write(letter.event), required: true },
      { name: 'replay', label: 'Replay it at once', type: 'checkbox', value: true },
    ],
    run: async ({ event, replay: isReplayed }) => {
      const headers = { 'content-type': 'application/cloudevents+json', ...(letter.etag ? { 'if-match': letter.etag } : {}) };
      await api.put(`dlq/${api.path(letter.id)}/event`, event, { ns, headers });
      if (!isReplayed) {
        await done();
        return 'Saved. Replay it to send it.';
      }
      const job = await api.post('dlq/replays', { selector: { ids: [letter.id] } }, { ns });
      location.hash = hash(['replay', ns, job.id]);
      return 'Saved and replayed.';
    },
  });
}

function remove(ns, letter) {
  return act({
    title: `Delete dead letter ${cut(letter.id, 40)}?`,
    text: letter.holdsLane ? 'Its event will never be delivered. The lane continues, and the next event is flagged with a gap.' : 'Its event will never be delivered.',
    verb: 'Delete',
    danger: true,
    run: async () => {
      await api.del(`dlq/${api.path(letter.id)}`, { ns });
      location.hash = '#/letters';
      return 'Deleted.';
    },
  });
}

// ---- replays --------------------------------------------------------------------------------------------------

/** Shows a dry run first. */
export async function replayDialog(ns, selector, what) {
  const report = h('div', null, h('p.muted', null, 'Checking what would be replayed…'));
  api.post('dlq/replays', { selector, dryRun: true }, { ns }).then((dry) => replace(report, dryRun(dry)), (problem) => failed(report, problem));
  return act({
    title: 'Replay dead letters?',
    text: `Delivers ${what} again, each in its place of its lane. Other events of the lane wait behind it.`,
    body: report,
    verb: 'Replay',
    fields: [
      { name: 'rate', label: 'Events per second', type: 'number', min: 1, value: 100 },
      { name: 'parallelism', label: 'Keys at the same time', type: 'number', min: 1, value: 16 },
    ],
    run: async ({ rate, parallelism }) => {
      const job = await api.post('dlq/replays', { selector, ratePerSecond: rate, parallelism }, { ns });
      location.hash = hash(['replay', ns, job.id]);
      return `Replay ${job.id} started.`;
    },
  });
}

function dryRun(dry) {
  const skipped = Object.entries(dry.skippedReasons).map(([reason, n]) => `${n} ${reason}`);
  return h('div.notice', null,
    h('p', null, h('strong', null, `Dry run: ${plural(dry.selected, 'dead letter')} of ${plural(dry.keys, 'key')} would be replayed.`)),
    skipped.length > 0 && h('p', null, `Skipped: ${skipped.join(', ')}.`),
    dry.items?.length > 0 && h('p.mono.ids', null, cut(dry.items.join(', '), 400)));
}

async function replays(place, { signal }) {
  const ns = api.namespace;
  const body = h('div');
  replace(place, heading('Replays'), views('replays'), body);
  const draw = async () => {
    const { items } = await api.get('dlq/replays', { ns, signal });
    replace(body, items.length ? table('Replays', [
      { name: 'Replay', cell: (job) => link(hash(['replay', job.namespace, job.id]), job.id) },
      { name: 'State', cell: (job) => chip(job.state) },
      { name: 'Started', class: 'num', cell: (job) => ago(job.createdAt) },
      { name: 'Selected', class: 'num', cell: (job) => count(job.selected) },
      { name: 'Replayed', class: 'num', cell: (job) => count(job.replayed) },
      { name: 'Failed', class: 'num', cell: (job) => count(job.failed) },
      { name: 'Skipped', class: 'num', cell: (job) => count(job.skipped) },
      { name: 'Selector', class: 'wide mono', cell: (job) => cut(JSON.stringify(job.selector), 100) },
    ], items, (job) => job.id) : empty('No replays.', 'Start one from the list of dead letters. The last 100 replays are kept.'));
  };
  await draw();
  api.repeat(1500, signal, () => draw().catch(() => {}));
}

async function replay(place, { parts: [ns, id], signal }) {
  const title = heading(`Replay ${id}`);
  const body = h('div');
  replace(place, title, views('replays'), body);
  const look = new AbortController();
  signal.addEventListener('abort', () => look.abort());
  const draw = async () => {
    const job = await api.get(`dlq/replays/${api.path(id)}`, { ns, signal });
    replace(title.querySelector('.actions'), job.state === 'running' && button('Cancel…', { role: 'operator', ns, kind: 'danger', k: 'cancel', onclick: () => stop(ns, id) }));
    replace(body, report(job));
    if (job.state !== 'running') look.abort();
  };
  await draw();
  api.repeat(500, look.signal, () => draw().catch(() => {}));
}

function report(job) {
  const done = job.replayed + job.failed + job.skipped + job.waiting;
  const bar = h('progress', { max: Math.max(1, job.selected), value: job.state === 'running' ? done : Math.max(1, job.selected), 'aria-label': 'Progress' });
  const part = panel('', h('p', null, chip(job.state), ` ${count(done)} of ${plural(job.selected, 'dead letter')} of ${plural(job.keys, 'key')}`), bar, facts([
    ['Replayed', count(job.replayed)], ['Failed again', count(job.failed)], ['Skipped', count(job.skipped)], ['Wait in their lane', count(job.waiting)],
    ['Order violations', count(job.orderViolations)], ['Duplicates', count(job.duplicates)],
    ['Started', time(job.createdAt)], ['Finished', job.finishedAt && time(job.finishedAt)],
    ['Rate', `${job.ratePerSecond} per second, ${job.parallelism} keys at once`],
  ]));
  const skipped = Object.entries(job.skippedReasons);
  if (skipped.length) append(part, [h('h2', null, 'Skipped because'), h('ul', null, skipped.map(([reason, n]) => h('li', null, `${reason}: ${n}`)))]);
  append(part, [h('h2', null, 'Selector'), h('pre.text', { tabindex: '0', 'aria-label': 'Selector' }, write(job.selector))]);
  return part;
}

function stop(ns, id) {
  return act({
    title: `Cancel replay ${id}?`,
    text: 'Dead letters that are already back in their lanes are still delivered.',
    verb: 'Cancel replay',
    danger: true,
    run: async () => {
      await api.del(`dlq/replays/${api.path(id)}`, { ns });
      return 'The replay stops.';
    },
  });
}
