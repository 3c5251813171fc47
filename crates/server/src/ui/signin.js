// Signing in with a token, or at the identity provider of the server. No secret is kept in the browser.

import { h } from './dom.js';
import * as api from './api.js';

/** Where the user wanted to go. The identity provider sends everybody back to the start. */
const PLACE = 'klambda-place';

export async function signIn(why, enter) {
  const { provider } = await api.call('GET', '/ui/session').catch(() => ({}));
  const error = h('p.error', { role: 'alert', hidden: !why }, why);
  const input = h('input', { id: 'token', type: 'password', required: true, autocomplete: 'off' });
  const submit = h('button', { class: provider ? '' : 'primary', type: 'submit' }, provider ? 'Sign in with the token' : 'Sign in');
  const form = h('form', {
    onsubmit: async (event) => {
      event.preventDefault();
      submit.disabled = true;
      try {
        await api.signIn(input.value.trim());
        input.value = '';
        enter();
      } catch (problem) {
        error.textContent = problem.message;
        error.hidden = false;
        input.select();
      } finally {
        submit.disabled = false;
      }
    },
  },
  h('p.field', null, h('label', { for: 'token' }, 'Token'), input),
  submit,
  h('p.muted', null, 'An admin creates one: ', h('code', null, 'klambda token create NAME --role operator')));
  return h('main', { id: 'main', tabindex: '-1' }, h('div.signin', null,
    h('h1', null, 'Sign in to klambda'),
    error,
    provider ? [
      h('p', null, h('a.button.primary', { href: '/ui/sign-in', onclick: keepPlace }, `Sign in with ${provider}`)),
      h('details', null, h('summary', null, 'Use a token instead'), form),
    ] : [h('p', null, 'This server requires a token.'), form]));
}

function keepPlace() {
  if (location.hash.startsWith('#/')) sessionStorage.setItem(PLACE, location.hash);
}

/** Goes back to where the user wanted to go before signing in. */
export function restorePlace() {
  const place = sessionStorage.getItem(PLACE);
  sessionStorage.removeItem(PLACE);
  if (place && !location.hash) history.replaceState(null, '', place);
}
