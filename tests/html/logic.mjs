// Tests what the HTML report computes, without a browser: `node --test tests/html/logic.mjs`.
//
// The expected values come from the definitions, computed here in the simplest way, over trees and names at random.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import vm from "node:vm";
import { gzipSync } from "node:zlib";

const FOLDER = new URL("../../gmon/export/src/html/", import.meta.url);
const FILES = ["format", "base", "data", "rows", "icicle"];
const NAMES = "UNKNOWN count duration exact percent visible matcher filtered sortByNumber sortByText pathTree layout matched Run part unpack grouped";
const source = FILES.map((file) => readFileSync(new URL(`${file}.js`, FOLDER), "utf8")).join("\n");
const page = vm.runInThisContext(`"use strict"; (() => { ${source}\nreturn { ${NAMES.split(" ").join(", ")} }; })()`);
const { UNKNOWN } = page;

/** Returns a source of numbers that are the same in each run. */
function random(seed) {
  return (below) => {
    seed = (Math.imul(seed, 1103515245) + 12345) >>> 0;
    return Math.floor(((seed >>> 8) / 2 ** 24) * below);
  };
}

test("numbers", () => {
  for (const [value, text] of [[0, "0"], [999, "999"], [1000, "1,000"], [1234567, "1,234,567"], [UNKNOWN, ""], [Number.MAX_SAFE_INTEGER, "9,007,199,254,740,991"]]) {
    assert.equal(page.count(value), text);
  }
  assert.equal(page.count(2 ** 60), "≈ 1,152,921,504,606,846,976");
  // The same as gmon's own tables print (gmon/report/src/cli/units.rs), except for the sign of micro.
  for (const [ns, text] of [[0, "0 ns"], [999, "999 ns"], [1000, "1.000 µs"], [12345, "12.35 µs"], [999940, "999.9 µs"], [999950, "1.000 ms"], [999999999, "1.000 s"], [61234567890, "61.23 s"], [123456789012345, "123457 s"], [2.5, "2.50 ns"], [123.45, "123.5 ns"], [UNKNOWN, ""]]) {
    assert.equal(page.duration(ns), text);
  }
  for (const [part, whole, text] of [[0, 10, "0.00 %"], [10, 10, "100.0 %"], [1, 1e9, "0.01 %"], [1e9 - 1, 1e9, "99.9 %"], [1, 3, "33.3 %"], [5, 0, ""], [UNKNOWN, 5, ""]]) {
    assert.equal(page.percent(part, whole), text);
  }
});

test("hidden characters are shown", () => {
  assert.equal(page.visible("a\u0000b\u001b[31m"), "a\\u{0}b\\u{1b}[31m");
  assert.equal(page.visible("evil\u202egnp.exe\u2066\u200b"), "evil\\u{202e}gnp.exe\\u{2066}\\u{200b}");
  assert.equal(page.visible("naïve <b> ☃ 漢字"), "naïve <b> ☃ 漢字");
});

test("filters", () => {
  const hits = (query, name) => page.matcher(query)(name.toLowerCase());
  for (const [query, name] of [["", "x"], ["parse", "json::Parse"], ["json parse", "json::parse"], ["PARSE", "parse"], ["js*se", "json::parse"], ["parse -table", "parse"], ["-", "x"], ["*", ""]]) {
    assert.ok(hits(query, name), `${query} ${name}`);
  }
  for (const [query, name] of [["parse", "pars"], ["json parse", "json"], ["parse -json", "json::parse"], ["b*a", "ab"], ["aa", "a"], ["a*a", "a"]]) {
    assert.ok(!hits(query, name), `${query} ${name}`);
  }
});

test("sorting", () => {
  const column = Float64Array.from([3, UNKNOWN, 7, 3, 0]);
  assert.deepEqual(page.sortByNumber([0, 1, 2, 3, 4], column, true), [2, 0, 3, 4, 1]);
  assert.deepEqual(page.sortByNumber([0, 1, 2, 3, 4], column, false), [4, 0, 3, 2, 1]);
  assert.deepEqual(page.sortByNumber([0, 1, 2, 3, 4], column, true, [1, 2, 3, 4, 5]), [2, 3, 0, 4, 1]);
  const texts = ["b", "a", "b"];
  assert.deepEqual(page.sortByText([0, 1, 2], (id) => texts[id], false), [1, 0, 2]);
  assert.deepEqual(page.sortByText([0, 1, 2], (id) => texts[id], true), [0, 2, 1]);
});

/** Returns nodes at random, as the file of a report has them. */
function someNodes(seed, size, functions, threads) {
  const pick = random(seed);
  const nodes = { parent: [], function: [], thread: [], calls: [], self: [] };
  for (let i = 0; i < size; i++) {
    const up = pick(4) === 0 || i === 0 ? 0 : 1 + pick(i);
    nodes.parent.push(up);
    nodes.thread.push(up === 0 ? pick(threads) : nodes.thread[i - up]);
    nodes.function.push(pick(functions + 1));
    nodes.calls.push(1 + pick(9));
    nodes.self.push(pick(1000));
  }
  return nodes;
}

/** Returns calls and self time by path, each path as text; with `fold`, without calls within calls of the same function. */
function pathsOf(nodes, thread, fold) {
  const paths = [];
  const sums = new Map();
  nodes.parent.forEach((up, i) => {
    const above = up === 0 ? [] : paths[i - up];
    const name = nodes.function[i] - 1;
    const at = fold ? above.indexOf(name) : -1;
    paths.push(at >= 0 ? above.slice(0, at + 1) : [...above, name]);
    if (thread !== UNKNOWN && nodes.thread[i] !== thread) return;
    const key = paths[i].join(";");
    const [calls, self] = sums.get(key) ?? [0, 0];
    sums.set(key, [calls + nodes.calls[i], self + nodes.self[i]]);
  });
  return sums;
}

/** Returns the functions of a node's path. */
function pathOf(tree, node) {
  const path = [];
  for (let at = node; at !== 0; at = tree.parent[at]) path.unshift(tree.func[at]);
  return path;
}

test("the tree has each path once, with what all its nodes have", () => {
  for (let seed = 1; seed < 60; seed++) {
    const nodes = someNodes(seed, 1 + seed * 5, 1 + (seed % 9), 3);
    for (const thread of [UNKNOWN, 0, 2]) {
      for (const fold of [false, true]) {
        const tree = page.pathTree(nodes, thread, fold);
        const found = new Map();
        for (let node = 1; node < tree.parent.length; node++) found.set(pathOf(tree, node).join(";"), [tree.calls[node], tree.self[node]]);
        const expected = pathsOf(nodes, thread, fold);
        // Folding leaves no empty node: the outermost call has one of its own.
        assert.deepEqual(new Map([...found].sort()), new Map([...expected].sort()), `seed ${seed} thread ${thread} fold ${fold}`);
        assert.equal(tree.total[0], [...expected.values()].reduce((all, [, self]) => all + self, 0));
        for (let node = 0; node < tree.parent.length; node++) {
          const children = [];
          for (let at = tree.first[node]; at !== UNKNOWN; at = tree.next[at]) children.push(at);
          assert.ok(children.every((child) => tree.parent[child] === node));
          assert.equal(children.reduce((all, child) => all + tree.total[child], tree.self[node]), tree.total[node]);
          assert.ok(children.every((child, i) => i === 0 || tree.total[children[i - 1]] >= tree.total[child]));
        }
      }
    }
  }
});

test("boxes lie within their parents', and are as wide as their time", () => {
  for (let seed = 1; seed < 40; seed++) {
    const tree = page.pathTree(someNodes(seed, 20 * seed, 6, 2), UNKNOWN, false);
    const root = seed % tree.parent.length;
    const boxes = page.layout(tree, root, 1000, 1.5);
    const place = new Map(boxes.filter((box) => box.node !== UNKNOWN).map((box) => [box.node, box]));
    for (const box of boxes) {
      assert.ok(box.x >= 0 && box.x + box.width <= 1000.001);
      if (box.node === UNKNOWN) continue;
      assert.equal(box.depth, tree.depth[box.node]);
      if (box.above || box.node === root) assert.equal(box.width, 1000);
      else {
        assert.ok(Math.abs(box.width - (1000 * tree.total[box.node]) / tree.total[root]) < 1e-6);
        assert.ok(box.width >= 1.5);
        const parent = place.get(tree.parent[box.node]);
        assert.ok(box.x >= parent.x - 1e-6 && box.x + box.width <= parent.x + parent.width + 1e-6);
      }
    }
    for (let depth = 0; ; depth++) {
      const row = boxes.filter((box) => box.depth === depth).sort((a, b) => a.x - b.x);
      if (row.length === 0) break;
      row.forEach((box, i) => assert.ok(i === 0 || box.x >= row[i - 1].x + row[i - 1].width - 1e-6));
    }
  }
});

test("a search counts each part of the time once", () => {
  for (let seed = 1; seed < 40; seed++) {
    const nodes = someNodes(seed, 200, 7, 1);
    const tree = page.pathTree(nodes, UNKNOWN, false);
    const hit = (id) => id === 2 || id === 4;
    let [total, count] = [0, 0];
    for (const [path, [, self]] of pathsOf(nodes, UNKNOWN, false)) {
      const names = path.split(";").map(Number);
      if (names.some(hit)) total += self;
      if (hit(names.at(-1))) count++;
    }
    assert.deepEqual(page.matched(tree, hit), { total, nodes: count });
  }
});

test("a path of a million calls is no problem", () => {
  const size = 1_000_000;
  const nodes = { parent: Array(size).fill(1), function: Array.from({ length: size }, (_, i) => 1 + (i % 1000)), thread: Array(size).fill(0), calls: Array(size).fill(1), self: Array(size).fill(1) };
  nodes.parent[0] = 0;
  assert.equal(page.pathTree(nodes, UNKNOWN, false).total[1], size);
  const folded = page.pathTree(nodes, 0, true);
  assert.equal(folded.parent.length, 1001);
  assert.equal(folded.total[0], size);
  assert.equal(page.layout(folded, 0, 1000, 1.5).length > 500, true);
});

test("arcs by caller and callee", async () => {
  const raw = {
    program: "p", facts: [], notes: [], time: { kind: "measured", estimated: [] }, total: 30, modules: [{ name: "p" }], programs: [{ name: "p" }, { name: "q", processes: 3 }], threads: [{ name: "t", tid: 7, program: 1 }, { name: "t", tid: 8, program: 0 }], files: [], nodes: null, rows: null, programRows: { function: [0, 1, 1], program: [0, 0, 1], calls: [1, 2, 3], primitive: [1, 2, 3], self: [10, 5, 15], inclusive: [15, 5, 15] }, sources: null, code: null,
    functions: { name: ["a", "b(int)", "c"], short: [null, "b", null], module: [0, 0, 0], file: [0, 0, 0], line: [0, 0, 0], calls: [1, 5, null], primitive: [1, 5, 0], self: [10, 20, 0], inclusive: [30, 20, 0], cpu: null, instructions: null, cycle: null },
    // Callers 0 (none), 1, 1, 2, as differences.
    arcs: { caller: [0, 1, 0, 1], callee: [0, 1, 2, 2], calls: [1, 5, 2, 3], self: [10, 20, 0, 0], inclusive: [30, 20, 0, 0] },
  };
  const run = new page.Run(await page.unpack(gzipSync(JSON.stringify(raw)).toString("base64")));
  assert.deepEqual([...run.arcsFrom(0)], [1, 2]);
  assert.deepEqual([...run.arcsFrom(1)], [3]);
  assert.deepEqual([...run.arcsInto(2)], [2, 3]);
  assert.deepEqual([...run.arcsInto(0)], [0]);
  assert.equal(run.total, 30);
  assert.deepEqual([run.short(0), run.short(1)], ["a", "b"]);
  // The parts of the run: a program has its own columns and threads.
  assert.deepEqual([...run.columnsOf(page.part("p1")).calls], [UNKNOWN, 3, UNKNOWN]);
  assert.equal(run.columnsOf(page.part("")), run.columns);
  assert.deepEqual([...run.threadsOf(page.part("p1"))], [0]);
  assert.deepEqual([run.threadsOf(page.part("t1")), run.threadsOf(page.part("x9"))], [1, UNKNOWN]);
  const parts = run.parts(false);
  assert.deepEqual([parts.Programs, parts.Threads], [[["p0", "p"], ["p1", "q (3 processes)"]], [["t0", "t 7"], ["t1", "t 8"]]]);
  assert.deepEqual([...run.columns.mean], [30, 4, UNKNOWN]);
  assert.deepEqual(page.filtered(run, run.columns, "", UNKNOWN, false), [0, 1]);
  assert.deepEqual(page.filtered(run, run.columns, "C", UNKNOWN, true), [2]);
});
