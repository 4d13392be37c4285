// The tree of call paths, and where its boxes lie. Nothing here knows the page, and nothing recurses: a path may have a
// million calls.

/** The function of a node that stands for many: calls without a node of their own, or callers that are not known. */
const OTHERS = -1;

/** What callers of sampled stacks are called that are not known. */
const NO_PATH = "[path not known]";

/** Returns the name of a node without a function. Sampled stacks begin with one if their callers are not known. */
function nameOfOthers(tree, node, isSampled) {
  return isSampled && tree.parent[node] === 0 ? NO_PATH : "[other calls]";
}

/**
 * Makes one tree of the nodes of a thread, of a set of threads, or of all (UNKNOWN). Nodes with the same path become one. With `fold`, a call
 * has the node of the call of the same function that is on its path already, if there is one, as in a run without `--no-fold`.
 *
 * Node 0 is the root. A node comes after its parent; `total` is its value with that of its children, and `next` and `first` link
 * each node's children, the largest first.
 */
function pathTree(nodes, thread, fold) {
  const tree = { parent: [UNKNOWN], func: [OTHERS], calls: [0], self: [0], depth: [0] };
  const place = new Int32Array(nodes.parent.length).fill(UNKNOWN);
  const known = new Map();
  for (let i = 0; i < place.length; i++) {
    if (thread !== UNKNOWN && nodes.thread[i] !== thread && !thread.has?.(nodes.thread[i])) continue;
    const up = nodes.parent[i] === 0 ? 0 : place[i - nodes.parent[i]];
    const func = nodes.function[i] - 1;
    const key = up * 2 ** 26 + nodes.function[i];
    let at = known.get(key);
    if (at === undefined) {
      at = fold ? onPath(tree, up, func) : UNKNOWN;
      if (at === UNKNOWN) at = child(tree, up, func);
      known.set(key, at);
    }
    place[i] = at;
    // Likely paths and sampled stacks have no calls.
    if (nodes.calls) tree.calls[at] += nodes.calls[i];
    else tree.calls[at] = UNKNOWN;
    tree.self[at] += nodes.self[i];
  }
  tree.total = Float64Array.from(tree.self);
  for (let at = tree.total.length - 1; at > 0; at--) tree.total[tree.parent[at]] += tree.total[at];
  return linked(tree);
}

/** Returns the node of a function that is on the path which ends at `node`, or UNKNOWN. */
function onPath(tree, node, func) {
  for (let at = node; at !== 0; at = tree.parent[at]) if (tree.func[at] === func) return at;
  return UNKNOWN;
}

/** Adds a node below another one. */
function child(tree, parent, func) {
  tree.func.push(func);
  tree.calls.push(0);
  tree.self.push(0);
  tree.depth.push(tree.depth[parent] + 1);
  return tree.parent.push(parent) - 1;
}

/** Links the children of each node, the largest first. */
function linked(tree) {
  const size = tree.parent.length;
  tree.first = new Int32Array(size).fill(UNKNOWN);
  tree.next = new Int32Array(size).fill(UNKNOWN);
  const smallestFirst = Array.from({ length: size - 1 }, (_, i) => i + 1).sort((a, b) => tree.total[a] - tree.total[b] || b - a);
  for (const at of smallestFirst) {
    tree.next[at] = tree.first[tree.parent[at]];
    tree.first[tree.parent[at]] = at;
  }
  return tree;
}

/**
 * Returns the boxes of the tree with `root` over the whole width: { node, x, width, depth }, in the order in which they are drawn.
 * A node that is narrower than `least` is left out with all below it; the neighbours that are left out become one box, of node
 * UNKNOWN, so that nothing looks like self time that is not. Levels from `levels` on are left out.
 */
function layout(tree, root, width, least, levels = Infinity) {
  const boxes = [];
  const ancestors = [];
  for (let at = tree.parent[root]; at !== UNKNOWN; at = tree.parent[at]) ancestors.unshift(at);
  ancestors.forEach((node, depth) => boxes.push({ node, x: 0, width, depth, above: true }));
  const scale = tree.total[root] > 0 ? width / tree.total[root] : 0;
  const stack = [{ node: root, x: 0, depth: ancestors.length }];
  while (stack.length > 0) {
    const { node, x, depth } = stack.pop();
    boxes.push({ node, x, width: node === root ? width : tree.total[node] * scale, depth, above: false });
    if (depth + 1 - ancestors.length >= levels) continue;
    let left = x;
    let rest = 0;
    for (let child = tree.first[node]; child !== UNKNOWN; child = tree.next[child]) {
      const wide = tree.total[child] * scale;
      // The children are sorted, so all others are narrow as well.
      if (wide < least) rest += wide;
      else {
        stack.push({ node: child, x: left, depth: depth + 1 });
        left += wide;
      }
    }
    if (rest >= 1) boxes.push({ node: UNKNOWN, x: left, width: rest, depth: depth + 1, above: false });
  }
  return boxes;
}

/** Returns how much of the total lies in or below nodes whose functions `test` accepts, each part counted once. */
function matched(tree, test) {
  const inside = new Uint8Array(tree.parent.length);
  let total = 0;
  let nodes = 0;
  for (let at = 1; at < inside.length; at++) {
    const hit = tree.func[at] !== OTHERS && test(tree.func[at]);
    if (hit) nodes++;
    if (hit && !inside[tree.parent[at]]) total += tree.total[at];
    inside[at] = hit || inside[tree.parent[at]] ? 1 : 0;
  }
  return { total, nodes };
}
