'use strict';
// Serves one handler: it receives CloudEvents over HTTP and returns the handler's value, events or error.

const path = require('node:path');
const fs = require('node:fs');
const { Server, problem } = require('./http.js');

const env = process.env;
const FUNCTION = env.KLAMBDA_FUNCTION || 'function';
const NAMESPACE = env.KLAMBDA_NAMESPACE || 'default';
const TIMEOUT_MS = Number(env.KLAMBDA_TIMEOUT_MS) || 30_000;
const BODY_BYTES_MAX = Number(env.KLAMBDA_BODY_BYTES_MAX) || 16 * 1024 * 1024;
const EXIT_CONFIG = 78;

class Fault extends Error {}

// ---- logs

function writeLog(level, message, fields) {
  const line = { time: new Date().toISOString(), level, message, function: FUNCTION, namespace: NAMESPACE, ...fields };
  let text;
  try {
    text = JSON.stringify(line);
  } catch {
    text = JSON.stringify({ time: line.time, level, message: String(message), function: FUNCTION, namespace: NAMESPACE });
  }
  (level === 'error' || level === 'warn' ? process.stderr : process.stdout).write(text + '\n');
}

function takeOverConsole() {
  const levels = { log: 'info', info: 'info', debug: 'debug', warn: 'warn', error: 'error', trace: 'debug' };
  for (const [method, level] of Object.entries(levels)) {
    console[method] = (...parts) => {
      const text = parts.length === 1 && typeof parts[0] === 'string' ? parts[0] : require('node:util').format(...parts);
      writeLog(level, text);
    };
  }
}

// ---- the event and its context

class Context {
  constructor(event, headers) {
    this.function = FUNCTION;
    this.namespace = NAMESPACE;
    this.eventId = event.id;
    this.attempt = Number(headers.get('klambda-attempt')) || 1;
    this.lanesequence = event.lanesequence === undefined ? undefined : Number(event.lanesequence);
    this.previousid = event.previousid;
    this.orderstatus = event.orderstatus;
    // The header is the context of this call; the attribute is that of the producer.
    const own = headers.get('traceparent');
    this.traceparent = own ?? event.traceparent;
    this.tracestate = own === undefined ? event.tracestate : headers.get('tracestate');
    this.deadline = Date.now() + TIMEOUT_MS;
  }

  remainingMs() {
    return Math.max(0, this.deadline - Date.now());
  }

  get log() {
    const [, trace_id, span_id] = this.traceparent?.split('-') ?? [];
    const ids = { event_id: this.eventId, trace_id, span_id };
    const at = (level) => (message, fields) => writeLog(level, message, { ...ids, ...fields });
    return { debug: at('debug'), info: at('info'), warn: at('warn'), error: at('error') };
  }
}

function readEvent(request) {
  const type = request.headers.get('content-type') ?? '';
  const lower = type.toLowerCase();
  const event = lower.startsWith('application/cloudevents') ? structured(lower, request.body) : binary(type, request);
  if (event.specversion !== '1.0') throw new Fault('not a CloudEvent: specversion must be 1.0');
  for (const name of ['id', 'source', 'type']) {
    if (typeof event[name] !== 'string' || event[name] === '') throw new Fault(`not a CloudEvent: ${name} is missing`);
  }
  return event;
}

function structured(type, body) {
  if (!/^application\/cloudevents\+json *(;|$)/.test(type)) throw new Fault(`${type} is not supported; send one event as JSON`);
  const event = parseJson(body, 'the event');
  if (event === null || typeof event !== 'object' || Array.isArray(event)) throw new Fault('the event is not a JSON object');
  if (event.data_base64 !== undefined) {
    if (typeof event.data_base64 !== 'string' || event.data !== undefined) throw new Fault('data_base64 must be the only data, a string');
    event.data = Buffer.from(event.data_base64, 'base64');
    delete event.data_base64;
  }
  return event;
}

function binary(type, request) {
  const event = {};
  for (const [name, value] of request.headers) if (name.startsWith('ce-')) event[name.slice(3)] = headerText(value);
  if (event.specversion === undefined) throw new Fault('not a CloudEvent: the header ce-specversion is missing');
  delete event.data;
  if (type) event.datacontenttype = type;
  if (request.body.length > 0) event.data = readData(type, request.body);
  return event;
}

function readData(type, body) {
  const media = type.split(';', 1)[0].trim().toLowerCase();
  if (media.endsWith('/json') || media.endsWith('+json')) return parseJson(body, 'the data');
  return media.startsWith('text/') ? body.toString() : body;
}

function parseJson(body, what) {
  try {
    return JSON.parse(body.toString());
  } catch (error) {
    throw new Fault(`${what} is not JSON: ${error.message}`);
  }
}

// Header values are percent-encoded UTF-8. Some senders do not encode the UTF-8.
function headerText(value) {
  if (/[^\x00-\x7f]/.test(value)) value = Buffer.from(value, 'latin1').toString();
  if (!value.includes('%')) return value;
  try {
    return decodeURIComponent(value);
  } catch {
    return value;
  }
}

// ---- the response

function isEvent(value) {
  return value !== null && typeof value === 'object' && typeof value.specversion === 'string'
    && typeof value.type === 'string' && typeof value.source === 'string';
}

function outgoing(event, context) {
  const out = { ...event };
  if (out.traceparent === undefined && context.traceparent !== undefined) {
    out.traceparent = context.traceparent;
    if (context.tracestate !== undefined) out.tracestate = context.tracestate;
  }
  if (out.data instanceof Uint8Array) {
    out.data_base64 = Buffer.from(out.data).toString('base64');
    delete out.data;
  }
  return out;
}

function answerValue(value, context, answer) {
  if (value === undefined || value === null) return answer(204);
  if (isEvent(value)) {
    return answer(200, 'application/cloudevents+json', JSON.stringify(outgoing(value, context)));
  }
  if (Array.isArray(value) && value.length > 0 && value.every(isEvent)) {
    const events = value.map((event) => outgoing(event, context));
    return answer(200, 'application/cloudevents-batch+json', JSON.stringify(events));
  }
  const text = JSON.stringify(value instanceof Uint8Array ? Buffer.from(value).toString('base64') : value);
  if (text === undefined) throw new TypeError(`the handler returned a ${typeof value}, which is not JSON`);
  answer(200, 'application/json', text);
}

function answerError(error, context, answer) {
  const type = error?.name ?? typeof error;
  const message = String(error?.message ?? error);
  const retry = error?.retry !== false;
  context.log.error(message, { error: { type, stack: error?.stack }, retry });
  answer(retry ? 500 : 422, 'application/json', problem(String(type), message, error?.stack));
}

function serveWith(handler) {
  return (request, answer) => {
    if (request.method !== 'POST') return serveOther(request, answer);
    if (request.target !== '/' && !request.target.startsWith('/?')) return refuse(answer, 404, 'NotFound', 'events are taken at /');
    let event;
    try {
      event = readEvent(request);
    } catch (error) {
      return refuse(answer, 400, 'BadRequest', error.message);
    }
    invoke(handler, event, new Context(event, request.headers), answer);
  };
}

function invoke(handler, event, context, answer) {
  const succeed = (value) => {
    try {
      answerValue(value, context, answer);
    } catch (error) {
      answerError(error, context, answer);
    }
  };
  let value;
  try {
    value = handler(event, context);
  } catch (error) {
    return answerError(error, context, answer);
  }
  if (typeof value?.then === 'function') value.then(succeed, (error) => answerError(error, context, answer));
  else succeed(value);
}

function serveOther({ method, target }, answer) {
  if (target !== '/healthz') return refuse(answer, target === '/' ? 405 : 404, 'NotFound', 'POST events to /');
  if (method !== 'GET') return refuse(answer, 405, 'MethodNotAllowed', 'GET /healthz');
  answer(200, 'text/plain', 'ok');
}

function refuse(answer, status, type, message) {
  answer(status, 'application/json', problem(type, message));
}

// ---- the start

function giveUp(reason, message) {
  writeLog('error', message, { reason });
  process.exit(EXIT_CONFIG);
}

function findFile(base) {
  for (const suffix of ['.js', '.cjs', '.mjs', '/index.js', '/index.mjs']) if (fs.existsSync(base + suffix)) return base + suffix;
  return null;
}

async function loadModule(file) {
  const { pathToFileURL } = require('node:url');
  return import(pathToFileURL(file).href);
}

function loadFailed(error) {
  const message = error?.stack ?? String(error);
  giveUp(error instanceof SyntaxError ? 'SyntaxError' : 'LoadError', message);
}

// Passes the exports to `use`: immediately for CommonJS, later for modules.
function load(file, use) {
  if (file.endsWith('.mjs')) return void loadModule(file).then(use, loadFailed);
  let exports;
  try {
    exports = require(file);
  } catch (error) {
    if (error?.code === 'ERR_REQUIRE_ESM' || error?.code === 'ERR_REQUIRE_ASYNC_MODULE') return void loadModule(file).then(use, loadFailed);
    return loadFailed(error);
  }
  use(exports);
}

function start() {
  const name = env.KLAMBDA_HANDLER || 'index.handler';
  const dot = name.lastIndexOf('.');
  const [fileName, functionName] = [name.slice(0, dot), name.slice(dot + 1)];
  const code = path.resolve(env.KLAMBDA_CODE || '.');
  const file = dot > 0 ? findFile(path.join(code, fileName)) : null;
  if (file === null) return giveUp('HandlerNotFound', `the handler ${name} needs a file ${fileName}.js, which is not there`);
  takeOverConsole();
  load(file, (exports) => {
    const handler = exports[functionName] ?? exports.default?.[functionName];
    if (typeof handler !== 'function') {
      return giveUp('HandlerNotFound', `${path.basename(file)} exports no function ${functionName}`);
    }
    listen(handler);
  });
}

function listen(handler) {
  const server = new Server({ serve: serveWith(handler), timeoutMs: TIMEOUT_MS, bodyBytesMax: BODY_BYTES_MAX });
  const place = env.KLAMBDA_LISTEN_FD ? { fd: Number(env.KLAMBDA_LISTEN_FD) } : { host: '127.0.0.1', port: Number(env.PORT) || 8080 };
  server.net.on('error', (error) => giveUp('ListenError', error.message));
  server.net.listen(place);
  process.once('SIGTERM', () => server.drain(() => process.exit(0)));
}

process.on('uncaughtException', (error) => {
  writeLog('error', String(error?.message ?? error), { reason: 'Uncaught', error: { type: error?.name, stack: error?.stack } });
  process.exit(1);
});
start();
