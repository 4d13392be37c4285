// The page that compares two runs: the flame graph of the new one, coloured by what has changed, and the table of all functions.

/** What is known of both runs. Of each pair, the first is that of the old run. */
class Difference {
  constructor(raw) {
    Object.assign(this, { programs: raw.programs, kinds: raw.kinds, comparable: raw.comparable, totals: raw.totals, calls: raw.calls, periods: raw.periods, estimated: raw.estimated });
    const f = raw.functions;
    this.names = f.name.map(visible);
    this.shorts = f.short.map((name, id) => (name === null ? this.names[id] : visible(name)));
    this.size = this.names.length;
    this.module = f.module;
    this.modules = raw.modules.map((name) => ({ name }));
    this.old = { calls: numbers(f.old.calls), self: numbers(f.old.self), inclusive: numbers(f.old.inclusive) };
    this.new = { calls: numbers(f.new.calls), self: numbers(f.new.self), inclusive: numbers(f.new.inclusive) };
    this.paths = raw.paths;
    this.lower = null;
  }

  lowerNames() {
    this.lower ??= this.names.map((name) => name.toLowerCase());
    return this.lower;
  }

  /** Returns by how much a column has changed for a function; one that a run does not have counts as 0 there. */
  change(key, id) {
    return Math.max(this.new[key][id], 0) - Math.max(this.old[key][id], 0);
  }

  /** Whether a change of times may be chance: the number of samples is a Poisson variable, and 3 standard deviations do not count. */
  isChance(before, after) {
    return Math.abs(after - before) <= 3 * Math.sqrt(before * this.periods[0] + after * this.periods[1]);
  }
}

/** Returns a change with its sign. */
function signed(value, show) {
  return value === 0 ? "0" : `${value > 0 ? "+" : "−"}${show(Math.abs(value))}`;
}

/** Returns the tree of the paths, each as wide as its time in the new run, or in the old one. */
function changedTree(paths, wide) {
  const size = paths.parent.length + 1;
  const tree = { parent: [UNKNOWN], func: [OTHERS], depth: [0], old: [0], new: [0], selfOld: [0], selfNew: [0] };
  for (let i = 0; i < size - 1; i++) {
    const up = paths.parent[i] === 0 ? 0 : i + 1 - paths.parent[i];
    tree.parent.push(up);
    tree.func.push(paths.function[i] - 1);
    tree.depth.push(tree.depth[up] + 1);
    tree.old.push(paths.old[i]);
    tree.new.push(paths.new[i]);
    tree.selfOld.push(paths.selfOld[i]);
    tree.selfNew.push(paths.selfNew[i]);
    if (up === 0) {
      tree.old[0] += paths.old[i];
      tree.new[0] += paths.new[i];
    }
  }
  tree.total = Float64Array.from(tree[wide]);
  return linked(tree);
}

/** A flame graph with red for what takes longer, and blue for what takes less. */
class ChangeFlame extends Flame {
  fillOf(node) {
    const [before, after] = this.view.pair(node);
    const most = Math.max(before, after);
    const change = most > 0 && !this.view.run.isChance(before, after) ? (after - before) / most : 0;
    return this.shade(change);
  }

  /** Returns the colour of a change, which is from -1 (all gone) to 1 (all new). */
  shade(change) {
    const strength = Math.sqrt(Math.abs(change));
    const [hue, saturation] = [change > 0 ? 4 : 212, strength < 0.12 ? 0 : 30 + 55 * strength];
    const light = this.dark ? 30 + 10 * strength : 90 - 26 * strength;
    return `hsl(${hue} ${saturation.toFixed(0)}% ${light.toFixed(0)}%)`;
  }

  legend() {
    this.view.explain([[this.shade(1), "new, or much worse"], [this.shade(0.15), "worse"], [this.shade(0), this.view.run.periods[0] > 0 ? "the same, or a change that may be chance" : "the same"], [this.shade(-0.15), "better"], [this.shade(-1), "much better"]]);
  }

  tell(tip, box) {
    const { view } = this;
    if (box.node === UNKNOWN) fill(tip, el("b", { textContent: "Several paths, each narrower than a pixel" }), el("div", { textContent: "Zoom in to see them." }));
    else fill(tip, el("b", { textContent: view.name(box.node) }), ...view.facts(box.node).map((text) => el("div", { textContent: text })));
  }
}

class ChangesView {
  constructor(run) {
    this.run = run;
    this.root = 0;
    this.wide = "new";
    this.own = false;
    this.test = null;
    this.search = el("input", { type: "search", placeholder: "Find in paths  ( / )", "aria-label": "Find functions in the paths", spellcheck: false, oninput: () => this.mark() });
    this.status = el("output", { className: "status" });
    const bar = el(
      "div", { className: "bar" }, this.search,
      choice("Width", [["new", "As wide as in the new run"], ["old", "As wide as in the old run"]], "new", (value) => { this.wide = value; this.root = 0; this.update(); }),
      toggle("By self time", false, "Colours say how the time in the function itself has changed, not that with what it called", (on) => { this.own = on; this.flame.draw(); }),
      el("button", { type: "button", textContent: "Zoom out", title: "Escape", onclick: () => this.go({ node: null }) }), this.status,
    );
    const remarks = [
      run.estimated ? "Estimate: call paths were not recorded in both runs. The time of each function is divided among its callers by their calls; gprofinject --paths records the paths." : null,
      run.comparable ? null : "The times of the runs are of different kinds, measured and sampled or none, and cannot be compared.",
    ].filter(Boolean);
    this.flame = new ChangeFlame(this);
    this.about = el("div", { className: "about", "aria-live": "polite" });
    this.legend = el("div", { className: "legend" });
    this.element = el("section", { className: "view paths" }, bar, ...remarks.map((textContent) => el("p", { className: "guess", textContent })), this.flame.element, this.about, this.legend);
    this.update();
  }

  update() {
    this.tree = changedTree(this.run.paths, this.wide);
    this.mark();
    this.describe(this.root);
  }

  mark() {
    const test = matcher(this.search.value);
    this.test = this.search.value.trim() === "" ? null : (id) => test(this.run.lowerNames()[id]);
    const [before, after] = [this.tree.old[0], this.tree.new[0]];
    this.status.textContent = `${amount(before)} → ${amount(after)} (${signed(after - before, amount)})`;
    this.flame.draw();
  }

  /** Returns the times of a node in both runs: those that the colours are about. */
  pair(node) {
    return this.own ? [this.tree.selfOld[node], this.tree.selfNew[node]] : [this.tree.old[node], this.tree.new[node]];
  }

  go({ node }) {
    this.root = node ?? 0;
    this.describe(this.root);
    this.flame.choose(this.root);
  }

  name(node) {
    if (node === 0) return this.wide === "new" ? "all of the new run" : "all of the old run";
    const id = this.tree.func[node];
    return id === OTHERS ? nameOfOthers(this.tree, node, this.run.kinds[1] === "sampled") : this.run.names[id];
  }

  label(node) {
    const id = node <= 0 ? OTHERS : this.tree.func[node];
    return id === OTHERS ? this.name(node) : this.run.shorts[id];
  }

  facts(node) {
    const { tree, run } = this;
    const line = (label, before, after) => `${label}: ${amount(before)} → ${amount(after)}, ${signed(after - before, amount)}${before > 0 ? ` (${signed((100 * (after - before)) / before, (value) => `${value.toFixed(1)} %`)})` : " (new)"}`;
    const chance = run.isChance(tree.old[node], tree.new[node]) && tree.old[node] !== tree.new[node] ? ["This change may be chance."] : [];
    return [line("inclusive", tree.old[node], tree.new[node]), ...(node === 0 ? [] : [line("self", tree.selfOld[node], tree.selfNew[node])]), ...chance];
  }

  describe(node) {
    fill(this.about, el("b", { className: "name", textContent: this.name(node) }), ...this.facts(node).map((text) => el("span", { className: "fact", textContent: text })));
  }

  explain(colours) {
    fill(this.legend, ...colours.map(([colour, name]) => {
      const sample = el("i");
      sample.style.background = colour;
      return el("span", {}, sample, name);
    }));
  }

  escape() {
    if (this.test) {
      this.search.value = "";
      this.mark();
      return true;
    }
    if (this.root === 0) return false;
    this.go({ node: null });
    return true;
  }

  focus() {
    this.flame.canvas.focus({ preventScroll: true });
  }
}

/** The table of all functions, those that have changed most first. */
class ChangedFunctions {
  constructor(run) {
    this.run = run;
    const timed = run.comparable && run.totals[0] + run.totals[1] > 0;
    const pair = (key, title, show) => [
      { key: `${key}-change`, title: `${title} ±`, of: (id) => run.change(key, id), show: (value) => signed(value, show), sort: Math.abs },
      { key: `${key}-new`, title: "new", of: (id) => run.new[key][id], show },
      { key: `${key}-old`, title: "old", of: (id) => run.old[key][id], show },
    ];
    this.columns = [...(timed ? [...pair("self", "Self", amount), ...pair("inclusive", `Inclusive${run.kinds[1] === "sampled" ? " (est.)" : ""}`, amount)] : []), ...pair("calls", "Calls", count)];
    this.sort = this.columns[0].key;
    this.descending = true;
    this.search = el("input", { type: "search", placeholder: "Filter by name  ( / )", "aria-label": "Filter functions by name", spellcheck: false, oninput: () => this.update() });
    this.same = false;
    this.status = el("output", { className: "status" });
    const bar = el("div", { className: "bar" }, this.search, toggle("Unchanged", false, "Show functions of which nothing has changed", (on) => { this.same = on; this.update(); }), this.status);
    this.header = el("div", { className: "head", role: "row" });
    this.list = new VirtualList({
      label: "Functions", role: "grid", rowHeight: 24, header: this.header,
      makeRow: () => el("div", {}, ...this.columns.map(() => el("span", { role: "gridcell", className: "number" })), el("span", { role: "gridcell", className: "name" }), el("span", { role: "gridcell", className: "module" })),
      fillRow: (row, at) => this.fillRow(row, this.ids[at]),
    });
    this.list.element.style.setProperty("--columns", `${this.columns.map(() => "minmax(6em, 8.5em)").join(" ")} minmax(10em, 1fr) minmax(4em, 9em)`);
    this.element = el("section", { className: "view changes" }, bar, this.list.element);
    this.update();
  }

  heads() {
    const head = (key, title, className) => {
      const arrow = this.sort === key ? (this.descending ? " ▾" : " ▴") : "";
      return el("span", { role: "columnheader", className, "data-column": key, "aria-sort": this.sort === key ? (this.descending ? "descending" : "ascending") : "none" }, el("button", { type: "button", textContent: title + arrow, onclick: () => this.sortBy(key) }));
    };
    fill(this.header, ...this.columns.map((column) => head(column.key, column.title, "number")), head("name", "Function", "name"), el("span", { role: "columnheader", className: "module", textContent: "Module" }));
  }

  sortBy(key) {
    this.descending = this.sort === key ? !this.descending : key !== "name";
    this.sort = key;
    this.update();
  }

  update() {
    const { run } = this;
    const names = run.lowerNames();
    const test = matcher(this.search.value);
    const changed = (id) => this.columns.some((column) => column.sort && column.of(id) !== 0);
    this.ids = [];
    for (let id = 0; id < run.size; id++) if (test(names[id]) && (this.same || changed(id))) this.ids.push(id);
    const column = this.columns.find((column) => column.key === this.sort);
    if (column) sortByNumber(this.ids, run.names.map((_, id) => (column.sort ?? ((value) => value))(column.of(id))), this.descending);
    else sortByText(this.ids, (id) => names[id], this.descending);
    this.heads();
    this.status.textContent = `${count(this.ids.length)} of ${counted(run.size, "function", "functions")}`;
    this.list.element.scrollTop = 0;
    this.list.resize(this.ids.length);
  }

  fillRow(row, id) {
    const { run } = this;
    this.columns.forEach((column, at) => {
      const value = column.of(id);
      row.children[at].textContent = column.show(value);
      row.children[at].classList.toggle("worse", Boolean(column.sort) && value > 0);
      row.children[at].classList.toggle("better", Boolean(column.sort) && value < 0);
    });
    const [name, module] = [...row.children].slice(-2);
    const [before, after] = ["old", "new"].map((side) => Math.max(run[side].calls[id], run[side].self[id], run[side].inclusive[id]) >= 0);
    fill(name, run.shorts[id], before && after ? null : el("span", { className: "badge", textContent: after ? "new" : "gone" }));
    name.title = run.names[id];
    module.textContent = visible(run.modules[run.module[id]].name);
  }

  escape() {
    if (this.search.value === "") return false;
    this.search.value = "";
    this.update();
    return true;
  }

  focus() {
    this.list.element.focus({ preventScroll: true });
  }
}

class Page {
  constructor(run) {
    this.run = run;
    this.views = { flame: new ChangesView(run), functions: new ChangedFunctions(run) };
    const [before, after] = run.programs.map(visible);
    document.getElementById("program").textContent = before === after ? `${after}: two runs` : `${before} → ${after}`;
    document.title = document.getElementById("program").textContent;
    fill(document.getElementById("views"), ...Object.entries({ flame: "Flame graph", functions: "Functions" }).map(([key, title]) => el("a", { href: `#${key}`, textContent: title, "data-view": key })));
    document.getElementById("help-button").hidden = true;
    document.getElementById("theme").addEventListener("click", () => switchTheme(this.view));
    window.addEventListener("hashchange", () => this.go());
    window.addEventListener("keydown", (event) => this.keydown(event));
    this.go();
  }

  go() {
    const key = location.hash === "#functions" ? "functions" : "flame";
    this.view = this.views[key];
    fill(document.getElementById("main"), this.view.element);
    for (const link of document.querySelectorAll("#views a")) {
      if (link.dataset.view === key) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    this.view.flame?.draw();
    this.view.list?.draw();
    this.view.focus();
  }

  keydown(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") {
      if (this.view.escape()) event.preventDefault();
    } else if (/^(INPUT|SELECT)$/.test(event.target.tagName)) return;
    else if (event.key === "/") {
      this.view.search.focus();
      event.preventDefault();
    } else if (event.key === "t") switchTheme(this.view);
  }
}

async function start() {
  followBrowser();
  try {
    const data = document.getElementById("data");
    const raw = await unpack(data.textContent);
    data.remove();
    setKind(raw.kinds[1]);
    window.page = new Page(new Difference(raw));
    requestAnimationFrame(() => setTimeout(() => performance.mark("shown")));
  } catch (error) {
    fill(document.getElementById("main"), el("p", { className: "problem", role: "alert", textContent: `The comparison cannot be shown: ${error.message}` }));
    throw error;
  }
}

start();
