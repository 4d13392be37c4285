// The views of the source and of the disassembly, with counts in the margin.

/** What the two views have in common: a choice above rows of text, some of which have a count. */
class CodeView {
  constructor(label, className) {
    this.bar = el("div", { className: "bar" });
    this.list = new VirtualList({
      label, role: "grid", rowHeight: 19, header: null,
      makeRow: () => el("div", {}, ...["number count", "number place", "text"].map((className) => el("span", { className, role: "gridcell" }))),
      fillRow: (row, at) => this.fillRow(row, at),
    });
    this.element = el("section", { className: `view code ${className}` }, this.bar, this.list.element);
    this.most = 0;
  }

  /** Sets the margin of a row: the count, and a shade for how it compares with the largest. */
  setCount(row, value) {
    const cell = row.children[0];
    cell.textContent = value === null ? "" : value === 0 ? "never" : count(value);
    cell.title = value === null ? "" : value === 0 ? "Never executed" : `Executed ${counted(value, "time", "times")}`;
    this.setHeat(row, value);
  }

  /** Sets the margin of a row to a time. */
  setTime(row, ns) {
    const cell = row.children[0];
    cell.textContent = ns > 0 ? duration(ns) : "";
    cell.title = ns > 0 ? exact(ns) : "";
    this.setHeat(row, ns > 0 ? ns : null);
  }

  setHeat(row, value) {
    const heat = value > 0 && this.most > 0 ? Math.log(1 + value) / Math.log(1 + this.most) : 0;
    row.style.setProperty("--heat-width", `${(100 * heat).toFixed(0)}%`);
    row.classList.toggle("never", value === 0);
    row.classList.toggle("counted", value > 0);
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
    super("Source with counts", "source");
    this.run = run;
    this.at = UNKNOWN;
    // The file has the sources with the highest costs first.
    const options = run.sources.map((source) => [String(source.file), visible(run.files[source.file])]);
    this.choice = choice("Source file", options, options[0]?.[0], (value) => { location.hash = hashOf("source", { file: value }); });
    this.status = el("output", { className: "status" });
    fill(this.bar, this.choice, this.status);
  }

  show(parameters) {
    const { run } = this;
    this.source = run.sources[run.sourceOf.get(Number(parameters.get("file") ?? UNKNOWN)) ?? 0];
    const { source } = this;
    this.counts = source.count.some((value) => value !== null);
    this.costs = this.counts ? source.count : source.self;
    this.most = largest(this.costs);
    this.choice.value = String(source.file);
    this.status.textContent = this.summary();
    this.list.element.scrollTop = 0;
    this.list.selected = UNKNOWN;
    this.list.resize(source.line.length);
    const line = Number(parameters.get("line") ?? 0);
    const row = line > 0 ? source.line.findIndex((number) => number >= line) : this.costs.indexOf(this.most);
    this.list.choose(Math.max(row, 0), "middle");
  }

  summary() {
    const { source } = this;
    const missing = source.found ? "" : "; the source is not in this report: gmon html PROGRAM PROFILE adds it, and --source-dir says where it is";
    if (!this.counts) return `${duration(sum(source.self))} in these lines, by samples${missing}`;
    const known = source.count.filter((value) => value !== null);
    const executed = known.filter((value) => value > 0).length;
    return `${percent(executed, known.length)} of ${counted(known.length, "line", "lines")} executed, in functions that ran${missing}`;
  }

  fillRow(row, at) {
    const { source } = this;
    if (this.counts) this.setCount(row, source.count[at]);
    else this.setTime(row, source.self[at]);
    row.children[1].textContent = String(source.line[at]);
    row.children[2].textContent = visibleCode(source.text[at]);
    row.classList.toggle("gap", at > 0 && source.line[at] !== source.line[at - 1] + 1);
  }
}

/** Returns the largest number of a column with unknown elements, or 0. A column may be too long for the arguments of a call. */
function largest(column) {
  return column.reduce((most, value) => (value > most ? value : most), 0);
}

class AssemblyView extends CodeView {
  constructor(run) {
    super("Disassembly with counts", "assembly");
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
    this.most = largest(this.code.count);
    this.status.textContent = counted(this.code.text.length, "instruction", "instructions");
    this.list.element.scrollTop = 0;
    this.list.selected = UNKNOWN;
    this.list.resize(this.rows.length);
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
      this.setCount(row, null);
      const file = code.file[~at] - 1;
      const line = code.line[~at];
      const place = `${visible(fileName(run.files[file]))}:${line}`;
      const source = run.sourceOf.has(file) ? run.sources[run.sourceOf.get(file)] : null;
      const found = source ? source.line.indexOf(line) : -1;
      row.children[1].textContent = "";
      fill(row.children[2], source ? el("a", { href: hashOf("source", { file, line }), textContent: place, tabIndex: -1 }) : place, el("span", { textContent: found >= 0 ? `  ${visibleCode(source.text[found]).trim()}` : "" }));
      return;
    }
    this.setCount(row, code.count[at]);
    row.children[1].textContent = code.address[at].toString(16);
    row.children[2].textContent = visible(code.text[at]);
  }
}

/** Returns a line of source with its tabs, and escape sequences for other hidden characters. */
function visibleCode(text) {
  return text.split("\t").map(visible).join("\t");
}
