// The view of all functions: a table to sort and to filter.

/** The columns of the table, in the order in which they are shown, if the run has them. */
const COLUMNS = [
  { key: "self", share: true, title: "Self", hint: "The time in the function itself", show: seenAmount, exact: exactAmount },
  { key: "inclusive", share: true, title: "Inclusive", hint: "The time in the function and in everything that it called; of recursive calls, only the outermost counts", show: seenAmount, exact: exactAmount },
  { key: "calls", title: "Calls", hint: "All calls", show: count, exact: (value) => counted(value, "call", "calls") },
  { key: "primitive", title: "Primitive", hint: "The calls that were not made within another call of the same function", show: count, exact: (value) => counted(value, "primitive call", "primitive calls") },
  { key: "mean", title: "Mean", hint: "Inclusive time of a primitive call", show: seenAmount, exact: exactAmount },
  { key: "min", title: "Shortest", hint: "The duration of the shortest call, of those that have returned", show: amount, exact: exactAmount },
  { key: "p50", title: "p50", hint: "The duration that half of the calls do not exceed", show: amount, exact: exactAmount },
  { key: "p99", title: "p99", hint: "The duration that 99 of 100 calls do not exceed", show: amount, exact: exactAmount },
  { key: "max", title: "Longest", hint: "The duration of the longest call, of those that have returned", show: amount, exact: exactAmount },
  { key: "cpu", title: "CPU", hint: "The CPU time in the function itself, by samples", show: duration, exact },
  { key: "waiting", title: "Waiting", hint: "Self time without CPU time: the thread waited for a lock, a disk, another thread or a processor", show: duration, exact },
  { key: "instructions", share: true, title: "Instructions", hint: "The instructions that the function itself executed", show: count, exact: (value) => counted(value, "instruction", "instructions") },
];

/** Returns a column's title, which says whether its times are estimates. */
function columnTitle(run, column) {
  return run.time.estimated.includes(column.key) ? `${column.title} (est.)` : column.title;
}

/** Whether the run has a column that says something. Without recursion, all calls are primitive; without calls, none is. */
function isMeasured(run, key) {
  const column = run.columns[key];
  if (!column) return false;
  if (key === "primitive") return column.some((value, id) => value !== run.columns.calls[id]);
  return column.some((value) => value > 0);
}

class FunctionsView {
  constructor(run) {
    this.run = run;
    this.part = part("");
    this.module = UNKNOWN;
    this.query = "";
    this.keepIdle = false;
    this.shown = COLUMNS.filter((column) => isMeasured(run, column.key));
    this.sort = run.mainColumn();
    this.descending = true;
    this.byName = null;
    this.build();
    this.update();
  }

  build() {
    const { run } = this;
    this.search = el("input", {
      type: "search", placeholder: "Filter by name  ( / )", "aria-label": "Filter functions by name", spellcheck: false,
      title: "Words that must occur in the name; -word must not; * is any text", oninput: () => this.filter(this.search.value),
    });
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown" || event.key === "Enter") {
        this.list.element.focus();
        this.list.choose(0);
        event.preventDefault();
      }
    });
    const modules = [[String(UNKNOWN), "All modules"], ...run.modules.map((module, at) => [String(at), visible(module.name)])];
    this.status = el("output", { className: "status" });
    const bar = el(
      "div", { className: "bar" },
      this.search,
      run.modules.length > 1 ? choice("Module", modules, String(this.module), (value) => { this.module = Number(value); this.update(); }) : null,
      partChoice(run, true, (value) => { this.part = part(value); this.update(); }),
      this.idle() ? toggle("Not run", this.keepIdle, "Show functions without calls, times and instructions", (on) => { this.keepIdle = on; this.update(); }) : null,
      this.status,
    );
    this.header = el("div", { className: "head", role: "row" });
    this.list = new VirtualList({
      label: "Functions", role: "grid", rowHeight: 24, header: this.header,
      makeRow: () => this.makeRow(), fillRow: (row, at) => this.fillRow(row, this.ids[at]),
      open: (at) => { location.hash = hashOf("graph", { function: this.ids[at] }); },
    });
    this.nothing = el("p", { className: "nothing", hidden: true });
    this.element = el("section", { className: "view functions" }, bar, this.list.element, this.nothing);
    this.setWidths();
  }

  /** Returns a mark for the columns that the narrowest window has. */
  isNarrow(key) {
    return [this.run.mainColumn(), "calls", "name"].includes(key) ? "" : null;
  }

  /** Whether there are functions that did not run. */
  idle() {
    for (let id = 0; id < this.run.size; id++) if (!ran(this.run.columns, id)) return true;
    return false;
  }

  /** Sets the widths of the columns: of all, and of those that a narrow window has. */
  setWidths() {
    const width = (column) => (column.share ? "minmax(9.5em, 12em)" : column.show === count ? "8.5em" : "6.5em");
    const widths = (keys) => this.shown.filter((column) => !keys || keys.includes(column.key)).map(width).join(" ");
    const module = this.run.modules.length > 1 ? " minmax(5em, 11em)" : "";
    const { style } = this.list.element;
    style.setProperty("--columns", `${widths(null)} minmax(10em, 1fr)${module}`);
    style.setProperty("--wide", `${widths(["self", "inclusive", "calls", "primitive", "mean", "p50", "p99", "max", "instructions"])} minmax(10em, 1fr)${module}`);
    style.setProperty("--middle", `${widths(["self", "inclusive", "calls", "primitive", "mean", "instructions"])} minmax(10em, 1fr)${module}`);
    style.setProperty("--narrow", `${widths(["self", "inclusive", "calls", "instructions"])} minmax(10em, 1fr)`);
    style.setProperty("--narrowest", `${widths([this.run.mainColumn(), "calls"])} minmax(6em, 1fr)`);
  }

  heads() {
    const head = (key, title, hint, className) => {
      const sorted = this.sort === key;
      const arrow = sorted ? (this.descending ? " ▾" : " ▴") : "";
      return el(
        "span", { role: "columnheader", className, "data-column": key, "data-narrow": this.isNarrow(key), "aria-sort": sorted ? (this.descending ? "descending" : "ascending") : "none" },
        el("button", { type: "button", title: hint, textContent: title + arrow, onclick: () => this.sortBy(key) }),
      );
    };
    fill(
      this.header,
      ...this.shown.map((column) => head(column.key, columnTitle(this.run, column), column.hint, "number")),
      head("name", "Function", "The name", "name"),
      this.run.modules.length > 1 ? head("module", "Module", "The program or the library", "module") : null,
    );
  }

  makeRow() {
    const row = el("div");
    for (const column of this.shown) {
      const cell = el("span", { role: "gridcell", className: "number", "data-column": column.key, "data-narrow": this.isNarrow(column.key) });
      cell.append(column.share ? el("span", { className: "share" }) : "", el("span"));
      row.append(cell);
    }
    row.append(el("span", { role: "gridcell", className: "name" }, el("a", { className: "function", tabIndex: -1 })));
    if (this.run.modules.length > 1) row.append(el("span", { role: "gridcell", className: "module" }));
    return row;
  }

  fillRow(row, id) {
    this.shown.forEach((column, at) => {
      const cell = row.children[at];
      const value = this.columns[column.key]?.[id] ?? UNKNOWN;
      cell.lastChild.textContent = column.show(value);
      cell.classList.toggle("zero", value === 0);
      cell.title = value === UNKNOWN ? "not counted" : `${column.title}: ${column.exact(value)}`;
      if (!column.share) return;
      const total = column.key === "instructions" ? this.instructions : this.total;
      setShare(cell.firstChild, value, total);
      cell.title += value === UNKNOWN || total === 0 ? "" : `, ${percent(value, total)} of ${column.show(total)}`;
    });
    const name = row.children[this.shown.length];
    name.firstChild.textContent = this.run.short(id);
    name.firstChild.href = hashOf("graph", { function: id });
    name.title = describe(this.run, id);
    row.classList.toggle("idle", !ran(this.columns, id));
    if (this.run.modules.length > 1) row.lastChild.textContent = visible(this.run.modules[this.run.module[id]].name);
  }

  filter(query) {
    this.query = query;
    this.update();
  }

  sortBy(key) {
    const text = key === "name" || key === "module";
    this.descending = this.sort === key ? !this.descending : !text;
    this.sort = key;
    this.update();
  }

  /** Filters and sorts. */
  update() {
    const { run } = this;
    this.columns = run.columnsOf(this.part);
    this.total = this.columns === run.columns ? run.total : this.columns.self ? sum(this.columns.self) : 0;
    this.instructions = this.columns.instructions ? sum(this.columns.instructions) : 0;
    this.ids = filtered(run, this.columns, this.query, this.module, this.keepIdle);
    if (this.sort === "name") sortByText(this.ids, (id) => run.lowerNames()[id], this.descending);
    else if (this.sort === "module") sortByText(this.ids, (id) => run.modules[run.module[id]].name, this.descending);
    else sortByNumber(this.ids, this.columns[this.sort] ?? new Float64Array(run.size), this.descending, this.columns.calls);
    this.heads();
    this.status.textContent = this.summary();
    this.list.selected = UNKNOWN;
    this.list.element.removeAttribute("aria-activedescendant");
    this.list.element.scrollTop = 0;
    this.list.resize(this.ids.length);
    this.nothing.hidden = this.ids.length > 0;
    this.nothing.textContent = this.query === "" ? "No function ran." : "No function matches the filter. Escape clears it.";
  }

  summary() {
    const self = this.columns.self ? this.ids.reduce((total, id) => total + Math.max(this.columns.self[id], 0), 0) : 0;
    const share = this.total > 0 ? `, ${percent(self, this.total)} of the time` : "";
    return `${count(this.ids.length)} of ${counted(this.run.size, "function", "functions")}${share}`;
  }

  /** What Escape does. Returns whether there was anything to do. */
  escape() {
    if (this.query === "") return false;
    this.search.value = "";
    this.filter("");
    return true;
  }

  focus() {
    this.list.element.focus({ preventScroll: true });
  }
}

/** Returns a function's name, module and place in the source. */
function describe(run, id) {
  const file = run.file[id] === 0 ? "" : `\n${visible(run.files[run.file[id] - 1])}${run.line[id] > 0 ? `:${run.line[id]}` : ""}`;
  return `${run.names[id]}\n${visible(run.modules[run.module[id]].name)}${file}`;
}
