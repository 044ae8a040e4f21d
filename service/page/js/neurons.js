// One layer as a field of neurons, and the formula of the one that is pointed at.
import { get } from './api.js'
import { $, calm, count, h, plural, s, short } from './dom.js'

const SHOWN = 2048 // neurons of a tensor that are drawn
const TERMS = 8 // terms of a formula that are written out
const formulas = new Map()
let told, layer, picked

export function showNeurons(answer, of) {
  if (told !== answer) formulas.clear()
  told = answer
  layer = of
  picked = null
  $('formula').replaceChildren()
  if (!layer) {
    $('neurons-title').textContent = 'The input'
    $('neurons').replaceChildren(h('p', { class: 'hint' }, `${plural(told.input.length, 'number')}, scaled to the network’s domain [${told.domain.map((end) => short(end)).join(', ')}]. The neurons begin with the first layer.`))
    return
  }
  const all = layer.tensors.reduce((sum, each) => sum + each.size, 0), active = layer.tensors.reduce((sum, each) => sum + each.active, 0)
  $('neurons-title').textContent = `${plural(all, 'neuron')}, ${count(active)} above 0`
  let first = 0
  $('neurons').replaceChildren(...layer.tensors.flatMap((tensor) => {
    const start = first
    first += tensor.size
    return field(tensor, start)
  }))
}

/** A field of cells that one can point at, or walk with the arrow keys. */
function field(tensor, start) {
  const name = h('h3', {}, `${layer.name || `Layer ${layer.number}`}: ${plural(tensor.size, 'neuron')}, ${count(tensor.active)} above 0, the largest ${short(tensor.largest)}`)
  if (!tensor.values) return [name, h('p', { class: 'hint' }, 'Too many to be sent one by one.')]
  const shown = Math.min(tensor.size, SHOWN), columns = Math.min(shown, shown > 256 ? 64 : 32), rows = Math.ceil(shown / columns)
  const cell = columns > 32 ? 8 : 16, gap = columns > 32 ? 1 : 2, width = columns * cell
  const svg = s('svg', { viewBox: `0 0 ${width} ${rows * cell}`, width: width * 1.2, tabindex: 0, role: 'img', 'aria-label': `${plural(tensor.size, 'neuron')} of ${layer.name || `layer ${layer.number}`}. Arrow keys walk through them.` })
  const largest = tensor.largest || 1
  for (let i = 0; i < shown; i++) {
    const value = tensor.values[i], on = value > 0
    svg.append(s('rect', {
      x: (i % columns) * cell + gap / 2, y: Math.floor(i / columns) * cell + gap / 2, width: cell - gap, height: cell - gap, rx: gap,
      class: on ? 'cell' : 'off', opacity: on ? 0.28 + 0.72 * Math.sqrt(value / largest) : 1,
    }))
  }
  const ring = s('rect', { width: cell, height: cell, rx: gap, class: 'picked', visibility: 'hidden' })
  svg.append(ring)
  const choose = (i) => {
    if (i < 0 || i >= shown) return
    ring.setAttribute('x', (i % columns) * cell)
    ring.setAttribute('y', Math.floor(i / columns) * cell)
    ring.setAttribute('visibility', 'visible')
    for (const other of document.querySelectorAll('#neurons .picked')) if (other !== ring) other.setAttribute('visibility', 'hidden')
    pick(tensor, start, i)
  }
  const here = () => (picked?.tensor === tensor ? picked.i : -1)
  const under = (event) => {
    const box = svg.getBoundingClientRect(), scale = width / box.width
    const column = Math.floor((event.clientX - box.left) * scale / cell), row = Math.floor((event.clientY - box.top) * scale / cell)
    const i = row * columns + column
    if (column >= 0 && column < columns && i !== here()) choose(i)
  }
  svg.addEventListener('pointermove', under)
  svg.addEventListener('pointerdown', under)
  svg.addEventListener('focus', () => { if (here() < 0) choose(0) })
  svg.addEventListener('keydown', (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns }[event.key]
    if (step) { event.preventDefault(); choose(here() + step) }
  })
  const rest = tensor.size > shown ? [h('p', { class: 'hint' }, `The first ${count(shown)} of them.`)] : []
  return [name, svg, ...rest]
}

function pick(tensor, start, i) {
  picked = { tensor, i, layer, index: start + i, value: tensor.values[i] }
  write(picked, formulas.get(`${layer.number}/${picked.index}`))
  fetchFormula(picked)
}

const fetchFormula = calm(async (mine) => {
  const key = `${mine.layer.number}/${mine.index}`
  if (!formulas.has(key)) {
    try { formulas.set(key, await get(`/watch/${encodeURIComponent(told.model)}/layers/${mine.layer.number}/neurons/${mine.index}`)) } catch (error) {
      if (picked === mine) $('formula').append(h('p', { class: 'error' }, error.message))
      return
    }
  }
  if (picked === mine) write(mine, formulas.get(key))
}, 70)

/** The value of a neuron that a formula reads, where the service has told it. */
function valueOf(number, index) {
  if (number === 0) return told.input[index]
  for (const tensor of told.layers.find((each) => each.number === number)?.tensors ?? []) {
    if (index < tensor.size) return tensor.values?.[index]
    index -= tensor.size
  }
  return undefined
}

const nameOf = (term) => (term.layer === 0 ? `x${sub(term.index + 1)}` : `n${sub(term.layer)}·${term.index + 1}`)
const sub = (n) => String(n).replace(/\d/g, (digit) => '₀₁₂₃₄₅₆₇₈₉'[digit])

/** What a neuron asks, where that can be said in a few words: which wire is larger, which input exceeds which number. */
function meaning(mine, formula) {
  const scene = told.story.kind === 'exchanges' && told.story.scenes.find((each) => each.layer === mine.layer.number)
  if (scene && scene.pairs[mine.index]) { const [a, b] = scene.pairs[mine.index]; return `wire ${a + 1} > wire ${b + 1}?` }
  if (!formula || formula.more) return mine.layer.name
  const [one, two, ...rest] = formula.terms
  if (!one || rest.length) return mine.layer.name
  const bound = (term) => short(-formula.bias / term.weight, 6)
  if (!two) return formula.bias ? `${nameOf(one)} ${one.weight > 0 ? '>' : '<'} ${bound(one)}?` : nameOf(one)
  if (one.weight !== -two.weight) return mine.layer.name
  const [more, less] = one.weight > 0 ? [one, two] : [two, one], by = -formula.bias / more.weight
  return `${nameOf(more)} > ${nameOf(less)}${Math.abs(by) < 1e-9 ? '' : by > 0 ? ` + ${short(by, 4)}` : ` − ${short(-by, 4)}`}?`
}

function write(mine, formula) {
  const title = h('p', {}, h('strong', {}, `n${sub(mine.layer.number)}·${count(mine.index + 1)} = ${short(mine.value, 7)}`), ` ${meaning(mine, formula)}`, mine.value > 0 ? '' : ', silent')
  if (!formula) { $('formula').replaceChildren(title, h('p', { class: 'hint' }, '…')); return }
  const factor = (weight) => (Math.abs(weight) === 1 ? '' : `${short(Math.abs(weight), 6)} `)
  const parts = formula.terms.slice(0, TERMS).map((term, i) => `${term.weight < 0 ? '− ' : i ? '+ ' : ''}${factor(term.weight)}${nameOf(term)}`)
  const more = formula.terms.length + formula.more - parts.length
  if (more > 0) parts.push(`+ … ${count(more)} more`)
  if (formula.bias || !parts.length) parts.push(`${formula.bias < 0 ? '− ' : parts.length ? '+ ' : ''}${short(Math.abs(formula.bias), 8)}`)
  const rows = formula.terms.slice(0, TERMS).map((term) => h('tr', {}, h('td', {}, term.layer === 0 ? `${nameOf(term)}, input` : `${nameOf(term)}, ${told.layers.find((each) => each.number === term.layer)?.name || `layer ${term.layer}`}`),
    h('td', { class: 'mono' }, short(term.weight, 6)), h('td', { class: 'mono' }, valueOf(term.layer, term.index) === undefined ? '' : short(valueOf(term.layer, term.index), 6))))
  $('formula').replaceChildren(title, h('p', { class: 'expression' }, `relu( ${parts.join(' ')} )`),
    h('div', { class: 'scroll' }, h('table', {}, h('thead', {}, h('tr', {}, ...['reads', 'weight', 'value'].map((word) => h('th', { scope: 'col' }, word)))), h('tbody', {}, rows))))
}
