// Which view is shown, by the part of the address after #; /docs is that of the API.
import { $, show } from './dom.js'
import { startTry } from './try.js'
import { openWatch } from './watch.js'
import { openCompare } from './compare.js'
import { offerImages, openImages } from './images.js'
import { openDocs } from './docs.js'
import { openModels } from './models.js'

const VIEWS = { try: () => {}, watch: openWatch, compare: openCompare, images: openImages, models: openModels, docs: openDocs }

function route(moved) {
  const asked = location.hash.slice(1)
  const name = asked in VIEWS ? asked : location.pathname === '/docs' ? 'docs' : 'try'
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
offerImages()
addEventListener('hashchange', () => route(true))
route(false)
