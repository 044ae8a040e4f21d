// Elements, drawings and numbers as text. Nothing here knows what the page is about.

export const $ = (id) => document.getElementById(id)

/** An element: h('p', {class: 'hint'}, 'text', child, ...). Functions are listeners. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children)
}

/** The same in SVG. */
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS('http://www.w3.org/2000/svg', tag), attributes, children)
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') element.addEventListener(name, value)
    else if (value === true) element.setAttribute(name, '')
    else if (value !== false && value != null) element.setAttribute(name, value)
  }
  element.append(...children.flat().filter((child) => child != null))
  return element
}

/** A drawing that scales with its column; `label` is what a screen reader says of it. */
export function drawing(width, height, label, ...children) {
  return s('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': label }, ...children)
}

/** How wide a picture in an element may be: its pixels, so that text stays as large as it is meant. */
export const room = (id) => Math.round(Math.max(280, Math.min(1100, $(id).clientWidth || 960)))

export const line = (x1, y1, x2, y2, kind) => s('line', { x1, y1, x2, y2, class: kind })
export const text = (x, y, words, attributes = {}) => s('text', { x, y, ...attributes }, words)

export function show(element, visible = true) { element.hidden = !visible }

export function say(element, message) {
  element.textContent = message ?? ''
  show(element, Boolean(message))
}

export const count = (n) => n.toLocaleString('en-US')
export const plural = (n, word, words = word + 's') => `${count(n)} ${n === 1 ? word : words}`

/** A number in at most `digits` significant digits, without noise. */
export function short(value, digits = 5) {
  if (value == null || !Number.isFinite(value)) return '–'
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return count(value)
  const size = Math.abs(value)
  if (size !== 0 && (size < 1e-4 || size >= 1e7)) return value.toExponential(digits - 2).replace(/\.?0+e/, 'e')
  return String(Number(value.toPrecision(digits)))
}

/** A number rounded for reading, with all its digits on hover. */
export function rounded(value, digits = 10) {
  const words = short(value, digits)
  return h('span', words === String(value) ? {} : { title: String(value) }, words)
}

/** Keep the state of a view in the address, so that it can be shared. */
export function remember(view, state) {
  const query = new URLSearchParams(state).toString().replaceAll('%2C', ',')
  history.replaceState(null, '', `#${view}${query ? `?${query}` : ''}`)
}

/** Milliseconds in the unit that suits them. */
export function duration(ms) {
  if (ms >= 1000) return `${short(ms / 1000, 3)} s`
  return ms >= 1 ? `${short(ms, 3)} ms` : `${short(ms * 1000, 3)} µs`
}

/** Ticks at round numbers within [low, high]. */
export function ticks(low, high, wanted = 6) {
  const span = high - low
  if (!(span > 0)) return [low]
  const raw = span / wanted, power = 10 ** Math.floor(Math.log10(raw))
  const step = [1, 2, 5, 10].find((m) => m * power >= raw) * power
  const found = []
  for (let n = Math.ceil(low / step); n * step <= high + step * 1e-9; n++) found.push(n * step)
  return found
}

/** Called once the caller has been quiet for a moment. */
export function calm(action, ms = 120) {
  let timer
  return (...given) => { clearTimeout(timer); timer = setTimeout(() => action(...given), ms) }
}
