// Signs in at an identity provider, and tries everything that must not work.

import { writeFileSync } from 'node:fs';
import http from 'node:http';
import { check, finish, inspect, launch, shots, url, watched } from './browser.mjs';

const issuer = process.env.KLAMBDA_ISSUER;
const browser = await launch();

/** A browser of its own, which may also talk to the provider. */
const visitor = (name) => watched(browser, name, {}, [issuer]);

async function signIn(page, name, from = '/ui') {
  await page.goto(`${url}${from}`);
  await page.getByRole('link', { name: 'Sign in with 127.0.0.1' }).click();
  await page.getByLabel('Name').fill(name);
  await page.getByRole('button', { name: 'Continue' }).click();
}

const refusal = async (page, words) => {
  await page.getByRole('heading', { name: 'Could not sign in' }).waitFor();
  const text = await page.getByRole('alert').innerText();
  check(text.includes(words), `the refusal is another one: ${text}`);
  await inspect(page, words);
};

// ---- the way in -----------------------------------------------------------------------------------------------
const ada = await visitor('ada');
const callbacks = [];
ada.on('request', (request) => { if (request.url().includes('/ui/callback')) callbacks.push(request.url()); });
await ada.goto(`${url}/ui#/lanes?sort=depth`);
await ada.getByRole('link', { name: 'Sign in with 127.0.0.1' }).waitFor();
await inspect(ada, 'sign-in with a provider');
await ada.locator('.signin').screenshot({ path: `${shots}/sign-in-light.png` });
await signIn(ada, 'ada', '/ui#/lanes?sort=depth');
await ada.locator('.page[data-name="lanes"] h1').waitFor();
check(new URL(ada.url()).hash === '#/lanes?sort=depth', `the place is lost: ${ada.url()}`);
const me = await ada.evaluate(async () => (await fetch('/api/v1/whoami', { headers: { 'klambda-page': '1' } })).json());
check(me.name === 'jwt/ada' && me.role === 'operator' && me.namespaces.join() === 'default', JSON.stringify(me));
const cookies = await ada.context().cookies(url);
const session = cookies.find(({ name }) => name === 'klambda-session');
check(session?.httpOnly && session.sameSite === 'Strict' && session.expires < Date.now() / 1000 + 3601, JSON.stringify(cookies));
check(!cookies.some(({ name, value }) => name === 'klambda-sign-in' && value), 'the cookie of the sign-in stays');
const kept = await ada.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }]));
check(!kept.includes('eyJ'), `the browser keeps a token: ${kept}`);
check(callbacks.length === 1, `${callbacks.length} callbacks`);

// ---- answers that nobody asked for ----------------------------------------------------------------------------
const thief = await visitor('thief');
await thief.goto(callbacks[0]);
await refusal(thief, 'this browser did not start the sign-in');
await thief.goto(`${url}/ui/callback?code=x&state=y`);
await refusal(thief, 'this browser did not start the sign-in');
const asked = await fetch(`${url}/ui/callback?code=x&state=y`);
check(asked.status === 400 && asked.headers.get('content-type') === 'application/problem+json', `a program gets ${asked.status}`);
check(asked.headers.get('cache-control') === 'no-store' && asked.headers.get('referrer-policy') === 'no-referrer', 'the answer may be kept');

/** The first answer of the server to a browser that uses this name for it. */
const location = (host) => new Promise((done, fail) => http.get(`${url}/ui/sign-in`, { headers: { host } }, (answer) => {
  answer.resume();
  done(new URL(answer.headers.location));
}).on('error', fail));
for (const host of [new URL(url).host, `localhost:${new URL(url).port}`]) {
  const to = (await location(host)).searchParams;
  check(to.get('redirect_uri') === `${url}/ui/callback`, `the redirect URI follows the host ${host}`);
  check(to.get('code_challenge_method') === 'S256' && to.get('state').length === 43 && to.get('nonce').length === 43, String(to));
}
const [one, two] = await Promise.all([location(new URL(url).host), location(new URL(url).host)]);
for (const name of ['state', 'nonce', 'code_challenge']) check(one.searchParams.get(name) !== two.searchParams.get(name), `two sign-ins have the same ${name}`);

// ---- refusals -------------------------------------------------------------------------------------------------
const guest = await visitor('guest');
await guest.goto(`${url}/ui`);
await guest.getByRole('link', { name: 'Sign in with 127.0.0.1' }).click();
await guest.getByRole('button', { name: 'Cancel' }).click();
await refusal(guest, 'The user said <b>no</b>');
const nobody = await visitor('nobody');
await signIn(nobody, 'nobody');
await refusal(nobody, 'the token grants no role');
const unlucky = await visitor('unlucky');
writeFileSync(process.env.KLAMBDA_SECRET_FILE, 'another secret');
unlucky.removeAllListeners('response');
await signIn(unlucky, 'ada');
await refusal(unlucky, 'client authentication failed');
writeFileSync(process.env.KLAMBDA_SECRET_FILE, process.env.KLAMBDA_CLIENT_SECRET);

// ---- the end of a session -------------------------------------------------------------------------------------
const brief = await visitor('brief');
await signIn(brief, 'brief');
await brief.getByRole('navigation', { name: 'Pages' }).waitFor();
await brief.getByRole('link', { name: 'Sign in with 127.0.0.1' }).waitFor();
await ada.getByRole('button', { name: 'Sign out' }).click();
await ada.getByRole('link', { name: 'Sign in with 127.0.0.1' }).waitFor();

await finish(browser);
