// Which view is shown, by the part of the address after #.
import { $, show } from './dom.js'
import { startTry } from './try.js'
import { openWatch } from './watch.js'
import { openCompare } from './compare.js'
import { openModels } from './models.js'

const VIEWS = { try: () => {}, watch: openWatch, compare: openCompare, models: openModels }

function route(moved) {
  const name = location.hash.slice(1) in VIEWS ? location.hash.slice(1) : 'try'
  for (const view of Object.keys(VIEWS)) show($(view), view === name)
  for (const link of document.querySelectorAll('nav a')) {
    if (link.hash === `#${name}`) link.setAttribute('aria-current', 'page')
    else link.removeAttribute('aria-current')
  }
  document.title = `${$(`${name}-title`).textContent} · onnx-median`
  if (moved) { $('main').focus({ preventScroll: true }); scrollTo(0, 0) }
  VIEWS[name]()
}

startTry()
addEventListener('hashchange', () => route(true))
route(false)
