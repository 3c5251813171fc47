// Signing in with a token. The token is sent once and kept nowhere in the browser.

import { h } from './dom.js';
import * as api from './api.js';

export function signIn(why, enter) {
  const error = h('p.error', { role: 'alert', hidden: !why }, why);
  const input = h('input', { id: 'token', type: 'password', required: true, autocomplete: 'off' });
  const submit = h('button.primary', { type: 'submit' }, 'Sign in');
  const form = h('form.signin', {
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
  h('h1', null, 'Sign in to klambda'),
  h('p', null, 'This server requires a token.'),
  h('p.field', null, h('label', { for: 'token' }, 'Token'), input),
  error,
  submit,
  h('p.muted', null, 'An admin creates one: ', h('code', null, 'klambda token create NAME --role operator')));
  return h('main', { id: 'main', tabindex: '-1' }, form);
}
