// Tables, states, empty places, and other parts that many pages use.

import { h, link } from './dom.js';
import * as api from './api.js';
import { age, clock, count, cut, visible } from './format.js';

/** Columns are `{name, cell(item), class}`. `key` names a row. `rows` keeps the rows of items that never change. */
export function table(label, columns, items, key = () => undefined, rows = new WeakMap()) {
  const made = (item) => {
    if (!rows.has(item)) {
      rows.set(item, h('tr', { 'data-row': key(item) },
        columns.map((column) => h('td', { class: column.class, 'data-name': column.name }, column.cell(item)))));
    }
    return rows.get(item);
  };
  return h('div.scroll', { tabindex: '0', role: 'region', 'aria-label': label },
    h('table', null,
      h('thead', null, h('tr', null, columns.map((column) => h('th', { scope: 'col', class: ['num', 'act'].includes(column.class) ? column.class : '' }, column.head ?? column.name)))),
      h('tbody', null, items.map(made))));
}

const TONES = {
  good: ['Ready', 'active', 'succeeded', 'delivered', 'True', 'closed', 'ok', 'running', 'serving'],
  bad: ['parked', 'Failed', 'failed', 'deadLetter', 'Disabled', 'disabled', 'open breaker', 'False', 'Failing', 'stderr'],
  warn: ['retrying', 'gap', 'behind', 'catchingUp', 'half-open', 'Building', 'Deploying', 'Pending', 'buffered', 'stopped', 'Unknown', 'draining', 'Draining'],
};

export function tone(state) {
  return Object.keys(TONES).find((name) => TONES[name].includes(state)) ?? 'calm';
}

/** A state in a word, with a colour and a shape: the colour alone says nothing. */
export const chip = (state, kind = tone(state)) => h('span.chip', { class: kind }, visible(state).replace(/(?<=[a-z])[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`));

export const time = (at) => (at ? h('time', { datetime: at, title: at }, clock(at)) : '–');
export const since = (at) => (at ? h('time', { datetime: at, title: at }, age(at)) : '–');

export function empty(title, ...next) {
  return h('div.empty', null, h('p', null, h('strong', null, title)), next.map((line) => (line instanceof Node ? line : h('p', null, line))));
}

export const command = (text) => h('p', null, h('code.command', null, text));

export function heading(title, ...actions) {
  return h('div.heading', null, h('h1', { tabindex: '-1' }, title), h('div.actions', null, actions));
}

export function panel(title, ...content) {
  return h('section.panel', null, title && h('h2', null, title), content);
}

export function facts(pairs) {
  return h('dl.facts', null, pairs.filter((pair) => pair && pair[1] != null && pair[1] !== '').map(([name, value]) => h('div', null, h('dt', null, name), h('dd', null, value))));
}

export function tabs(label, entries, current, href) {
  return h('nav.tabs', { 'aria-label': label }, entries.map(([name, text]) => link(href(name), text, { 'aria-current': name === current ? 'page' : undefined })));
}

/** Buttons for the page before and after. */
export function pager(history, next, go) {
  if (!history.length && !next) return null;
  return h('nav.pager', { 'aria-label': 'Pages of the list' },
    h('button.small', { type: 'button', 'data-k': 'previous', disabled: !history.length, onclick: () => go('back') }, 'Previous'),
    h('span', null, `Page ${count(history.length + 1)}`),
    h('button.small', { type: 'button', 'data-k': 'next', disabled: !next, onclick: () => go('on') }, 'Next'));
}

/** A form of filters that changes the address, so that the view can be shared. */
export function filters(fields, values, apply) {
  const controls = fields.map((field) => {
    const id = `filter-${field.name}`;
    const value = values[field.name] ?? '';
    const control = field.options
      ? h('select', { id, name: field.name, onchange: () => form.requestSubmit() },
        field.options.map(([option, text]) => h('option', { value: option, selected: option === value }, text)))
      : h('input', { id, name: field.name, value, type: 'search', placeholder: field.placeholder, size: field.size ?? 16, autocomplete: 'off', spellcheck: 'false' });
    return h('span.filter', null, h('label', { for: id }, field.label), control);
  });
  const form = h('form.filters', {
    role: 'search',
    'aria-label': 'Filter',
    onsubmit: (event) => {
      event.preventDefault();
      const given = Object.fromEntries([...new FormData(form)].filter(([, value]) => value !== ''));
      apply(given);
    },
  }, controls, h('button.small', { type: 'submit' }, 'Apply'));
  return form;
}

export const hash = (parts, query) => {
  const search = new URLSearchParams(Object.entries(query ?? {}).filter(([, value]) => value != null && value !== '')).toString();
  return `#/${parts.map(encodeURIComponent).join('/')}${search ? `?${search}` : ''}`;
};

export const laneLink = (ns, subscription, key) => link(hash(['lane', ns, subscription, key]), cut(key, 40), { class: 'mono', title: visible(key) });
export const eventLink = (ns, id, source) => link(hash(['event', ns, id], { source }), cut(id, 28), { class: 'mono', title: visible(id) });

/** Shown only if the caller has the role. */
export function button(text, { role, ns, kind, k, ...props }) {
  if (role && !api.can(role, ns)) return null;
  return h('button', { type: 'button', class: kind, 'data-k': k, ...props }, text);
}
