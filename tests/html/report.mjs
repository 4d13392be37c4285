// Tries HTML reports in a Chromium without a window, as a user does: `node report.mjs KIND=FILE...`.
//
// Each kind has its checks below. All reports have to load without a complaint on the console or a request for
// anything but the file itself. Prints how long each took from the start of the navigation until it was shown, which has to be
// less than two seconds, or PATIENCE milliseconds. With PICTURES=FOLDER, writes pictures of what is seen.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { statSync, writeFileSync } from "node:fs";
import { basename, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { Browser, findChromium } from "./chromium.mjs";

/** How long a report may take until it is shown, and an answer to a user of the largest one, in milliseconds. */
const PATIENCE = Number(process.env.PATIENCE ?? 2000);

const rows = (page) => page.value(`[...page.view.list.rows.entries()].sort((a, b) => a[0] - b[0]).map(([, row]) => [...row.children].map((cell) => cell.textContent))`);
const text = (page, selector) => page.value(`document.querySelector(${JSON.stringify(selector)})?.textContent ?? null`);

async function settled(page) {
  await page.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))");
}

async function go(page, to) {
  await page.value(`void (location.hash = ${JSON.stringify(to)})`);
  await arrived(page, to);
}

/** Goes to a view, and returns how many milliseconds pass until it is painted. */
async function opened(page, to) {
  const time = await page.value(`new Promise((done) => {
    const begun = performance.now();
    addEventListener("hashchange", () => requestAnimationFrame(() => setTimeout(() => done(performance.now() - begun))), { once: true });
    location.hash = ${JSON.stringify(to)};
  })`);
  await arrived(page, to);
  return Math.round(time);
}

/** Waits until the page shows what a hash names. */
async function arrived(page, hash) {
  await page.until(`location.hash === ${JSON.stringify(hash)} && page.hash === location.hash`);
  await settled(page);
}

/** Sorts by each column in both directions, and looks whether the values are in order. */
async function sorts(page) {
  await go(page, "#functions");
  const keys = await page.value(`[...document.querySelectorAll(".list [role=columnheader]")].filter((head) => head.offsetWidth > 0).map((head) => head.dataset.column)`);
  assert.ok(keys.includes("calls") && keys.includes("name"), keys.join());
  for (const key of keys) {
    for (let click = 0; click < 2; click++) {
      await page.click(`.list [data-column="${key}"] button`);
      await settled(page);
      const direction = await page.value(`document.querySelector('.list [data-column="${key}"]').getAttribute("aria-sort")`);
      const values = await page.value(`page.view.ids.map((id) => ${key === "name" ? "page.run.names[id].toLowerCase()" : key === "module" ? "page.run.modules[page.run.module[id]].name" : `page.view.columns["${key}"][id]`})`);
      assert.ok(direction === "ascending" || direction === "descending", direction);
      const known = values.filter((value) => value !== -1);
      assert.deepEqual(values.slice(0, known.length), known, `${key}: what is not known is last`);
      for (let i = 1; i < known.length; i++) assert.ok(direction === "ascending" ? known[i - 1] <= known[i] : known[i - 1] >= known[i], `${key} ${direction} ${i}`);
      // What is seen is what was sorted.
      const seen = await rows(page);
      const first = await page.value(`page.run.short(page.view.ids[0])`);
      assert.ok(seen[0].includes(first), `${key}: ${seen[0]}`);
    }
  }
}

/** Filters by typing, goes to a function by keys and links, and back and forward. */
async function navigates(page) {
  await go(page, "#summary");
  await go(page, "#functions");
  const total = await page.value("page.view.ids.length");
  const word = (await page.value("page.run.names[page.view.ids[0]]")).match(/[a-z]{3}/i)?.[0] ?? "a";
  await page.press("/");
  await page.type(word);
  await settled(page);
  const expected = await page.value(`page.run.names.filter((name) => name.toLowerCase().includes(${JSON.stringify(word.toLowerCase())})).length`);
  const found = await page.value("page.view.ids.length");
  assert.ok(found > 0 && found <= expected, `${word}: ${found} of ${expected}`);
  // The table has short names, and the whole ones are searched.
  const whole = await page.value("page.view.ids.map((id) => [page.run.short(id), page.run.names[id]])");
  assert.ok(whole.every(([, name]) => name.toLowerCase().includes(word.toLowerCase())));
  assert.ok((await rows(page)).every((row, at) => row.includes(whole[at][0])));
  // To the table, to the second row if there is one, and into its entry.
  await page.press("ArrowDown");
  if (found > 1) await page.press("ArrowDown");
  const chosen = await page.value("page.view.ids[page.view.list.selected]");
  assert.equal(await page.value(`document.querySelector("#" + CSS.escape(document.activeElement.getAttribute("aria-activedescendant"))).getAttribute("aria-selected")`), "true");
  await page.press("Enter");
  await arrived(page, `#graph?function=${chosen}`);
  assert.equal(await text(page, ".entry-title h2"), await page.value(`page.run.names[${chosen}]`));
  // A link of the entry, and back twice: the table has its filter still.
  const link = await page.value(`(() => { const a = [...document.querySelectorAll('.graph .row:not([data-kind="self"]) a.function')].find((a) => a.getAttribute("href") !== location.hash); a?.click(); return a?.getAttribute("href") ?? null; })()`);
  if (link) {
    await arrived(page, link);
    await page.value("history.back()");
    await arrived(page, `#graph?function=${chosen}`);
    await page.value("history.forward()");
    await arrived(page, link);
    await page.value("history.back()");
  }
  await arrived(page, `#graph?function=${chosen}`);
  await page.value("history.back()");
  await arrived(page, `#functions`);
  await settled(page);
  assert.equal(await page.value("page.view.ids.length"), found);
  await page.press("Escape");
  await settled(page);
  assert.equal(await page.value("page.view.ids.length"), total);
  // What matches nothing says so.
  await page.press("/");
  await page.type("no such function");
  await settled(page);
  assert.match(await text(page, ".nothing"), /No function matches/);
  await page.press("Escape");
}

/** Chooses each thread, if there are several: what the threads have is what the table of all threads has. */
async function threads(page) {
  await go(page, "#functions");
  if (!(await page.value("page.run.threads.length > 1 && page.run.rows !== null"))) return;
  const sums = `["calls", "self"].map((key) => page.view.columns[key].reduce((sum, value) => sum + Math.max(value, 0), 0))`;
  const all = await page.value(sums);
  const found = [0, 0];
  for (let thread = 0; thread < (await page.value("page.run.threads.length")); thread++) {
    await page.value(`(() => { const s = document.querySelector('select.part'); s.value = "t${thread}"; s.dispatchEvent(new Event("change")); })()`);
    (await page.value(sums)).forEach((value, i) => { found[i] += value; });
  }
  assert.deepEqual(found, all);
  await page.value(`(() => { const s = document.querySelector('select.part'); s.value = ""; s.dispatchEvent(new Event("change")); })()`);
}

/** Opens the help, and switches light and dark. */
async function manners(page) {
  await go(page, "#summary");
  await page.press("?");
  assert.equal(await page.value(`document.getElementById("help").open`), true);
  await page.press("Escape");
  assert.equal(await page.value(`document.getElementById("help").open`), false);
  const back = () => page.value(`getComputedStyle(document.body).backgroundColor`);
  const before = await back();
  await page.press("t");
  assert.notEqual(await back(), before);
  await page.click("#theme");
  assert.equal(await back(), before);
  for (let view = 1; view <= 7; view++) await page.press(String(view));
  await arrived(page, "#timeline");
  // A hash that names nothing shows something all the same.
  for (const wrong of ["#graph?function=99999999", "#graph?function=x", "#flame?node=-5&part=t77&function=1e9", "#source?file=999&line=-1", "#assembly?function=zzz", "#nothing?x=%E0%A4%A"]) {
    await go(page, wrong);
    assert.ok(await page.value(`document.querySelector("main").children.length === 1`), wrong);
  }
}

/** Looks at the flame graph: what is drawn, zoom, search, the tree. */
async function flames(page) {
  await go(page, "#flame");
  const drawn = () => page.value(`(() => { const c = document.querySelector("canvas"); const d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data; const seen = new Set(); for (let i = 0; i < d.length; i += 4) if (d[i + 3] === 255) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]); return seen.size; })()`);
  assert.ok((await drawn()) > 3, "the graph is empty");
  const nodes = await page.value("page.view.tree.parent.length");
  assert.ok(nodes > 2);
  // Down to the child with the most time, and into it.
  await page.press("ArrowDown");
  const child = await page.value("page.view.flame.selected");
  assert.equal(child, await page.value("page.view.tree.first[0]"));
  await page.press("Enter");
  await arrived(page, `#flame?node=${child}`);
  assert.equal(await page.value("page.view.root"), child);
  await page.press("Escape");
  await arrived(page, `#flame`);
  // A click on a box of the third row zooms to it.
  const box = await page.value(`(() => { const b = page.view.flame.rows[2].find((b) => b.width > 20); return [b.node, (b.x + b.width / 2) / page.view.flame.canvas.clientWidth, 2.5 * 19 / page.view.flame.canvas.clientHeight]; })()`);
  await page.hover("canvas", box[1], box[2]);
  await settled(page);
  const tip = await text(page, "#tip:not([hidden])");
  assert.ok(tip?.includes(await page.value(`page.view.name(${box[0]})`)) && /inclusive .* ns/.test(tip), tip);
  await page.click("canvas", box[1], box[2]);
  await arrived(page, `#flame?node=${box[0]}`);
  await page.value("history.back()");
  await arrived(page, `#flame`);
  // The whole graph is as wide as all self times.
  const [all, own] = await page.value("[page.view.tree.total[0], page.run.nodes.self.reduce((sum, ns) => sum + ns, 0)]");
  assert.equal(all, own);
  const name = await page.value("page.run.names[page.view.tree.func.find((id) => id >= 0)]");
  await page.press("/");
  await page.type(name.slice(0, 12));
  await settled(page);
  assert.match(await text(page, ".paths .status"), /path.*of the time/);
  await page.press("Escape");
  for (const form of ["#flame?form=tree", "#flame?fold=1"]) {
    await go(page, form);
    assert.equal(await page.value("page.view.tree.total[0]"), all, form);
  }
  await go(page, "#flame?form=tree");
  const shown = await page.value("page.view.rows.nodes.length");
  await page.value("page.view.rows.list.choose(0)");
  await page.value("page.view.focus()");
  await page.press("ArrowLeft");
  assert.equal(await page.value("page.view.rows.nodes.length"), 1);
  await page.press("ArrowRight");
  assert.ok((await page.value("page.view.rows.nodes.length")) > 1 && shown > 1);
}

/** Compares calls by function and by arc with what gprof prints of the same profile. */
async function asGprof(page, program, profile) {
  const out = execFileSync("gprof", ["-b", "-p", "-q", program, profile], { encoding: "utf8", maxBuffer: 1 << 28 });
  const [flat, graph] = out.split("Call graph");
  const calls = new Map();
  for (const line of flat.split("\n")) {
    const columns = line.trim().split(/\s+/);
    if (/^\d+\.\d+$/.test(columns[0]) && columns.length === 7) calls.set(columns[6], Number(columns[3]));
  }
  assert.ok(calls.size > 10, "gprof's table has no calls");
  const names = await page.value("page.run.names");
  // gprof does not count the calls that a function makes of itself.
  const own = await page.value("[...page.run.columns.primitive]");
  const count = (name) => names.filter((other) => other === name).length;
  let compared = 0;
  for (const [name, expected] of calls) {
    // gprof's table does not tell functions of one name apart.
    if (count(name) !== 1) continue;
    assert.equal(own[names.indexOf(name)], expected, `calls of ${name}`);
    compared++;
  }
  assert.ok(compared > 10);
  await go(page, "#graph");
  // An entry: callers above the line that begins with the index, callees below.
  let arcs = 0;
  for (const entry of graph.split("-----------------------------------------------")) {
    const lines = entry.split("\n");
    const at = lines.findIndex((line) => line.startsWith("["));
    const self = lines[at]?.match(/(\S+)(?: <cycle \d+>)? \[\d+\]$/)?.[1];
    if (at < 0 || !self || count(self) !== 1 || lines[at].includes("<cycle")) continue;
    await page.value(`page.made.get("graph").show(new URLSearchParams({ function: ${names.indexOf(self)} }))`);
    const shown = await page.value(`page.made.get("graph").lines.filter((line) => line.kind === "caller" || line.kind === "callee").map((line) => [line.kind, page.run.names[line.other], page.run.arcs.calls[line.arc]])`);
    lines.forEach((line, i) => {
      const match = line.match(/^\s.*?(\d+)(?:\/\d+)?\s+(\S+)(?: <cycle \d+>)? \[\d+\]$/);
      if (!match || i === at || count(match[2]) !== 1) return;
      const kind = i < at ? "caller" : "callee";
      assert.ok(shown.some((row) => row[0] === kind && row[1] === match[2] && row[2] === Number(match[1])), `${self}: ${kind} ${match[2]} ${match[1]}`);
      arcs++;
    });
  }
  assert.ok(arcs > 10, `${arcs} arcs`);
  console.log(`  ${compared} functions and ${arcs} arcs as gprof prints them`);
}

/** Looks at source and disassembly. */
async function code(page) {
  await go(page, "#source");
  const seen = await rows(page);
  assert.ok(seen.some((row) => /^[\d,]+$/.test(row[2]) && row[4] !== ""), "no line has a count and a text");
  await go(page, "#assembly");
  const instructions = await rows(page);
  assert.ok(instructions.some((row) => /^[\d,]+$/.test(row[2]) && /^[0-9a-f]+$/.test(row[3]) && /^(push|mov|sub|endbr64|test|cmp|lea)/.test(row[4])), JSON.stringify(instructions[0]));
}

/** Without recorded paths, the flame graph is an estimate, which says so, and there is none without times. */
const NO_PATHS = async (page) => {
  await go(page, "#flame");
  if (await page.value("page.run.nodes === null")) {
    assert.match(await text(page, ".empty"), /gprofinject --paths/);
    return;
  }
  assert.match(await text(page, ".guess"), /^Estimate: .*gprofinject --paths/);
  assert.match(await text(page, ".about"), /inclusive \(est\.\)/);
  assert.equal(await page.value("page.view.tree.total[0]"), await page.value("page.run.nodes.self.reduce((sum, ns) => sum + ns, 0)"));
};

/** Looks at the time line: what is drawn, zoom, a click, and that what is not there is said. */
async function timeline(page) {
  await go(page, "#timeline");
  const boxes = await page.value("page.view.boxes.length");
  assert.ok(boxes > 1, `${boxes} boxes`);
  const [, span] = await page.value("[page.view.from, page.view.span]");
  await page.press("+");
  await settled(page);
  assert.equal(await page.value("page.view.span"), span / 2);
  await page.press("ArrowRight");
  assert.ok((await page.value("page.view.from")) > span / 4);
  await page.press("Escape");
  assert.equal(await page.value("page.view.span"), span);
  const at = await page.value(`(() => { const b = page.view.boxes.find((b) => b.width > 20); const c = page.view.canvas; return [page.view.names[b.lane.function[b.span]], (b.x + b.width / 2) / c.clientWidth, (b.y + 8) / c.clientHeight]; })()`);
  await page.click("canvas", at[1], at[2]);
  await settled(page);
  const about = await text(page, ".about");
  assert.ok(about.includes(at[0]), `${at[0]}: ${about}`);
  const left = await page.value("page.run.timeline.leftOut");
  assert.equal(await page.value(`document.querySelector(".guess") !== null`), left > 0);
}

const KINDS = {
  async paths(page) {
    await sorts(page);
    await navigates(page);
    await threads(page);
    await flames(page);
    await manners(page);
  },
  async valued(page) {
    await go(page, "#values");
    const tables = () => page.value(`[...document.querySelectorAll(".values .card:not([hidden])")].map((card) => [card.querySelector("h2").textContent, card.querySelector("p").textContent, ...[...card.querySelectorAll("[role=table]")].map((table) => [...table.querySelectorAll(".row")].map((row) => [...row.children].map((cell) => cell.textContent).slice(1).join("|")))])`);
    assert.deepEqual(await tables(), [
      ["parse n", "7 calls, mean 4.4286, from 3 to 8, sum 31", ["5|3", "2|8"], ["5|2 to 3", "0|4 to 7", "2|8 to 15"], ["7|main|mean 4.4286, mostly 3 (71.43%)"], ["7|main|mean 4.4286, mostly 3 (71.43%)"]],
      ["libc_read text", "2 calls", [`1|"<b onclick=1>\\u{202e}"`, `1|"x"`], ["2|parse|mostly \"<b onclick=1>\\u{202e}\" (50.00%)"], [`2|main › parse|mostly "<b onclick=1>\\u{202e}" (50.00%)`]],
    ]);
    await page.value(`document.querySelector(".values input").value = "read"; void page.view.filter()`);
    assert.equal((await tables()).length, 1);
    assert.equal(await page.value("page.view.escape()"), true);
    assert.equal((await tables()).length, 2);
    await manners(page);
  },
  async traced(page) {
    await timeline(page);
    await manners(page);
  },
  /** A page of `gmon diff --html`. */
  async difference(page) {
    await page.until(`page.view.flame`);
    assert.ok((await page.value("page.view.flame.boxes.length")) > 1);
    const colours = await page.value(`[-1, 0, 1].map((change) => page.view.flame.shade(change))`);
    assert.match(colours[0], /^hsl\(212 85%/);
    assert.match(colours[1], /^hsl\(\d+ 0%/);
    assert.match(colours[2], /^hsl\(4 85%/);
    await page.value(`void (location.hash = "#functions")`);
    await page.until(`page.view.list`);
    const changes = await page.value("page.view.ids.map((id) => Math.abs(page.view.columns[0].of(id)))");
    assert.ok(changes.length > 0 && changes.every((value, at) => at === 0 || value <= changes[at - 1]), changes.join());
    assert.equal(await page.value(`document.querySelectorAll("img, [onerror]").length`), 0);
    assert.equal(await page.value("window.hacked"), undefined);
  },
  async empty(page) {
    await manners(page);
    await NO_PATHS(page);
    await go(page, "#functions");
    assert.match(await text(page, ".nothing"), /No function ran/);
    await go(page, "#graph");
    assert.match(await text(page, ".empty"), /No functions/);
  },
  async measured(page) {
    await sorts(page);
    await navigates(page);
    await NO_PATHS(page);
    await manners(page);
  },
  /** `sampled=FILE=PROGRAM=PROFILE`: the calls are also those that gprof prints. */
  async sampled(page, program, profile) {
    if (program) await asGprof(page, program, profile);
    await sorts(page);
    await navigates(page);
    await NO_PATHS(page);
    await manners(page);
    assert.match(await page.value(`(location.hash = "#functions", new Promise((done) => setTimeout(() => done(document.querySelector(".head").textContent), 200)))`), /Inclusive \(est\.\)/);
  },
  async counted(page) {
    await code(page);
    await sorts(page);
    await navigates(page);
    await NO_PATHS(page);
  },
  /** `large=FILE=FUNCTIONS`: the report has at least so many. */
  async large(page, least) {
    const size = await page.value("page.run.size");
    assert.ok(size >= Number(least), `${size} functions`);
    await go(page, "#functions");
    // The time until the next frame after a change is what a user waits for.
    const frame = (change) => page.value(`new Promise((done) => { const begun = performance.now(); ${change}; requestAnimationFrame(() => setTimeout(() => done(performance.now() - begun))); })`);
    const slowest = {};
    for (const [what, change] of [["sort by calls", `document.querySelector('.list [data-column="calls"] button').click()`], ["sort by name", `document.querySelector('.list [data-column="name"] button').click()`], ["filter", `page.view.filter("1")`], ["filter again", `page.view.filter("12")`], ["no filter", `page.view.filter("")`]]) {
      slowest[what] = Math.round(await frame(change));
    }
    let scroll = 0;
    for (let step = 0; step <= 40; step++) scroll = Math.max(scroll, await frame(`page.view.list.element.scrollTop = page.view.list.space.offsetHeight * ${step} / 40`));
    slowest.scroll = Math.round(scroll);
    assert.ok((await page.value(`document.querySelectorAll(".list .row").length`)) < 200, "rows outside of the window are in the page");
    assert.match((await rows(page)).at(-1).join(" "), /\S/);
    slowest["a view: call graph"] = await opened(page, "#graph");
    if (await page.value("page.run.nodes !== null")) slowest["flame graph"] = await opened(page, "#flame");
    console.log(`  ${size} functions; slowest answers in ms: ${Object.entries(slowest).map(([what, ms]) => `${what} ${ms}`).join(", ")}`);
    for (const [what, ms] of Object.entries(slowest)) assert.ok(ms < PATIENCE / 2, `${what}: ${ms} ms`);
  },
  async hostile(page) {
    for (const view of ["#summary", "#functions", "#graph", "#flame", "#flame?form=tree", "#source", "#assembly", "#timeline", "#values"]) {
      await go(page, view);
      assert.equal(await page.value(`document.querySelectorAll("img, iframe, object, svg, b > *, [onerror]").length`), 0, view);
    }
    assert.equal(await page.value("window.hacked"), undefined);
    const names = await page.value("page.run.names");
    assert.ok(names.some((name) => name.includes("</script><img")), names.join("\n"));
    assert.ok(names.some((name) => name.includes("\\u{202e}")), "the direction of writing is not turned");
    assert.ok(!/[\u0000-\u001f\u202a-\u202e]/.test(names.join("")), "hidden characters");
    await page.value("history.back()");
    // The policy refuses what the page does not do.
    assert.equal(await page.value(`fetch("https://example.invalid/").then(() => "done", () => "refused")`), "refused");
    assert.equal(await page.value(`(() => { const s = document.createElement("script"); s.textContent = "window.hacked = 1"; document.body.append(s); return window.hacked; })()`), undefined);
    const refusals = page.errors.splice(0);
    assert.ok(refusals.length >= 2 && refusals.every((text) => /Content Security Policy|violates/.test(text)), refusals.join("\n"));
    page.requests = page.requests.filter((url) => !url.startsWith("https://example.invalid"));
  },
};

const reports = process.argv.slice(2).map((argument) => {
  const [kind, file, ...more] = argument.split("=");
  assert.ok(KINDS[kind] && file, `${argument}: expected KIND=FILE, KIND one of ${Object.keys(KINDS).join(", ")}`);
  return { kind, file: resolve(file), more };
});
if (!findChromium()) {
  console.log("SKIPPED: no chromium");
  process.exit(77);
}
const browser = await Browser.start();
let failed = false;
for (const { kind, file, more } of reports) {
  const page = await browser.page();
  const url = pathToFileURL(file).href;
  try {
    await page.open(url);
    await page.until(`performance.getEntriesByName("shown").length === 1 || document.querySelector(".problem[role]")`, 30000);
    assert.equal(await text(page, ".problem[role]"), null);
    const shown = await page.value(`performance.getEntriesByName("shown")[0].startTime`);
    console.log(`${kind}: ${file.split("/").at(-1)}, ${(statSync(file).size / 1e6).toFixed(2)} MB, ${await page.value("page.run.size")} functions, shown after ${shown.toFixed(0)} ms`);
    assert.ok(shown < PATIENCE, `shown after ${shown.toFixed(0)} ms`);
    await KINDS[kind](page, ...more);
    if (process.env.PICTURES) {
      await page.value(`localStorage.removeItem("gmon-theme")`);
      for (const dark of [false, true]) {
        for (const view of ["summary", "functions", "graph", "flame", "source", "assembly", "timeline", "values"]) {
          await page.look({ width: 1360, height: 860, dark });
          await go(page, `#${view}`);
          writeFileSync(join(process.env.PICTURES, `${basename(file, ".html")}-${view}-${dark ? "dark" : "light"}.png`), await page.picture());
        }
      }
    }
    assert.deepEqual(page.errors, [], "the console");
    assert.deepEqual(page.requests, [url], "requests");
  } catch (error) {
    failed = true;
    console.log(`FAILED ${kind}: ${error.stack}\n  console: ${page.errors.join("\n  ")}`);
  }
}
await browser.stop();
process.exit(failed ? 1 : 0);
