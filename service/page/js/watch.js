// Watch: a network at work, layer by layer.
import { get, post } from './api.js'
import { $, calm, count, h, plural, remember, room, s, say, short, show } from './dom.js'
import { showNeurons } from './neurons.js'
import { sample } from './numbers.js'
import { sceneOf } from './scenes.js'
import { tellStory } from './story.js'
import { onNumbers, state } from './state.js'

const STEP_MS = 550
let networks = null // what can be watched
let summaries = {}
let told = null // the answer of the service
let scene = null
let at = 0 // how many layers have been
let timer = null
let chosen = null // 'own' or a count
let turn = 0

/** The view; an address may name a construction and a count (#watch?construction=NAME&n=16). It opens on a sorting network. */
export async function openWatch(params) {
  $('own').disabled = !state.numbers
  if (networks) { if (chosen === 'own' || !told) run(); return }
  try {
    const [list, atlas] = await Promise.all([get('/watch'), get('/page/atlas.json')])
    networks = list.models
    summaries = atlas.constructions
    const order = Object.keys(summaries)
    const names = [...new Set(networks.map((each) => each.construction))].sort((a, b) => order.indexOf(a) - order.indexOf(b))
    $('construction').replaceChildren(...names.map((name) => h('option', {}, name)))
    listen()
    const asked = params.get('construction')
    $('construction').value = names.includes(asked) ? asked : names.find((name) => summaries[name]?.story === 'exchanges') ?? names[0]
    chosen = params.get('n') ?? (state.given ? 'own' : '16')
    refit()
    $('story').replaceChildren(...tellStory(networks, summaries, watch))
  } catch (error) { say($('watch-error'), error.message) }
}

function listen() {
  $('construction').addEventListener('change', () => { refit() })
  $('network').addEventListener('change', run)
  for (const button of document.querySelectorAll('[data-watch]')) button.addEventListener('click', () => { chosen = button.dataset.watch; $('network').value = ''; run() })
  $('first').addEventListener('click', () => { stop(); go(0) })
  $('back').addEventListener('click', () => { stop(); go(at - 1) })
  $('next').addEventListener('click', () => { stop(); go(at + 1) })
  $('last').addEventListener('click', () => { stop(); go(Infinity) })
  $('play').addEventListener('click', () => (timer ? stop() : play()))
  addEventListener('resize', calm(() => { if (told && !$('watch').hidden) { scene = sceneOf(told, room('scene')); go(at) } }))
  $('layer').addEventListener('input', () => { stop(); go(Number($('layer').value)) })
}
onNumbers(() => { $('own').disabled = !state.numbers })

/** Show a construction in the player. */
function watch(construction, n) {
  $('construction').value = construction
  chosen = n
  refit()
  $('watch').scrollIntoView()
}

/** The networks of the chosen construction. */
function refit() {
  const mine = networks.filter((each) => each.construction === $('construction').value).sort((a, b) => a.d - b.d)
  $('network').replaceChildren(h('option', { value: '' }, 'the smallest that fits'),
    ...mine.map((each) => h('option', { value: each.name }, `d = ${count(each.d)}, depth ${each.depth}`)))
  run()
}

/** The numbers to send: yours as far as they fit, evenly taken where they are too many. */
function vector(mine) {
  const own = chosen === 'own' && state.numbers
  const numbers = own ? state.numbers : sample(Number(chosen) || 16, mine.some((each) => each.uniform) ? 'uniform' : 'normal', 3)
  const largest = (n) => mine.filter((each) => fits(each.d, n)).length > 0
  let n = numbers.length
  const most = Math.max(...mine.map((each) => each.d))
  if (n > most) n = most
  while (n > 1 && !largest(n)) n--
  const taken = n === numbers.length ? numbers : Float64Array.from({ length: n }, (_, i) => numbers[Math.floor(i * numbers.length / n)])
  const note = n === numbers.length ? `${own ? 'Your' : 'Here are'} ${plural(n, 'number')}` : `${count(n)} of ${own ? 'your' : 'these'} ${plural(numbers.length, 'number')}, evenly taken`
  return { taken, note }
}

/** Padding keeps the parity; an odd count also fits twice into an even row. */
const fits = (d, n) => n <= d && ((d - n) % 2 === 0 || (d % 2 === 0 && 2 * n <= d))

async function run() {
  stop()
  const mine = ++turn, name = $('network').value, construction = $('construction').value
  for (const button of document.querySelectorAll('[data-watch]')) button.setAttribute('aria-pressed', String(button.dataset.watch === chosen))
  const { taken, note } = vector(networks.filter((each) => each.construction === construction && (!name || each.name === name)))
  try {
    const reply = await post('/watch', { vector: Array.from(taken), ...(name ? { model: name } : { construction }) })
    if (mine !== turn) return
    told = reply
    say($('watch-error'))
    about(note, taken.length)
    show($('watch-stage'))
    scene = sceneOf(told, room('scene'))
    $('scene-title').textContent = scene.title
    $('scene-text').textContent = scene.text
    $('scene-legend').replaceChildren(...(scene.legend ?? []).map(([mark, words]) => h('li', {}, s('svg', { viewBox: '0 0 22 14', 'aria-hidden': 'true' }, mark), words)))
    if (!$('watch').hidden) remember('watch', { construction, ...(chosen !== 'own' && { n: chosen }) })
    $('scene-tip').textContent = ''
    $('layer').max = told.layers.length
    go(0)
  } catch (error) {
    if (mine !== turn) return
    say($('watch-error'), error.message)
    show($('watch-stage'), false)
  }
}

function about(note, n) {
  const padding = told.d - told.entries.filter((entry) => entry >= 0).length
  const repeated = told.d - padding > n ? ', each twice,' : ''
  const guard = told.layers.filter((layer) => layer.name === 'round and clamp').length
  const facts = `${note}${repeated}${padding ? ` and ${plural(padding, 'filler')}, half below and half above,` : ''} in a network for d = ${count(told.d)} with ${plural(told.size, 'neuron')}. Its depth is ${told.depth}${guard ? `; ${plural(guard, 'layer')} round and clamp the input` : ''}. `
  const law = networks.find((each) => each.name === told.model)?.uniform ? 'It is made for uniform inputs and promises nothing on others. ' : ''
  const verdict = told.certified ? `It answers ${short(told.answer)}, and counting proves it.` : `It answers ${short(told.answer)}, and counting shows that this is wrong: the network misses a few inputs. In Try an exact network answers instead.`
  $('watch-about').replaceChildren(h('strong', {}, `${told.construction}: `), `${summaries[told.construction]?.summary ?? told.theorem}. `, law, facts, verdict)
}

function go(to) {
  at = Math.max(0, Math.min(told.layers.length, to))
  $('layer').value = at
  const layer = told.layers[at - 1]
  const words = layer ? `Layer ${layer.number} of ${told.depth - 1}${layer.name ? ` · ${layer.name}` : ''}` : 'The input'
  $('layer-text').textContent = words
  $('layer').setAttribute('aria-valuetext', words)
  for (const id of ['first', 'back']) $(id).disabled = at === 0
  for (const id of ['next', 'last']) $(id).disabled = at === told.layers.length
  const number = layer ? layer.number : 0
  $('scene').replaceChildren(scene.draw(number, (tip) => { $('scene-tip').textContent = tip }))
  showNeurons(told, layer)
  if (at === told.layers.length) stop()
}

function play() {
  if (at === told.layers.length) go(0)
  $('play').textContent = 'Pause'
  $('play').setAttribute('aria-pressed', 'true')
  timer = setInterval(() => go(at + 1), Math.max(90, Math.min(STEP_MS, 14000 / told.layers.length)))
}

function stop() {
  clearInterval(timer)
  timer = null
  $('play').textContent = 'Play'
  $('play').setAttribute('aria-pressed', 'false')
}
addEventListener('hashchange', stop)
