// The frame around the pages: navigation, namespace, search, theme, keyboard and sign-in.

import { append, h, link, replace } from './dom.js';
import * as api from './api.js';
import { attempt, failed, show } from './dialog.js';
import { hash } from './table.js';
import * as overview from './overview.js';
import { restorePlace, signIn } from './signin.js';

// [address, name, key after `g`, module, shown to]
const PAGES = [
  ['overview', 'Overview', 'o', () => overview],
  ['lanes', 'Lanes', 'l', () => import('./lanes.js')],
  ['events', 'Events', 'e', () => import('./events.js')],
  ['letters', 'Dead letters', 'd', () => import('./letters.js')],
  ['functions', 'Functions', 'f', () => import('./functions.js')],
  ['webhooks', 'Webhooks', 'w', () => import('./webhooks.js')],
  ['subscriptions', 'Subscriptions', 's', () => import('./subscriptions.js')],
  ['tokens', 'Tokens', 't', () => import('./settings.js'), () => api.canSomewhere('admin')],
  ['audit', 'Audit log', 'a', () => import('./settings.js'), () => api.canSomewhere('developer')],
  ['namespaces', 'Namespaces', 'n', () => import('./settings.js')],
  ['server', 'Server', 'v', () => import('./settings.js'), () => api.can('viewer')],
];
const DETAILS = {
  lane: ['lanes', () => import('./lane.js')],
  event: ['events', () => import('./events.js')],
  letter: ['letters', () => import('./letters.js')],
  replays: ['letters', () => import('./letters.js')],
  replay: ['letters', () => import('./letters.js')],
  function: ['functions', () => import('./functions.js')],
  agent: ['functions', () => import('./functions.js')],
  webhook: ['webhooks', () => import('./webhooks.js')],
  subscription: ['subscriptions', () => import('./subscriptions.js')],
  search: ['lanes', () => import('./lanes.js')],
};

/** The moment when the first page can be used, for measurements. */
const READY = 'klambda-ready';

const root = document.getElementById('app');
let main;
let current = new AbortController();
let prefix = 0;

start();

async function start() {
  setTheme(localStorage.getItem('klambda-theme') ?? '');
  addEventListener('klambda-signed-out', askToSignIn);
  addEventListener('hashchange', navigate);
  addEventListener('keydown', onKey);
  document.getElementById('skip').addEventListener('click', (event) => {
    event.preventDefault();
    main?.focus();
  });
  const token = /^#token=(.+)$/.exec(location.hash)?.[1];
  if (token) return openLink(decodeURIComponent(token));
  try {
    await api.whoami();
    restorePlace();
    enter();
  } catch (problem) {
    if (problem.status === 401 || problem.status === 403) askToSignIn();
    else unreachable(problem);
  }
}

/** The link of a webhook receiver. The token leaves the address at once, and no server log ever has it. */
async function openLink(token) {
  history.replaceState(null, '', '/ui');
  try {
    await api.signIn(token);
    enter();
  } catch (problem) {
    askToSignIn(problem.message);
  }
}

function unreachable(problem) {
  replace(root, h('main', { id: 'main', tabindex: '-1' }, h('div.notice.bad', { role: 'alert' }, problem.message),
    h('button', { type: 'button', onclick: () => location.reload() }, 'Try again')));
}

async function askToSignIn(why) {
  current.abort();
  main = null;
  const asking = await signIn(typeof why === 'string' ? why : '', enter);
  if (main) return;
  replace(root, asking);
  root.querySelector('a.primary, input')?.focus();
}

function enter() {
  main = h('main', { id: 'main', tabindex: '-1' });
  if (api.me.endpoint) {
    replace(root, header(false), main);
  } else {
    replace(root, header(true), h('div.columns', null, navigation(), main));
    fillNamespaces();
  }
  navigate();
}

function header(isFull) {
  const { name, role, requiresToken } = api.me;
  const search = h('form.search', { role: 'search', 'aria-label': 'Everything', onsubmit: onSearch },
    h('input', { type: 'search', id: 'search', name: 'q', placeholder: 'Search a key or event id  ( / )', 'aria-label': 'Search a key or event id', autocomplete: 'off', spellcheck: 'false' }));
  const chooser = h('label.namespace', null, h('span', null, 'Namespace'), h('select', { id: 'namespace', 'aria-label': 'Namespace', onchange: onNamespace }));
  return h('header.top', null,
    link('#/overview', [h('img', { src: '/ui/icon.svg', alt: '', width: '22', height: '22' }), h('b', null, 'klambda')], { class: 'brand' }),
    isFull && chooser,
    isFull && search,
    h('div.end', null,
      h('span.who', { title: `${name}: ${role}` }, role),
      h('button.small', { type: 'button', id: 'theme', onclick: switchTheme }, 'Theme'),
      h('button.small', { type: 'button', id: 'help', onclick: help, 'aria-label': 'Keyboard shortcuts' }, '?'),
      requiresToken && h('button.small', { type: 'button', onclick: () => attempt(api.signOut) }, 'Sign out')));
}

function navigation() {
  const shown = PAGES.filter(([, , , , may]) => !may || may());
  return h('nav.side', { 'aria-label': 'Pages' }, h('ul', null,
    shown.map(([address, name]) => h('li', null, link(`#/${address}`, name, { 'data-page': address })))));
}

async function fillNamespaces() {
  const select = document.getElementById('namespace');
  const names = await api.listAll('namespaces').then((all) => all.items.map((item) => item.metadata.name), () => [api.namespace]);
  const options = names.length > 1 ? ['*', ...names] : names;
  if (!options.includes(api.namespace)) options.unshift(api.namespace);
  replace(select, options.map((name) => h('option', { value: name, selected: name === api.namespace }, name === '*' ? 'all' : name)));
}

function onNamespace(event) {
  api.choose(event.target.value);
  const [page] = read();
  if (DETAILS[page]) location.hash = `#/${DETAILS[page][0]}`;
  else navigate();
}

function onSearch(event) {
  event.preventDefault();
  const text = new FormData(event.target).get('q').trim();
  if (text) location.hash = hash(['search'], { q: text });
}

function read() {
  const [path, search] = location.hash.replace(/^#\/?/, '').split('?');
  return [...path.split('/').map(decode), new URLSearchParams(search ?? '')];
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

async function navigate() {
  if (!main) return;
  current.abort();
  current = new AbortController();
  const { signal } = current;
  const route = read();
  const query = Object.fromEntries(route.pop());
  const [name = 'overview', ...parts] = route;
  if (api.me.endpoint) return open(() => import('./webhooks.js'), 'receiver', [], {}, signal);
  const known = PAGES.find(([address, , , , may]) => address === (name || 'overview') && (!may || may()));
  const load = known?.[3] ?? DETAILS[name]?.[1];
  mark(known?.[0] ?? DETAILS[name]?.[0]);
  if (!load) {
    replace(main, h('h1', null, 'There is no such page'), h('p', null, link('#/overview', 'Back to the overview')));
    return;
  }
  await open(load, name || 'overview', parts, query, signal);
}

async function open(load, name, parts, query, signal) {
  try {
    const module = await load();
    if (signal.aborted) return;
    const place = h('div.page', { 'data-name': name });
    replace(main, place);
    scrollTo(0, 0);
    await module.page(place, { name, parts, query, signal });
    if (!performance.getEntriesByName(READY).length) performance.mark(READY);
    const title = place.querySelector('h1')?.textContent;
    document.title = title ? `${title} – klambda` : 'klambda';
  } catch (problem) {
    if (!signal.aborted && problem.name !== 'AbortError') failed(main, problem);
  }
}

function mark(page) {
  for (const one of document.querySelectorAll('nav.side a')) {
    if (one.dataset.page === page) {
      one.setAttribute('aria-current', 'page');
      one.scrollIntoView({ block: 'nearest', inline: 'nearest' });
    } else one.removeAttribute('aria-current');
  }
}

// ---- theme and keyboard ---------------------------------------------------------------------------------------

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

function switchTheme() {
  const isDark = matchMedia('(prefers-color-scheme: dark)').matches;
  const shown = document.documentElement.dataset.theme ?? (isDark ? 'dark' : 'light');
  const next = shown === 'dark' ? 'light' : 'dark';
  localStorage.setItem('klambda-theme', next);
  setTheme(next);
}

const isTyping = (target) => target.closest?.('input, textarea, select, [contenteditable]');

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || document.querySelector('dialog[open]')) return;
  const isGo = Date.now() - prefix < 1500;
  prefix = 0;
  const page = isGo && PAGES.find(([, , key, , may]) => key === event.key && (!may || may()));
  if (page) location.hash = `#/${page[0]}`;
  else if (event.key === 'g') prefix = Date.now();
  else if (event.key === '/') document.getElementById('search')?.focus();
  else if (event.key === '?') help();
  else if (event.key === 'm') switchTheme();
  else return;
  event.preventDefault();
}

function help() {
  const keys = [['/', 'Search'], ['?', 'This help'], ['m', 'Dark or light'], ['Esc', 'Close a dialog'],
    ...PAGES.filter(([, , , , may]) => !may || may()).map(([, name, key]) => [`g ${key}`, name])];
  const list = h('dl.keys');
  append(list, keys.map(([key, what]) => h('div', null, h('dt', null, key.split(' ').map((one) => h('kbd', null, one))), h('dd', null, what))));
  show('Keyboard shortcuts', list);
}
