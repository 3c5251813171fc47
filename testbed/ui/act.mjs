// Uses every action of the page once, as the roles that may, and looks at what the server made of it.

import { readFileSync, writeFileSync } from 'node:fs';
import { check, finish, inspect, launch, open, signIn, url, watched } from './browser.mjs';

const tokens = JSON.parse(process.env.KLAMBDA_TOKENS);
const statusFile = process.env.KLAMBDA_STATUS_FILE;
const browser = await launch();
const operator = await watched(browser, 'operator');
const admin = await watched(browser, 'admin');
await signIn(operator, tokens.operator);
await signIn(admin, tokens.admin);

const api = async (path, init) => (await fetch(`${url}/api/v1/${path}`, { ...init, headers: { authorization: `Bearer ${tokens.admin}`, 'content-type': 'application/json', ...init?.headers } })).json();

async function until(what, ask) {
  for (const end = Date.now() + 20000; Date.now() < end;) {
    if (await ask().catch(() => false)) return;
    await new Promise((done) => setTimeout(done, 50));
  }
  check(false, `it never became so: ${what}`);
}

/** Clicks a button of the page, fills the dialog and confirms it. */
async function use(page, button, fill = {}, verb = button.replace('…', '')) {
  await page.locator('main').getByRole('button', { name: button, exact: true }).first().click();
  const dialog = page.locator('dialog[open]');
  await dialog.waitFor();
  for (const [label, value] of Object.entries(fill)) {
    const field = dialog.getByLabel(label).first();
    if (typeof value === 'boolean') await field.setChecked(value);
    else if (await field.evaluate((node) => node.tagName === 'SELECT')) await field.selectOption(value);
    else if (await field.evaluate((node) => node.type === 'file')) await field.setInputFiles(value);
    else await field.fill(value);
  }
  await inspect(page, `dialog of ${button}`);
  await dialog.getByRole('button', { name: verb, exact: true }).click();
}

const closed = (page) => page.locator('dialog[open]').waitFor({ state: 'detached' });
const text = (page) => page.locator('main').innerText();

// ---- keyboard and theme ---------------------------------------------------------------------------------------
await operator.keyboard.press('g');
await operator.keyboard.press('l');
await operator.locator('.page[data-name="lanes"] h1').waitFor();
await operator.keyboard.press('?');
await inspect(operator, 'help');
await operator.keyboard.press('Escape');
await closed(operator);
const before = await operator.evaluate(() => getComputedStyle(document.body).backgroundColor);
await operator.keyboard.press('m');
check(before !== await operator.evaluate(() => getComputedStyle(document.body).backgroundColor), 'the theme does not change');
await operator.keyboard.press('/');
await operator.keyboard.type('order-1');
await operator.keyboard.press('Enter');
await operator.locator('.page[data-name="search"] table').waitFor();
check((await text(operator)).includes('order-1'), 'the search finds no lane');

// ---- overview -------------------------------------------------------------------------------------------------
await open(operator, '#/overview', 'overview');
await operator.locator('.attention li', { hasText: 'lanes parked' }).getByRole('button', { name: 'Replay…' }).click();
await operator.getByText(/Dry run: \d+ dead letters of \d+ keys would be replayed/).waitFor();
await inspect(operator, 'replay from the overview');
await operator.locator('dialog').getByRole('button', { name: 'Cancel' }).click();
await closed(operator);

// ---- lanes ----------------------------------------------------------------------------------------------------
await open(operator, '#/lane/default/orders/order-1', 'lane');
await use(operator, 'Pause');
await closed(operator);
await until('order-1 is paused', async () => (await api('lanes/orders/order-1')).state === 'paused');
await use(operator, 'Resume');
await closed(operator);
await until('order-1 is open', async () => (await api('lanes/orders/order-1')).state === 'open');
await open(operator, '#/lane/default/orders/order-gap', 'lane');
await use(operator, 'Reset…', { 'Next expected sequence': '5' });
await closed(operator);
await until('the gap is closed', async () => (await api('lanes/orders/order-gap')).depth === 0);
await open(operator, '#/lane/default/orders/skip', 'lane');
await use(operator, 'Skip');
await closed(operator);
await until('the lane continued', async () => (await api('lanes/orders/skip')).head?.id !== 'skip-1');
await open(operator, '#/lane/default/orders/purge', 'lane');
await use(operator, 'Purge');
await closed(operator);
await until('the lane is empty', async () => (await api('lanes/orders/purge')).depth === 0);

// ---- dead letters ---------------------------------------------------------------------------------------------
await open(admin, `#/letter/default/${process.env.KLAMBDA_LETTER}`, 'letter');
const event = JSON.parse(await (async () => {
  await admin.getByRole('button', { name: 'Edit…' }).click();
  return admin.locator('dialog textarea').inputValue();
})());
check(String(event.data.total) === '7', 'the editor shows another event');
const raw = await admin.locator('dialog textarea').inputValue();
check(raw.includes('12345678901234567890'), 'the editor changes a large number');
await admin.locator('dialog textarea').fill(raw.replace('"total": 7', '"total": 8'));
await admin.getByLabel('Replay it at once').setChecked(false);
await admin.getByRole('button', { name: 'Save' }).click();
await closed(admin);
check((await text(admin)).includes('as it was accepted'), 'the original is not shown');
const edited = await api(`dlq/${process.env.KLAMBDA_LETTER}`);
check(edited.editedBy === 'token/admin' && edited.event.data.total === 8 && edited.original.data.total === 7, JSON.stringify(edited));

writeFileSync(statusFile, '200\n');
await open(operator, '#/lane/default/orders/bad', 'lane');
await operator.getByRole('button', { name: 'Replay…' }).click();
await operator.getByText('Dry run: 1 dead letter of 1 key').waitFor();
await operator.locator('dialog').getByRole('button', { name: 'Replay', exact: true }).click();
await operator.locator('.page[data-name="replay"]').getByText('succeeded').waitFor();
await inspect(operator, 'replay');
await until('the lane is done', async () => (await api('lanes/orders/bad')).depth === 0);
await open(operator, '#/replays', 'replays');
await operator.locator('tbody tr').first().waitFor();

await open(admin, '#/letters', 'letters');
await admin.getByLabel('Select all on this page').setChecked(true);
const [file] = await Promise.all([admin.waitForEvent('download'), admin.getByRole('button', { name: 'Export' }).click()]);
const lines = readFileSync(await file.path(), 'utf8').trim().split('\n').map((line) => JSON.parse(line));
check(lines.length > 0 && lines.every((line) => line.specversion && line.deadLetter.reason), 'the export has no dead letters');
const letters = (await api('dlq')).items.length;
await use(admin, 'Delete…', { 'Also those': false });
await closed(admin);
await until('some dead letters are deleted', async () => (await api('dlq')).items.length < letters);
await use(admin, 'Import…', { File: { name: 'events.jsonl', mimeType: 'application/x-ndjson', buffer: Buffer.from('{"specversion":"1.0","id":"imported","source":"/file","type":"mail.sent","deadLetter":{}}\n') } }, 'Send');
await closed(admin);
await until('the imported event is there', async () => (await api('events/imported')).event.id === 'imported');

// ---- events ---------------------------------------------------------------------------------------------------
await open(admin, '#/events', 'events');
await admin.locator('tbody tr').first().waitFor();
await api('events', { method: 'POST', headers: { 'content-type': 'application/cloudevents+json' }, body: '{"specversion":"1.0","id":"live-1","source":"/live","type":"order.placed","partitionkey":"live"}' });
await admin.getByRole('link', { name: 'live-1' }).waitFor();
await admin.getByLabel('Source').fill('/live');
await admin.getByRole('button', { name: 'Apply' }).click();
await admin.waitForFunction(() => document.querySelectorAll('main tbody tr').length === 1);
await open(admin, '#/events', 'events');
await use(admin, 'Send event…', { 'Key (partitionkey)': 'sent', Data: '{"n": 12345678901234567890}' }, 'Send');
await admin.locator('.page[data-name="event"]').getByText('delivered').first().waitFor();
check((await text(admin)).includes('12345678901234567890'), 'the number changed');
await use(admin, 'Send again…', {}, 'Send');
await closed(admin);

// ---- functions ------------------------------------------------------------------------------------------------
await open(admin, '#/function/default/hello', 'function');
await admin.getByRole('button', { name: 'Invoke…' }).click();
await admin.locator('dialog').getByRole('button', { name: 'Invoke', exact: true }).click();
await admin.locator('dialog').getByText('"world"').waitFor();
await inspect(admin, 'invoke');
await admin.locator('dialog').getByRole('button', { name: 'Cancel' }).click();
await admin.locator('.card', { hasText: 'Calls' }).getByText(/[1-9]\d* in all/).waitFor();
await admin.locator('.card', { hasText: 'Duration' }).getByText('≤').first().waitFor();
await open(admin, '#/function/default/hello/logs', 'function');
await admin.locator('.line').getByText('said').first().waitFor();
await open(admin, '#/function/default/hello/revisions', 'function');
await use(admin, 'Roll back…', {}, 'Roll back');
await until('a rollback made a revision', async () => (await api('lambda/functions/hello/revisions')).items.length >= 3);
await open(admin, '#/function/default/hello/manifest', 'function');
await admin.getByRole('button', { name: 'Edit…' }).click();
await admin.locator('dialog').getByRole('button', { name: 'Apply' }).click();
await closed(admin);
await open(admin, '#/function/default/wrong', 'function');
await use(admin, 'Rebuild…');
await closed(admin);
await use(admin, 'Delete…');
await closed(admin);
await until('the function is gone', async () => (await api('lambda/functions/wrong')).status === 404);
await open(admin, '#/functions', 'functions');
await use(admin, 'New function…', {}, 'Create');
await admin.locator('dialog .error').waitFor();
await admin.locator('dialog').getByRole('button', { name: 'Cancel' }).click();

// ---- webhooks -------------------------------------------------------------------------------------------------
await open(admin, '#/webhooks', 'webhooks');
await use(admin, 'New endpoint…', { Name: 'made', Address: process.env.KLAMBDA_RECEIVER, 'Event types': 'made.*' }, 'Create');
await admin.getByRole('heading', { name: 'Signing secret' }).waitFor();
check((await admin.locator('dialog input').inputValue()).startsWith('whsec_'), 'no secret is shown');
await admin.getByRole('button', { name: 'Close' }).click();
await admin.locator('.page[data-name="webhook"]').waitFor();
await use(admin, 'Test…', {}, 'Send');
await closed(admin);
await use(admin, 'Pause');
await closed(admin);
await use(admin, 'Resume');
await closed(admin);
await use(admin, 'Disable');
await closed(admin);
await use(admin, 'Enable');
await closed(admin);
await use(admin, 'Rotate secret…', {}, 'Rotate');
await admin.getByRole('heading', { name: 'Signing secret' }).waitFor();
await admin.getByRole('button', { name: 'Close' }).click();
await use(admin, 'Recover…', { 'Only count': true }, 'Recover');
await admin.getByText('would be sent again').waitFor();
await admin.locator('dialog').getByRole('button', { name: 'Cancel' }).click();
await use(admin, 'Delete…', { 'Pending events': 'drop them' });
await closed(admin);
await open(admin, '#/webhook/default/partner/deliveries', 'webhook');
await use(admin, 'Send again…', {}, 'Send again');
await closed(admin);
await open(admin, '#/webhook/default/partner', 'webhook');
await use(admin, 'Link for the receiver…', {}, 'Create link');
await admin.getByRole('heading', { name: 'Link for the receiver', exact: true }).waitFor();
const address = await admin.locator('dialog input').inputValue();
await admin.getByRole('button', { name: 'Close' }).click();

const receiver = await watched(browser, 'receiver');
await receiver.goto(address);
await receiver.getByRole('heading', { name: 'Webhook endpoint partner' }).waitFor();
await receiver.locator('tbody tr').first().waitFor();
check(!receiver.url().includes('klt_'), 'the token stays in the address');
check(await receiver.locator('nav.side').count() === 0, 'a receiver sees the navigation');
await inspect(receiver, 'receiver');
await use(receiver, 'Rotate secret…', {}, 'Rotate');
await receiver.getByRole('heading', { name: 'Signing secret' }).waitFor();
await receiver.getByRole('button', { name: 'Close' }).click();
await use(receiver, 'Send again…', {}, 'Send again');
await closed(receiver);

// ---- subscriptions --------------------------------------------------------------------------------------------
await open(admin, '#/subscriptions', 'subscriptions');
await use(admin, 'New subscription…', { Name: 'made', Spec: '{"target": 1}' }, 'Create');
await admin.locator('dialog .error').waitFor();
await admin.locator('dialog').getByLabel('Spec').fill(JSON.stringify({ filters: [{ exact: { type: 'none' } }], target: { url: process.env.KLAMBDA_RECEIVER } }));
await admin.locator('dialog').getByRole('button', { name: 'Create' }).click();
await admin.locator('.page[data-name="subscription"]').getByText('active').first().waitFor();
await use(admin, 'Pause');
await closed(admin);
await use(admin, 'Resume');
await closed(admin);
await use(admin, 'Edit…', {}, 'Apply');
await closed(admin);
await use(admin, 'Delete…');
await closed(admin);

// ---- namespaces, tokens, audit log, server --------------------------------------------------------------------
await open(admin, '#/namespaces', 'namespaces');
await use(admin, 'New namespace…', { Name: 'made', backlog: '10' }, 'Create');
await closed(admin);
await admin.getByRole('button', { name: 'Limits of made' }).click();
await admin.locator('dialog').getByLabel('backlog').fill('20');
await admin.locator('dialog').getByRole('button', { name: 'Apply' }).click();
await closed(admin);
await until('the limit is set', async () => (await api('namespaces/made')).spec.limits.backlog === 20);
await admin.getByRole('button', { name: 'Delete made' }).click();
await admin.locator('dialog').getByRole('button', { name: 'Delete' }).click();
await closed(admin);
await admin.locator('#namespace').selectOption('*');
await open(admin, '#/lanes', 'lanes');
await open(admin, '#/overview', 'overview');
await admin.locator('.card').first().waitFor();
await admin.locator('#namespace').selectOption('default');

await open(admin, '#/tokens', 'tokens');
await use(admin, 'New token…', { Name: 'made', Role: 'viewer' }, 'Create');
await admin.getByRole('heading', { name: 'Token made' }).waitFor();
const made = await admin.locator('dialog input').inputValue();
await admin.getByRole('button', { name: 'Close' }).click();
const guest = await watched(browser, 'guest');
await signIn(guest, made);
await admin.getByRole('button', { name: 'Delete token made' }).click();
await admin.locator('dialog').getByRole('button', { name: 'Delete' }).click();
await closed(admin);
await guest.getByRole('heading', { name: 'Sign in to klambda' }).waitFor();
await inspect(guest, 'sign-in');
await guest.getByLabel('Token').fill('wrong');
await guest.getByRole('button', { name: 'Sign in' }).click();
await guest.locator('.error').waitFor();
await open(admin, '#/audit', 'audit');
await admin.locator('main tbody tr').first().waitFor();
const log = await text(admin);
for (const word of ['token/operator', 'token/admin', 'skip', 'purge', 'rotate', 'rollback', 'edit']) check(log.includes(word), `the audit log lacks ${word}`);
await open(admin, '#/server', 'server');
const [archive] = await Promise.all([admin.waitForEvent('download'), use(admin, 'Back up…', {}, 'Download')]);
check(archive.suggestedFilename().endsWith('.tar'), 'no backup');

// ---- sessions -------------------------------------------------------------------------------------------------
const [cookie] = await admin.context().cookies();
check(cookie.httpOnly && cookie.sameSite === 'Strict' && !cookie.value.includes('klt_'), JSON.stringify(cookie));
const forged = await fetch(`${url}/api/v1/status`, { headers: { cookie: `${cookie.name}=${cookie.value}` } });
check(forged.status === 401, `a request without the header of the page is answered ${forged.status}`);
const foreign = await fetch(`${url}/api/v1/status`, { headers: { cookie: `${cookie.name}=${cookie.value}`, 'klambda-page': '1', 'sec-fetch-site': 'same-site' } });
check(foreign.status === 401, `a request of another site is answered ${foreign.status}`);
await admin.getByRole('button', { name: 'Sign out' }).click();
await admin.getByRole('heading', { name: 'Sign in to klambda' }).waitFor();
const ended = await fetch(`${url}/api/v1/status`, { headers: { cookie: `${cookie.name}=${cookie.value}`, 'klambda-page': '1' } });
check(ended.status === 401, `a session is valid after signing out: ${ended.status}`);

await finish(browser);
