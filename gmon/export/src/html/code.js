// The views of the source and of the disassembly, with counts in the margin.

/** What the two views have in common: a choice above rows of text, some of which have a count. */
class CodeView {
  constructor(label, className, placeTitle) {
    this.bar = el("div", { className: "bar" });
    this.placeTitle = placeTitle;
    this.head = el("div", { className: "head", role: "row" }, ...["number time", "number inclusive", "number count", "number place", "text"].map((className) => el("span", { className, role: "columnheader" })));
    this.list = new VirtualList({
      label, role: "grid", rowHeight: 19, header: this.head,
      makeRow: () => el("div", {}, ...["number time", "number inclusive", "number count", "number place", "text"].map((className) => el("span", { className, role: "gridcell" }))),
      fillRow: (row, at) => this.fillRow(row, at),
    });
    this.element = el("section", { className: `view code ${className}` }, this.bar, this.list.element);
    this.most = 0;
  }

  /**
   * Takes the columns of counts and of CPU times, any of which may be null, and shows those that there are; and how many characters the
   * longest line number or address has. `inclusive` are times with what each line calls.
   */
  take(counts, times, digits, inclusive = null) {
    this.counts = counts?.some((value) => value !== null) ? counts : null;
    this.times = times;
    this.inclusive = inclusive;
    this.costs = this.counts ?? this.inclusive ?? this.times;
    this.most = [largest(this.times ?? []), largest(this.counts ?? []), largest(this.inclusive ?? [])];
    const widths = [this.times ? "7em" : "0", ...(inclusive ? ["7em"] : []), this.counts ? "8.5em" : "0", `${Math.max(digits, this.placeTitle.length)}ch`, "1fr"];
    this.list.element.style.setProperty("--code-columns", widths.join(" "));
    const titles = [this.times ? (inclusive ? "Self" : "CPU time") : "", "Inclusive", this.counts ? "Executed" : "", this.placeTitle, ""];
    [...this.head.children].forEach((cell, at) => { cell.textContent = titles[at]; });
    this.list.element.classList.toggle("bare", !this.costs);
    this.list.element.classList.toggle("without-inclusive", !inclusive);
  }

  /** Sets the margin of a row: the time and the count of the element, with shades for how they compare with the largest. */
  setCosts(row, at) {
    const [time, inclusive, number] = row.children;
    const ns = this.times?.[at] ?? 0;
    time.textContent = ns > 0 ? duration(ns) : "";
    time.title = ns > 0 ? `CPU time, by samples: ${exact(ns)}` : "";
    this.setHeat(time, ns, this.most[0]);
    const all = this.inclusive?.[at] ?? 0;
    inclusive.textContent = all > 0 ? duration(all) : "";
    inclusive.title = all > 0 ? `CPU time with what the line calls, by samples: ${exact(all)}` : "";
    this.setHeat(inclusive, all, this.most[2]);
    const value = this.counts?.[at] ?? null;
    number.textContent = value === null ? "" : value === 0 ? "never" : count(value);
    number.title = value === null ? "" : value === 0 ? "Never executed" : `Executed ${counted(value, "time", "times")}`;
    this.setHeat(number, value, this.most[1]);
    row.classList.toggle("never", value === 0);
    row.classList.toggle("counted", value > 0 || ns > 0 || all > 0);
  }

  setHeat(cell, value, most) {
    const heat = value > 0 && most > 0 ? Math.log(1 + value) / Math.log(1 + most) : 0;
    cell.style.setProperty("--heat-width", `${(100 * heat).toFixed(0)}%`);
  }

  /** Returns a remark beside a line about the calls that it has made. */
  callsMade(calls) {
    return calls > 0 ? el("span", { className: "remark", textContent: `→ ${counted(calls, "call", "calls")}`, title: "The calls that were counted from here, of functions that are hooked" }) : null;
  }

  escape() {
    return false;
  }

  focus() {
    this.list.element.focus({ preventScroll: true });
  }
}

class SourceView extends CodeView {
  constructor(run) {
    super("Source with counts", "source", "Line");
    this.run = run;
    this.at = UNKNOWN;
    // The file has the sources with the highest costs first.
    const names = shortPaths(run.sources.map((source) => run.files[source.file]));
    const options = run.sources.map((source, at) => [String(source.file), visible(names[at])]);
    this.choice = choice("Source file", options, options[0]?.[0], (value) => { location.hash = hashOf("source", { file: value }); });
    this.status = el("output", { className: "status" });
    fill(this.bar, this.choice, this.status);
  }

  show(parameters) {
    const { run } = this;
    this.source = run.sources[run.sourceOf.get(Number(parameters.get("file") ?? UNKNOWN)) ?? 0];
    const { source } = this;
    this.take(source.count, source.self, String(largest(source.line)).length, source.inclusive);
    this.begins = this.functionsOf(source.file);
    this.choice.value = String(source.file);
    this.choice.title = visible(run.files[source.file]);
    this.status.textContent = this.summary();
    this.list.element.scrollTop = 0;
    this.list.selected = UNKNOWN;
    this.list.resize(source.line.length);
    const line = Number(parameters.get("line") ?? 0);
    const row = line > 0 ? source.line.findIndex((number) => number >= line) : this.first();
    this.list.choose(Math.max(row, 0), "middle");
  }

  /** Returns the functions that begin on each line of a file, those that did not run left out. */
  functionsOf(file) {
    const { run } = this;
    const begins = new Map();
    for (let id = 0; id < run.size; id++) {
      if (run.file[id] !== file + 1 || !ran(run.columns, id)) continue;
      const line = run.line[id];
      begins.set(line, [...(begins.get(line) ?? []), id]);
    }
    return begins;
  }

  /** Returns the row with the highest cost, or else the beginning of the function with the most time or calls. */
  first() {
    const { run, source } = this;
    if (this.costs) return this.costs.indexOf(largest(this.costs));
    const column = run.columns[run.mainColumn()];
    let best = UNKNOWN;
    for (const ids of this.begins.values()) for (const id of ids) if (best === UNKNOWN || column[id] > column[best]) best = id;
    return best === UNKNOWN ? 0 : source.line.indexOf(run.line[best]);
  }

  /** Returns what a function cost, to stand beside the line where it begins. */
  remark(id) {
    const { run } = this;
    const [calls, self, inclusive] = [run.columns.calls[id], run.columns.self?.[id] ?? 0, run.columns.inclusive?.[id] ?? 0];
    const facts = [calls > 0 ? counted(calls, "call", "calls") : null, self > 0 ? `${amount(self)} self` : null].filter(Boolean);
    if (this.inclusive && inclusive > 0) facts.push(`${amount(inclusive)} inclusive`);
    return el("span", { className: "remark" }, el("a", { href: hashOf("graph", { function: id }), textContent: run.short(id), title: describe(run, id), tabIndex: -1 }), `: ${facts.join(", ")}`);
  }

  summary() {
    const { source } = this;
    const missing = source.found ? "" : "; the source is not in this report: gmon html --source-dir DIR adds it";
    if (!this.costs) return `lines were neither counted nor sampled; functions have their calls${missing}`;
    if (!this.counts) return `${duration(sum(source.self ?? []))} of CPU time in these lines${source.inclusive ? " themselves" : ""}, by samples${missing}`;
    const known = source.count.filter((value) => value !== null);
    const executed = known.filter((value) => value > 0).length;
    return `${percent(executed, known.length)} of ${counted(known.length, "line", "lines")} executed, in functions that ran${missing}`;
  }

  fillRow(row, at) {
    const { source } = this;
    this.setCosts(row, at);
    row.children[3].textContent = String(source.line[at]);
    const begun = (this.begins.get(source.line[at]) ?? []).slice(0, 3).map((id) => this.remark(id));
    fill(row.children[4], visibleCode(source.text[at]), ...begun, this.callsMade(source.calls?.[at] ?? 0));
    row.classList.toggle("gap", at > 0 && source.line[at] !== source.line[at - 1] + 1);
  }
}

/** Returns the largest number of a column with unknown elements, or 0. A column may be too long for the arguments of a call. */
function largest(column) {
  return column.reduce((most, value) => (value > most ? value : most), 0);
}

class AssemblyView extends CodeView {
  constructor(run) {
    super("Disassembly with counts", "assembly", "Address");
    this.run = run;
    const options = run.code.map((code) => [String(code.function), run.names[code.function]]);
    this.choice = choice("Function", options, options[0]?.[0], (value) => { location.hash = hashOf("assembly", { function: value }); });
    this.status = el("output", { className: "status" });
    this.link = el("a");
    fill(this.bar, this.choice, this.link, this.status);
  }

  show(parameters) {
    const { run } = this;
    const at = run.codeOf.get(Number(parameters.get("function") ?? UNKNOWN)) ?? 0;
    this.code = run.code[at];
    this.choice.value = String(this.code.function);
    this.link.href = hashOf("graph", { function: this.code.function });
    this.link.textContent = "Callers and callees";
    this.rows = this.rowsOf(this.code);
    this.take(this.code.count, this.code.self, largest(this.code.address).toString(16).length);
    this.status.textContent = counted(this.code.text.length, "instruction", "instructions");
    this.list.element.scrollTop = 0;
    this.list.selected = UNKNOWN;
    this.list.resize(this.rows.length);
    // The instruction with the most time, or else the one that was executed most.
    const costs = this.times ?? this.counts;
    const most = costs ? largest(costs) : 0;
    if (most > 0) this.list.choose(this.rows.indexOf(costs.indexOf(most)), "middle");
  }

  /** Returns the rows: the indexes of instructions, with a row `~index` where the source line changes. */
  rowsOf(code) {
    const rows = [];
    code.text.forEach((_, at) => {
      const isNew = at === 0 || code.file[at] !== code.file[at - 1] || code.line[at] !== code.line[at - 1];
      if (isNew && code.file[at] > 0 && code.line[at] > 0) rows.push(~at);
      rows.push(at);
    });
    return rows;
  }

  fillRow(row, index) {
    const { run, code } = this;
    const at = this.rows[index];
    row.classList.toggle("marker", at < 0);
    if (at < 0) {
      this.setCosts(row, UNKNOWN);
      const file = code.file[~at] - 1;
      const line = code.line[~at];
      const place = `${visible(fileName(run.files[file]))}:${line}`;
      const source = run.sourceOf.has(file) ? run.sources[run.sourceOf.get(file)] : null;
      const found = source ? source.line.indexOf(line) : -1;
      row.children[3].textContent = "";
      fill(row.children[4], source ? el("a", { href: hashOf("source", { file, line }), textContent: place, tabIndex: -1 }) : place, el("span", { textContent: found >= 0 ? `  ${visibleCode(source.text[found]).trim()}` : "" }));
      return;
    }
    this.setCosts(row, at);
    row.children[3].textContent = code.address[at].toString(16);
    fill(row.children[4], visible(code.text[at]), this.callsMade(code.calls?.[at] ?? 0));
  }
}

/** Returns a line of source with its tabs, and escape sequences for other hidden characters. */
function visibleCode(text) {
  return text.split("\t").map(visible).join("\t");
}
