// Models: a table of what is loaded, what each promises, and what was left out.
import { get, request } from './api.js'
import { $, count, h, plural, say, short, show } from './dom.js'

const HEADS = ['Model', 'Answers', 'Promise', 'Depth', 'Width', 'Operators', 'File']
const OPERATORS = {
  minmax: 'Min, Max', structured: 'Relu, Add, MatMul', dense: 'Gemm, Relu', matmul: 'MatMul, Add, Relu', fused: 'Relu, Clip, ReduceMax',
}

export async function openModels() {
  try {
    const list = await get('/models'), all = [...list.models, ...list.filters]
    say($('models-error'), list.models.length ? '' : 'No model is loaded.')
    $('model-list').replaceChildren(h('table', { class: 'models' }, h('thead', {}, h('tr', {}, HEADS.map((head) => h('th', { scope: 'col' }, head)))), h('tbody', {}, all.map(row))))
    const left = Object.entries(list.left_out)
    show($('left-out'), left.length > 0)
    $('left-out').querySelector('dl').replaceChildren(...left.flatMap(([file, reason]) => [h('dt', {}, file), h('dd', {}, reason)]))
  } catch (error) { say($('models-error'), error.message) }
}

function row({ name, sha256, description: about }) {
  const button = h('button', { type: 'button', 'aria-label': `Download ${name}.onnx`, title: `sha256 ${sha256}`, click: () => download(name, button) }, 'Download')
  const outputs = (about.outputs ?? []).map((output) => output.name).join(', ')
  const of = about.window ? `windows of ${about.window.join(' × ')} pixels` : about.frames ? plural(about.frames, 'frame') : `${count(about.d)} numbers`
  const width = about.width == null ? about.comparators == null ? '–' : `${count(about.comparators)} comparisons a pixel` : count(about.width)
  const cells = [[`${outputs || about.op} of ${of}`], promise(about), [about.depth == null ? '–' : count(about.depth)], [width], [OPERATORS[about.profile] ?? about.profile], [button]]
  return h('tr', {}, h('th', { scope: 'row' }, name), ...cells.map((cell, i) => h('td', { 'data-head': HEADS[i + 1] }, h('span', {}, ...cell))))
}

/** What holds of the answers, and on which data. */
function promise(about) {
  if (about.inputs === 'floats') return ['Right on every finite number.']
  const grid = h('small', {}, `grid of ${about.bits} bits on [${(about.domain ?? []).map((end) => short(end)).join(', ')}]${about.off_grid_error == null ? '' : `; other data: off by at most ${short(about.off_grid_error, 3)}`}`)
  if (about.failure_bound === 0 && about.exact_on_grid) return ['Right on every input of its grid.', grid]
  if (about.failure_bound == null) return ['No failure bound. The service proves every answer by counting.', grid]
  if (about.failure_bound === 0) return ['Finds the right rank always, and rounds its answer.', grid]
  const over = { file: 'of randomly ordered inputs', uniform: 'of uniform inputs', 'uniform-seeds': 'of uniform inputs, on average over seeds' }[about.failure_law] ?? 'of the seeds for any input'
  return [`Right, except on at most ${short(100 * about.failure_bound, 3)} % ${over}. An exact model answers these.`, grid]
}

async function download(name, button) {
  button.disabled = true
  try {
    const content = await (await request(`/models/${encodeURIComponent(name)}/file`)).blob()
    const link = h('a', { href: URL.createObjectURL(content), download: `${name}.onnx` })
    link.click()
    setTimeout(() => URL.revokeObjectURL(link.href), 10000)
  } catch (error) { say($('models-error'), error.message) } finally { button.disabled = false }
}
