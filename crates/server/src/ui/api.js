// The REST API, as every client uses it. The session is a cookie; the header shows that this page made the request.

const HEADERS = { 'klambda-page': '1' };
const RANK = { viewer: 1, operator: 2, developer: 3, admin: 4 };

/** Who is signed in. `null` before the first answer. */
export let me = null;
/** The chosen namespace; `*` for all. */
export let namespace = 'default';

export class Problem extends Error {
  constructor(status, body) {
    super(text(status, body));
    this.status = status;
    this.body = body ?? {};
  }
}

function text(status, body) {
  if (!body?.title) return status ? `The server answered ${status}.` : 'The server cannot be reached.';
  const faults = (body.faults ?? []).slice(0, 5).map((fault) => `${fault.path}: ${fault.message}`);
  const detail = faults.length > 1 ? `${body.detail}: ${faults.join('; ')}` : body.detail;
  return `${body.title}: ${detail ?? ''}`;
}

/** Numbers that JavaScript cannot hold stay as they were written. If `exact`, so do all others, such as `1.0`. */
export function parse(source, exact) {
  if (typeof JSON.rawJSON !== 'function') return JSON.parse(source);
  return JSON.parse(source, (_, value, context) => {
    if (typeof value !== 'number' || !context || String(value) === context.source) return value;
    return exact || context.source.length > 15 ? JSON.rawJSON(context.source) : value;
  });
}

/** The address of a resource. Without a namespace it belongs to the server. */
export function address(path, { ns, query } = {}) {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value != null && value !== '') params.set(name, value);
  }
  if (ns === '*') params.set('namespace', '*');
  const inside = ns && ns !== '*' ? `namespaces/${encodeURIComponent(ns)}/` : '';
  const search = params.toString();
  return `/api/v1/${inside}${path}${search ? `?${search}` : ''}`;
}

/** A path of parts that may contain anything. */
export const path = (...parts) => parts.map(encodeURIComponent).join('/');

export async function call(method, url, { body, headers, signal, raw, exact } = {}) {
  const init = { method, headers: { ...HEADERS, ...headers }, signal, cache: 'no-store', credentials: 'same-origin' };
  if (body !== undefined) {
    init.body = typeof body === 'string' || body instanceof Blob ? body : JSON.stringify(body);
    init.headers['content-type'] ??= 'application/json';
  }
  let response;
  try {
    response = await fetch(url, init);
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Problem(0, null);
  }
  if (raw) return response;
  const source = await response.text();
  const answer = decode(source, response.headers.get('content-type'), exact);
  if (response.ok) {
    if (answer && typeof answer === 'object') Object.defineProperty(answer, 'etag', { value: response.headers.get('etag') });
    return answer;
  }
  refused(response.status);
  throw new Problem(response.status, answer);
}

function decode(source, type, exact) {
  if (!source || !/json/.test(type ?? '')) return source || null;
  try {
    return parse(source, exact);
  } catch {
    return source;
  }
}

function refused(status) {
  if (status === 401 && me) {
    me = null;
    dispatchEvent(new Event('klambda-signed-out'));
  }
}

export const get = (what, options) => call('GET', address(what, options), options);
export const post = (what, body, options) => call('POST', address(what, options), { ...options, body });
export const put = (what, body, options) => call('PUT', address(what, options), { ...options, body });
export const del = (what, options) => call('DELETE', address(what, options), options);

export async function signIn(token) {
  await call('POST', '/ui/session', { body: { token } });
  await whoami();
}

export async function signOut() {
  await call('DELETE', '/ui/session');
  me = null;
  dispatchEvent(new Event('klambda-signed-out'));
}

export async function whoami() {
  me = await get('whoami');
  const kept = localStorage.getItem('klambda-namespace');
  const home = me.namespaces?.[0] ?? 'default';
  const isOwn = kept && (me.namespaces === null || kept === '*' || me.namespaces.includes(kept));
  namespace = isOwn && !me.endpoint ? kept : home;
  return me;
}

export function choose(name) {
  namespace = name;
  localStorage.setItem('klambda-namespace', name);
}

/** Whether the caller has at least this role in the namespace. Without a namespace: in all of them. */
export function can(role, ns) {
  if (!me || me.endpoint) return false;
  const covers = me.namespaces === null || (ns !== undefined && ns !== '*' && me.namespaces.includes(ns));
  if (role === 'producer') return covers && (me.role === 'producer' || RANK[me.role] >= RANK.developer);
  return covers && (RANK[me.role] ?? 0) >= RANK[role];
}

/** The same, in any namespace. */
export const canSomewhere = (role) => !!me && !me.endpoint && (RANK[me.role] ?? 0) >= RANK[role];

const RETRY_MS = 1500;

/** Follows a stream of Server-Sent Events until the signal aborts. Connects again when it ends. */
export async function follow(url, signal, onMessage, onState = () => {}) {
  let last;
  while (!signal.aborted) {
    try {
      const headers = { accept: 'text/event-stream', ...(last ? { 'last-event-id': last } : {}) };
      const response = await call('GET', url, { headers, signal, raw: true });
      if (!response.ok) {
        refused(response.status);
        const problem = new Problem(response.status, decode(await response.text(), response.headers.get('content-type')));
        onState(problem);
        if (response.status < 500 && response.status !== 429) return;
      } else {
        onState(null);
        last = await readStream(response.body, onMessage, last);
      }
    } catch (error) {
      if (signal.aborted || error.name === 'AbortError') return;
      onState(error instanceof Problem ? error : new Problem(0, null));
    }
    await new Promise((done) => setTimeout(done, RETRY_MS));
  }
}

async function readStream(body, onMessage, last) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return last;
    rest += value;
    const parts = rest.split('\n\n');
    rest = parts.pop();
    for (const part of parts) {
      let data = '';
      for (const line of part.split('\n')) {
        if (line.startsWith('data:')) data += line.slice(5).trimStart();
        else if (line.startsWith('id:')) last = line.slice(3).trim();
      }
      if (data) onMessage(parse(data), last);
    }
  }
}

/** Runs `work` now and then, while the page is visible, until the signal aborts. */
export async function repeat(ms, signal, work) {
  while (!signal.aborted) {
    if (!document.hidden) await work();
    await new Promise((done) => setTimeout(done, ms));
  }
}

/** Reads pages until there are enough items. */
export async function listAll(what, { ns, query, most = 1000, signal } = {}) {
  const items = [];
  let cursor;
  do {
    const page = await get(what, { ns, query: { ...query, limit: Math.min(1000, most), cursor }, signal });
    items.push(...page.items);
    cursor = page.next;
  } while (cursor && items.length < most);
  return { items: items.slice(0, most), more: !!cursor };
}
