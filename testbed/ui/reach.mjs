// How fast and how large the page is, and whether many updates slow it down. On a server without tokens: nobody signs in.

import { check, finish, launch, shots, url, watched } from './browser.mjs';

const browser = await launch();
const page = await watched(browser, 'reach');
const sizes = [];
const client = await page.context().newCDPSession(page);
await client.send('Network.enable');
client.on('Network.loadingFinished', ({ encodedDataLength }) => sizes.push(encodedDataLength));

// The first load of a browser is slower than any other, whatever it loads.
const times = [];
for (let n = 0; n < 5; n++) {
  await page.goto(`${url}/ui#/overview`);
  await page.locator('main h1').waitFor();
  times.push(await page.evaluate(() => {
    const { responseStart } = performance.getEntriesByType('navigation')[0];
    const loaded = performance.getEntriesByType('resource').filter((one) => /whoami/.test(one.name)).map((one) => one.responseEnd);
    return Math.max(...loaded) - responseStart;
  }));
  await page.goto('about:blank');
}
times.sort((a, b) => a - b);
console.log(`interactive ${times[2].toFixed(0)} ms after the first byte (median of 5; ${times.map((one) => one.toFixed(0)).join(', ')})`);
check(times[2] < 300, `the page takes ${times[2]} ms`);

let total = 0;
for (const name of (await (await fetch(`${url}/ui`)).text()).matchAll(/(?:href|src)="(\/ui[^"]*)"/g)) total += await packed(name[1]);
for (const name of ['', ...['lanes', 'lane', 'events', 'letters', 'functions', 'webhooks', 'subscriptions', 'settings'].map((one) => `/${one}.js`)]) total += await packed(`/ui${name}`);
console.log(`${(total / 1024).toFixed(1)} KiB compressed in all`);
check(total <= 150 * 1024, `the page has ${total} bytes`);

async function packed(path) {
  const { default: http } = await import('node:http');
  return new Promise((done, fail) => http.get(`${url}${path}`, { headers: { 'accept-encoding': 'gzip' } }, (answer) => {
    let bytes = 0;
    check(answer.headers['content-encoding'] === 'gzip', `${path} is not compressed`);
    answer.on('data', (part) => { bytes += part.length; });
    answer.on('end', () => done(bytes));
  }).on('error', fail));
}

// 60 events a second for 4 seconds, while the page follows the log.
await page.goto(`${url}/ui#/events`);
await page.locator('main h1').waitFor();
await page.evaluate(() => {
  window.longTasks = [];
  new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((one) => one.duration))).observe({ type: 'longtask' });
});
for (let n = 0; n < 240; n++) {
  const body = JSON.stringify({ specversion: '1.0', id: `update-${n}`, source: '/reach', type: 'reach.update', data: { n } });
  fetch(`${url}/api/v1/events`, { method: 'POST', headers: { 'content-type': 'application/cloudevents+json' }, body }).catch(() => {});
  await new Promise((done) => setTimeout(done, 1000 / 60));
}
await page.getByRole('link', { name: 'update-239' }).waitFor();
const long = await page.evaluate(() => window.longTasks);
console.log(`60 updates a second: ${long.length} tasks longer than 50 ms (${long.map((one) => one.toFixed(0)).join(', ')})`);
await page.screenshot({ path: `${shots}/updates.png` });
// One may be the browser's own.
check(long.length <= 1, `long tasks: ${long}`);
await finish(browser);
