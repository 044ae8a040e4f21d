// API, at /docs too: every operation of /openapi.json, with a form that sends it.
import { openapi, Problem, request } from './api.js'
import { $, duration, h, say } from './dom.js'

const LONG = 20000 // characters of an answer that are shown

let document_ = null, opened = false
const resolve = (schema) => (schema?.$ref ? schema.$ref.split('/').slice(1).reduce((at, key) => at?.[key], document_) : schema) ?? {}

export async function openDocs() {
  if (opened) return
  opened = true
  try {
    document_ = await openapi()
    $('docs-lead').prepend(`${document_.info.title} ${document_.info.version}. ${document_.info.description ?? ''} `)
    const groups = new Map()
    for (const [path, operations] of Object.entries(document_.paths)) {
      for (const [verb, operation] of Object.entries(operations)) {
        const tag = operation.tags?.[0] ?? 'other'
        groups.set(tag, [...(groups.get(tag) ?? []), [verb, path, operation]])
      }
    }
    $('operations').replaceChildren(...[...groups].sort(([a], [b]) => (a === 'watch') - (b === 'watch')).map(([tag, list]) => h('section', {}, h('h2', {}, tag), list.map((each) => operationOf(...each)))))
    say($('docs-error'))
  } catch (error) { opened = false; say($('docs-error'), error.message) }
}

function operationOf(verb, path, operation) {
  const body = h('div', {})
  const details = h('details', { class: 'operation' }, h('summary', {}, h('span', { class: `verb ${verb}` }, verb.toUpperCase()), h('span', { class: 'path' }, path),
    h('span', { class: 'said' }, said(operation))), body)
  details.addEventListener('toggle', () => { if (details.open && !body.children.length) body.append(...inside(verb, path, operation)) })
  return details
}

const words = ({ summary = '', description = '' }) => description.replace(/\s+/g, ' ').trim() || summary

/** The first sentence of a description. */
const said = (operation) => /^.*?[.:](?=\s|$)/.exec(words(operation))?.[0].replace(/:$/, '.') ?? words(operation)

function inside(verb, path, operation) {
  const parameters = (operation.parameters ?? []).map(resolve), contents = Object.entries(operation.requestBody?.content ?? {})
  const parts = []
  const rest = words(operation).slice(said(operation).length).trim()
  if (rest) parts.push(h('p', {}, rest))
  const fields = parameters.map((each) => [each, h('input', { 'aria-label': each.name, placeholder: each.schema?.enum?.join(' | ') ?? each.schema?.type ?? '', spellcheck: 'false', autocomplete: 'off' })])
  if (fields.length) {
    parts.push(h('h3', {}, 'Parameters'), ...fields.map(([each, field]) => h('div', { class: 'parameter' },
      h('strong', {}, each.name, h('small', {}, `${each.in}${each.required ? ', required' : ''}`)), field, h('span', {}, each.description ?? ''))))
  }
  let kind = null, text = null
  if (contents.length) {
    kind = h('select', { 'aria-label': 'Content-Type' }, contents.map(([type]) => h('option', {}, type)))
    const json = operation.requestBody.content['application/json']
    text = h('textarea', { rows: 5, 'aria-label': 'Body', spellcheck: 'false' }, example(json))
    parts.push(h('h3', {}, 'Body'), h('p', {}, kind), text)
    const examples = Object.entries(json?.examples ?? {})
    if (examples.length > 1) parts.push(h('p', { class: 'row' }, ...examples.map(([name, each]) => h('button', { type: 'button', click: () => { text.value = JSON.stringify(each.value) } }, name))))
    if (json) parts.push(h('details', {}, h('summary', {}, 'Schema'), h('pre', {}, JSON.stringify(expanded(json.schema), null, 1))))
  }
  const out = h('div', { 'aria-live': 'polite' })
  parts.push(h('p', {}, h('button', { class: 'primary', type: 'button', click: () => send(verb, path, fields, kind, text, out) }, 'Send')), out)
  parts.push(h('h3', {}, 'Answers'), h('dl', {}, folded(operation.responses ?? {}).flatMap(([statuses, each]) => [h('dt', {}, statuses), h('dd', {}, answer(each))])))
  return parts
}

/** Answers of the same form stand in one row: [statuses, answer]. */
function folded(responses) {
  const rows = new Map()
  for (const [status, given] of Object.entries(responses)) {
    const each = resolve(given), form = status < 400 ? status : JSON.stringify(each.content ?? {})
    const [statuses, before] = rows.get(form) ?? []
    const description = [...new Set([...(before?.description.split('; ') ?? []), each.description])].join('; ')
    rows.set(form, [statuses ? `${statuses}, ${status}` : status, { ...each, description }])
  }
  return [...rows.values()]
}

function answer(each) {
  const types = Object.keys(each.content ?? {}).join(', '), schema = each.content?.['application/json']?.schema
  const line = `${each.description ?? ''}${types ? `: ${types}` : ''}`
  return schema ? h('details', {}, h('summary', {}, line), h('pre', {}, JSON.stringify(expanded(schema), null, 1))) : line
}

function example(json) {
  const given = json?.example ?? Object.values(json?.examples ?? {})[0]?.value
  return given ? JSON.stringify(given) : '{}'
}

/** A schema with its references put in, a few levels deep. */
function expanded(schema, depth = 0) {
  if (Array.isArray(schema)) return schema.map((each) => expanded(each, depth))
  if (!schema || typeof schema !== 'object' || depth > 8) return schema
  if (schema.$ref) return expanded(resolve(schema), depth + 1)
  return Object.fromEntries(Object.entries(schema).filter(([key]) => key !== 'title').map(([key, value]) => [key, expanded(value, depth + 1)]))
}

async function send(verb, path, fields, kind, text, out) {
  const query = new URLSearchParams()
  let address = path
  for (const [each, field] of fields) {
    if (each.in === 'path') address = address.replace(`{${each.name}}`, encodeURIComponent(field.value))
    else if (field.value) query.set(each.name, field.value)
  }
  const url = address + (query.size ? `?${query}` : ''), started = performance.now()
  try {
    const response = await request(url, { method: verb.toUpperCase(), ...(kind && { body: text.value, headers: { 'Content-Type': kind.value } }) })
    const binary = /octet-stream|npy/.test(response.headers.get('Content-Type') ?? '')
    const said = binary ? `${(await response.arrayBuffer()).byteLength} bytes` : await response.text()
    show(out, response.status, pretty(said), started)
  } catch (error) {
    show(out, error instanceof Problem ? error.status : '', error instanceof Problem ? JSON.stringify(error.body, null, 1) : error.message, started)
  }
}

function pretty(said) {
  try { return JSON.stringify(JSON.parse(said), null, 1) } catch { return said }
}

function show(out, status, said, started) {
  const cut = said.length > LONG ? `${said.slice(0, LONG)}\n… ${said.length - LONG} characters more` : said
  out.replaceChildren(h('p', {}, h('strong', {}, String(status || 'No answer')), ` in ${duration(performance.now() - started)}`), h('pre', { tabindex: 0 }, cut))
}
