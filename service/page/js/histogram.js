// Where the numbers and the answer lie: dots for a few numbers, a histogram for many.
import { count, drawing, line, plural, s, short, text, ticks } from './dom.js'

const [LEFT, RIGHT, TOP, BOTTOM] = [16, 16, 44, 28]
const FEW = 40, DOT = 6 // so many numbers at most are drawn one by one, as dots of this radius

/** A dot for each number; dots that would overlap stand on top of each other. */
function stacked(numbers, x, floor) {
  let last = -Infinity, up = 0
  const placed = Array.from(numbers).sort((a, b) => a - b).map((value) => {
    up = x(value) - last < 2 * DOT ? up + 1 : 0
    if (!up) last = x(value)
    return [value, up]
  })
  const step = Math.min(2 * DOT + 1, (floor - TOP) / Math.max(...placed.map(([, up]) => up + 1)))
  return placed.map(([value, up]) => s('circle', { cx: x(value), cy: floor - DOT - 2 - up * step, r: DOT, class: 'bin' }, s('title', {}, String(value))))
}

export function histogram(numbers, median, quantiles, W) {
  const few = numbers.length <= FEW, H = few ? 160 : 250
  let low = Infinity, high = -Infinity
  for (const value of numbers) { low = Math.min(low, value); high = Math.max(high, value) }
  const span = high - low, wide = Number.isFinite(span) && span > 0
  const distinct = new Set(numbers.slice(0, 5000)).size
  const bins = wide ? Math.min(60, Math.max(6, distinct <= 24 ? distinct * 2 - 1 : Math.ceil(2 * Math.cbrt(numbers.length)))) : 1
  const counts = new Array(bins).fill(0)
  // halves, so that no difference of huge numbers overflows
  const part = (value) => (high === low ? 0.5 : (value / 2 - low / 2) / (high / 2 - low / 2))
  for (const value of numbers) counts[Math.min(bins - 1, Math.floor(part(value) * bins))]++
  const most = Math.max(...counts)
  const x = (value) => LEFT + part(value) * (W - LEFT - RIGHT), y = (n) => H - BOTTOM - (n / most) * (H - TOP - BOTTOM)
  const width = (W - LEFT - RIGHT) / bins
  const edge = (i) => low + (high / 2 - low / 2) * 2 * (i / bins)
  const bars = few ? stacked(numbers, x, H - BOTTOM) : counts.map((n, i) => s('rect', { x: LEFT + i * width + 0.75, y: y(n), width: Math.max(0.5, width - 1.5), height: H - BOTTOM - y(n), class: 'bin', rx: 1.5 },
    s('title', {}, `${short(edge(i))} to ${short(edge(i + 1))}: ${plural(n, 'number')}`)))
  const marks = wide && Number.isFinite(span) ? ticks(low, high, Math.max(4, W / 110)) : [low]
  const axis = marks.map((value) => s('g', {}, line(x(value), H - BOTTOM, x(value), H - BOTTOM + 5, 'axis'),
    text(x(value), H - 8, short(value), { 'text-anchor': 'middle', class: 'soft' })))
  const label = (at, words, dy, kind) => text(Math.min(W - RIGHT, Math.max(LEFT, at)), dy, words,
    { 'text-anchor': at > W - 90 ? 'end' : at < 90 ? 'start' : 'middle', class: kind })
  const others = quantiles.flatMap(([value, level], i) => [line(x(value), TOP - 6, x(value), H - BOTTOM, 'quantile-line'), label(x(value), short(level), i % 2 ? 24 : 36, 'soft')])
  return drawing(W, H, `Histogram of ${count(numbers.length)} numbers from ${short(low)} to ${short(high)}; the median ${short(median, 8)} is marked.`,
    ...bars, line(LEFT, H - BOTTOM, W - RIGHT, H - BOTTOM, 'axis'), ...axis, ...others,
    line(x(median), 18, x(median), H - BOTTOM, 'answer-line'), label(x(median), `median ${short(median, 8)}`, 13, 'answer-text'))
}
