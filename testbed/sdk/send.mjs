// Sends events in every mode with the CloudEvents SDK for JavaScript, and reads them back with it.
//
// node send.mjs http://127.0.0.1:8080 FOLDER    FOLDER/node_modules contains the SDK

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { resolve } from "node:path";

const [server, folder] = process.argv.slice(2);
const { CloudEvent, HTTP } = createRequire(resolve(folder, "x.js"))("cloudevents");

const SOURCE = "/sdk/javascript";
const EVENTS = 30;

// Alternates between keys. Values that need encoding in a header are sent only in the structured modes, because this
// SDK does not encode header values.
function event(number, subject) {
  return new CloudEvent({
    id: `javascript-${number}`,
    source: SOURCE,
    type: "order.changed",
    time: new Date(Date.UTC(2026, 0, 1, 12, 0, number)).toISOString(),
    subject,
    datacontenttype: "application/json",
    partitionkey: `javascript-key-${number % 3}`,
    data: { number, text: "schön", nested: { list: [1, null, true] } },
  });
}

function binaryData(number) {
  return new CloudEvent({
    id: `javascript-${number}`,
    source: SOURCE,
    type: "order.scanned",
    datacontenttype: "application/octet-stream",
    partitionkey: `javascript-key-${number % 3}`,
    data: Uint8Array.from({ length: 256 }, (_, byte) => byte),
  });
}

async function send({ headers, body }, ids) {
  const answer = await fetch(`${server}/api/v1/events`, { method: "POST", headers, body });
  assert.equal(answer.status, 202, await answer.clone().text());
  const { results } = await answer.json();
  assert.deepEqual(
    results.map(({ id, source, status }) => [id, source, status]),
    ids.map((id) => [id, SOURCE, "accepted"]),
  );
}

// The SDK reads batches but does not write them. A batch is an array of events in the JSON format.
function batch(events) {
  return {
    headers: { "content-type": "application/cloudevents-batch+json" },
    body: `[${events.map((one) => HTTP.structured(one).body).join(",")}]`,
  };
}

async function checkKept(sent) {
  const answer = await fetch(`${server}/api/v1/events/${sent.id}?source=${encodeURIComponent(SOURCE)}`);
  const { event: kept } = await answer.json();
  const headers = { "content-type": "application/cloudevents+json" };
  const read = HTTP.toEvent({ headers, body: JSON.stringify(kept) });
  assert.deepEqual(JSON.parse(HTTP.structured(read).body), JSON.parse(HTTP.structured(sent).body));
}

const subject = (number) => (number < 10 || number >= 20 ? 'Größe 50% "neu"' : "size-50");
const made = Array.from({ length: EVENTS }, (_, number) =>
  number % 10 ? event(number, subject(number)) : binaryData(number),
);
for (const one of made.slice(0, 10)) await send(HTTP.structured(one), [one.id]);
for (const one of made.slice(10, 20)) await send(HTTP.binary(one), [one.id]);
await send(
  batch(made.slice(20)),
  made.slice(20).map((one) => one.id),
);
for (const one of made) await checkKept(one);
console.log(made.map((one) => one.id).join("\n"));
