// The view of the call graph: the entry of one function, read as gprof's are. Callers stand above the function, and callees below.

class GraphView {
  constructor(run) {
    this.run = run;
    this.id = UNKNOWN;
    this.title = el("div", { className: "entry-title" });
    this.head = el("div", { className: "head", role: "row" });
    this.list = new VirtualList({
      label: "Callers and callees", role: "grid", rowHeight: 24, header: this.head,
      makeRow: () => this.makeRow(), fillRow: (row, at) => this.fillRow(row, this.lines[at]),
      open: (at) => this.go(this.lines[at].other),
    });
    this.element = el("section", { className: "view graph" }, this.title, this.list.element);
    this.timed = run.arcs.inclusive !== null && run.total > 0;
    const times = this.timed ? "minmax(9.5em, 12em) 7em " : "";
    const { style } = this.list.element;
    style.setProperty("--columns", `${times}minmax(9em, 15em) minmax(10em, 1fr)${run.modules.length > 1 ? " minmax(5em, 11em)" : ""}`);
    style.setProperty("--narrow", `${times}minmax(9em, 15em) minmax(10em, 1fr)`);
    style.setProperty("--narrowest", `${this.timed ? "10.5em " : ""}7em minmax(6em, 1fr)`);
    const head = (text, hint, className) => el("span", { role: "columnheader", className, title: hint, textContent: text });
    const estimated = (key) => (run.time.estimated.includes(key) ? " (est.)" : "");
    fill(
      this.head,
      this.timed ? head(`Inclusive${estimated("arcs")}`, "Of a caller: the time of this function when it was called there. Of a callee: its time when this function called it. With its share of this function's time", "number") : null,
      this.timed ? head(`Self${estimated("arcs")}`, "The same, in the called function itself", "number own") : null,
      head("Calls", "The calls on this arc, and all calls of the called function", "number"),
      head("Function", "Enter or a click goes to its entry", "name"),
      run.modules.length > 1 ? head("Module", "The program or the library", "module") : null,
    );
  }

  show(parameters) {
    const id = Number(parameters.get("function") ?? UNKNOWN);
    this.id = Number.isInteger(id) && id >= 0 && id < this.run.size ? id : this.first();
    this.lines = this.entry(this.id);
    this.describe();
    this.list.selected = UNKNOWN;
    this.list.resize(this.lines.length);
    const at = this.lines.findIndex((line) => line.kind === "self");
    this.list.choose(at, "middle");
  }

  /** Returns the function with which the view begins: the one with the most time, or the most calls. */
  first() {
    const main = this.run.mainColumn();
    const column = this.run.columns[main === "self" ? "inclusive" : main];
    let best = 0;
    for (let id = 1; id < this.run.size; id++) if (column[id] > column[best]) best = id;
    return best;
  }

  /** Returns the rows of an entry: the callers, the one with the most time last; the function; the callees, the one with the most time first. */
  entry(id) {
    const { run } = this;
    const weight = (arc) => (this.timed ? run.arcs.inclusive[arc] : run.arcs.calls[arc]);
    const more = (a, b) => weight(b) - weight(a) || run.arcs.calls[b] - run.arcs.calls[a] || a - b;
    const line = (kind, arc, other) => ({ kind, arc, other });
    const callers = Array.from(run.arcsInto(id)).sort(more).reverse();
    const callees = Array.from(run.arcsFrom(id)).sort(more);
    return [
      { kind: "label", text: callers.length > 0 ? counted(callers.length, "caller", "callers") : "No caller was recorded" },
      ...callers.map((arc) => line("caller", arc, run.arcs.caller[arc] - 1)),
      { kind: "self", arc: UNKNOWN, other: id },
      { kind: "label", text: callees.length > 0 ? counted(callees.length, "callee", "callees") : "It called no function that is hooked" },
      ...callees.map((arc) => line("callee", arc, run.arcs.callee[arc])),
    ];
  }

  describe() {
    const { run, id } = this;
    const column = (key) => run.columns[key]?.[id] ?? UNKNOWN;
    const facts = [];
    const fact = (label, value, title) => {
      if (value !== "") facts.push(el("span", { className: "fact", title }, el("b", { textContent: value }), ` ${label}`));
    };
    fact(column("calls") === 1 ? "call" : "calls", count(column("calls")), "All calls");
    if (column("primitive") !== column("calls")) fact("primitive", count(column("primitive")), "The calls that were not made within another call of the same function");
    for (const key of this.timed ? ["self", "inclusive"] : []) {
      const share = percent(column(key), run.total);
      fact(`${key}${run.time.estimated.includes(key) ? " (est.)" : ""}${share ? `, ${share}` : ""}`, amount(column(key)), exactAmount(column(key)));
    }
    fact("mean", amount(column("mean")), exactAmount(column("mean")));
    for (const key of ["cpu", "waiting"]) fact(key === "cpu" ? "CPU" : key, duration(column(key)), exact(column(key)));
    fact("instructions", count(column("instructions")), "Executed in the function itself");
    const source = run.file[id] > 0 ? `${visible(fileName(run.files[run.file[id] - 1]))}${run.line[id] > 0 ? `:${run.line[id]}` : ""}` : null;
    const links = [
      run.file[id] > 0 && run.sourceOf.has(run.file[id] - 1)
        ? el("a", { href: hashOf("source", { file: run.file[id] - 1, line: run.line[id] }), textContent: source })
        : source && el("span", { textContent: source, title: visible(run.files[run.file[id] - 1]) }),
      run.codeOf.has(id) ? el("a", { href: hashOf("assembly", { function: id }), textContent: "Disassembly" }) : null,
      run.nodes ? el("a", { href: hashOf("flame", { function: id }), textContent: "In the flame graph" }) : null,
    ];
    fill(
      this.title,
      el("h2", { textContent: run.names[id] }),
      el("span", { className: "where", textContent: visible(run.modules[run.module[id]].name) }),
      el("p", { className: "facts" }, ...facts),
      el("p", { className: "links" }, ...links),
      this.cycle(),
      this.threads(),
    );
  }

  /** Returns a line about the circle of functions to which the function belongs, if the times are gprof's estimates. */
  cycle() {
    const { run, id } = this;
    const number = run.cycle?.[id] ?? 0;
    if (number === 0) return null;
    const cycle = run.cycles[number - 1];
    const time = this.timed ? `, ${amount(cycle.inclusive)} inclusive` : "";
    const text = `Cycle ${number}: ${counted(cycle.functions, "function", "functions")} that call each other, ${counted(cycle.calls, "call", "calls")} from outside${time}. The time of calls within it cannot be estimated.`;
    return el("p", { className: "quiet cycle", textContent: text });
  }

  /** Returns a line for each thread, if there are several that ran the function. */
  threads() {
    const { run, id } = this;
    if (!run.rows || run.threads.length < 2) return null;
    const parts = [];
    run.rows.function.forEach((f, row) => {
      if (f !== id) return;
      const time = `, ${amount(run.rows.self[row])} self`;
      parts.push(`${threadName(run.threads[run.rows.thread[row]])}: ${counted(run.rows.calls[row], "call", "calls")}${time}`);
    });
    if (parts.length === 0) return null;
    const shown = parts.slice(0, 50).map((text) => el("li", { textContent: text }));
    return el(
      "details", { className: "threads" },
      el("summary", { textContent: `By thread (${parts.length})` }),
      el("ul", {}, ...shown, parts.length > 50 ? el("li", { textContent: `and ${parts.length - 50} more` }) : null),
    );
  }

  makeRow() {
    const row = el("div");
    if (this.timed) row.append(el("span", { className: "number", role: "gridcell" }, el("span", { className: "share" }), el("span")), el("span", { className: "number own", role: "gridcell" }));
    row.append(el("span", { className: "number", role: "gridcell" }), el("span", { className: "name", role: "gridcell" }));
    if (this.run.modules.length > 1) row.append(el("span", { className: "module", role: "gridcell" }));
    return row;
  }

  fillRow(row, line) {
    const { run, id } = this;
    row.dataset.kind = line.kind;
    for (const cell of row.children) {
      cell.title = "";
      if (!cell.querySelector(".share")) cell.textContent = "";
    }
    const cells = [...row.children];
    const module = run.modules.length > 1 ? cells.pop() : null;
    const name = cells.pop();
    const calls = cells.pop();
    const [inclusive, self] = cells;
    if (line.kind === "label") {
      if (inclusive) {
        setShare(inclusive.firstChild, UNKNOWN, 0);
        inclusive.lastChild.textContent = "";
      }
      name.textContent = line.text;
      return;
    }
    const whole = run.columns.inclusive?.[id] ?? UNKNOWN;
    if (inclusive) {
      const time = line.kind === "self" ? whole : run.arcs.inclusive[line.arc];
      const own = line.kind === "self" ? run.columns.self?.[id] ?? UNKNOWN : run.arcs.self?.[line.arc] ?? UNKNOWN;
      setShare(inclusive.firstChild, time, line.kind === "self" ? run.total : whole);
      inclusive.lastChild.textContent = seenAmount(time);
      const ofWhat = line.kind === "self" ? "all time" : "the function's inclusive time";
      inclusive.title = time === UNKNOWN ? (this.run.time.kind === "sampled" ? "gprof's rule gives no time to calls within a circle of functions" : "not known") : `Inclusive: ${exactAmount(time)}, ${inclusive.firstChild.textContent} of ${ofWhat}`;
      self.textContent = seenAmount(own);
      self.title = own === UNKNOWN ? "not known" : `Self: ${exactAmount(own)}`;
    }
    this.fillCalls(calls, line);
    const isUnknown = line.kind === "caller" && line.other < 0 && run.arcs.calls[line.arc] === UNKNOWN;
    name.append(isUnknown ? el("span", { className: "quiet", textContent: NO_PATH, title: "Callers that are not known, on sampled stacks" }) : line.other < 0 ? el("span", { className: "quiet", textContent: "[not hooked]", title: "A caller that is not hooked, or the beginning of a thread" }) : functionLink(run, line.other));
    if (line.other >= 0) name.title = describe(run, line.other);
    if (line.other === id && line.kind !== "self") name.append(el("span", { className: "badge", textContent: "recursive" }));
    if (module && line.other >= 0) module.textContent = visible(run.modules[run.module[line.other]].name);
  }

  fillCalls(cell, line) {
    const { run, id } = this;
    const called = line.kind === "callee" ? line.other : id;
    const all = run.columns.calls?.[called] ?? UNKNOWN;
    if (line.kind === "self") {
      cell.textContent = count(all);
      cell.title = `${counted(all, "call", "calls")} in all`;
      return;
    }
    const calls = run.arcs.calls[line.arc];
    if (calls === UNKNOWN) {
      cell.title = "Not counted: the arc is on sampled stacks";
      return;
    }
    cell.append(el("span", { textContent: count(calls) }), el("span", { className: "quiet", textContent: all === UNKNOWN ? "" : `/${count(all)}` }));
    cell.title = `${counted(calls, "call", "calls")}, ${percent(calls, all)} of all calls of ${run.names[called]}`;
  }

  go(id) {
    if (id >= 0 && id !== this.id) location.hash = hashOf("graph", { function: id });
  }

  escape() {
    return false;
  }

  focus() {
    this.list.element.focus({ preventScroll: true });
  }
}
