// Reads the data of a page: one JSON object, compressed with gzip, in Base64.
//
// Tables are in columns. `null` in place of a column means that it was not measured, and in place of an element that it is not known.

/** Returns the object that the text contains. */
async function unpack(text) {
  const packed = atob(text.trim());
  const bytes = new Uint8Array(packed.length);
  for (let i = 0; i < packed.length; i++) bytes[i] = packed.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/** Returns a column as numbers, with UNKNOWN where it has `null`, or `null` if there is no such column. */
function numbers(column) {
  if (!column) return null;
  const out = new Float64Array(column.length);
  for (let i = 0; i < column.length; i++) out[i] = column[i] ?? UNKNOWN;
  return out;
}

/** Returns a column of which the file has the differences between neighbours. */
function summed(column) {
  const out = new Float64Array(column.length);
  let value = 0;
  for (let i = 0; i < column.length; i++) out[i] = value += column[i];
  return out;
}

/** Returns the sum of the elements that are known. */
function sum(column) {
  let total = 0;
  for (const value of column) if (value > 0) total += value;
  return total;
}
