// Which functions a table shows, and in which order. Nothing here knows the page.

/** Returns a test of lower-case names: each word has to occur, and a word that begins with `-` must not. `*` stands for any text. */
function matcher(query) {
  const words = query.toLowerCase().split(/\s+/).filter((word) => word !== "" && word !== "-");
  const tests = words.map((word) => {
    const without = word.startsWith("-");
    const text = without ? word.slice(1) : word;
    const pieces = text.split("*").filter((piece) => piece !== "");
    return (name) => hasInOrder(name, pieces) !== without;
  });
  return (name) => tests.every((test) => test(name));
}

/** Whether the pieces occur in the name, one after the other. */
function hasInOrder(name, pieces) {
  let from = 0;
  for (const piece of pieces) {
    const at = name.indexOf(piece, from);
    if (at < 0) return false;
    from = at + piece.length;
  }
  return true;
}

/** Returns the ids of the functions that match the query, are of the module (any for UNKNOWN), and ran in these columns. */
function filtered(run, columns, query, module, keepIdle) {
  const names = run.lowerNames();
  const test = matcher(query);
  const out = [];
  for (let id = 0; id < run.size; id++) {
    if (module !== UNKNOWN && run.module[id] !== module) continue;
    if (!keepIdle && !ran(columns, id)) continue;
    if (query !== "" && !test(names[id])) continue;
    out.push(id);
  }
  return out;
}

/** Whether a function was called, has any time or executed anything. */
function ran(columns, id) {
  const { calls, self, inclusive, instructions } = columns;
  return calls?.[id] > 0 || self?.[id] > 0 || inclusive?.[id] > 0 || instructions?.[id] > 0;
}

/**
 * Sorts ids by a column of numbers. Those without a value are last in both directions. Equal ones are sorted by `second`, the
 * largest first, and then in the order of ids.
 */
function sortByNumber(ids, column, descending, second = null) {
  const sign = descending ? -1 : 1;
  return ids.sort((a, b) => {
    const [x, y] = [column[a], column[b]];
    if (x === y) return (second ? second[b] - second[a] : 0) || a - b;
    if (x === UNKNOWN) return 1;
    if (y === UNKNOWN) return -1;
    return sign * (x - y);
  });
}

/** Sorts ids by texts, without regard to case. */
function sortByText(ids, texts, descending) {
  const sign = descending ? -1 : 1;
  return ids.sort((a, b) => (texts(a) < texts(b) ? -sign : texts(a) > texts(b) ? sign : a - b));
}
