// Questions before an action, and notes after it.

import { h, replace } from './dom.js';

let number = 0;

/**
 * Asks, runs the action and closes. A refusal of the server is shown in the dialog. `run` gets the values of the fields
 * and returns the note for the user, or `{stay}` with a note in a dialog that stays open.
 */
export function act({ title, text, body, verb, danger, fields = [], wide, run }) {
  return new Promise((done) => {
    const id = `dialog-${++number}`;
    const error = h('p.error', { role: 'alert', hidden: true });
    const said = h('p.notice', { role: 'status', hidden: true });
    const inputs = fields.map((field) => [field, input(field, id)]);
    const submit = h('button', { class: danger ? 'danger' : 'primary', type: 'submit' }, verb);
    const form = h('form', { method: 'dialog' },
      h('h2', { id: `${id}-title` }, title),
      text && h('p', null, text),
      body,
      inputs.map(([field, control]) => labelled(field, control)),
      error,
      said,
      h('div.buttons', null, h('button', { type: 'button', onclick: () => dialog.close() }, 'Cancel'), submit));
    const dialog = h('dialog', { 'aria-labelledby': `${id}-title`, class: wide ? 'wide' : '' }, form);
    let result = false;
    form.addEventListener('submit', async (event) => {
      event.preventDefault();
      submit.disabled = true;
      error.hidden = said.hidden = true;
      try {
        const note = await run(Object.fromEntries(inputs.map(([field, control]) => [field.name, valueOf(field, control)])));
        result = true;
        if (note?.stay) {
          said.textContent = note.stay;
          said.hidden = false;
          return;
        }
        dialog.close();
        if (note) toast(note);
      } catch (problem) {
        error.textContent = problem.message;
        error.hidden = false;
      } finally {
        submit.disabled = false;
      }
    });
    dialog.addEventListener('close', () => {
      dialog.remove();
      done(result);
    });
    document.body.append(dialog);
    dialog.showModal();
    (form.querySelector('input, textarea, select') ?? submit).focus();
  });
}

function input(field, id) {
  const common = { id: `${id}-${field.name}`, name: field.name, required: field.required, autocomplete: 'off', spellcheck: 'false' };
  if (field.type === 'select') {
    return h('select', common, field.options.map((option) => h('option', { value: option, selected: option === field.value }, option)));
  }
  if (field.type === 'textarea') return h('textarea', { ...common, rows: field.rows ?? 8, value: field.value ?? '' });
  if (field.type === 'checkbox') return h('input', { ...common, type: 'checkbox', checked: !!field.value });
  if (field.type === 'file') return h('input', { ...common, type: 'file', accept: field.accept });
  return h('input', { ...common, type: field.type ?? 'text', value: field.value ?? '', placeholder: field.placeholder, min: field.min });
}

function labelled(field, control) {
  const hint = field.hint && h('small', { id: `${control.id}-hint` }, field.hint);
  if (hint) control.setAttribute('aria-describedby', hint.id);
  if (field.type === 'checkbox') return h('p.field.check', null, control, h('label', { for: control.id }, field.label), hint);
  return h('p.field', null, h('label', { for: control.id }, field.label), control, hint);
}

function valueOf(field, control) {
  if (field.type === 'checkbox') return control.checked;
  if (field.type === 'file') return control.files[0];
  if (field.type === 'number') return control.value === '' ? undefined : Number(control.value);
  return control.value;
}

/** Shows content in a dialog with one button. */
export function show(title, ...content) {
  const id = `dialog-${++number}`;
  const close = h('button.primary', { type: 'submit' }, 'Close');
  const dialog = h('dialog.wide', { 'aria-labelledby': `${id}-title` },
    h('form', { method: 'dialog' }, h('h2', { id: `${id}-title` }, title), content, h('div.buttons', null, close)));
  dialog.addEventListener('close', () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  close.focus();
  return dialog;
}

/** A value that the server shows only once. */
export function secret(title, text, value) {
  const field = h('input.mono', { value, readonly: true, 'aria-label': title, onfocus: () => field.select() });
  show(title, h('p', null, text), h('p.copy', null, field, copyButton(() => value)));
}

export function copyButton(value, label = 'Copy') {
  return h('button.small', {
    type: 'button',
    onclick: async () => {
      try {
        await navigator.clipboard.writeText(value());
        toast('Copied.');
      } catch {
        toast('The browser blocked copying. Select the text instead.');
      }
    },
  }, label);
}

export function toast(text, kind = '') {
  const note = h('div.toast', { class: kind }, text);
  const area = document.getElementById('toasts');
  area.append(note);
  while (area.children.length > 4) area.firstChild.remove();
  setTimeout(() => note.remove(), 6000);
}

/** Runs something that needs no question, and shows a refusal. */
export async function attempt(work) {
  try {
    const note = await work();
    if (note) toast(note);
    return true;
  } catch (problem) {
    if (problem.name !== 'AbortError') toast(problem.message, 'bad');
    return false;
  }
}

export function failed(node, problem) {
  if (problem.name === 'AbortError') return;
  replace(node, h('div.notice.bad', { role: 'alert' }, h('strong', null, 'That did not work. '), problem.message));
}
