// The three ideas behind all networks, each with the network that shows it, drawn when it scrolls into view.
import { post } from './api.js'
import { h, room, s } from './dom.js'
import { sample } from './numbers.js'
import { sceneOf } from './scenes.js'

const IDEAS = [
  ['pairs', 'Compare all', 'Compare every number with every other. A number that beats four others has rank five. Two layers are enough, but the neurons grow with the square of d.'],
  ['live', 'Sample', 'A small sample brackets the median, and a mask drops all numbers outside. The few numbers left are compared in all pairs. The width is in proportion to d. A sample can miss, with a chance that is proven to be small.'],
  ['bracket', 'Count', 'Count how many numbers lie below a threshold. The count tells on which side the median is, digit by digit. The width is in proportion to d, and nothing is left to chance.'],
]

/** One article for each idea; `watch` shows a construction in the player above. */
export function tellStory(networks, kinds, watch) {
  const watcher = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target } of seen) if (isIntersecting) { watcher.unobserve(target); target.dispatchEvent(new Event('seen')) }
  }, { rootMargin: '200px' })
  return IDEAS.flatMap(([kind, title, words]) => {
    const mine = networks.filter((each) => !each.uniform && kinds[each.construction]?.story === kind && (kind !== 'live' || each.d >= 256))
    if (!mine.length) return []
    const { construction, d, depth } = mine[0]
    const place = h('div', { class: 'plot', id: `idea-${kind}` })
    const article = h('article', { class: 'card' }, h('h3', {}, title), h('p', {}, words), place,
      h('p', { class: 'row' }, h('button', { type: 'button', click: () => watch(construction, String(d)) }, `Watch ${construction}, depth ${depth}`)))
    place.append(s('svg', { width: 10, height: 240, 'aria-hidden': 'true' }))
    article.addEventListener('seen', async () => {
      try {
        const told = await post('/watch', { vector: Array.from(sample(d, 'normal', 3)), model: mine[0].name })
        place.replaceChildren(sceneOf(told, room(place.id)).draw(told.depth, () => {}))
      } catch { place.replaceChildren() }
    })
    watcher.observe(article)
    return [article]
  })
}
