// Home: a network at work on nine numbers, and a picture before and after.
import { get, post } from './api.js'
import { $, plural, room, short, show } from './dom.js'
import { filtered } from './images.js'
import { sceneOf } from './scenes.js'

export const NINE = [27, 8, 64, 1, 49, 16, 81, 4, 36]
const STEP_MS = 700
const STILL = matchMedia('(prefers-reduced-motion: reduce)')
let told = null, scene = null, timer = null, at = 0

/** Run the smallest sorting network on nine numbers, and filter the example picture. */
export async function openHome() {
  if (told) { play(); return }
  try {
    const { constructions } = await get('/page/atlas.json')
    const [construction] = Object.keys(constructions).filter((name) => constructions[name].story === 'exchanges')
    told = await post('/watch', { vector: NINE, construction })
    const stages = told.story.scenes, many = stages.reduce((sum, each) => sum + each.pairs.length, 0)
    $('hero-lead').textContent = `This network finds the median of nine numbers with ${plural(many, 'neuron')} of the form relu(a − b). It runs where Sort and TopK do not, and answers as numpy does.`
    show($('hero'))
    $('hero-again').addEventListener('click', () => { at = 0; play() })
    addEventListener('resize', () => draw(true))
    addEventListener('hashchange', stop)
    play()
    show($('hero-images'), await filtered($('hero-before'), $('hero-after')))
    draw(true)
  } catch { /* Try says what is wrong */ }
}

function play() {
  stop()
  const last = told.story.scenes.length
  if (STILL.matches) at = last
  draw(true)
  if (at < last) timer = setInterval(() => { at++; draw(); if (at >= last) stop() }, STEP_MS)
}

function stop() { clearInterval(timer); timer = null }

function draw(anew = false) {
  if (!told || $('try').hidden) return
  if (anew || !scene) scene = sceneOf(told, room('hero-scene'))
  const stages = told.story.scenes, now = at ? stages[at - 1].layer : 0
  $('hero-scene').replaceChildren(scene.draw(at >= stages.length ? told.depth : now, () => {}))
  $('hero-text').textContent = at >= stages.length ? `Done: the median is ${short(told.answer)}.` : at ? `Stage ${at} of ${stages.length}: each bar compares two wires and puts the larger number below.` : 'Nine numbers come in from the left.'
}
