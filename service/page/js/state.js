// The numbers that Try and Watch share.
const listeners = []
export const state = { numbers: null, source: '', given: false } // given: by the visitor, not by the page

export function setNumbers(numbers, source) {
  Object.assign(state, { numbers, source })
  for (const listener of listeners) listener()
}

export const onNumbers = (listener) => listeners.push(listener)
