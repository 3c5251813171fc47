// An identity provider for the tests: npm `oidc-provider` with a form that asks only for a name.

import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const require = createRequire(`${process.env.KLAMBDA_TESTBED}/`);
const { default: Provider } = await import(pathToFileURL(require.resolve('oidc-provider')));

const issuer = process.env.KLAMBDA_ISSUER;
const PEOPLE = {
  ada: { 'klambda/role': 'operator', 'klambda/namespaces': ['default'] },
  brief: { 'klambda/role': 'viewer', 'klambda/namespaces': '*' },
  nobody: {},
};

const provider = new Provider(issuer, {
  clients: [{
    client_id: 'page',
    client_secret: process.env.KLAMBDA_CLIENT_SECRET,
    redirect_uris: [`${process.env.KLAMBDA_URL}/ui/callback`],
  }],
  pkce: { required: () => true, methods: ['S256'] },
  claims: { openid: ['sub', 'klambda/role', 'klambda/namespaces'] },
  conformIdTokenClaims: false,
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, ...PEOPLE[id] }) }),
  // Everybody agrees that the page may know who they are.
  loadExistingGrant: async (context) => {
    const { session, client } = context.oidc;
    const grant = new provider.Grant({ accountId: session.accountId, clientId: client.clientId });
    grant.addOIDCScope('openid');
    await grant.save();
    return grant;
  },
  interactions: { url: (_, interaction) => `/interaction/${interaction.uid}` },
  features: { devInteractions: { enabled: false } },
  ttl: { IdToken: (context) => (context.oidc.account?.accountId === 'brief' ? 8 : 3600), Interaction: 600, Session: 600, Grant: 600 },
  cookies: { keys: ['only for tests'] },
});

const FORM = '<!doctype html><html lang="en"><title>Who are you?</title><form method="post"><label>Name <input name="name"></label> <button>Continue</button> <button name="deny" value="1">Cancel</button></form></html>';

provider.use(async (context, next) => {
  if (!context.path.startsWith('/interaction/')) return next();
  if (context.method === 'GET') {
    context.type = 'html';
    context.body = FORM;
    return undefined;
  }
  let text = '';
  for await (const part of context.req) text += part;
  const given = new URLSearchParams(text);
  const result = given.has('deny')
    ? { error: 'access_denied', error_description: 'The user said <b>no</b>' }
    : { login: { accountId: given.get('name'), remember: false } };
  await provider.interactionFinished(context.req, context.res, result, { mergeWithLastSubmission: false });
  context.respond = false;
  return undefined;
});

const { port } = new URL(issuer);
provider.listen(Number(port), '127.0.0.1');
