// Try: numbers in, the median with its proof out.
import { hasKey, openapi, post } from './api.js'
import { $, calm, count, duration, h, plural, remember, room, rounded, s, say, short, show } from './dom.js'
import { histogram } from './histogram.js'
import { NINE } from './home.js'
import { fromFile, fromText, sample, tableColumns } from './numbers.js'
import { setNumbers, state } from './state.js'

const SHOWN = 3000 // numbers that the field takes; longer files are held beside it
const INLINE = 40 // numbers that a curl line takes
const SHARED = 400 // numbers that an address takes
const EXAMPLES = { few: [9, 'uniform'], normal: [2048, 'normal'], skewed: [1999, 'skewed'], ties: [500, 'ties'] }
let columns = null // of the file that is loaded
let file = null
let redraw = () => {} // the histogram, in the room there is now
let turn = 0 // answers to older questions are dropped
let asTable = false // pasted lines of equal length are one list, unless the visitor says otherwise
let started = false

/** The view; an address may hold numbers (#try?x=1,2,3). Without any, nine are there already, with their answer. */
export function openTry(params) {
  if (!started) { started = true; state.given = params.has('x'); listen(); fill(params.get('x') ?? NINE.join(',')); compute() } else if (params.has('x') && params.get('x') !== shared()) { fill(params.get('x')); compute() }
}

function fill(words) {
  unload()
  $('numbers').value = words.replaceAll(/,\s*/g, ', ')
}

const shared = () => (state.numbers && !file && state.numbers.length <= SHARED ? Array.from(state.numbers).join(',') : null)

function listen() {
  $('try-form').addEventListener('submit', (event) => { event.preventDefault(); compute() })
  $('numbers').addEventListener('keydown', (event) => { if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) compute() })
  $('numbers').addEventListener('focus', () => { if (!state.given) $('numbers').select() })
  $('numbers').addEventListener('input', () => { asTable = false; state.given = true })
  $('numbers').addEventListener('input', calm(() => { try { take(typed(), null) } catch { setNumbers(null, ''); show($('read-as'), false) } }, 300))
  $('read-other').addEventListener('click', () => { asTable = !asTable; take(typed(), null); compute() })
  $('choose').addEventListener('click', () => $('file').click())
  $('file').addEventListener('change', () => { if ($('file').files[0]) load($('file').files[0]); $('file').value = '' })
  $('unload').addEventListener('click', () => { unload(); $('numbers').value = ''; $('numbers').focus() })
  $('column').addEventListener('change', () => { pick($('column').value); compute() })
  for (const button of document.querySelectorAll('[data-example]')) button.addEventListener('click', () => example(button.dataset.example))
  for (const id of ['exact', 'method']) $(id).addEventListener('change', () => { if (turn) compute() })
  $('copy').addEventListener('click', () => copy($('curl').textContent))
  $('share').addEventListener('click', () => { remember('try', { x: shared() }); copy(location.href) })
  dropping()
  addEventListener('resize', calm(() => redraw()))
  openapi().then(offer, () => {})
}

/** The numbers in the field. Lines of equal length may be one list or a table: the page says which, and offers the other. */
function typed() {
  const words = $('numbers').value, columns = tableColumns(words), found = fromText(words, asTable)
  show($('read-as'), columns > 1)
  if (columns > 1) {
    $('read-as').firstElementChild.textContent = asTable ? `Read as a table of ${plural(columns, 'column')}.` : `Read as one list of ${plural(found.numbers.length, 'number')}.`
    $('read-other').textContent = asTable ? 'Read it as one list' : `Read it as a table of ${plural(columns, 'column')}`
  }
  return found
}

/** What this service has beside medians. */
function offer(document) {
  const route = document.paths['/quantile']?.post
  if (!route) return
  show($('quantiles-field'))
  const schemas = JSON.stringify(route.requestBody ?? route)
  const methods = /"method":\{[^{}]*?"enum":(\[[^\]]*\])/.exec(schemas)
  const names = methods ? JSON.parse(methods[1]) : []
  $('method').replaceChildren(...names.map((name) => h('option', { selected: name === 'linear' }, name)))
  show($('method-field'), names.length > 1)
}

function dropping() {
  const zone = $('drop')
  for (const kind of ['dragenter', 'dragover']) {
    document.addEventListener(kind, (event) => { if (event.dataTransfer?.types.includes('Files') && !$('try').hidden) { event.preventDefault(); zone.classList.add('over') } })
  }
  document.addEventListener('dragleave', (event) => { if (!event.relatedTarget) zone.classList.remove('over') })
  document.addEventListener('drop', (event) => {
    zone.classList.remove('over')
    if ($('try').hidden || !event.dataTransfer.files.length) return
    event.preventDefault()
    load(event.dataTransfer.files[0])
  })
}

function example(name) {
  state.given = true
  const numbers = sample(...EXAMPLES[name])
  unload()
  $('numbers').value = Array.from(numbers).join(', ')
  take({ numbers }, null)
  compute()
}

async function load(given) {
  state.given = true
  try {
    const found = await fromFile(given)
    take(found, given)
    say($('try-error'))
    compute()
  } catch (error) { say($('try-error'), error.message) }
}

function unload() {
  columns = file = null
  asTable = false
  show($('read-as'), false)
  show($('numbers'))
  show($('loaded'), false)
  show($('column-field'), false)
  setNumbers(null, '')
}

/** Columns of numbers have come; those of a file replace what stands in the field. */
function take(found, from) {
  columns = found
  file = from
  const names = Object.keys(found)
  $('column').replaceChildren(...names.map((name) => h('option', { value: name }, `${name} (${count(found[name].length)})`)))
  show($('column-field'), names.length > 1)
  pick(names[0])
}

function pick(name) {
  const numbers = columns[name], many = Object.keys(columns).length > 1
  setNumbers(numbers, (file ? file.name : '') + (many ? `, ${name}` : ''))
  if (!file) return
  const fits = numbers.length <= SHOWN
  if (fits) $('numbers').value = Array.from(numbers).join('\n')
  show($('numbers'), fits)
  show($('loaded'))
  $('loaded').firstElementChild.textContent = `${plural(numbers.length, 'number')} from ${state.source}`
}

function levels() {
  if ($('quantiles-field').hidden) return []
  return $('quantiles').value.split(/[\s,;]+/).filter(Boolean).map((word) => {
    const level = word.endsWith('%') ? Number(word.slice(0, -1)) / 100 : Number(word)
    if (!(level >= 0 && level <= 1)) throw new Error(`“${word}” is not a quantile: take numbers from 0 to 1, or percent.`)
    return level
  })
}

async function compute() {
  const mine = ++turn
  const patience = setTimeout(() => { if (mine === turn) $('try-waiting').textContent = 'Still working. For a new length the service may have to build a network first, once.' }, 1000)
  try {
    if (!file) take(typed(), null)
    const numbers = state.numbers, wanted = levels()
    say($('try-error'))
    $('answer').classList.add('stale')
    const body = { vector: Array.from(numbers), grid: !$('exact').checked, details: true }
    const started = performance.now()
    const median = await post('/median', body)
    const round = performance.now() - started
    if (mine !== turn) return
    const quantiles = wanted.length ? await ask(body, wanted) : null
    if (mine !== turn) return
    answer(numbers, median, wanted, quantiles)
    curl(numbers)
    times(numbers, median, round, mine)
  } catch (error) {
    if (mine !== turn) return
    say($('try-error'), place(error))
  } finally {
    clearTimeout(patience)
    if (mine === turn) { $('answer').classList.remove('stale'); $('try-waiting').textContent = '' }
  }
}

function ask(body, wanted) {
  const method = $('method').value
  const { vector, grid } = body
  return post('/quantile', { vectors: [vector], quantiles: wanted, grid, ...(method && { method }) })
}

function place(error) {
  const index = error.body?.index
  return error.message + (index == null ? '' : ` (number ${count(index + 1)})`)
}

function answer(numbers, reply, wanted, quantiles) {
  const median = reply.medians[0]
  let below = 0, above = 0
  for (const value of numbers) { if (value < median) below++; else if (value > median) above++ }
  const equal = numbers.length - below - above
  show($('answer-empty'), false)
  for (const id of ['answer-full', 'histogram-card', 'beside']) show($(id))
  $('answer-title').textContent = `Median of ${plural(numbers.length, 'number')}`
  $('median').replaceChildren(rounded(median))
  const same = equal ? `, ${count(equal)} equal to it` : numbers.length % 2 ? '' : ', the answer between them'
  $('certificate').replaceChildren(h('strong', {}, `${count(below)} below, ${count(above)} above`), `${same}. `,
    'Counting proves the answer.')
  const bound = reply.error_bound ? reply.error_bound[0] : 0
  facts([
    ['Model', h('a', { href: '#models' }, reply.models[0])],
    ['Error', bound === 0 ? 'none: this is the number that numpy.median gives' : `at most ${short(bound, 3)}`],
    ...(reply.fallback ? [['Note', 'The first network missed; an exact one answered.']] : []),
  ])
  const found = quantiles ? quantiles.quantiles[0] : []
  $('quantile-answers').replaceChildren(...(found.length ? [h('table', {},
    h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'Quantile'), h('th', { scope: 'col' }, 'Value'))),
    h('tbody', {}, found.map((value, i) => h('tr', {}, h('th', { scope: 'row' }, short(wanted[i])), h('td', { class: 'mono' }, rounded(value))))))] : []))
  redraw = () => $('histogram').replaceChildren(histogram(numbers, median, found.map((value, i) => [value, wanted[i]]), room('histogram')))
  redraw()
}

function facts(pairs) {
  $('facts').replaceChildren(...pairs.flatMap(([name, value]) => [h('dt', {}, name), h('dd', {}, value)]))
}

/** Where the time went: the network's in the service, numpy's there too, and the way here and back. */
async function times(numbers, reply, round, mine) {
  const { inference_ms: inference, total_ms: total } = reply.timings
  const rows = [['The network', inference, 'in onnxruntime, with the counting that proves it'], ['The request', total, 'in the service, body read']]
  draw(rows, round)
  try {
    const numpy = await post('/numpy', { vector: Array.from(numbers) })
    if (mine !== turn) return
    rows.splice(1, 0, ['numpy.median', numpy.ms, `on the same machine, best of ${plural(numpy.runs, 'run')}`])
    draw(rows, round)
  } catch { /* the answer stands without it */ }
}

function draw(rows, round) {
  const most = Math.max(...rows.map(([, ms]) => ms))
  $('times').replaceChildren(
    ...rows.map(([name, ms, where], i) => h('div', { class: 'bar' }, h('strong', {}, name),
      s('svg', { viewBox: '0 0 200 10', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
        s('rect', { width: 200, height: 10, rx: 2, class: 'box' }), s('rect', { width: Math.max(1, 200 * ms / most), height: 10, rx: 2, class: i === 1 && rows.length > 2 ? 'mark' : 'accent' })),
      h('span', {}, `${duration(ms)} ${where}`))),
    h('p', { class: 'hint' }, `One measurement. From this page the request took ${duration(round)} in all, mostly on the way.`))
}

function curl(numbers) {
  const key = hasKey() ? ' -H "X-API-Key: $MEDIAN_API_KEY"' : '', grid = !$('exact').checked
  const at = `${location.origin}/median`, query = grid ? '?grid=true' : ''
  let command
  if (file && /\.npy$/i.test(file.name)) {
    command = `curl -s '${at}${query}'${key} -H 'Content-Type: application/x-npy' --data-binary '@${file.name.replaceAll("'", "'\\''")}' -o medians.npy`
  } else {
    const json = (list) => `{"vector": [${list}]${grid ? ', "grid": true' : ''}}`
    command = `curl -s ${at}${key} -H 'Content-Type: application/json' \\\n  -d '${numbers.length > INLINE ? '@numbers.json' : json(Array.from(numbers).join(', '))}'`
    if (numbers.length > INLINE) command = `# numbers.json: ${json(`${Array.from(numbers.slice(0, 3)).join(', ')}, …`)}\n${command.replaceAll("'@numbers.json'", '@numbers.json')}`
  }
  $('curl').textContent = command
  $('copied').textContent = ''
  show($('share'), shared() !== null)
}

async function copy(words) {
  try {
    await navigator.clipboard.writeText(words)
    $('copied').textContent = 'Copied.'
  } catch {
    if (words === $('curl').textContent) getSelection().selectAllChildren($('curl'))
    $('copied').textContent = words === $('curl').textContent ? 'Selected: press Ctrl+C.' : 'The link is in the address bar.'
  }
}
