// Opens every page as every role in both themes: it is accessible, shows hostile data as text, and offers only what the role may do.

import { check, finish, inspect, launch, open, shots, signIn, watched } from './browser.mjs';

const tokens = JSON.parse(process.env.KLAMBDA_TOKENS);
const HOSTILE = '<img src=x onerror=alert(1)>';
const part = encodeURIComponent;

const PAGES = [
  ['overview', '#/overview', 'overview'],
  ['lanes', '#/lanes', 'lanes'],
  ['lanes-deepest', '#/lanes?sort=depth', 'lanes'],
  ['lane', '#/lane/default/orders/bad', 'lane'],
  ['lane-gap', '#/lane/default/orders/order-gap', 'lane'],
  ['lane-hostile', `#/lane/default/orders/${part(HOSTILE)}`, 'lane'],
  ['search', '#/search?q=bad', 'search'],
  ['events', '#/events', 'events'],
  ['event', '#/event/default/bad-1?source=%2Fshop', 'event'],
  ['event-hostile', `#/event/default/${part(`${HOSTILE}1`)}`, 'event'],
  ['event-binary', '#/event/default/binary', 'event'],
  ['letters', '#/letters', 'letters'],
  ['letter', `#/letter/default/${process.env.KLAMBDA_LETTER}`, 'letter'],
  ['replays', '#/replays', 'replays'],
  ['functions', '#/functions', 'functions'],
  ['function', '#/function/default/hello', 'function'],
  ['function-failed', '#/function/default/wrong', 'function'],
  ['function-revisions', '#/function/default/hello/revisions', 'function'],
  ['function-logs', '#/function/default/hello/logs', 'function'],
  ['function-build', '#/function/default/hello/build', 'function'],
  ['function-manifest', '#/function/default/hello/manifest', 'function'],
  ['webhooks', '#/webhooks', 'webhooks'],
  ['webhook', '#/webhook/default/partner', 'webhook'],
  ['webhook-deliveries', '#/webhook/default/partner/deliveries', 'webhook'],
  ['subscriptions', '#/subscriptions', 'subscriptions'],
  ['subscription', '#/subscription/default/orders', 'subscription'],
  ['namespaces', '#/namespaces', 'namespaces'],
  ['server', '#/server', 'server'],
];
const ADMIN_PAGES = [['tokens', '#/tokens', 'tokens'], ['audit', '#/audit', 'audit']];

// The buttons of a page, by the least role that may use them.
const BUTTONS = {
  overview: { operator: ['Replay…'], developer: ['Rebuild…'] },
  lane: { operator: ['Replay…', 'Resume', 'Skip', 'Pause', 'Purge', 'Reset…'] },
  event: { developer: ['Send again…'] },
  events: { developer: ['Send event…'] },
  letters: { operator: ['Replay…', 'Delete…'], developer: ['Import…'], viewer: ['Export'] },
  letter: { operator: ['Replay…', 'Edit…', 'Delete…'] },
  function: { developer: ['Invoke…', 'Rebuild…', 'Delete…'] },
  'function-revisions': { developer: ['Roll back…'] },
  webhooks: { developer: ['New endpoint…'] },
  webhook: { operator: ['Test…', 'Recover…', 'Pause', 'Disable'], developer: ['Rotate secret…', 'Link for the receiver…', 'Delete…'] },
  subscriptions: { developer: ['New subscription…'] },
  subscription: { operator: ['Pause'], developer: ['Edit…', 'Delete…'] },
  namespaces: { admin: ['New namespace…'] },
  server: { admin: ['Back up…'] },
  tokens: { admin: ['New token…'] },
};
const RANK = ['viewer', 'operator', 'developer', 'admin'];
const WALKS = [['admin', 'light'], ['admin', 'dark'], ['admin', 'phone'], ['viewer', 'dark'], ['operator', 'light'], ['developer', 'dark']];

const browser = await launch();
for (const [role, mode] of WALKS) {
  const isPhone = mode === 'phone';
  const page = await watched(browser, `${role} ${mode}`, { colorScheme: mode === 'dark' ? 'dark' : 'light', ...(isPhone ? { viewport: { width: 390, height: 844 } } : {}) });
  await signIn(page, tokens[role]);
  const links = await page.locator('nav.side a').allTextContents();
  check(links.includes('Tokens') === (role === 'admin'), `${role} sees tokens in the navigation: ${links}`);
  check(links.includes('Audit log') === (RANK.indexOf(role) >= 2), `${role} sees the audit log in the navigation: ${links}`);
  for (const [name, address, kind] of [...PAGES, ...(role === 'admin' ? ADMIN_PAGES : [])]) {
    const place = `${role} ${mode} ${name}`;
    await open(page, address, kind);
    await ready(page, name);
    // Another role changes a page only where it takes buttons away.
    if (role === 'admin' || BUTTONS[name]) await inspect(page, place);
    if (role === 'admin') await page.screenshot({ path: `${shots}/${name}-${mode}.png` });
    for (const [least, buttons] of Object.entries(BUTTONS[name] ?? {})) {
      for (const button of buttons) {
        const seen = await page.locator('main').getByRole('button', { name: button, exact: true }).count();
        check(seen > 0 === RANK.indexOf(role) >= RANK.indexOf(least), `${place}: the button ${button} is there ${seen} times`);
      }
    }
  }
  await page.context().close();
}
await finish(browser);

/** Pages with data are judged when the data is there. */
async function ready(page, name) {
  const content = { overview: '.attention li', lanes: 'tbody tr', events: 'tbody tr', letters: 'tbody tr', lane: '.picture', 'webhook-deliveries': 'tbody tr', 'function-revisions': 'tbody tr', functions: 'tbody tr', webhook: '.facts', function: '.card', audit: 'tbody tr', 'function-logs': '.line' };
  await page.locator(`main ${content[name] ?? 'h1'}`).first().waitFor();
}
