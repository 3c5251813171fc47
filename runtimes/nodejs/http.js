'use strict';
// A small HTTP/1.1 server on node:net with keep-alive, chunked bodies, `Expect`, and limits on everything that a
// client controls. node:http does the same at half the rate.

const net = require('node:net');

// Enough for all attributes of the largest accepted event, with every byte percent-encoded.
const HEAD_BYTES_MAX = 1024 * 1024;
// Limit for bytes that arrive while a previous request is served.
const AHEAD_BYTES_MAX = 64 * 1024;
const LINE_BYTES_MAX = 1024;
const TRAILER_BYTES_MAX = 8 * 1024;
const CONNECTIONS_MAX = 1024;
const RECEIVE_MS_MAX = 30_000;
const IDLE_MS_MAX = 300_000;
const REASONS = {
  200: 'OK', 204: 'No Content', 400: 'Bad Request', 404: 'Not Found', 405: 'Method Not Allowed',
  408: 'Request Timeout', 413: 'Content Too Large', 417: 'Expectation Failed', 422: 'Unprocessable Content',
  431: 'Request Header Fields Too Large', 500: 'Internal Server Error', 501: 'Not Implemented',
  504: 'Gateway Timeout', 505: 'HTTP Version Not Supported',
};
const TOKEN = /^[!#$%&'*+\-.^_`|~0-9A-Za-z]+$/;
const SIZE = /^([0-9a-fA-F]{1,8})[ \t]*(?:;.*)?$/;
const CONTROL = /[\0-\x08\x0a-\x1f\x7f]/;

class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

class Server {
  // Calls `serve(request, answer)` for each request. `answer(status, contentType, body)` ends the request.
  constructor({ serve, timeoutMs, bodyBytesMax }) {
    this.serve = serve;
    this.timeoutMs = timeoutMs;
    this.bodyBytesMax = bodyBytesMax;
    this.connections = new Set();
    this.draining = false;
    this.net = net.createServer({ noDelay: true }, (socket) => new Connection(this, socket));
    this.net.maxConnections = CONNECTIONS_MAX;
    // One timer for all connections, because a timer per request would cost more than the request.
    const tickMs = Math.min(1000, Math.max(25, timeoutMs / 4));
    setInterval(() => this.expire(Date.now()), tickMs).unref();
  }

  expire(now) {
    for (const connection of this.connections) connection.expire(now);
  }

  // Stops accepting, lets open requests end, then calls `done`.
  drain(done) {
    this.draining = true;
    this.net.close(done);
    // Bytes that have already arrived are read first.
    setImmediate(() => setImmediate(() => {
      for (const connection of this.connections) if (!connection.isAtWork()) connection.socket.destroySoon();
    }));
  }
}

class Connection {
  constructor(server, socket) {
    this.server = server;
    this.socket = socket;
    this.buffer = null;
    this.searched = 0; // this much of the buffer contains no end of a head
    this.request = null; // the request whose body is being read
    this.turn = 0; // the number of the current request; late responses to others are dropped
    this.serving = false;
    this.blocked = false;
    this.closing = false;
    this.refused = false;
    this.since = Date.now();
    server.connections.add(this);
    socket.on('data', (chunk) => this.receive(chunk));
    socket.on('drain', () => this.unblock());
    socket.on('error', () => socket.destroy());
    socket.on('close', () => server.connections.delete(this));
  }

  isIdle() {
    return !this.serving && !this.request && !this.buffer;
  }

  isAtWork() {
    return this.serving || (!this.isIdle() && !this.closing);
  }

  expire(now) {
    const spent = now - this.since;
    if (this.serving) {
      if (spent > this.server.timeoutMs) {
        this.closing = true;
        this.answer(504, 'application/json', problem('Timeout', `no answer in ${this.server.timeoutMs} ms`));
      }
    } else if (this.blocked || this.closing) {
      if (spent > RECEIVE_MS_MAX) this.socket.destroy();
    } else if (this.isIdle()) {
      if (spent > IDLE_MS_MAX) this.socket.destroySoon();
    } else if (spent > RECEIVE_MS_MAX) {
      this.refuse(new Refusal(408, 'the request took too long to arrive'));
    }
  }

  receive(chunk) {
    if (this.closing && !this.serving) return;
    if (this.isIdle()) this.since = Date.now();
    this.buffer = this.buffer ? Buffer.concat([this.buffer, chunk]) : chunk;
    if (this.serving || this.blocked) {
      if (this.buffer.length > AHEAD_BYTES_MAX) this.socket.pause();
      return;
    }
    this.advance();
  }

  advance() {
    try {
      while (this.buffer && !this.serving && !this.blocked && !this.closing) if (!this.step()) return;
    } catch (error) {
      this.refuse(error);
    }
  }

  // Continues to parse the buffer. Returns false if more bytes are needed.
  step() {
    if (!this.request) {
      this.request = this.readHead();
      if (!this.request) return false;
    }
    const body = this.request.chunked ? this.readChunks() : this.readBody();
    if (body === null) {
      if (this.request.expects) this.socket.write('HTTP/1.1 100 Continue\r\n\r\n');
      this.request.expects = false;
      return false;
    }
    const request = this.request;
    request.body = body;
    this.request = null;
    this.serving = true;
    this.closing = !request.keepAlive || this.server.draining;
    this.since = Date.now();
    const turn = ++this.turn;
    this.server.serve(request, (status, contentType, text) => {
      if (turn === this.turn && this.serving) this.answer(status, contentType, text);
    });
    return true;
  }

  take(count) {
    const taken = this.buffer.subarray(0, count);
    this.buffer = this.buffer.length > count ? this.buffer.subarray(count) : null;
    return taken;
  }

  readHead() {
    const from = this.searched;
    const end = this.buffer.indexOf('\r\n\r\n', from);
    this.searched = end < 0 ? Math.max(0, this.buffer.length - 3) : 0;
    if (end < 0 ? this.buffer.length > HEAD_BYTES_MAX : end > HEAD_BYTES_MAX) {
      throw new Refusal(431, `the head is larger than ${HEAD_BYTES_MAX} bytes`);
    }
    if (end < 0) {
      if (hasBareLineFeed(this.buffer, from)) {
        throw new Refusal(400, 'a line ends without a carriage return');
      }
      return null;
    }
    const lines = this.buffer.latin1Slice(0, end).split('\r\n');
    this.take(end + 4);
    return parseHead(lines, this.server.bodyBytesMax);
  }

  readBody() {
    const length = this.request.length;
    if (length === 0) return Buffer.alloc(0);
    const parts = (this.request.parts ??= []);
    const have = this.request.have ?? 0;
    if (have === 0 && this.buffer && this.buffer.length >= length) return this.take(length);
    if (this.buffer) {
      const part = this.take(Math.min(this.buffer.length, length - have));
      parts.push(part);
      this.request.have = have + part.length;
    }
    return this.request.have === length ? Buffer.concat(parts) : null;
  }

  readChunks() {
    const request = this.request;
    const parts = (request.parts ??= []);
    while (this.buffer) {
      if (request.left > 0) {
        const part = this.take(Math.min(this.buffer.length, request.left));
        request.left -= part.length;
        parts.push(part);
        if (request.left === 0) request.atEnd = true;
        continue;
      }
      const line = this.readLine();
      if (line === null) return null;
      if (request.trailers) {
        if (line === '') return Buffer.concat(parts);
        request.trailerBytes = (request.trailerBytes ?? 0) + line.length;
        if (request.trailerBytes > TRAILER_BYTES_MAX) throw new Refusal(400, 'the trailers are too long');
        splitHeader(line);
      } else if (request.atEnd) {
        if (line !== '') throw new Refusal(400, 'a chunk does not end where its size says');
        request.atEnd = false;
      } else {
        this.startChunk(line);
      }
    }
    return null;
  }

  // Returns a line of the chunked coding without its line end, or null if more bytes are needed.
  readLine() {
    const feed = this.buffer.indexOf('\n');
    if (feed === 0 || (feed > 0 && this.buffer[feed - 1] !== 13)) {
      throw new Refusal(400, 'a line ends without a carriage return');
    }
    const end = feed - 1;
    if (end < 0 ? this.buffer.length > LINE_BYTES_MAX : end > LINE_BYTES_MAX) {
      throw new Refusal(400, 'a line of the chunked body is too long');
    }
    return end < 0 ? null : this.take(end + 2).latin1Slice(0, end);
  }

  startChunk(line) {
    const request = this.request;
    const size = SIZE.exec(line);
    if (!size || CONTROL.test(line)) throw new Refusal(400, 'a chunk has no valid size');
    request.left = parseInt(size[1], 16);
    request.have = (request.have ?? 0) + request.left;
    if (request.have > this.server.bodyBytesMax) throw tooLarge(this.server.bodyBytesMax);
    request.trailers = request.left === 0;
  }

  answer(status, contentType, text) {
    this.serving = false;
    this.since = Date.now();
    let head = `HTTP/1.1 ${status} ${REASONS[status]}\r\n`;
    if (this.closing || this.server.draining) {
      this.closing = true;
      head += 'connection: close\r\n';
    }
    if (contentType) head += `content-type: ${contentType}\r\ncontent-length: ${Buffer.byteLength(text)}\r\n\r\n${text}`;
    else head += status === 204 ? '\r\n' : 'content-length: 0\r\n\r\n';
    this.blocked = !this.socket.write(head);
    if (this.closing) return this.close();
    if (this.buffer && !this.blocked) this.resume();
  }

  close() {
    // A reset could destroy the response for a client that is still sending, so its rest is read for a while.
    if (this.refused && !this.server.draining) this.socket.end();
    else this.socket.destroySoon();
  }

  unblock() {
    if (!this.blocked) return;
    this.blocked = false;
    if (!this.serving) this.resume();
  }

  resume() {
    if (this.socket.isPaused()) this.socket.resume();
    // On a new stack, because a handler may have responded synchronously.
    if (this.buffer) setImmediate(() => this.advance());
  }

  refuse(error) {
    const status = error instanceof Refusal ? error.status : 500;
    this.closing = true;
    this.refused = true;
    this.request = null;
    this.buffer = null;
    this.answer(status, 'application/json', problem(REASONS[status].replace(/ /g, ''), error.message));
  }
}

function parseHead(lines, bodyBytesMax) {
  const [method, target, version, more] = lines[0].split(' ');
  if (more !== undefined || !version || !TOKEN.test(method)) throw new Refusal(400, 'the request line is malformed');
  if (version !== 'HTTP/1.1' && version !== 'HTTP/1.0') throw new Refusal(505, 'speak HTTP/1.1');
  const headers = new Map();
  for (let i = 1; i < lines.length; i++) {
    const [name, value] = splitHeader(lines[i]);
    const earlier = headers.get(name);
    if (earlier !== undefined && (name === 'content-length' || name === 'host' || name.startsWith('ce-'))) {
      throw new Refusal(400, `the header ${name} is given twice`);
    }
    headers.set(name, earlier === undefined ? value : `${earlier}, ${value}`);
  }
  const request = { method, target, headers, body: null, chunked: false, length: 0, expects: false, keepAlive: true };
  frame(request, version, bodyBytesMax);
  return request;
}

function hasBareLineFeed(bytes, from) {
  for (let at = bytes.indexOf(10, from); at >= 0; at = bytes.indexOf(10, at + 1)) if (bytes[at - 1] !== 13) return true;
  return false;
}

function splitHeader(line) {
  const colon = line.indexOf(':');
  const name = line.slice(0, colon).toLowerCase();
  if (colon < 1 || !TOKEN.test(name) || CONTROL.test(line)) throw new Refusal(400, 'a header is malformed');
  return [name, trimSpace(line, colon + 1, line.length)];
}

// Only spaces and tabs are removed; `trim` removes more.
function trimSpace(text, from, to) {
  while (from < to && (text[from] === ' ' || text[from] === '\t')) from++;
  while (to > from && (text[to - 1] === ' ' || text[to - 1] === '\t')) to--;
  return text.slice(from, to);
}

// Determines the length of the body and whether the connection stays open.
function frame(request, version, bodyBytesMax) {
  const headers = request.headers;
  const coding = headers.get('transfer-encoding');
  const length = headers.get('content-length');
  if (version === 'HTTP/1.1' && !headers.has('host')) throw new Refusal(400, 'the header host is missing');
  if (coding !== undefined) {
    if (length !== undefined) throw new Refusal(400, 'content-length and transfer-encoding exclude each other');
    if (version === 'HTTP/1.0') throw new Refusal(400, 'HTTP/1.0 has no transfer-encoding');
    if (coding.toLowerCase() !== 'chunked') throw new Refusal(501, 'the only transfer-encoding taken is chunked');
    request.chunked = true;
  } else if (length !== undefined) {
    if (!/^[0-9]{1,15}$/.test(length)) throw new Refusal(400, 'content-length is not a number');
    request.length = Number(length);
    if (request.length > bodyBytesMax) throw tooLarge(bodyBytesMax);
  }
  const expect = headers.get('expect');
  if (expect !== undefined) {
    if (expect.toLowerCase() !== '100-continue') throw new Refusal(417, 'the only expectation taken is 100-continue');
    request.expects = true;
  }
  const connection = headers.get('connection')?.toLowerCase() ?? '';
  request.keepAlive = version === 'HTTP/1.1' ? !connection.includes('close') : connection.includes('keep-alive');
}

function tooLarge(bytesMax) {
  return new Refusal(413, `the body is larger than ${bytesMax} bytes`);
}

function problem(type, message, stack) {
  return JSON.stringify({ error: { type, message, stack } });
}

module.exports = { Server, problem };
