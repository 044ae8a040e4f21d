// Which view is shown, by the part of the address after #; /docs is the view of the API. A view may have a state: #try?x=1,2,3.
import { $, show } from './dom.js'
import { openHome } from './home.js'
import { openTry } from './try.js'
import { openWatch } from './watch.js'
import { openCompare } from './compare.js'
import { offerImages, openImages } from './images.js'
import { openDocs } from './docs.js'
import { openModels } from './models.js'

const VIEWS = { try: openTry, watch: openWatch, compare: openCompare, images: openImages, models: openModels, docs: openDocs }

function route(moved) {
  const [asked, query] = location.hash.slice(1).split('?')
  const name = asked in VIEWS ? asked : location.pathname === '/docs' ? 'docs' : 'try'
  for (const view of Object.keys(VIEWS)) show($(view), view === name)
  for (const link of document.querySelectorAll('nav a')) {
    if (link.hash === `#${name}`) link.setAttribute('aria-current', 'page')
    else link.removeAttribute('aria-current')
  }
  document.title = `${document.querySelector(`nav a[href="#${name}"]`).textContent} · onnx-median`
  if (moved) { $('main').focus({ preventScroll: true }); scrollTo(0, 0) }
  VIEWS[name](new URLSearchParams(query))
  if (name === 'try') openHome()
}

offerImages()
addEventListener('hashchange', () => route(true))
route(false)
