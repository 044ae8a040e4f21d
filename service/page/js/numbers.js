// Numbers out of text, CSV, .npy and Parquet. Everything is read in the page; the service gets numbers.

export class NotNumbers extends Error {}

const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i
const WHAT = 'Write them with a dot as the decimal point, separated by spaces, commas or new lines.'

/** Columns {name: Float64Array} of text. A first line of names makes a table; lines of numbers are one list unless `table` says otherwise. */
export function fromText(given, table = false) {
  const trimmed = given.trim().replace(/^\uFEFF/, '')
  if (!trimmed) throw new NotNumbers('There are no numbers yet.')
  if (trimmed.startsWith('[') || trimmed.startsWith('{')) return fromJson(trimmed)
  const { rows, cells, header } = layout(trimmed)
  if (cells && (header || (table && tidy(cells)))) return fromTable(cells, header)
  refuseThousands(rows)
  return { numbers: one(rows) }
}

/** How many columns the text has if lines of numbers are read as a table; 0 where that makes no difference. */
export function tableColumns(given) {
  const trimmed = given.trim()
  if (!trimmed || trimmed.startsWith('[') || trimmed.startsWith('{')) return 0
  const { cells, header } = layout(trimmed)
  return cells && !header && tidy(cells) ? cells[0].length : 0
}

function layout(trimmed) {
  const rows = trimmed.split(/\r\n|\n|\r/).filter((row) => row.trim())
  const separator = rows.length > 1 && [';', '\t', ','].find((c) => rows.every((row) => row.includes(c)))
  const cells = separator ? rows.map((row) => split(row, separator)) : null
  return { rows, cells, header: Boolean(cells) && cells[0].every((cell) => cell && !NUMBER.test(cell)) }
}

/** 1,234.5 may be one number or two: nobody should guess. */
function refuseThousands(rows) {
  const words = rows.flatMap((row) => row.split(/[\s;]+/))
  const grouped = (word) => /^[+-]?\d{1,3}(,\d{3})+(\.\d*)?$/.test(word)
  const found = words.find((word) => grouped(word) && word.includes('.')) ?? (words.length > 1 && words.every(grouped) ? words[0] : null)
  if (found) throw new NotNumbers(`“${found}” may be one number or several. Write ${found.replaceAll(',', '')}, or put a space after each comma: ${found.replaceAll(',', ', ')}.`)
}

/** Every row has the same cells, at least two, and a column of numbers: a table rather than a list in lines. */
const tidy = (cells) => cells[0].length > 1 && cells.every((row) => row.length === cells[0].length && row.at(-1) !== '')

function split(row, separator) {
  if (!row.includes('"')) return row.split(separator).map((cell) => cell.trim())
  const cells = []
  for (const match of row.matchAll(/("(?:[^"]|"")*"|[^"])*?(?:$|[,;\t])/g)) {
    const cell = match[0].replace(/[,;\t]$/, '').trim()
    cells.push(cell.startsWith('"') ? cell.slice(1, -1).replaceAll('""', '"') : cell)
    if (match.index + match[0].length >= row.length) break
  }
  return cells
}

function fromTable(cells, header) {
  const columns = {}
  const names = header ? cells[0] : cells[0].map((_, i) => `column ${i + 1}`)
  names.forEach((name, i) => {
    const values = cells.slice(header ? 1 : 0).map((row) => row[i] ?? '')
    if (values.every((value) => value === '' || NUMBER.test(value))) {
      const there = values.filter((value) => value !== '').map(Number)
      if (there.length) columns[name || `column ${i + 1}`] = finite(there)
    }
  })
  if (!Object.keys(columns).length) throw new NotNumbers('The table has no column of numbers.')
  return columns
}

function one(rows) {
  const words = rows.join(' ').split(/[\s,;]+/).filter(Boolean)
  // a single name above a column of numbers is its heading
  if (words.length > 1 && !NUMBER.test(words[0]) && /^[A-Za-z_]\w*$/.test(words[0]) && NUMBER.test(words[1]) && rows.length > 1) words.shift()
  const bad = words.findIndex((word) => !NUMBER.test(word))
  if (bad >= 0) throw new NotNumbers(`“${words[bad].slice(0, 30)}” (number ${bad + 1}) is not a number. ${WHAT}`)
  return finite(words.map(Number))
}

function fromJson(given) {
  let document
  try { document = JSON.parse(given) } catch { return { numbers: one(given.replace(/[[\]]/g, ' ').split('\n')) } }
  const found = Array.isArray(document) ? document : document.vector ?? document.vectors
  if (!Array.isArray(found)) throw new NotNumbers('The JSON has neither an array nor a member “vector” or “vectors”.')
  const lists = found.every(Array.isArray) && found.length ? found : [found]
  const columns = {}
  lists.forEach((list, i) => { columns[lists.length > 1 ? `vector ${i + 1}` : 'numbers'] = finite(list.map(numeric)) })
  return columns
}

function numeric(value) {
  if (typeof value === 'bigint') return Number(value)
  if (typeof value !== 'number') throw new NotNumbers(`${JSON.stringify(value)?.slice(0, 30)} is not a number.`)
  return value
}

function finite(values) {
  const numbers = Float64Array.from(values)
  const bad = numbers.findIndex((value) => !Number.isFinite(value))
  if (bad >= 0) throw new NotNumbers(`Number ${bad + 1} is not finite, and has no place in an order.`)
  if (!numbers.length) throw new NotNumbers('There are no numbers yet.')
  return numbers
}

/** Columns of a file, by what its name ends in. */
export async function fromFile(file) {
  const name = file.name.toLowerCase()
  if (name.endsWith('.npy')) return fromNpy(await file.arrayBuffer())
  if (name.endsWith('.parquet')) return fromParquet(await file.arrayBuffer())
  if (/\.(csv|tsv|txt|json|dat)$/.test(name) || file.type.startsWith('text/')) return fromText(await file.text(), true)
  throw new NotNumbers(`${file.name} is none of .csv, .npy, .parquet, .json and .txt.`)
}

const KINDS = { f4: ['Float32', 4], f8: ['Float64', 8], i1: ['Int8', 1], i2: ['Int16', 2], i4: ['Int32', 4], i8: ['BigInt64', 8], u1: ['Uint8', 1], u2: ['Uint16', 2], u4: ['Uint32', 4], u8: ['BigUint64', 8] }

/** A .npy file: a vector, or a matrix whose rows are vectors. */
export function fromNpy(buffer) {
  const view = new DataView(buffer), bytes = new Uint8Array(buffer)
  if (buffer.byteLength < 12 || bytes[0] !== 0x93 || String.fromCharCode(...bytes.slice(1, 6)) !== 'NUMPY') throw new NotNumbers('This is not a .npy file.')
  const wide = bytes[6] > 1, length = wide ? view.getUint32(8, true) : view.getUint16(8, true), start = (wide ? 12 : 10) + length
  const head = new TextDecoder('latin1').decode(bytes.slice(wide ? 12 : 10, start))
  const descr = /'descr':\s*'([<>|=]?)(\w\d)'/.exec(head), shape = /'shape':\s*\(([\d,\s]*)\)/.exec(head)
  if (!descr || !shape || !KINDS[descr[2]]) throw new NotNumbers('The .npy file holds no plain numbers: float32, float64 and integers are read.')
  const [kind, size] = KINDS[descr[2]], little = descr[1] !== '>'
  const dims = shape[1].split(',').map((part) => part.trim()).filter(Boolean).map(Number)
  const total = dims.reduce((a, b) => a * b, 1)
  if (buffer.byteLength - start < total * size) throw new NotNumbers('The .npy file ends before its last number.')
  const values = new Float64Array(total)
  for (let i = 0; i < total; i++) values[i] = Number(view[`get${kind}`](start + i * size, little))
  if (dims.length < 2) return { numbers: finite(values) }
  const [rows, columns] = [dims[0], total / dims[0]], turned = /'fortran_order':\s*True/.test(head)
  const found = {}
  for (let r = 0; r < rows; r++) {
    const row = Float64Array.from({ length: columns }, (_, c) => values[turned ? c * rows + r : r * columns + c])
    found[`row ${r + 1}`] = finite(row)
  }
  return found
}

async function fromParquet(buffer) {
  const { parquetMetadata, parquetSchema, readColumns } = await import('../vendor/parquet.js')
  let names
  try {
    const about = parquetMetadata(buffer)
    const kinds = new Set(['INT32', 'INT64', 'FLOAT', 'DOUBLE'])
    names = parquetSchema(about).children.filter((child) => !child.children.length && kinds.has(child.element.type)).map((child) => child.element.name)
  } catch (error) { throw new NotNumbers(`This is not a Parquet file that can be read here: ${error.message}`) }
  if (!names.length) throw new NotNumbers('The Parquet file has no column of numbers.')
  let rows
  try { rows = await readColumns(buffer, names) } catch (error) {
    throw new NotNumbers(`The Parquet file cannot be read here: ${error.message}. Plain, Snappy and Zstandard files can.`)
  }
  const columns = {}
  for (const name of names) {
    const values = rows.map((row) => row[name]).filter((value) => value != null)
    if (values.length && values.every((value) => typeof value === 'number' || typeof value === 'bigint')) columns[name] = finite(values.map(Number))
  }
  if (!Object.keys(columns).length) throw new NotNumbers('The Parquet file has no column of numbers.')
  return columns
}

// ---- Examples: the same for everyone who presses the button.

function uniform(seed) { // mulberry32
  return () => {
    seed = (seed + 0x6d2b79f5) | 0
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed)
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296
  }
}

export function sample(n, kind = 'normal', seed = 7) {
  const next = uniform(seed + n)
  const normal = () => Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next())
  const make = { normal: () => 50 + 12 * normal(), skewed: () => Math.exp(3 + 0.7 * normal()), ties: () => 1 + Math.floor(6 * next()), uniform: () => 100 * next() }[kind]
  return Float64Array.from({ length: n }, () => Math.round(make() * 100) / 100)
}
