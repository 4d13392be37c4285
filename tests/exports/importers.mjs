// Compares what the importers of speedscope and of the Firefox Profiler read in exports with the JSON export of the same run.
//
// importers.mjs BUNDLES NAME...: BUNDLES is the folder with speedscope.js and firefox.cjs, which tests/exports.sh makes of the
// sources of both. For each NAME it reads NAME.json and NAME.speedscope, .folded, .callgrind, .pprof and .firefox, and prints a line
// for each reader with the numbers compared. Exits with 1 if any of them differs.

import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { basename, join, resolve } from "node:path";
import { runInThisContext } from "node:vm";

const [bundles, ...runs] = process.argv.slice(2);
const require = createRequire(import.meta.url);
globalThis.window ??= globalThis;
// As in a browser, where protobufjs finds no `require` and so reads numbers as such.
const speedscope = runInThisContext(`${readFileSync(join(resolve(bundles), "speedscope.js"), "utf8")}; speedscope`);
const firefox = require(join(resolve(bundles), "firefox.cjs"));
// The importers say what they recognise.
console.log = () => {};
const say = (text) => process.stdout.write(`${text}\n`);

const add = (sums, key, value) => value !== 0 && sums.set(key, (sums.get(key) ?? 0) + value);
/** What is between the names of a pair: nothing that a name has. */
const PAIR = "\0";
const oneLine = (name) => name.replace(/[\u0000-\u001f\u007f-\u009f]/g, " ");
// Folded stacks separate names by semicolons, and the number by a space.
const folded = (name) => oneLine(name).replace(/;/g, ":").trim();

/** Returns the weight of each function, with what is inlined into it. */
function ofFunctions(model) {
  const sums = new Map();
  for (const f of model.functions) add(sums, f.demangled, f.self_ns);
  return sums;
}

/** Returns the weight of each innermost function, and of each pair of caller and callee if it is known exactly. */
function expected(model) {
  const name = (index) => (index === null ? "[other calls]" : model.functions[index].demangled);
  const own = new Map();
  const pairs = new Map();
  if (model.nodes.length > 0) {
    for (const node of model.nodes) {
      add(own, name(node.function), node.self_ns);
      if (node.parent !== null) add(pairs, `${name(model.nodes[node.parent].function)}${PAIR}${name(node.function)}`, node.self_ns);
    }
    return { own, pairs };
  }
  if (model.time === "none" || model.functions.every((f) => f.self_ns === 0)) {
    model.functions.forEach((f) => add(own, f.demangled, f.calls));
    for (const arc of model.arcs) if (arc.caller !== null && arc.frames.length < 2) add(pairs, `${name(arc.caller)}${PAIR}${name(arc.callee)}`, arc.calls);
    return { own, pairs: model.arcs.some((arc) => arc.frames.length > 1) ? null : pairs };
  }
  // The innermost function of a line may be an inlined one.
  const left = model.functions.map((f) => f.self_ns);
  for (const spot of model.spots) {
    const part = Math.min(spot.self_ns, left[spot.function]);
    left[spot.function] -= part;
    const { inlined } = spot.frames[0] ?? { inlined: null };
    add(own, inlined === null ? name(spot.function) : model.inlined[inlined].demangled, part);
  }
  left.forEach((part, index) => add(own, name(index), part));
  if (typeof model.time === "string") return { own, pairs: null };
  // Arcs with more time than their callee have their parts of its time.
  const sums = new Array(model.functions.length).fill(0);
  for (const arc of model.arcs) sums[arc.callee] += arc.self_ns;
  for (const arc of model.arcs) {
    const whole = model.functions[arc.callee].self_ns;
    const part = sums[arc.callee] > whole ? (arc.self_ns * whole) / sums[arc.callee] : arc.self_ns;
    if (arc.caller !== null) add(pairs, `${name(arc.caller)}${PAIR}${name(arc.callee)}`, part);
  }
  return { own, pairs };
}

/** Adds a stack, the outermost first. */
function addStack(read, stack, weight) {
  if (stack.length > 0) add(read.own, stack.at(-1), weight);
  if (stack.length > 1) add(read.pairs, `${stack.at(-2)}${PAIR}${stack.at(-1)}`, weight);
}

async function bySpeedscope(file, name) {
  const bytes = readFileSync(file);
  const group = await speedscope.importProfilesFromArrayBuffer(name, bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length));
  if (!group) throw new Error(`${file}: speedscope does not know the format`);
  const read = { own: new Map(), pairs: new Map() };
  for (const profile of group.profiles) {
    const visit = (node, stack) => {
      addStack(read, stack, node.getSelfWeight());
      for (const child of node.children) visit(child, [...stack, child.frame.name]);
    };
    visit(profile.getAppendOrderCalltreeRoot(), []);
  }
  return read;
}

async function byFirefox(file) {
  const profile = await firefox.unserializeProfileOfArbitraryFormat(readFileSync(file, "utf8"));
  const { stackTable, frameTable, funcTable, stringArray } = profile.shared;
  const name = (stack) => stringArray[funcTable.name[frameTable.func[stackTable.frame[stack]]]];
  const read = { own: new Map(), pairs: new Map() };
  for (const { samples } of profile.threads) {
    const scale = samples.weightType === "tracing-ms" ? 1e6 : 1;
    samples.stack.forEach((stack, at) => {
      // Since version 70, a prefix is how many rows before its stack it is, or 0 for none.
      const distance = stackTable.prefixOffset[stack];
      addStack(read, distance === 0 ? [name(stack)] : [name(stack - distance), name(stack)], samples.weight[at] * scale);
    });
  }
  return read;
}

let wrong = 0;
function compare(run, reader, ours, theirs, key) {
  const counts = [];
  let differ = 0;
  for (const kind of ["own", "pairs"]) {
    if (!ours[kind] || !theirs[kind]) continue;
    const expected = new Map();
    for (const [name, value] of ours[kind]) add(expected, name.split(PAIR).map(key).join(PAIR), value);
    const names = new Set([...expected.keys(), ...theirs[kind].keys()]);
    let number = 0;
    for (const name of names) {
      const [a, b] = [expected.get(name) ?? 0, theirs[kind].get(name) ?? 0];
      number += 1;
      // Sums of milliseconds with fractions, and parts of nanoseconds.
      if (Math.abs(a - b) <= 1.01 + 1e-9 * Math.abs(a)) continue;
      differ += 1;
      if (differ <= 5) say(`  ${reader}: ${kind} of ${JSON.stringify(name)}: ours ${a}, read ${b}`);
    }
    counts.push(`${number} ${kind === "own" ? "functions" : "arcs"}`);
  }
  say(`${run}: ${reader}: ${counts.join(", ")}: ${differ} differ`);
  wrong += differ;
}

for (const base of runs) {
  const run = basename(base);
  const model = JSON.parse(readFileSync(`${base}.json`, "utf8"));
  const ours = expected(model);
  compare(run, "speedscope, its own format", ours, await bySpeedscope(`${base}.speedscope`, "x.speedscope.json"), (name) => name);
  const threads = model.nodes.length > 0 && model.threads.length > 1;
  // A stack of several threads begins with its thread.
  const read = await bySpeedscope(`${base}.folded`, "x.collapsed.txt");
  compare(run, "speedscope, folded stacks", ours, threads ? { own: read.own } : read, folded);
  // Of a pprof location, speedscope takes the function that contains the others.
  const timed = model.time !== "none" && model.functions.some((f) => f.self_ns > 0);
  const outer = timed && model.nodes.length === 0 ? { ...ours, own: ofFunctions(model) } : ours;
  compare(run, "speedscope, pprof", outer, await bySpeedscope(`${base}.pprof`, "x.pb"), (name) => name);
  compare(run, "Firefox Profiler", ours, await byFirefox(`${base}.firefox`), (name) => name);
}
process.exitCode = wrong > 0 ? 1 : 0;
