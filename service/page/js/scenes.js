// What each construction does, as a picture of the tensors that the service has told.
import { count, drawing, line, plural, s, short, text, ticks } from './dom.js'

const LEAST = 640 // pixels that large matrices need; a narrower screen scrolls

/** The picture of a construction, in so many pixels. */
export function sceneOf(told, width) {
  const make = { bracket, exchanges, pairs, live }[told.story.kind]
  return (told.story.scenes.length && make?.(told, width)) || activity(told, width)
}

const data = (told) => (v) => 4 * (told.to_data.slope * v + told.to_data.offset)
const own = (told) => told.input.map((value, i) => ({ value, i, entry: told.entries[i] })).filter((each) => each.entry >= 0)

// ---- the bracket, digit by digit, each row a magnified view of what the row above chose

function bracket(told, W) {
  const narrow = W < 600
  const [lo, hi] = told.domain, value = (part) => lo + part * (hi - lo), back = data(told), entries = own(told)
  const scenes = told.story.scenes, rows = scenes.length, LEFT = narrow ? 24 : 78, RIGHT = narrow ? 116 : 214, ROW = 34, BAR = 16
  const H = rows * ROW + 62, across = W - LEFT - RIGHT
  const draw = (layer, tip) => {
    const parts = []
    scenes.forEach((scene, r) => {
      const before = r ? scenes[r - 1] : { lower: 0, upper: 1 }, span = before.upper - before.lower
      const x = (part) => LEFT + across * (part - before.lower) / span, y = 28 + r * ROW
      const known = scene.layer <= layer, now = known && !(scenes[r + 1]?.layer <= layer)
      const group = s('g', { class: known ? '' : 'ahead' })
      group.append(text(narrow ? 2 : 8, y + 13, narrow ? scene.name.replace('digit ', '') : scene.name, { class: 'soft' }), s('rect', { x: LEFT, y, width: across, height: BAR, class: 'box', rx: 3 }))
      for (let b = 1; b < scene.bins; b++) group.append(line(LEFT + across * b / scene.bins, y, LEFT + across * b / scene.bins, y + BAR, 'axis'))
      if (known) {
        const [from, to] = [x(scene.lower), x(scene.upper)]
        group.append(s('rect', { x: from, y: y - 1, width: to - from, height: BAR + 2, class: 'chosen', rx: 3 }))
        if (r + 1 < rows) group.append(s('path', { d: `M${from} ${y + BAR + 1}L${to} ${y + BAR + 1}L${LEFT + across} ${y + ROW - 1}L${LEFT} ${y + ROW - 1}Z`, class: 'funnel' }))
        const inside = entries.filter((each) => each.value >= value(scene.lower) && each.value < value(scene.upper)).length
        group.append(text(W - RIGHT + (narrow ? 6 : 12), y + 13, `${short(back(value(scene.lower)), narrow ? 5 : 7)} … ${short(back(value(scene.upper)), narrow ? 5 : 7)}`, { class: `${now ? 'answer-text' : 'soft'}${narrow ? ' small' : ''}` }))
        group.append(s('title', {}, `${scene.name}: ${plural(inside, 'number')} in [${short(back(value(scene.lower)), 9)}, ${short(back(value(scene.upper)), 9)})`))
        group.addEventListener('pointerenter', () => tip(`${scene.name}: ${scene.passed} of ${plural(scene.bins - 1, 'threshold')} passed; ${plural(inside, 'number')} left between ${short(back(value(scene.lower)), 9)} and ${short(back(value(scene.upper)), 9)}.`))
      }
      if (known || r === 0 || scenes[r - 1].layer <= layer) {
        for (const each of entries) {
          const part = (each.value - lo) / (hi - lo)
          if (part < before.lower || part > before.upper) continue
          const kept = known && part >= scene.lower && part < scene.upper
          group.append(s('circle', { cx: x(part), cy: y + BAR / 2, r: 3.2, class: kept || !known ? 'accent' : 'dim' }))
        }
      }
      parts.push(group)
    })
    const done = layer >= told.layers.at(-1).number, y = 28 + rows * ROW + 12
    parts.push(text(LEFT, y + 8, done ? `The last digit finds the answer: ${short(told.answer, 6)}` : narrow ? 'The last digit follows.' : 'The last digit has single grid values for bins; for an even count the next number up is found too.', { class: done ? 'answer-text' : 'soft' }))
    parts.unshift(text(LEFT, 14, short(back(value(0)), 6), { class: 'soft' }), text(LEFT + across, 14, short(back(value(1)), 6), { class: 'soft', 'text-anchor': 'end' }))
    return drawing(W, H, `The interval that holds the answer after each digit, at layer ${layer}.`, ...parts)
  }
  return { title: 'The bracket closes, digit by digit', text: 'Each digit counts the numbers below its thresholds and keeps the bin that holds the wanted rank. Every row magnifies the bin above.', draw }
}

// ---- wires from left to right, a comparator for every neuron

// of middle lightness, so that they stand on white and on black
const SHADES = [[126, 72, 196], [58, 110, 200], [28, 152, 150], [86, 178, 84], [226, 170, 32]]
function shade(part) {
  const at = Math.max(0, Math.min(1, part)) * (SHADES.length - 1), i = Math.min(SHADES.length - 2, Math.floor(at))
  return `rgb(${SHADES[i].map((low, k) => Math.round(low + (SHADES[i + 1][k] - low) * (at - i))).join(',')})`
}

function exchanges(told, width) {
  const scenes = told.story.scenes, back = data(told), entries = own(told).map((each) => each.value).sort((a, b) => a - b)
  const d = told.d, GAP = d > 40 ? 10 : 22, TOP = 18, LEFT = 62, RIGHT = width < 600 ? 58 : 66, H = TOP + d * GAP + 14
  // comparators of one stage that overlap stand side by side
  const laid = scenes.map((scene) => {
    const ends = []
    return scene.pairs.map(([a, b]) => {
      const [low, high] = [Math.min(a, b), Math.max(a, b)]
      let lane = ends.findIndex((end) => end < low)
      if (lane < 0) lane = ends.length
      ends[lane] = high
      return lane
    })
  })
  const lanes = laid.map((lane) => Math.max(...lane) + 1), units = lanes.reduce((sum, n) => sum + n + 1.2, 0)
  const W = Math.max(width, LEFT + RIGHT + 5 * units), unit = (W - LEFT - RIGHT) / units // 5 pixels each; a narrower screen scrolls
  const starts = []
  lanes.reduce((sum, n, i) => { starts[i] = LEFT + sum * unit; return sum + n + 1.2 }, 0)
  const y = (wire) => TOP + wire * GAP, low = entries[0], high = entries.at(-1)
  const colour = (value) => shade(high > low ? (value - low) / (high - low) : 0.5)
  const padding = (value) => value < low || value > high
  // which entry each wire holds after each stage, and its value: only comparators change that
  const held = [told.input.slice()], whose = [told.input.map((_, i) => i)]
  for (const scene of scenes) {
    const next = held.at(-1).slice(), entry = whose.at(-1).slice()
    for (const [wire, value] of scene.wires) next[wire] = value
    scene.pairs.forEach(([a, b], i) => { if (scene.excess[i] > 0) [entry[a], entry[b]] = [entry[b], entry[a]] })
    held.push(next)
    whose.push(entry)
  }
  const answers = new Set(scenes.at(-1).wires.filter(([, value]) => !padding(value)).map(([wire]) => whose.at(-1)[wire]))
  const draw = (layer, tip) => {
    const parts = [], wires = s('g', { 'stroke-width': d > 40 ? 2 : 3 }), done = scenes.filter((scene) => scene.layer <= layer).length
    for (let wire = 0; wire < d; wire++) {
      let from = LEFT - 8
      for (let k = 0; k <= scenes.length; k++) {
        const to = k < scenes.length ? starts[k] + (lanes[k] - 0.5) * unit : W - RIGHT + 8, value = held[k][wire]
        const known = k <= done
        const entry = whose[k][wire], part = s('line', { x1: from, x2: to, y1: y(wire), y2: y(wire), 'data-entry': entry, ...(known && !padding(value) ? { stroke: colour(value) } : { class: 'dim-line' }), 'stroke-opacity': known ? 1 : 0.35 })
        if (known && answers.has(entry)) part.setAttribute('stroke-width', d > 40 ? 4 : 7)
        if (known && !padding(value)) part.addEventListener('pointerenter', () => follow(wires, entry, tip))
        wires.append(part)
        from = to
        if (k === scenes.length) break
      }
      if (d <= 40 || wire % 8 === 0) parts.push(text(LEFT - 12, y(wire) + 4, padding(held[0][wire]) ? '·' : short(back(held[0][wire]), 4), { class: 'soft', 'text-anchor': 'end' }))
    }
    parts.push(wires)
    scenes.forEach((scene, k) => {
      const group = s('g', { class: scene.layer <= layer ? '' : 'ahead' })
      scene.pairs.forEach(([a, b], i) => {
        const x = starts[k] + (laid[k][i] + 0.5) * unit, swapped = scene.layer <= layer && scene.excess[i] > 0, kind = swapped ? 'mark' : 'dim'
        const one = s('g', {}, line(x, y(a), x, y(b), swapped ? 'mark-line' : 'axis'), s('circle', { cx: x, cy: y(a), r: d > 40 ? 2 : 3.4, class: kind }), s('circle', { cx: x, cy: y(b), r: d > 40 ? 2 : 3.4, class: kind }),
          s('line', { x1: x, x2: x, y1: y(a), y2: y(b), stroke: 'transparent', 'stroke-width': 9 }))
        if (scene.layer <= layer) one.addEventListener('pointerenter', () => tip(`Stage ${k + 1}, wires ${a + 1} and ${b + 1}: relu(a − b) = ${short(scene.excess[i], 6)}, so ${swapped ? 'they are exchanged' : 'they stay'}.`))
        group.append(one)
      })
      parts.push(group)
    })
    if (done === scenes.length) {
      const last = scenes.at(-1).wires
      for (const [wire, value] of last) if (!padding(value)) parts.push(text(W - RIGHT + 12, y(wire) + 4, short(back(value), 5), { class: 'answer-text' }))
    }
    wires.addEventListener('pointerleave', () => follow(wires, null, tip))
    return drawing(W, H, `A sorting network of ${d} wires and ${scenes.length} stages; ${done} stages are done.`, ...parts)
  }
  /** The way of one number through the network stands out, all others fade. */
  function follow(wires, entry, tip) {
    wires.classList.toggle('following', entry !== null)
    for (const part of wires.children) part.classList.toggle('on', part.dataset.entry === String(entry))
    if (entry !== null) tip(`This wire carries ${short(back(told.input[entry]), 6)}, number ${told.entries[entry] + 1}.`)
  }
  const padded = told.entries.some((entry) => entry < 0)
  const legend = [
    ...[['small', 0], ['middle', 0.5], ['large', 1]].map(([word, part]) => [s('line', { x1: 1, x2: 21, y1: 7, y2: 7, stroke: shade(part), 'stroke-width': 3 }), `${word} number`]),
    [s('line', { x1: 1, x2: 21, y1: 7, y2: 7, stroke: shade(0.5), 'stroke-width': 7 }), 'the way of the answer'],
    [s('line', { x1: 11, x2: 11, y1: 1, y2: 13, class: 'mark-line' }), 'compared and exchanged'],
    [s('line', { x1: 11, x2: 11, y1: 1, y2: 13, class: 'axis' }), 'compared, in order'],
    ...(padded ? [[s('line', { x1: 1, x2: 21, y1: 7, y2: 7, class: 'dim-line', 'stroke-width': 3 }), 'filler']] : []),
  ]
  return { title: 'Comparators', text: 'Each vertical bar is one neuron, relu(a − b). Where it is above 0, the two numbers change places. Comparators that the middle does not depend on are left out. Point at a wire to follow its number.', legend, draw }
}

// ---- all pairs at once

function pairs(told, width) {
  const { matrix, wins, layer: when } = told.story.scenes[0], d = told.d, back = data(told)
  const W = d <= 24 ? width : Math.max(LEAST, width), narrow = W < 600
  const LEFT = 62, TOP = 34, BARS = narrow ? 50 : 170, WORDS = narrow ? 58 : 84, SIDE = Math.min(560, W - LEFT - BARS - WORDS - 6), cell = SIDE / d, H = TOP + SIDE + 12
  const middle = d % 2 ? [(d + 1) / 2] : [d / 2, d / 2 + 1]
  const name = (i) => (told.entries[i] === -1 ? 'low' : told.entries[i] === -2 ? 'high' : short(back(told.input[i]), 4))
  const draw = (layer, tip) => {
    const parts = [], known = layer >= when, chosen = layer > when
    parts.push(s('rect', { x: LEFT, y: TOP, width: SIDE, height: SIDE, class: 'box' }))
    if (known) {
      let path = ''
      matrix.forEach((row, i) => row.forEach((won, j) => { if (won) path += `M${LEFT + j * cell} ${TOP + i * cell}h${cell - 0.6}v${cell - 0.6}h${0.6 - cell}z` }))
      parts.push(s('path', { d: path, class: 'accent', opacity: 0.8 }))
    }
    wins.forEach((won, i) => {
      const picked = chosen && middle.includes(won + 1), yy = TOP + (i + 0.5) * cell
      if (picked) parts.push(s('rect', { x: LEFT - 4, y: TOP + i * cell, width: SIDE + BARS + WORDS, height: cell, class: 'mark-line', rx: 2 }))
      if (d <= 24 || picked) {
        parts.push(text(LEFT - 8, yy + 4, name(i), { 'text-anchor': 'end', class: picked ? 'answer-text' : 'soft' }))
        if (cell > 28) parts.push(text(LEFT + (i + 0.5) * cell, TOP - 8, name(i), { 'text-anchor': 'middle', class: 'soft tiny' }))
      }
      if (known) {
        parts.push(s('rect', { x: LEFT + SIDE + 16, y: TOP + i * cell + cell * 0.15, width: BARS * (won + 1) / d, height: cell * 0.7, class: picked ? 'mark' : 'dim' }))
        if (d <= 24 || picked) parts.push(text(LEFT + SIDE + 24 + BARS * (won + 1) / d, yy + 4, `rank ${won + 1}`, { class: picked ? 'answer-text' : 'soft' }))
      }
    })
    const svg = drawing(W, H, `The matrix of all ${count(d * d)} comparisons${known ? '' : ', not yet made'}.`, ...parts)
    svg.addEventListener('pointermove', (event) => {
      const box = svg.getBoundingClientRect(), scale = W / box.width
      const j = Math.floor(((event.clientX - box.left) * scale - LEFT) / cell), i = Math.floor(((event.clientY - box.top) * scale - TOP) / cell)
      if (!known || i < 0 || j < 0 || i >= d || j >= d) return
      tip(`Row ${i + 1} (${name(i)}) against column ${j + 1} (${name(j)}): ${matrix[i][j] ? 'it wins' : 'it does not'}${name(i) === name(j) && i !== j ? '; equal numbers rank by their place' : ''}. Row ${i + 1} wins ${wins[i]}, so its rank is ${wins[i] + 1}.`)
    })
    return svg
  }
  return { title: 'All pairs, compared at once', text: `One layer compares every number with every other; the wins of a row are its rank. The next layer keeps the rank in the middle (${middle.join(' and ')} of ${d}).`, draw }
}

// ---- the sampled networks: how few entries are left

function live(told, W) {
  const scenes = told.story.scenes, depth = told.depth - 1, back = data(told)
  const LEFT = 62, RIGHT = 26, TOP = 24, CHART = 250, H = TOP + CHART + 190, across = W - LEFT - RIGHT
  const last = { layer: depth, live: told.d % 2 ? 1 : 2, final: true }
  const points = [{ layer: 0, live: told.d }, ...scenes, last]
  const x = (layer) => LEFT + across * layer / depth, top = Math.log(told.d), y = (n) => TOP + CHART * (1 - Math.log(Math.max(0.6, n)) / top * 0.94)
  const lo = Math.min(...told.input), hi = Math.max(...told.input), strip = TOP + CHART + 74
  const place = (value) => LEFT + across * (hi > lo ? (value - lo) / (hi - lo) : 0.5)
  const draw = (layer, tip) => {
    const parts = []
    for (const n of [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000].filter((n) => n <= told.d)) parts.push(line(LEFT, y(n), W - RIGHT, y(n), 'gridline'), text(LEFT - 8, y(n) + 4, count(n), { 'text-anchor': 'end', class: 'soft' }))
    const path = points.map((point, i) => `${i ? `H${x(point.layer)}V` : `M${x(0)} `}${y(point.live)}`).join('')
    parts.push(s('path', { d: path, class: 'dim-line', 'stroke-width': 2 }))
    const clip = points.filter((point) => point.layer <= layer), reached = clip.map((point, i) => `${i ? `H${x(point.layer)}V` : `M${x(0)} `}${y(point.live)}`).join('') + `H${x(layer)}`
    parts.push(s('path', { d: reached, class: 'accent-line' }), line(x(layer), TOP - 10, x(layer), TOP + CHART, 'answer-line'))
    for (const point of points) {
      const known = point.layer <= layer
      const dot = s('circle', { cx: x(point.layer), cy: y(point.live), r: 5, class: known ? 'accent' : 'dim' })
      dot.addEventListener('pointerenter', () => tip(describe(point)))
      parts.push(dot, text(x(point.layer) + (point.final ? -10 : 9), y(point.live) + (point.final ? 14 : -9), count(point.live), { class: known ? 'answer-text' : 'soft', 'text-anchor': point.final ? 'end' : 'start' }))
      if (point.entries && W >= 600) parts.push(text(x(point.layer) + 9, y(point.live) + 16, named(point.layer), { class: 'soft' }))
    }
    const steps = Math.max(1, Math.ceil(depth / (W / 60)))
    for (let n = 0; n <= depth; n += steps) parts.push(text(x(n), TOP + CHART + 20, n, { 'text-anchor': 'middle', class: 'soft' }))
    parts.push(text(LEFT, TOP - 8, 'entries left', { class: 'soft' }), text(W - RIGHT, TOP + CHART + 36, 'layer', { class: 'soft', 'text-anchor': 'end' }))
    // the entries themselves, along their values
    const at = clip.filter((point) => point.entries).at(-1), marks = { dim: '', accent: '' }
    let from = Infinity, to = -Infinity
    told.input.forEach((value, i) => {
      const alive = at ? at.entries[i] : true
      if (alive) { from = Math.min(from, value); to = Math.max(to, value) }
      const lift = (i * 7919 % 29) * 1.7
      marks[alive ? 'accent' : 'dim'] += `M${place(value).toFixed(1)} ${(strip + lift).toFixed(1)}h3v3h-3z`
    })
    if (from <= to) parts.push(s('rect', { x: place(from) - 3, y: strip - 8, width: place(to) - place(from) + 9, height: 68, class: 'chosen', rx: 4 }))
    parts.push(s('path', { d: marks.dim, class: 'dim' }), s('path', { d: marks.accent, class: 'accent' }))
    for (const value of ticks(back(lo), back(hi), Math.max(4, W / 110))) {
      const px = place((value / 4 - told.to_data.offset) / (told.to_data.slope || 1))
      parts.push(text(px, strip + 82, short(value), { 'text-anchor': 'middle', class: 'soft' }))
    }
    if (layer >= depth) parts.push(line(place(told.output), strip - 14, place(told.output), strip + 62, 'answer-line'), text(place(told.output), strip - 18, short(told.answer, 6), { 'text-anchor': 'middle', class: 'answer-text' }))
    return drawing(W, H, `Live entries against depth: ${points.map((point) => `${point.live} at layer ${point.layer}`).join(', ')}.`, ...parts)
  }
  const named = (layer) => told.layers.find((each) => each.number === layer)?.name ?? ''
  const describe = (point) => {
    const name = named(point.layer)
    if (point.final) return `Layer ${depth}: the answer.`
    return `${point.layer ? `Layer ${point.layer}, ${name}` : 'The input'}: ${point.live ? `${plural(point.live, 'entry', 'entries')} left` : 'none is strictly inside: the answer is an end of the interval'}.`
  }
  const fewest = Math.min(...scenes.map((scene) => scene.live).filter((n) => n > 0), told.d)
  return { title: `How ${count(told.d)} entries become ${count(fewest)}`, text: scenes[0].candidates
    ? 'Every block of entries keeps those of its central ranks. Only these candidates are compared with all entries.'
    : 'A sample brackets the answer, and a mask drops the entries outside. The few entries left are compared in all pairs. The numbers on the line are counted in the network’s own masks.', draw }
}

// ---- anything else: how many neurons are active

function activity(told, W) {
  const LEFT = 62, H = 240, layers = told.layers, most = Math.max(...layers.map((each) => each.tensors.reduce((sum, t) => sum + t.size, 0))), step = (W - LEFT - 10) / layers.length
  const draw = (layer, tip) => drawing(W, H, 'Neurons of every layer, and how many of them are active.', ...layers.map((each, i) => {
    const size = each.tensors.reduce((sum, t) => sum + t.size, 0), active = each.tensors.reduce((sum, t) => sum + t.active, 0), tall = (n) => (H - 40) * n / most
    const group = s('g', { class: each.number <= layer ? '' : 'ahead' }, s('rect', { x: LEFT + i * step, y: H - 20 - tall(size), width: Math.max(1, step - 2), height: tall(size), class: 'dim' }), s('rect', { x: LEFT + i * step, y: H - 20 - tall(active), width: Math.max(1, step - 2), height: tall(active), class: 'accent' }))
    group.addEventListener('pointerenter', () => tip(`Layer ${each.number} ${each.name}: ${count(active)} of ${plural(size, 'neuron')} active.`))
    return group
  }), text(LEFT - 8, 24, count(most), { 'text-anchor': 'end', class: 'soft' }), line(LEFT, H - 20, W - 10, H - 20, 'axis'))
  return { title: 'Active neurons', text: 'Neurons that the file computes in every layer, and how many are above 0.', draw }
}
