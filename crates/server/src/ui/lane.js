// One lane: its picture, why it waits, its timeline, and actions.

import { h, replace } from './dom.js';
import * as api from './api.js';
import { act, toast } from './dialog.js';
import { ago, count, cut, duration, humane, plural, until, visible } from './format.js';
import { button, chip, empty, eventLink, facts, hash, heading, panel, since, table, time } from './table.js';
import { replayDialog } from './letters.js';

const SHOWN_MAX = 12;

export async function page(place, { parts: [ns, subscription, key], signal }) {
  const where = { ns, query: { subscription, key }, signal };
  const title = heading(`Lane ${cut(key, 60)}`);
  const actions = title.querySelector('.actions');
  const body = h('div');
  replace(place, title, body);
  const draw = async () => {
    const [lane, letters] = await Promise.all([
      api.get('lanes', where),
      api.get('dlq', { ns, query: { subscription, key, limit: 100 }, signal }),
    ]);
    replace(actions, buttons(lane, letters.items.length, ns, draw));
    replace(body, why(lane), picture(lane), about(lane, ns), dead(letters, ns), gaps(lane), timeline(lane, ns));
  };
  await draw();
  api.repeat(1000, signal, () => draw().catch(() => {}));
}

function why(lane) {
  const waiting = lane.depth ? ` ${plural(lane.depth, 'event')} ${lane.depth === 1 ? 'waits' : 'wait'}, the oldest for ` : '';
  const reason = lane.waitsFor ? `It waits for ${humane(lane.waitsFor)}.` : 'Not waiting.';
  return h('p.why', null, chip(lane.state), ' ', lane.since && ['for ', since(lane.since), '. '], reason, waiting, waiting && since(lane.oldest), waiting && '.');
}

// ---- the picture ----------------------------------------------------------------------------------------------

/** Numbers that were delivered, the first event, those behind it, what is missing, and what came early. */
function picture(lane) {
  const queued = Math.max(0, lane.depth - lane.buffered);
  const first = lane.laneSequence - queued + 1;
  const cells = [];
  if (first > 1) cells.push(cell('done', first === 2 ? '1' : `1–${count(first - 1)}`, 'done'));
  for (let n = 0; n < Math.min(queued, SHOWN_MAX); n++) {
    const kind = n === 0 ? head(lane) : ['wait', 'pending'];
    cells.push(cell(kind[0], count(first + n), kind[1]));
  }
  if (queued > SHOWN_MAX) cells.push(cell('wait many', `+${count(queued - SHOWN_MAX)}`, 'pending'));
  if (lane.gap) {
    const [from, to] = lane.gap.missing;
    const note = lane.gap.until ? `missing, given up ${until(lane.gap.until)}` : 'missing';
    cells.push(cell('missing', from === to ? count(from) : `${count(from)}–${count(to)}`, note));
  }
  if (lane.buffered) cells.push(cell('early', `${count(lane.buffered)}×`, 'came early'));
  if (!cells.length) cells.push(cell('done', '–', 'no events yet'));
  return h('ol.picture', { 'aria-label': 'The lane from its oldest to its newest event' }, cells);
}

const cell = (kind, text, note) => h('li', { class: kind }, h('b', null, text), h('span', null, note));

function head(lane) {
  if (lane.state === 'parked') return ['dead', 'dead letter'];
  if (lane.state === 'running') return ['run', 'in flight'];
  if (lane.state === 'retrying') return ['retry', lane.head?.nextAttempt ? `retry ${until(lane.head.nextAttempt)}` : 'retrying'];
  return ['wait', lane.state === 'paused' ? 'paused' : 'next'];
}

function about(lane, ns) {
  const { head: first } = lane;
  return panel('', facts([
    ['Subscription', h('a', { href: hash(['subscription', ns, lane.subscription]) }, lane.subscription)],
    ['Pending', count(lane.depth)],
    ['Early events', count(lane.buffered)],
    ['Expected sequence', lane.expectedSequence == null ? null : String(lane.expectedSequence)],
    ['Events per second', lane.eventsPerSecond],
    ['First event', first?.id && eventLink(ns, first.id, first.source)],
    ['Type', first?.type && visible(first.type)],
    ['Attempts', first && (first.attemptsTotal > first.attempts ? `${first.attempts} now, ${first.attemptsTotal} in all` : count(first.attempts))],
    ['Last error', first?.lastError && visible(first.lastError)],
    ['Next attempt', first?.nextAttempt && until(first.nextAttempt)],
  ]));
}

function dead({ items, next }, ns) {
  if (!items.length) return null;
  return panel(`Dead letters (${next ? '100+' : items.length})`, table('Dead letters of the lane', [
    { name: 'Dead letter', cell: (one) => h('a.mono', { href: hash(['letter', ns, one.id]) }, one.id) },
    { name: 'Event', cell: (one) => eventLink(ns, one.eventId, one.source) },
    { name: 'Reason', cell: (one) => one.reason },
    { name: 'Failed', class: 'num', cell: (one) => ago(one.failedAt) },
    { name: 'Blocks the lane', cell: (one) => (one.holdsLane ? 'yes' : 'no') },
    { name: 'Error', class: 'wide', cell: (one) => cut(one.lastError, 100) },
  ], items));
}

function gaps(lane) {
  if (!lane.gaps?.length && !lane.gapsForgottenUpTo) return null;
  return panel('Missing sequences', h('ul', null, (lane.gaps ?? []).map((gap) => h('li', null, h('b', null, gap.from === gap.to ? gap.from : `${gap.from}–${gap.to}`), ` given up ${ago(gap.at)}`))),
    lane.gapsForgottenUpTo && h('p.muted', null, `Older gaps, up to ${lane.gapsForgottenUpTo}, are no longer listed.`));
}

export function timeline(lane, ns) {
  const steps = [...(lane.timeline ?? [])].reverse();
  if (!steps.length) return panel('Timeline', empty('Nothing happened yet.', 'The steps of the lane appear here as they happen.'));
  return panel('Timeline, newest first', table('Timeline', [
    { name: 'Time', cell: (step) => time(step.at) },
    { name: 'Step', cell: (step) => chip(step.step) },
    { name: 'Event', cell: (step) => (step.id ? eventLink(ns, step.id) : step.position ? `position ${step.position}` : '') },
    { name: 'Attempt', class: 'num', cell: (step) => step.attempt ?? '' },
    { name: 'Took', class: 'num', cell: (step) => (step.durationMs == null ? '' : duration(step.durationMs)) },
    { name: 'Status', class: 'num', cell: (step) => step.status ?? '' },
    { name: 'Detail', class: 'wide', cell: (step) => cut(step.answer ?? step.detail ?? '', 160) },
  ], steps));
}

// ---- actions --------------------------------------------------------------------------------------------------

const ACTIONS = {
  resume: ['Resume', 'Try the first event again with a fresh set of attempts, end a pause, or wait once more for the missing sequence.'],
  skip: ['Skip', 'Continue without the first event, which stays a dead letter outside the lane, or without the missing sequence.', 'danger'],
  pause: ['Pause', 'Start no new deliveries of this key. Events keep their order and wait.'],
  purge: ['Purge', 'Drop all pending events of this key. They will never be delivered.', 'danger'],
};

function buttons(lane, letters, ns, draw) {
  const { state, depth, subscription, key } = lane;
  const fits = {
    resume: ['parked', 'paused', 'gap', 'retrying'].includes(state),
    skip: ['parked', 'gap', 'retrying'].includes(state),
    pause: state !== 'paused',
    purge: depth > 0,
  };
  const steer = (verb) => act({
    title: `${ACTIONS[verb][0]} lane ${cut(key, 40)}?`,
    text: ACTIONS[verb][1],
    verb: ACTIONS[verb][0],
    danger: !!ACTIONS[verb][2],
    run: async () => {
      await api.post(`lanes/${verb}`, undefined, { ns, query: { subscription, key } });
      await draw();
      return `Done: ${verb} of lane ${cut(key, 40)}.`;
    },
  });
  return [
    letters > 0 && button('Replay…', { role: 'operator', ns, kind: 'primary', k: 'replay', onclick: () => replayDialog(ns, { subscription, key }, `the dead letters of lane ${cut(key, 40)}`) }),
    Object.keys(ACTIONS).filter((verb) => fits[verb]).map((verb) => button(ACTIONS[verb][0], { role: 'operator', ns, k: verb, kind: ACTIONS[verb][2], onclick: () => steer(verb) })),
    lane.expectedSequence != null && button('Reset…', { role: 'operator', ns, k: 'reset', onclick: () => reset(lane, ns, draw) }),
  ];
}

function reset(lane, ns, draw) {
  const { subscription, key } = lane;
  return act({
    title: `Reset lane ${cut(key, 40)}?`,
    text: 'Sets the sequence that the lane expects next. Use it if the producer starts to count again.',
    verb: 'Reset',
    fields: [{ name: 'expected', label: 'Next expected sequence', type: 'number', min: 0, required: true, value: lane.expectedSequence }],
    run: async ({ expected }) => {
      await api.post('lanes/reset', { expected }, { ns, query: { subscription, key } });
      await draw();
      toast('The lane expects another sequence now.');
    },
  });
}
