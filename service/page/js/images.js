export async function findImages() {}
export function openImages() {}
