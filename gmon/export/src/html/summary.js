// The first view: what was measured, and where the time went.

class SummaryView {
  constructor(run) {
    this.run = run;
    this.element = el(
      "section", { className: "view summary" },
      el(
        "div", { className: "columns" },
        el("div", { className: "stack" }, ...[this.facts(), this.programs(), this.modules()].filter(Boolean)),
        el("div", { className: "stack" }, ...[this.hottest(), this.processes(), this.threads()].filter(Boolean)),
      ),
    );
  }

  facts() {
    const list = el("dl");
    for (const { label, value } of this.run.facts) list.append(el("dt", { textContent: label }), el("dd", {}, ...withCommands(value.map(partText).join(""))));
    const notes = this.run.notes.map((note) => el("li", { textContent: visible(note) }));
    return el("section", { className: "card" }, el("h2", { textContent: "This run" }), list, notes.length > 0 ? el("ul", { className: "notes" }, ...notes) : null);
  }

  /** The functions with the most time of their own, or with the most of what was counted. */
  hottest() {
    const { run } = this;
    const main = mainMeasure(run);
    const ids = Array.from({ length: run.size }, (_, id) => id).filter((id) => main.column[id] > 0);
    sortByNumber(ids, main.column, true, run.columns.calls);
    const rows = ids.slice(0, 12).map((id) => [
      ...main.cells(main.column[id]),
      main.withCalls ? el("span", { className: "number wide", textContent: count(run.columns.calls[id]) }) : null,
      nameCell(run, id),
    ]);
    const heads = ["Share", main.title, main.withCalls ? "Calls" : null, "Function"];
    return card(`Most ${main.words}`, heads, rows, el("a", { href: "#functions", textContent: `All ${counted(run.size, "function", "functions")}` }));
  }

  modules() {
    const { run } = this;
    const main = mainMeasure(run);
    const value = new Float64Array(run.modules.length);
    const calls = new Float64Array(run.modules.length).fill(UNKNOWN);
    for (let id = 0; id < run.size; id++) {
      value[run.module[id]] += Math.max(main.column[id], 0);
      if (run.columns.calls[id] !== UNKNOWN) calls[run.module[id]] = Math.max(calls[run.module[id]], 0) + run.columns.calls[id];
    }
    const order = sortByNumber(run.modules.map((_, at) => at).filter((at) => value[at] > 0 || calls[at] > 0), value, true);
    const rows = order.slice(0, 30).map((at) => [
      ...main.cells(value[at]),
      main.withCalls ? el("span", { className: "number wide", textContent: count(calls[at]) }) : null,
      el("span", { className: "name", textContent: visible(run.modules[at].name), title: moduleTitle(run.modules[at]) }),
    ]);
    return card("Modules", ["Share", main.title, main.withCalls ? "Calls" : null, "Module"], rows, null);
  }

  /** The programs of a run of several. */
  programs() {
    const { run } = this;
    if (run.programs.length < 2) return null;
    const rows = run.programRows;
    const time = new Float64Array(run.programs.length).fill(UNKNOWN);
    const calls = new Float64Array(run.programs.length).fill(UNKNOWN);
    const add = (sums, at, value) => { if (value !== null && value !== undefined) sums[at] = Math.max(sums[at], 0) + value; };
    rows?.program.forEach((program, row) => {
      add(time, program, rows.self?.[row]);
      add(calls, program, rows.calls[row]);
    });
    const timed = run.total > 0;
    const value = timed ? time : calls;
    const all = sum(value);
    const order = sortByNumber(run.programs.map((_, at) => at), value, true);
    const cells = order.slice(0, 100).map((at) => [
      shareCell(value[at], all),
      timed ? el("span", { className: "number", textContent: seenAmount(time[at]), title: exactAmount(time[at]) }) : null,
      el("span", { className: timed ? "number wide" : "number", textContent: count(calls[at]) }),
      el("span", { className: "name", textContent: programName(run.programs[at]), title: moduleTitle(run.modules[run.programs[at].module]) }),
    ]);
    const more = order.length > 100 ? el("span", { className: "quiet", textContent: `and ${order.length - 100} more` }) : null;
    return card("Programs", ["Share", timed ? "Self" : null, "Calls", "Program"], cells, more);
  }

  /** The processes of a run of several, each below its parent. */
  processes() {
    const { run } = this;
    const { rows, leftOut } = run.processes;
    if (rows.length + leftOut < 2) return null;
    const timed = run.total > 0;
    const value = (process) => (timed ? process.self : process.calls) ?? 0;
    const all = sum(rows.map(value));
    const known = (number, show) => (number === null ? "" : show(number));
    const cells = rows.map((process) => [
      shareCell(value(process), all),
      timed ? el("span", { className: "number", textContent: known(process.self, amount), title: known(process.self, exactAmount) }) : null,
      el("span", { className: timed ? "number wide" : "number", textContent: known(process.calls, count) }),
      el("span", { className: "number wide", textContent: known(process.begin, duration), title: "After the beginning of the run" }),
      el("span", { className: "number wide", textContent: known(process.life, duration), title: known(process.life, exact) }),
      el("span", { className: `name depth-${Math.min(process.depth, 12)}`, title: `process ${process.pid}` }, processName(run, process)),
    ]);
    const more = leftOut > 0 ? el("span", { className: "quiet", textContent: `and ${counted(leftOut, "process", "processes")} with less time` }) : null;
    const section = card("Processes", ["Share", timed ? "Self" : null, "Calls", "Began", "Length", "Process"], cells, more);
    section.classList.add("processes");
    return section;
  }

  threads() {
    const { run } = this;
    if (run.threads.length < 2) return null;
    const longest = Math.max(0, ...run.threads.map((thread) => thread.life));
    const order = run.threads.map((_, at) => at).sort((a, b) => run.threads[b].life - run.threads[a].life || a - b);
    const rows = order.slice(0, 100).map((at) => {
      const thread = run.threads[at];
      return [
        shareCell(thread.life, longest),
        el("span", { className: "number", textContent: amount(thread.life), title: exactAmount(thread.life) }),
        el("span", { className: "number wide", textContent: duration(thread.outside), title: `No hooked function was running for ${exact(thread.outside)}` }),
        el("span", { className: "name", textContent: threadName(thread) }),
      ];
    });
    const more = run.threads.length > 100 ? el("span", { className: "quiet", textContent: `and ${run.threads.length - 100} more` }) : null;
    return card("Threads", ["Share", "Life", "Outside", "Thread"], rows, more);
  }

  show() {}

  escape() {
    return false;
  }

  focus() {
    document.getElementById("main").focus({ preventScroll: true });
  }
}

/** Returns how a process is called, and how it has failed. */
function processName(run, { program, pid, failure }) {
  return visible([`${run.programs[program]?.name ?? ""} ${pid}`, failure].filter(Boolean).join(", "));
}

/** Returns what functions and modules are compared by, and the cells that show it. */
function mainMeasure(run) {
  const key = run.mainColumn();
  const { title, show, exact } = COLUMNS.find((column) => column.key === key);
  const column = run.columns[key];
  const all = key === "self" ? run.total : sum(column);
  const cells = (value) => [shareCell(value, all), el("span", { className: "number", textContent: show(value), title: exact(value) })];
  return { column, title, words: key === "self" ? "self time" : title.toLowerCase(), withCalls: key !== "calls", cells };
}

/** Returns a part of a fact as text: a text, a duration, a count, or a point in time. */
function partText(part) {
  if (typeof part === "string") return visible(part);
  if ("ns" in part) return duration(part.ns);
  return "when" in part ? new Date(part.when).toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC") : count(part.count);
}

/** Returns a text in pieces, of which those are code that are commands with an option. */
function withCommands(text) {
  return text.split(/((?:gprofinject|gmon) --?[a-z-]+)/).map((piece, at) => (at % 2 === 1 ? el("code", { textContent: piece }) : piece));
}

/** Returns a section with a small table. */
function card(title, heads, rows, foot) {
  return el("section", { className: "card" }, el("h2", { textContent: title }), smallTable(title, heads, rows, foot));
}

/** The heads of columns with names. */
const NAME_HEADS = new Set(["Function", "Module", "Thread", "Program", "Process", "Value", "Range", "Caller", "Path", "Values"]);

/** Returns a small table, and what is below it. */
function smallTable(title, heads, rows, foot) {
  const cells = (role, list) => list.filter((cell) => cell !== null).map((cell) => {
    if (typeof cell === "string") return el("span", { role, textContent: cell, className: NAME_HEADS.has(cell) ? "name" : "number" });
    cell.setAttribute("role", role);
    return cell;
  });
  const width = heads.filter((head) => head !== null).length;
  const table = el(
    "div", { className: `small-table columns-${width}`, role: "table", "aria-label": title },
    el("div", { className: "head", role: "row" }, ...cells("columnheader", heads)),
    ...rows.map((row) => el("div", { className: "row", role: "row" }, ...cells("cell", row))),
  );
  return el("div", {}, table, foot ? el("p", { className: "foot" }, foot) : null);
}

/** Returns a cell with a link to a function. */
function nameCell(run, id) {
  const link = functionLink(run, id);
  link.removeAttribute("tabindex");
  return el("span", { className: "name", title: describe(run, id) }, link);
}

/** Returns where a module is, and its build-id. */
function moduleTitle(module) {
  return visible(`${module.path || module.name}${module.buildId ? `\nbuild-id ${module.buildId}` : ""}`);
}
