// Requests to the service this page came from. A key, where one is asked for, is kept in this variable and nowhere else.
import { $, say } from './dom.js'

let key = ''
let asking = null

export class Problem extends Error {
  constructor(status, body) {
    super(body?.detail || body?.error || `The service answered ${status}.`)
    this.status = status
    this.body = body ?? {}
  }
}

export const hasKey = () => key !== ''

/** fetch with the key; on 401 the visitor is asked for it once, and the request is repeated. */
export async function request(path, options = {}) {
  for (;;) {
    const used = key
    let response
    try {
      response = await fetch(path, { ...options, headers: { ...options.headers, ...(used && { 'X-API-Key': used }) } })
    } catch (error) {
      if (error.name === 'AbortError') throw error
      throw new Problem(0, { detail: 'The service cannot be reached. Is it still running?' })
    }
    if (response.status === 401 && (used !== key || await askForKey(used !== ''))) continue
    if (!response.ok) throw new Problem(response.status, await response.json().catch(() => null))
    return response
  }
}

export const get = async (path, options) => (await request(path, options)).json()

export const post = async (path, body, options = {}) => (await request(path, {
  method: 'POST', body: JSON.stringify(body), ...options, headers: { 'Content-Type': 'application/json' },
})).json()

function askForKey(wrong) {
  asking ??= new Promise((resolve) => {
    const dialog = $('key-dialog'), field = $('key')
    say($('key-error'), wrong ? 'The service does not take this key.' : '')
    field.value = ''
    const end = (given) => {
      key = given ?? key
      asking = null
      $('key-form').removeEventListener('submit', submit)
      dialog.removeEventListener('close', cancel)
      if (dialog.open) dialog.close()
      resolve(given != null)
    }
    const submit = (event) => { event.preventDefault(); end(field.value) }
    const cancel = () => end(null)
    $('key-form').addEventListener('submit', submit)
    dialog.addEventListener('close', cancel)
    $('key-cancel').onclick = () => dialog.close()
    dialog.showModal()
    field.focus()
  })
  return asking
}

let described = null
/** The OpenAPI document: which routes this service has. */
export function openapi() {
  described ??= get('/openapi.json').catch((error) => { described = null; throw error })
  return described
}
