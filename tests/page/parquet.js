// The part of hyparquet that the page uses, with fzstd for files of polars: make vendor bundles it.
import { parquetMetadata, parquetReadObjects, parquetSchema } from 'hyparquet'
import { decompress } from 'fzstd'

export { parquetMetadata, parquetSchema }

/** The rows of some columns of a Parquet file in memory. */
export function readColumns(buffer, columns) {
  const compressors = { ZSTD: (input, length) => decompress(input, new Uint8Array(length)) }
  return parquetReadObjects({ file: buffer, columns, compressors })
}
