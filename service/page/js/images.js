// Images: a picture through a filter of the service, before and after. Pixels go there and back raw; nothing is stored.
import { get, hasKey, request } from './api.js'
import { $, count, duration, h, plural, say, short, show } from './dom.js'

const NOISE = 0.1 // of the pixels
const SIZE = [480, 320]
let filters = null
let frames = [] // ImageData, one of them for a window
let from = '' // where they are from
let turn = 0

/** The view is there if the service has filters. */
export async function offerImages() {
  try {
    filters = (await get('/models')).filters.sort((a, b) => Boolean(a.description.frames) - Boolean(b.description.frames)) // windows first
    show($('images-link'), filters.length > 0)
    if (location.hash.startsWith('#images')) openImages()
  } catch { /* Try says what is wrong */ }
}

export function openImages() {
  if (!filters) return
  if (!filters.length) { say($('images-error'), 'No filter for images is loaded here: python -m exporter --window 3x3 --dtype uint8 --out MODELS adds one.'); return }
  if ($('filter').options.length) return
  $('filter').replaceChildren(...filters.map(({ name, description: about }) => h('option', { value: name }, `${what(about)} (${name})`)))
  $('filter').addEventListener('change', () => { if (wanted() !== frames.length) example(); else run() })
  $('picture-choose').addEventListener('click', () => $('picture-file').click())
  $('picture-file').addEventListener('change', () => { load([...$('picture-file').files]); $('picture-file').value = '' })
  $('picture-example').addEventListener('click', example)
  $('picture-noise').addEventListener('click', () => { frames = frames.map(noisy); from += from.includes('noise') ? '' : ', with noise'; run() })
  $('picture-save').addEventListener('click', save)
  dropping()
  example()
}

const chosen = () => filters.find(({ name }) => name === $('filter').value)
const wanted = () => chosen().description.frames ?? 1

function what({ op, window, frames: many, outputs }) {
  const which = op === 'median' ? 'Median' : outputs[0].name
  return window ? `${which} of ${window.join(' × ')}` : `${which} of ${many} frames`
}

function dropping() {
  const zone = $('picture-drop')
  for (const kind of ['dragenter', 'dragover']) {
    document.addEventListener(kind, (event) => { if (event.dataTransfer?.types.includes('Files') && !$('images').hidden) { event.preventDefault(); zone.classList.add('over') } })
  }
  document.addEventListener('dragleave', (event) => { if (!event.relatedTarget) zone.classList.remove('over') })
  document.addEventListener('drop', (event) => {
    zone.classList.remove('over')
    if ($('images').hidden || !event.dataTransfer.files.length) return
    event.preventDefault()
    load([...event.dataTransfer.files])
  })
}

async function load(files) {
  try {
    const many = wanted()
    if (files.length !== many) throw new Error(`This filter takes ${plural(many, 'picture')}, not ${files.length}.`)
    const found = []
    for (const file of files) found.push(await decoded(file))
    if (found.some((each) => each.width !== found[0].width || each.height !== found[0].height)) throw new Error('The pictures must be of one size.')
    frames = found
    from = files.map((file) => file.name).join(', ')
    await run()
  } catch (error) { say($('images-error'), error.message) }
}

/** A file as pixels, on white where it is transparent. */
async function decoded(file) {
  let bitmap
  try { bitmap = await createImageBitmap(file) } catch { throw new Error(`${file.name} is no picture that this browser can read.`) }
  const pen = canvas(bitmap.width, bitmap.height)
  pen.drawImage(bitmap, 0, 0)
  bitmap.close()
  return pen.getImageData(0, 0, pen.canvas.width, pen.canvas.height)
}

function canvas(width, height) {
  const pen = h('canvas', { width, height }).getContext('2d', { willReadFrequently: true })
  pen.fillStyle = 'white'
  pen.fillRect(0, 0, width, height)
  return pen
}

/** A scene with edges, thin lines and letters; in frames someone walks through it. */
function example() {
  const many = wanted()
  frames = Array.from({ length: many }, (_, i) => scenery(i, many))
  from = 'The example'
  if (many === 1) { frames = frames.map(noisy); from += ', with noise' }
  run()
}

function scenery(i, many) {
  const [width, height] = SIZE
  const pen = canvas(width, height), sky = pen.createLinearGradient(0, 0, 0, height)
  sky.addColorStop(0, '#31418f'); sky.addColorStop(0.7, '#f2b27a'); sky.addColorStop(0.7, '#3f7a4d'); sky.addColorStop(1, '#23452f')
  pen.fillStyle = sky; pen.fillRect(0, 0, width, height)
  pen.fillStyle = '#ffe9a8'; pen.beginPath(); pen.arc(370, 90, 34, 0, 7); pen.fill()
  for (const [x, top, wide, colour] of [[40, 120, 70, '#5b4a6b'], [125, 80, 60, '#74566a'], [200, 140, 90, '#4a3f5e']]) {
    pen.fillStyle = colour; pen.fillRect(x, top, wide, 224 - top)
    pen.fillStyle = '#ffd97a'
    for (let y = top + 12; y < 205; y += 22) for (let at = x + 10; at < x + wide - 12; at += 18) pen.fillRect(at, y, 8, 10)
  }
  pen.strokeStyle = '#1c1c28'; pen.lineWidth = 2; pen.beginPath(); pen.moveTo(0, 60); pen.quadraticCurveTo(240, 110, 480, 50); pen.stroke()
  pen.fillStyle = '#f5f5f5'; pen.font = 'bold 40px sans-serif'; pen.fillText('median', 300, 285)
  if (many > 1) { pen.fillStyle = '#d1345b'; pen.fillRect(20 + 420 * i / many, 215, 26, 62); pen.beginPath(); pen.arc(33 + 420 * i / many, 203, 13, 0, 7); pen.fill() }
  return pen.getImageData(0, 0, width, height)
}

/** The example with noise on one canvas, its median filter on the other; false where the service has no filter of one picture. */
export async function filtered(before, after) {
  filters ??= (await get('/models')).filters
  const one = filters.find(({ description: about }) => about.window)
  if (!one) return false
  const image = noisy(scenery(0, 1)), { width, height } = image
  const response = await request(`/filter?model=${encodeURIComponent(one.name)}&dtype=uint8&shape=${height},${width},3`, { method: 'POST', body: packed([image]), headers: { 'Content-Type': 'application/octet-stream' } })
  const [rows, columns] = response.headers.get('X-Median-Shape').split(',').map(Number)
  draw(before, image, 'A picture with noise')
  draw(after, unpacked(response, await response.arrayBuffer(), columns, rows), 'The same picture, filtered')
  return true
}

/** The same with some pixels black or white. */
function noisy(image) {
  const copy = new ImageData(new Uint8ClampedArray(image.data), image.width, image.height)
  for (let i = 0; i < copy.data.length; i += 4) if (Math.random() < NOISE) copy.data.fill(Math.random() < 0.5 ? 0 : 255, i, i + 3)
  return copy
}

async function run() {
  const mine = ++turn, { name, description: about } = chosen(), { width, height } = frames[0], many = frames.length
  $('before-title').textContent = many > 1 ? `Before: the first of ${many} frames` : 'Before'
  draw($('before'), frames[0], `Before: ${from}, ${width} by ${height} pixels${many > 1 ? `, the first of ${many} frames` : ''}`)
  $('picture-choose').textContent = many > 1 ? `Choose ${many} pictures` : 'Choose a picture'
  $('picture-file').multiple = many > 1
  const work = about.comparators == null ? '' : ` ${plural(about.comparators, 'comparison')} a pixel${about.window ? ', shared by neighbouring windows' : ''}.`
  $('filter-about').textContent = `${what(about)}, profile ${about.profile}.${work} ${about.inputs === 'floats' ? 'Every pixel is exact.' : `Off by at most ${short(about.off_grid_error, 3)}.`}`
  const shape = [...(about.frames ? [many] : []), height, width, 3]
  curl(name)
  try {
    const response = await request(`/filter?model=${encodeURIComponent(name)}&dtype=uint8&shape=${shape}`, { method: 'POST', body: packed(frames), headers: { 'Content-Type': 'application/octet-stream' } })
    const content = await response.arrayBuffer()
    if (mine !== turn) return
    const [rows, columns] = response.headers.get('X-Median-Shape').split(',').map(Number)
    const result = unpacked(response, content, columns, rows)
    draw($('after'), result, `After: ${what(about)}, ${columns} by ${rows} pixels`)
    say($('images-error'))
    const ms = Number(/inference;dur=([\d.]+)/.exec(response.headers.get('Server-Timing'))?.[1])
    $('images-said').textContent = `${from}: ${count(columns)} × ${count(rows)} pixels by ${name} in ${duration(ms)}${changed(result)}.`
    $('picture-save').disabled = false
  } catch (error) {
    if (mine !== turn) return
    say($('images-error'), error.message)
    draw($('after'), new ImageData(width, height), 'No answer')
    $('images-said').textContent = ''
    $('picture-save').disabled = true
  }
}

/** Red, green and blue of all frames, one after the other. */
function packed(frames) {
  const [{ data }] = frames, bytes = new Uint8Array(frames.length * data.length / 4 * 3)
  let to = 0
  for (const frame of frames) for (let i = 0; i < frame.data.length; i += 4) { bytes[to++] = frame.data[i]; bytes[to++] = frame.data[i + 1]; bytes[to++] = frame.data[i + 2] }
  return bytes
}

function unpacked(response, content, columns, rows) {
  const values = new { uint8: Uint8Array, float32: Float32Array, float64: Float64Array }[response.headers.get('X-Median-Dtype')](content)
  const result = new ImageData(columns, rows)
  for (let i = 0, at = 0; at < values.length; i += 4, at += 3) {
    for (let c = 0; c < 3; c++) result.data[i + c] = values[at + c] // which rounds and clamps
    result.data[i + 3] = 255
  }
  return result
}

function changed({ data, width }) {
  const before = frames[0].data
  if (frames.length > 1 || width !== frames[0].width || data.length !== before.length) return ''
  let other = 0
  for (let i = 0; i < data.length; i += 4) if (data[i] !== before[i] || data[i + 1] !== before[i + 1] || data[i + 2] !== before[i + 2]) other++
  return `; ${short(100 * other / (data.length / 4), 3)} % of them changed`
}

function draw(target, image, words) {
  target.width = image.width
  target.height = image.height
  target.getContext('2d', { willReadFrequently: true }).putImageData(image, 0, 0)
  target.setAttribute('aria-label', words)
}

function curl(name) {
  const key = hasKey() ? ' -H "X-API-Key: $MEDIAN_API_KEY"' : ''
  $('images-curl').textContent = `# picture.npy: uint8, [${wanted() > 1 ? 'frames, ' : ''}h, w] or [${wanted() > 1 ? 'frames, ' : ''}h, w, channels]\n`
    + `curl -s '${location.origin}/filter?model=${encodeURIComponent(name)}'${key} -H 'Content-Type: application/x-npy' \\\n  --data-binary @picture.npy -o filtered.npy`
}

function save() {
  $('after').toBlob((content) => {
    const link = h('a', { href: URL.createObjectURL(content), download: 'filtered.png' })
    link.click()
    setTimeout(() => URL.revokeObjectURL(link.href), 10000)
  })
}
