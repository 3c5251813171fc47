// A webhook receiver that processes every event once, in order, and reads from the feed what it missed.

import { appendFileSync, existsSync, readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { Webhook, WebhookVerificationError } from 'standardwebhooks';

const [port, path] = process.argv.slice(2);
const { WEBHOOK_SECRET, WEBHOOK_FEED, WEBHOOK_TOKEN } = process.env;
const webhook = new Webhook(WEBHOOK_SECRET);

// The events so far, one JSON line each, and how far the feed was read. A real receiver uses its database.
const last = new Map(); // workflow: its last event
let cursor = null;

function remember(line) {
  if ('cursor' in line) cursor = line.cursor;
  else last.set(line.workflowId, line);
}

function write(line) {
  appendFileSync(path, JSON.stringify(line) + '\n');
  remember(line);
}

// Returns false if an event before this one is missing.
function take(event) {
  const before = last.get(event.workflowId) ?? { sequenceNumber: 0, eventId: null };
  if (event.sequenceNumber <= before.sequenceNumber) return true; // known
  if (event.sequenceNumber !== before.sequenceNumber + 1 || event.previousEventId !== before.eventId) return false;
  write(event);
  return true;
}

// For an event whose predecessors are gone everywhere.
function takeAnyway(event) {
  if (take(event)) return;
  console.error(`lost: events before ${event.eventId} of ${event.workflowId}`);
  write(event);
}

// Reads the feed to its end.
async function catchUp() {
  for (;;) {
    const page = await readFeed(cursor);
    page.items.forEach(takeAnyway);
    if (page.next !== cursor) write({ cursor: page.next });
    if (page.items.length === 0) return;
  }
}

async function readFeed(since) {
  const headers = WEBHOOK_TOKEN ? { authorization: `Bearer ${WEBHOOK_TOKEN}` } : {};
  const url = WEBHOOK_FEED + (since ? `&since=${encodeURIComponent(since)}` : '');
  const answer = await fetch(url, { headers });
  if (answer.status === 410 && since) return readFeed(null); // Retention has removed events after the cursor.
  if (!answer.ok) throw new Error(`the feed answers ${answer.status}: ${await answer.text()}`);
  return answer.json();
}

async function receive(events) {
  for (const event of events) {
    if (take(event)) continue;
    await catchUp();
    takeAnyway(event);
  }
}

let turn = Promise.resolve(); // One call at a time.

async function handle(request) {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const received = webhook.verify(Buffer.concat(chunks), request.headers);
  const events = [received].flat(); // An endpoint with `batch` sends an array of events.
  const done = turn.then(() => receive(events));
  turn = done.catch(() => {});
  await done;
}

if (existsSync(path)) {
  readFileSync(path, 'utf8').split('\n').filter(Boolean).forEach((line) => remember(JSON.parse(line)));
}
await catchUp();

createServer((request, answer) => {
  handle(request).then(
    () => answer.writeHead(200).end(), // Not earlier: the events are stored.
    (error) => answer.writeHead(error instanceof WebhookVerificationError ? 401 : 500).end(error.message),
  );
}).listen(Number(port), '127.0.0.1');
