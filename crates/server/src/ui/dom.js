// Builds DOM nodes. Text always becomes a text node, so data can never become markup.

const SVG = 'http://www.w3.org/2000/svg';
const PROPERTIES = new Set(['value', 'checked', 'disabled', 'selected', 'indeterminate', 'open']);

/** `h('button.primary', {onclick}, 'Save')`. Children are nodes, texts, arrays, or nothing. */
export function h(tag, props, ...children) {
  const [name, ...classes] = tag.split('.');
  const node = document.createElement(name);
  if (classes.length) node.className = classes.join(' ');
  for (const [key, value] of Object.entries(props ?? {})) set(node, key, value);
  append(node, children);
  return node;
}

export function svg(tag, props, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value != null && value !== false) node.setAttribute(key, String(value));
  }
  append(node, children);
  return node;
}

function set(node, key, value) {
  if (value == null || value === false && !key.startsWith('aria-')) return;
  if (key.startsWith('on')) node.addEventListener(key.slice(2), value);
  else if (key === 'class') node.classList.add(...String(value).split(' ').filter(Boolean));
  else if (key === 'href') node.setAttribute('href', own(value));
  else if (PROPERTIES.has(key)) node[key] = value;
  else node.setAttribute(key, value === true ? '' : String(value));
}

/** Only addresses of this server. A link with another scheme could run code. */
function own(address) {
  const text = String(address);
  return /^(#|\/(?!\/)|blob:)/.test(text) ? text : '#';
}

export function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child == null || child === false || child === '') continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Replaces the content, and keeps the focus on the element with the same `data-k`. */
export function replace(node, ...children) {
  const active = document.activeElement;
  const kept = node.contains(active) ? active?.dataset?.k : undefined;
  const next = document.createDocumentFragment();
  append(next, children);
  node.replaceChildren(next);
  if (kept !== undefined) {
    const again = [...node.querySelectorAll('[data-k]')].find((one) => one.dataset.k === kept);
    again?.focus({ preventScroll: true });
  }
}

export const link = (href, text, props) => h('a', { href, ...props }, text);
export const code = (text, props) => h('code', props, text);
