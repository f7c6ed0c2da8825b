// What every view of the page uses: elements, numbers as text, colours, canvases and the tip under the pointer.
// The page has one global name, startrail; each file adds to it. All text from the data goes in as text nodes and is
// never parsed as HTML, and no style or handler is written as an attribute: the page's policy forbids both.
(function (startrail) {
'use strict';

const root = document.documentElement;

// Whatever goes wrong is told on the page and to tests, wherever it was thrown.
function fail(message) {
  const box = document.getElementById('failure');
  box.hidden = false;
  box.textContent = 'This page could not be drawn: ' + message;
  root.dataset.state = 'failed';
}
addEventListener('error', event => fail(event.message));
addEventListener('unhandledrejection', event => fail(String(event.reason)));

// ---- elements

// Properties: on… are listeners, style is an object, the rest attributes; null, undefined and false leave one out.
function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name === 'style') for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
    else if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) element.append(child);
  return element;
}
const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
const s = (tag, properties, ...children) =>
  fill(document.createElementNS('http://www.w3.org/2000/svg', tag), properties, children);

const button = (text, on, properties) => h('button', {type: 'button', onclick: on, ...properties}, text);
const badge = (text, kind) => h('span', {class: 'badge ' + (kind || text)}, text);
const note = (...children) => h('p', {class: 'note'}, ...children);
const legend = (...children) => h('p', {class: 'note legend'}, ...children);

// What may be wider than the window, within a frame of its own that keys can move too.
const scroller = (name, ...children) =>
  h('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': name}, ...children);

// A named choice; `on` gets the index of what was chosen.
function pick(label, options, value, on) {
  const choices = options.map((text, i) => h('option', {value: i, selected: i === value}, text));
  return h('label', {}, label + ' ', h('select', {onchange: event => on(Number(event.target.value))}, choices));
}
// An entry of a legend. `look`: hatch, dots or dashed instead of a plain square.
function key(colour, text, look) {
  return h('span', {class: 'key'}, h('i', {class: look, style: {background: colour, 'border-color': colour}}), text);
}
// A number in a table. `name` and `value` are for tests: what is shown can be compared with what was given.
function number_cell(text, name, value) {
  return h('td', {class: 'number', 'data-name': name, 'data-value': value}, text);
}
const header_row = texts => h('thead', {}, h('tr', {}, texts.map((text, i) =>
  h('th', {scope: 'col', class: i ? 'number' : null}, text))));

// ---- numbers

const sum = values => values.reduce((a, b) => a + b, 0);
const least = values => values.reduce((a, b) => Math.min(a, b), Infinity);
const most = values => values.reduce((a, b) => Math.max(a, b), -Infinity);
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
const number = value => Number.isFinite(value);  // isFinite(null) is true, and a NaN arrives as null

// As C++ prints it: where a value lies exactly between two texts the even digit is taken; toFixed goes up.
function fixed(value, digits) {
  const text = value.toFixed(digits), halves = Math.abs(value) * 2 ** (digits + 1);
  if (halves % 2 !== 1 || Number(text.at(-1)) % 2 === 0) return text;
  return (value - Math.sign(value) * 10 ** -digits / 2).toFixed(digits);
}
// human_bytes of startrail/base/text.cc.
function bytes(value) {
  if (!number(value)) return '–';
  const units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB'];
  let unit = 0;
  for (; value >= 999.5 && unit < 5; unit++) value /= 1000;
  return fixed(value, unit === 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2) + ' ' + units[unit];
}
const ratio = (a, b) => number(a) && b > 0 ? fixed(a / b, 3) : '–';
const count = value => number(value) ? value.toLocaleString('en-US') : '–';
const plural = (value, word) => count(value) + ' ' + word + (value === 1 ? '' : 's');

// Three digits, for axes and readouts.
function three(value) {
  if (!number(value)) return '–';
  const size = Math.abs(value);
  if (size === 0) return '0';
  if (size >= 1e6) return Number((value / 1e6).toPrecision(3)) + 'M';
  if (size >= 1e4) return Number((value / 1e3).toPrecision(3)) + 'k';
  if (size >= 1000) return String(Math.round(value));
  return size >= 1e-3 ? String(Number(value.toPrecision(3))) : value.toExponential(1);
}
const percent = share => number(share) ? (100 * share).toFixed(share && share < .0995 ? 1 : 0) + '%' : '–';
function time(us) {
  if (!number(us)) return '–';
  if (Math.abs(us) < .05) return '0 µs';
  if (us >= 120e6) return `${Math.floor(us / 60e6)}:${String(Math.floor(us / 1e6) % 60).padStart(2, '0')} min`;
  return us >= 1e6 ? three(us / 1e6) + ' s' : us >= 1000 ? three(us / 1000) + ' ms' : three(us) + ' µs';
}
// Round numbers between low and high, about `wanted` of them.
function ticks(low, high, wanted) {
  const raw = (high - low) / Math.max(1, wanted) || 1, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find(factor => factor * power >= raw * .999), out = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-6; k++)
    out.push(Number((k * step).toPrecision(12)));
  return out;
}

// ---- drawing

const css = name => getComputedStyle(root).getPropertyValue(name).trim();
// The theme's colours by name, read once for a picture: reading each where it is used would be slow.
function palette(...names) {
  const style = getComputedStyle(root);
  return Object.fromEntries(names.map(name => [name, style.getPropertyValue('--' + name).trim()]));
}
// A cleared, sharp canvas of width x height CSS pixels.
function surface(canvas, width, height) {
  const scale = devicePixelRatio || 1, w = Math.round(width * scale), tall = Math.round(height * scale);
  if (canvas.width !== w || canvas.height !== tall) {
    canvas.width = w;
    canvas.height = tall;
  }
  canvas.style.width = width + 'px';
  canvas.style.height = height + 'px';
  const g = canvas.getContext('2d');
  g.setTransform(scale, 0, 0, scale, 0, 0);
  g.clearRect(0, 0, width, height);
  g.font = '11px ' + getComputedStyle(document.body).fontFamily;
  g.textBaseline = 'middle';
  return g;
}
// Where the pointer is in an element.
function pointer(event, element) {
  const box = element.getBoundingClientRect();
  return {x: event.clientX - box.left, y: event.clientY - box.top};
}

// Shows a text beside the pointer, or hides it.
function tip(event, text) {
  const box = document.getElementById('tip');
  box.style.display = text ? 'block' : 'none';
  if (!text) return;
  box.textContent = text;
  const {width, height} = box.getBoundingClientRect(), below = event.clientY + 18;
  box.style.left = clamp(event.clientX + 14, 4, Math.max(4, innerWidth - width - 4)) + 'px';
  box.style.top = (below + height > innerHeight ? Math.max(4, event.clientY - height - 10) : below) + 'px';
}
// Tells what `text(event)` says while the pointer is on an element.
function hover(element, text) {
  element.addEventListener('pointermove', event => tip(event, text(event)));
  element.addEventListener('pointerleave', event => tip(event, ''));
}

Object.assign(startrail, {
  fail, h, s, button, badge, note, legend, pick, key, number_cell, header_row, scroller,
  sum, least, most, clamp, number, bytes, ratio, count, plural, three, percent, time, ticks,
  css, palette, surface, pointer, tip, hover,
  redraws: [],  // what to call when the width or the theme changes
  calm: matchMedia('(prefers-reduced-motion: reduce)').matches,
});
})(window.startrail = window.startrail || {});
