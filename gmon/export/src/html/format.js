// How numbers and names are written. Nothing here knows the page.

/** The value of a column's element that is not known. */
const UNKNOWN = -1;

/** Returns a count with a comma between groups of three digits. */
function count(value) {
  if (value === UNKNOWN) return "";
  const digits = BigInt(Math.round(value)).toString().replace(/\B(?=(\d{3})+$)/g, ",");
  // A larger number may have lost digits when the page read it.
  return Number.isSafeInteger(value) ? digits : "≈ " + digits;
}

/** Returns a duration with four digits and a unit. */
function duration(ns) {
  if (ns === UNKNOWN) return "";
  if (ns < 1000) return `${trimmed(ns)} ns`;
  let [value, unit] = [ns, "ns"];
  for (const larger of ["µs", "ms", "s"]) {
    // A value that would be rounded to 1000 has the larger unit.
    if (value < 999.95) break;
    [value, unit] = [value / 1000, larger];
  }
  const decimals = value < 9.9995 ? 3 : value < 99.995 ? 2 : value < 999.95 ? 1 : 0;
  return `${value.toFixed(decimals)} ${unit}`;
}

/** Returns a number of nanoseconds below 1000: whole, or with the decimals of a mean. */
function trimmed(ns) {
  return Number.isInteger(ns) ? String(ns) : ns.toFixed(ns < 10 ? 2 : 1);
}

/** Returns a duration with all its digits. */
function exact(ns) {
  if (ns === UNKNOWN) return "not known";
  return `${Number.isInteger(ns) ? count(ns) : ns.toFixed(2)} ns`;
}

/** Whether what takes the place of times are numbers of executed instructions. A page has runs of one kind. */
let countsInstructions = false;

/** Whether times are those of samples, between which a function may have run unseen. */
let isSampled = false;

/** Says of what kind the times of the page's runs are. */
function setKind(kind) {
  countsInstructions = kind === "executed";
  isSampled = kind === "sampled";
}

/** Returns a time of the run, or a number of instructions, with four digits and a unit. */
function amount(value) {
  if (!countsInstructions || value === UNKNOWN) return duration(value);
  if (value < 1e7) return count(value);
  let [scaled, unit] = [value / 1e6, "M"];
  for (const larger of ["G", "T", "P", "E"]) {
    if (scaled < 9999.5) break;
    [scaled, unit] = [scaled / 1000, larger];
  }
  return `${scaled.toPrecision(4)} ${unit}`;
}

/** Returns the same for a table, where a time that no sample has seen is blank. */
function seenAmount(value) {
  return isSampled && value === 0 ? "" : amount(value);
}

/** Returns the same with all its digits. */
function exactAmount(value) {
  if (isSampled && value === 0) return "no sample";
  return countsInstructions && value !== UNKNOWN ? counted(value, "instruction", "instructions") : exact(value);
}

/** Returns `part` as a percentage of `whole`. Only nothing is 0, and only everything is 100. */
function percent(part, whole) {
  if (part === UNKNOWN || !(whole > 0)) return "";
  let value = (100 * part) / whole;
  if (part > 0 && part < whole) value = Math.min(Math.max(value, 0.01), 99.94);
  return `${value.toFixed(value < 10 ? 2 : 1)} %`;
}

/** Returns "1 call" or "2 calls". */
function counted(value, one, many) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** The characters that are not seen, or that change how the text around them is seen. */
const HIDDEN = /[\u{0}-\u{1f}\u{7f}-\u{9f}\u{ad}\u{34f}\u{61c}\u{115f}\u{1160}\u{17b4}\u{17b5}\u{180b}-\u{180f}\u{200b}-\u{200f}\u{2028}-\u{202e}\u{2060}-\u{206f}\u{3164}\u{fe00}-\u{fe0f}\u{feff}\u{ffa0}\u{fff0}-\u{fffb}\u{1bca0}-\u{1bca3}\u{1d173}-\u{1d17a}\u{e0000}-\u{e0fff}]/gu;

/** Returns a name with escape sequences in place of control characters and of those that turn the direction of writing. */
function visible(text) {
  return text.replace(HIDDEN, (c) => `\\u{${c.codePointAt(0).toString(16)}}`);
}

/** Returns the last component of a path. */
function fileName(path) {
  return path.slice(path.lastIndexOf("/") + 1);
}

/** Returns for each path its shortest end, of whole components, that no other path has. */
function shortPaths(paths) {
  const parts = paths.map((path) => path.split("/").filter(Boolean));
  const end = (at, length) => parts[at].slice(-length).join("/");
  const lengths = paths.map(() => 1);
  for (let again = true; again;) {
    again = false;
    const seen = new Map();
    paths.forEach((_, at) => seen.set(end(at, lengths[at]), [...(seen.get(end(at, lengths[at])) ?? []), at]));
    for (const same of seen.values()) {
      const longer = same.length > 1 ? same.filter((at) => lengths[at] < parts[at].length) : [];
      for (const at of longer) lengths[at] += 1;
      again ||= longer.length > 0;
    }
  }
  return paths.map((path, at) => (lengths[at] < parts[at].length ? end(at, lengths[at]) : path));
}
