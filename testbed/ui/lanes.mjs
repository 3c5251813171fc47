// Lists very many lanes while events arrive: neither the page nor the server may stall.

import { check, finish, inspect, launch, open, url, watched } from './browser.mjs';

const total = Number(process.env.KLAMBDA_LANES);
const browser = await launch();
const page = await watched(browser, 'lanes');
await page.goto(`${url}/ui#/overview`);
await page.locator('.card').first().waitFor();

/** Sends events one after the other until it is told to end. Returns the slowest answer. */
function send() {
  let isOver = false;
  const sending = (async () => {
    let slowest = 0;
    for (let n = 0; !isOver; n++) {
      const body = JSON.stringify({ specversion: '1.0', id: `${Date.now()}-${n}`, source: '/lanes', type: 'other' });
      const began = performance.now();
      await (await fetch(`${url}/api/v1/events`, { method: 'POST', headers: { 'content-type': 'application/cloudevents+json' }, body })).text();
      slowest = Math.max(slowest, performance.now() - began);
      await new Promise((done) => setTimeout(done, 5));
    }
    return slowest;
  })();
  return () => { isOver = true; return sending; };
}

// How slow an answer is on this machine now, without lists.
const calm = send();
await new Promise((done) => setTimeout(done, 2000));
const before = await calm();

const busy = send();
const took = {};
const timed = async (what, work) => {
  const began = performance.now();
  await work();
  took[what] = performance.now() - began;
};
const rows = page.locator('main tbody tr');
await timed('first page', async () => { await open(page, '#/lanes', 'lanes'); await rows.first().waitFor(); });
check(await rows.count() === 50, `${await rows.count()} lanes on a page`);
for (let n = 2; n <= 6; n++) {
  await timed(`page ${n}`, async () => { await page.getByRole('button', { name: 'Next' }).click(); await page.getByText(`Page ${n}`, { exact: true }).waitFor(); });
}
for (const sort of ['depth', 'age', 'rate']) {
  await timed(`by ${sort}`, async () => { await open(page, `#/lanes?sort=${sort}`, 'lanes'); await rows.first().waitFor(); });
}
await timed('one lane', async () => { await open(page, `#/lane/default/waiting/key-${total - 1}`, 'lane'); await page.locator('.picture').waitFor(); });
await open(page, '#/lanes', 'lanes');
await inspect(page, 'many lanes');
const during = await busy();
const slowest = Math.max(...Object.values(took));
console.log(`${total} lanes: ${Object.entries(took).map(([what, ms]) => `${what} ${ms.toFixed(0)} ms`).join(', ')}; slowest answer to an event ${during.toFixed(0)} ms (${before.toFixed(0)} ms without lists)`);
const limit = Math.max(250, 5 * before);
check(during < limit, `an event waited ${during} ms`);
check(slowest < Math.max(1000, 10 * before), `a list took ${slowest} ms`);
await finish(browser);
