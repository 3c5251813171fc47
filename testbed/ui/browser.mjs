// Shared by the tests of the page: a browser that notices everything that must not happen.

import { createRequire } from 'node:module';
import { mkdirSync, readFileSync } from 'node:fs';

const testbed = process.env.KLAMBDA_TESTBED;
const require = createRequire(`${testbed}/`);
const { chromium } = require('playwright-core');
const axe = readFileSync(require.resolve('axe-core/axe.min.js'), 'utf8');

export const url = process.env.KLAMBDA_URL;
export const shots = process.env.KLAMBDA_SHOTS;
mkdirSync(shots, { recursive: true });

const FLAGS = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync'];

export const launch = () => chromium.launch({ executablePath: '/usr/bin/chromium', args: FLAGS });

export const wrong = [];
export const complain = (text) => wrong.push(text);

// What was wrong before a script failed may be the reason.
process.on('uncaughtException', (error) => {
  console.error([...wrong, error.stack].join('\n'));
  process.exit(1);
});

/** A page that reports errors, dialogs of scripts, and requests to other hosts than these. */
export async function watched(browser, name, options = {}, hosts = []) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, acceptDownloads: true, ...options });
  await context.grantPermissions(['clipboard-read', 'clipboard-write'], { origin: url }).catch(() => {});
  const page = await context.newPage();
  page.setDefaultTimeout(15000);
  page.on('pageerror', (error) => complain(`${name}: ${error.stack ?? error.message}`));
  page.on('dialog', (dialog) => {
    complain(`${name}: a script opened a dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  // The browser reports refused requests here too; `response` below judges those.
  page.on('console', (message) => {
    if (['error', 'warning'].includes(message.type()) && !message.text().startsWith('Failed to load resource')) complain(`${name}: console: ${message.text()}`);
  });
  page.on('request', (request) => {
    if (![url, ...hosts].some((host) => request.url().startsWith(`${host}/`)) && !/^(blob|data):/.test(request.url())) complain(`${name}: request to ${request.url()}`);
  });
  page.on('response', (response) => {
    if (response.status() >= 500) complain(`${name}: ${response.status()} from ${response.url()}`);
  });
  return page;
}

export async function signIn(page, token) {
  await page.goto(`${url}/ui`);
  await page.getByLabel('Token').fill(token);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('navigation', { name: 'Pages' }).waitFor();
}

/** Opens an address of the page and waits until it has content. */
export async function open(page, address, name) {
  await page.evaluate((hash) => { location.hash = hash; }, address);
  await page.locator(`.page[data-name="${name}"] h1`).waitFor();
  await page.waitForFunction(() => !document.querySelector('.page')?.matches(':has(> h1:only-child)'));
}

/** Accessibility, and no element that came from data. */
export async function inspect(page, name) {
  if (!(await page.evaluate(() => 'axe' in window))) await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'] }));
  for (const one of violations) complain(`${name}: axe: ${one.id}: ${one.help}: ${one.nodes.slice(0, 3).map((node) => `${node.target} ${node.failureSummary?.split('\n')[1] ?? ''}`).join(' | ')}`);
  const markup = await page.evaluate(() => document.querySelectorAll('img:not([src="/ui/icon.svg"]), iframe, object, embed, #app script, #app b[onclick]').length);
  if (markup) complain(`${name}: data became markup`);
  const isWide = await page.evaluate(() => document.documentElement.scrollWidth > document.documentElement.clientWidth + 1);
  if (isWide) complain(`${name}: the page is wider than the window`);
}

export function check(condition, text) {
  if (!condition) complain(text);
}

export async function finish(browser) {
  await browser.close();
  if (wrong.length) {
    console.error(`${wrong.length} problems:\n${wrong.join('\n')}`);
    process.exit(1);
  }
}
