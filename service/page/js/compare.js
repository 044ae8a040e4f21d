// Compare: the atlas, depth against width, with what the paper proves impossible.
import { get } from './api.js'
import { $, calm, count, h, line, plural, remember, room, s, short, text } from './dom.js'

const [LEFT, RIGHT, TOP, BOTTOM] = [44, 20, 20, 46]
const RADIUS = 8
let atlas = null, sizes = [], order = [], shown = null

/** The view; an address may hold its state (#compare?d=2048&op=median). */
export async function openCompare(params) {
  if (atlas) return
  try { atlas = await get('/page/atlas.json') } catch (error) { $('atlas').replaceChildren(h('p', { class: 'error' }, error.message)); return }
  order = Object.keys(atlas.constructions)
  $('d').addEventListener('input', redraw)
  addEventListener('resize', calm(() => { if (!$('compare').hidden) redraw() }))
  for (const radio of document.querySelectorAll('[name=op]')) radio.addEventListener('change', () => { shown = null; fit(); redraw() })
  const asked = document.querySelector(`[name=op][value="${CSS.escape(params.get('op') ?? '')}"]`)
  if (asked) asked.checked = true
  fit(Number(params.get('d')))
  redraw()
}

const op = () => document.querySelector('[name=op]:checked').value

function fit(wanted) {
  const before = wanted || (sizes[$('d').value] ?? 2048)
  sizes = [...new Set(atlas.rows.filter((row) => row.op === op()).map((row) => row.d))].sort((a, b) => a - b)
  $('d').max = sizes.length - 1
  $('d').value = Math.max(0, sizes.indexOf(before))
}

function redraw() {
  const W = room('atlas'), H = W < 600 ? 420 : 560, narrow = W < 600
  const d = sizes[$('d').value], rows = atlas.rows.filter((row) => row.op === op() && row.d === d), built = rows.filter((row) => row.width)
  $('d-value').textContent = count(d)
  $('d').setAttribute('aria-valuetext', `d = ${d}`)
  remember('compare', { d, op: op() })
  const medians = op() === 'median', bounds = medians ? atlas.bounds[d] : []
  // the same axes for every d, so that the slider shows motion
  const all = atlas.rows.filter((row) => row.op === op() && row.width)
  const low = Math.min(...all.map((row) => row.width)) / 6, high = Math.max(...all.map((row) => row.width)) * 6, deepest = Math.max(...all.map((row) => row.depth)) * 1.25
  const x = (width) => LEFT + (W - LEFT - RIGHT) * Math.log(width / low) / Math.log(high / low)
  const y = (depth) => TOP + (H - TOP - BOTTOM) * (1 - Math.log(depth / 1.7) / Math.log(deepest / 1.7))
  const parts = []
  for (let power = Math.ceil(Math.log10(low)); 10 ** power <= high; power++) parts.push(line(x(10 ** power), TOP, x(10 ** power), H - BOTTOM, 'gridline'), text(x(10 ** power), H - BOTTOM + 18, `10${String(power).replace(/\d/g, (digit) => '⁰¹²³⁴⁵⁶⁷⁸⁹'[digit])}`, { 'text-anchor': 'middle', class: 'soft' }))
  for (const depth of [2, 3, 5, 9, 13, 22, 46, 85].filter((n) => n < deepest)) parts.push(line(LEFT, y(depth), W - RIGHT, y(depth), 'gridline'), text(LEFT - 8, y(depth) + 4, depth, { 'text-anchor': 'end', class: 'soft' }))
  if (medians) {
    parts.push(zone(LEFT, TOP, x(d) - LEFT, H - TOP - BOTTOM, 'forbidden', `Theorem 4.9: with fewer than d = ${count(d)} neurons in the first layer no network of any depth is accurate.`))
    parts.push(text(x(d) - 6, TOP + 14, narrow ? '4.9' : 'Theorem 4.9', { 'text-anchor': 'end', class: 'soft' }))
    for (const bound of bounds) {
      const right = Math.min(W - RIGHT, bound.width == null ? Infinity : x(bound.width)), thick = bound.exact ? 9 : 15
      if (right <= x(d)) continue
      const proven = bound.proven ? `, with every constant ${count(Math.floor(bound.proven))}` : ''
      const words = bound.width == null ? `${bound.theorem}: no network of depth ${bound.depth} is accurate, however wide.` : `${bound.theorem}: no network of depth ${bound.depth} up to width ${count(Math.floor(bound.width))} is ${bound.exact ? `exact${proven}` : 'accurate'}.`
      parts.push(zone(x(d), y(bound.depth) - thick, right - x(d), 2 * thick, bound.exact ? 'hatched' : 'forbidden', words))
      if (!bound.exact) parts.push(text(x(d) + 8, y(bound.depth) + 4, narrow ? bound.theorem.replace(/^\w+ /, '') : bound.theorem, { class: 'soft' }))
    }
  }
  parts.push(text(W - RIGHT, H - 8, narrow ? 'width' : 'width (neurons of the widest layer)', { 'text-anchor': 'end', class: 'soft' }), text(2, TOP - 6, 'depth', { class: 'soft' }))
  built.sort((a, b) => a.width - b.width || a.depth - b.depth)
  parts.push(frontier(built, x, y, W - RIGHT))
  const taken = built.map((row) => box(x(row.width) - RADIUS, y(row.depth) - RADIUS, 2 * RADIUS, 2 * RADIUS))
  for (const row of built) {
    const px = x(row.width), py = y(row.depth)
    const point = coloured(row, s('path', { d: marker(row, px, py), class: `point${shown === row.construction ? ' on' : ''}`, tabindex: 0, role: 'button', 'aria-label': `${row.construction}: depth ${row.depth}, width ${row.width}` }))
    for (const kind of ['pointerenter', 'focus', 'click']) point.addEventListener(kind, () => select(row, built))
    parts.push(point)
    const words = narrow ? row.construction : `${row.construction} ${short(row.width / d, 3)} d`, free = place(words, px, py, taken, W)
    if (free) { taken.push(free); parts.push(coloured(row, text(free.x, free.y + 13, words, { class: 'over' }))) }
  }
  $('atlas').replaceChildren(s('svg', { viewBox: `0 0 ${W} ${H}`, width: W, height: H, role: 'group', 'aria-label': `Depth against width of ${plural(built.length, 'network')} at d = ${d}` }, ...parts))
  const again = built.find((row) => row.construction === shown)
  if (again) tell(again)
  else $('atlas-tip').replaceChildren(h('p', { class: 'hint' }, 'Point at a network, or press Tab to walk through them, to see its figures. The paper rules out the shaded areas.'))
  legend(medians, rows.filter((row) => !row.width))
  table(rows)
}

const box = (x, y, width, height) => ({ x, y, width, height })
const apart = (a, b) => a.x + a.width < b.x || b.x + b.width < a.x || a.y + a.height < b.y || b.y + b.height < a.y

/** Where a label fits beside its point without touching another one; none if there is no such place. */
function place(words, px, py, taken, W) {
  const width = words.length * 7.4 + 4, height = 16
  for (const [dx, dy] of [[12, -22], [12, 5], [-12 - width, -22], [-12 - width, 5], [-width / 2, -30], [-width / 2, 14], [12, -8], [-12 - width, -8], [12, 22], [-12 - width, 22], [12, -38], [-12 - width, -38]]) {
    const found = box(px + dx, py + dy, width, height)
    if (found.x >= LEFT && found.x + width <= W - 2 && taken.every((other) => apart(found, other))) return found
  }
  return null
}

/** A line below and left of which no network is known here: every step is a network that no other one beats in both depth and width. */
function frontier(built, x, y, right) {
  let path = '', depth = Infinity
  for (const row of built) {
    if (row.depth >= depth) continue
    path += path ? `H${x(row.width)}V${y(row.depth)}` : `M${x(row.width)} ${TOP}V${y(row.depth)}`
    depth = row.depth
  }
  return s('path', { d: `${path}H${right}`, class: 'frontier' })
}

/** Its own colour, by its place in the catalogue: the n-th hue is a golden angle from the last, and near hues are of other shades. */
function coloured(row, element) {
  const n = order.indexOf(row.construction)
  element.classList.add('series')
  element.style.setProperty('--n', n)
  element.style.setProperty('--shade', n % 3 - 1)
  return element
}

/** Its own shape as well, as a path: a circle, or a polygon or star of so many corners. Those of one shape have far hues. */
const SHAPES = [null, [4, 1, 45], [3, 1, 0], [4, 1, 0], [3, 1, 180], [5, .45, 0]]
function marker(row, x, y) {
  const shape = SHAPES[order.indexOf(row.construction) % SHAPES.length]
  if (!shape) return `M${x - RADIUS},${y}a${RADIUS},${RADIUS} 0 1 0 ${2 * RADIUS},0a${RADIUS},${RADIUS} 0 1 0 ${-2 * RADIUS},0z`
  const [corners, inner, turn] = shape, steps = inner < 1 ? 2 * corners : corners
  const at = (i) => {
    const angle = (i / steps * 360 + turn - 90) * Math.PI / 180, r = 1.25 * RADIUS * (inner < 1 && i % 2 ? inner : 1)
    return `${(x + r * Math.cos(angle)).toFixed(2)},${(y + r * Math.sin(angle)).toFixed(2)}`
  }
  return `M${Array.from({ length: steps }, (_, i) => at(i)).join('L')}z`
}

function zone(x, y, width, height, kind, words) {
  const rect = s('rect', { x, y, width: Math.max(0, width), height, class: kind, 'pointer-events': 'all' }, s('title', {}, words))
  rect.addEventListener('pointerenter', () => $('atlas-tip').replaceChildren(h('p', {}, words)))
  return rect
}

function select(row, built) {
  shown = row.construction
  for (const point of document.querySelectorAll('#atlas .point')) point.classList.toggle('on', point.getAttribute('aria-label').startsWith(`${shown}:`))
  tell(built.find((each) => each.construction === shown))
}

function tell(row) {
  const about = atlas.constructions[row.construction]
  const figures = [
    ['depth', row.claimed_depth ? `${row.depth}, the theorem claims ${row.claimed_depth}` : row.depth],
    ['width', `${count(row.width)} = ${short(row.width / row.d, 4)} d${row.exponent ? `, grows as d^${short(row.exponent, 3)}` : ''}${row.claimed_exponent ? ` (claimed ${short(row.claimed_exponent, 3)})` : ''}`],
    ['neurons, weights', `${count(row.size)}, ${row.nnz == null ? 'not counted' : count(row.nnz)}`],
    ['failure', row.failure_bound === 0 ? 'never, on the grid' : `at most ${short(row.failure_bound, 3)}${row.trials ? `; measured ${short(row.failure_rate, 3)} in ${plural(row.trials, 'trial')}` : ''}`],
  ]
  $('atlas-tip').replaceChildren(h('h3', {}, `${row.construction}, d = ${count(row.d)}`), h('p', { class: 'hint' }, `${about.summary}. ${about.theorem}.`), h('dl', {}, ...figures.flatMap(([name, value]) => [h('dt', {}, name), h('dd', {}, String(value))])))
}

function legend(medians, missing) {
  const items = medians ? [['forbidden', 'ruled out by the paper: no network is accurate'], ['hatched', 'ruled out by the paper: no network is exact on all real inputs']] : []
  const known = h('li', {}, s('svg', { viewBox: '0 0 22 14', 'aria-hidden': 'true' }, line(1, 7, 21, 7, 'frontier')), 'frontier: no network here is both shallower and narrower')
  $('atlas-legend').replaceChildren(known, ...items.map(([kind, words]) => h('li', {}, s('svg', { viewBox: '0 0 22 14', 'aria-hidden': 'true' }, s('rect', { x: 1, y: 1, width: 20, height: 12, class: kind })), words)),
    ...missing.map((row) => h('li', {}, `${row.construction} has no network at this d`)))
}

function table(rows) {
  const heads = ['construction', 'depth', 'width', 'width / d', 'neurons', 'weights', 'failure bound']
  $('atlas-table').replaceChildren(h('table', {}, h('thead', {}, h('tr', {}, heads.map((head) => h('th', { scope: 'col' }, head)))),
    h('tbody', {}, rows.filter((row) => row.width).map((row) => h('tr', {}, h('th', { scope: 'row' }, row.construction), [count(row.depth), count(row.width), short(row.width / row.d, 4), count(row.size), row.nnz == null ? '–' : count(row.nnz), short(row.failure_bound, 3)].map((cell) => h('td', {}, cell)))))))
}
