// Models: what is loaded, what each promises, and what was left out.
import { get, request } from './api.js'
import { $, count, h, plural, say, short, show } from './dom.js'

export async function openModels() {
  try {
    const list = await get('/models')
    say($('models-error'), list.models.length ? '' : 'No model is loaded.')
    $('model-list').replaceChildren(...list.models.map(card), ...list.filters.map(card))
    const left = Object.entries(list.left_out)
    show($('left-out'), left.length > 0)
    $('left-out').querySelector('dl').replaceChildren(...left.flatMap(([file, reason]) => [h('dt', {}, file), h('dd', {}, reason)]))
  } catch (error) { say($('models-error'), error.message) }
}

function card({ name, sha256, description: about }) {
  const exact = about.failure_bound === 0 && about.exact_on_grid
  const button = h('button', { type: 'button', 'aria-label': `Download ${name}.onnx`, click: () => download(name, button) }, 'Download')
  const outputs = (about.outputs ?? []).map((output) => output.name).join(', ')
  const facts = [
    ['Answers', `${outputs || about.op} of ${about.window ? `windows of ${about.window.join(' × ')} pixels` : about.frames ? plural(about.frames, 'frame') : `${count(about.d)} numbers`}`],
    ['Depth, width', about.width == null ? null : `${count(about.depth)}, ${count(about.width)}`],
    ['Comparisons', about.comparators == null ? null : `${count(about.comparators)} a pixel`],
    ['Border', about.border],
    ['Neurons', about.size == null ? null : count(about.size)],
    ['Grid', about.inputs === 'floats' ? null : `${about.bits} bits in ${about.dtype}, on [${(about.domain ?? []).map((end) => short(end)).join(', ')}]`],
    ['Off the grid', about.off_grid_error == null || about.inputs === 'floats' ? null : `at most ${short(about.off_grid_error, 3)} off`],
    ['Profile', about.profile],
    ['Theorem', about.theorem],
    ['sha256', h('span', { class: 'mono', title: sha256 }, `${sha256.slice(0, 16)}…`)],
  ]
  return h('article', { class: 'card' }, h('h2', {}, name), h('p', {}, h('span', { class: 'badge' }, about.construction)),
    h('p', { class: `promise${exact ? '' : ' chance'}` }, promise(about, exact)),
    h('dl', {}, facts.filter(([, value]) => value != null).flatMap(([key, value]) => [h('dt', {}, key), h('dd', {}, value)])), button)
}

function promise(about, exact) {
  if (about.inputs === 'floats') return 'Right on every finite number: it only compares them.'
  if (exact) return 'Right on every input of its grid: ties, any order, any distribution.'
  if (about.failure_bound == null) return 'It promises no failure bound; every answer is proven by counting all the same.'
  if (about.failure_bound === 0) return 'Never misses a rank, and rounds its answer by the stated error.'
  const over = { file: 'of all inputs in random order', uniform: 'of uniform inputs, for which alone it is made', 'uniform-seeds': 'of uniform inputs, for which alone it is made, on average over seeds' }[about.failure_law] ?? 'of the seeds, on average over inputs'
  return `Right but for ${short(about.failure_bound, 3)} ${over}; what it misses an exact model answers.`
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
