// The view of call paths: a flame graph that hangs from the top (an icicle), or the same as a tree of rows.

class PathsView {
  constructor(run) {
    this.run = run;
    this.word = "";
    this.fold = false;
    this.query = "";
    this.highlight = UNKNOWN;
    this.tree = null;
    this.build();
  }

  build() {
    const { run } = this;
    this.search = el("input", {
      type: "search", placeholder: "Find in paths  ( / )", "aria-label": "Find functions in the paths", spellcheck: false,
      oninput: () => { this.query = this.search.value; this.highlight = UNKNOWN; this.mark(); },
    });
    // Likely paths are those of all threads together.
    this.partChoice = run.time.estimated.includes("paths") ? null : partChoice(run, false, (value) => this.go({ part: value, node: null }));
    this.foldButton = toggle("Fold recursion", false, "A call has the box of the call of the same function that is on its path already", (on) => this.go({ fold: on ? 1 : null, node: null }));
    this.formButton = toggle("As a tree", false, "Rows instead of boxes", (on) => this.go({ form: on ? "tree" : null }));
    this.outButton = el("button", { type: "button", textContent: "Zoom out", title: "Escape", onclick: () => this.escape() });
    this.status = el("output", { className: "status" });
    const bar = el("div", { className: "bar" }, this.search, this.partChoice, this.formButton, this.foldButton, this.outButton, this.status);
    this.flame = new Flame(this);
    this.rows = new PathRows(this);
    this.about = el("div", { className: "about", "aria-live": "polite" });
    this.legend = el("div", { className: "legend" });
    const byStacks = run.time.kind === "sampled" && !run.time.estimated.includes("paths");
    const remark = byStacks
      ? el("p", { className: "about quiet", textContent: `Sampled stacks: a box is as wide as the time of the samples on whose stacks the path is. Callers that are not known are ${NO_PATH}.` })
      : null;
    const guess = run.time.estimated.includes("paths")
      ? el("p", { className: "guess" }, el("b", { textContent: "Estimate: " }), "call paths were not recorded. The time of each function is divided among its callers by their calls, and so on up to the beginning, or to where calls go in a circle. ", el("code", { textContent: "gprofinject --paths" }), " records the paths.")
      : null;
    this.element = el("section", { className: "view paths" }, bar, guess, remark, this.flame.element, this.rows.element, this.about, this.legend);
  }

  /** Goes to the same view with other parameters. */
  go(changes) {
    const now = { node: this.root || null, part: this.word, fold: this.fold ? 1 : null, form: this.form === "tree" ? "tree" : null };
    const next = { ...now, ...changes };
    location.hash = hashOf("flame", next);
  }

  show(parameters) {
    const number = (key, none) => (parameters.has(key) && /^\d+$/.test(parameters.get(key)) ? Number(parameters.get(key)) : none);
    const { run } = this;
    const wanted = part(parameters.get("part"));
    const word = !(wanted.thread < run.threads.length && wanted.program < run.programs.length) || !this.partChoice ? "" : parameters.get("part") ?? "";
    const fold = parameters.get("fold") === "1";
    if (!this.tree || word !== this.word || fold !== this.fold) {
      this.word = word;
      this.fold = fold;
      this.tree = pathTree(run.nodes, run.threadsOf(part(word)), fold);
      this.rows.reset();
    }
    if (this.partChoice) this.partChoice.value = word;
    this.foldButton.setAttribute("aria-pressed", String(fold));
    this.form = parameters.get("form") === "tree" ? "tree" : "flame";
    this.formButton.setAttribute("aria-pressed", String(this.form === "tree"));
    const node = number("node", 0);
    this.root = node < this.tree.parent.length ? node : 0;
    this.outButton.disabled = this.root === 0;
    const marked = number("function", UNKNOWN);
    if (marked !== UNKNOWN && marked < this.run.size) {
      this.highlight = marked;
      this.search.value = this.query = "";
    }
    this.flame.element.hidden = this.form === "tree";
    this.rows.element.hidden = this.form !== "tree";
    this.mark();
    this.describe(this.root);
    this.rows.open.add(this.root);
    if (this.form === "tree") this.rows.update();
    else this.flame.choose(this.root);
  }

  /** Finds what the search names. */
  mark() {
    const names = this.run.lowerNames();
    const test = matcher(this.query);
    this.test = this.highlight !== UNKNOWN ? (id) => id === this.highlight : this.query.trim() !== "" ? (id) => test(names[id]) : null;
    const all = this.tree.total[0];
    if (this.test) {
      const { total, nodes } = matched(this.tree, this.test);
      const what = this.highlight !== UNKNOWN ? `${this.run.names[this.highlight]}: ` : "";
      this.status.textContent = nodes === 0 ? `${what}no path` : `${what}${counted(nodes, "path", "paths")}, ${amount(total)}, ${percent(total, all)} of the time`;
    } else {
      this.status.textContent = `${counted(this.tree.parent.length - 1, "path", "paths")}, ${amount(all)}`;
    }
    this.flame.draw();
    this.rows.list.refill();
  }

  /** Returns the name of a node's function. */
  name(node) {
    if (node === UNKNOWN) return "[narrower than a pixel]";
    const { thread, program } = part(this.word);
    if (node === 0 && program !== UNKNOWN) return programName(this.run.programs[program]);
    if (node === 0) return thread === UNKNOWN ? "all" : threadName(this.run.threads[thread]);
    const id = this.tree.func[node];
    return id === OTHERS ? nameOfOthers(this.tree, node, this.run.time.kind === "sampled") : this.run.names[id];
  }

  /** Returns what is written into a node's box. */
  label(node) {
    const id = node <= 0 ? OTHERS : this.tree.func[node];
    return id === OTHERS ? this.name(node) : this.run.short(id);
  }

  /** Says what a node is, below the graph. */
  describe(node) {
    const { tree, run } = this;
    const id = tree.func[node];
    const all = tree.total[0];
    const facts = [
      [run.time.estimated.includes("paths") ? "inclusive (est.)" : "inclusive", `${amount(tree.total[node])}, ${percent(tree.total[node], all)}`, exactAmount(tree.total[node])],
      node === 0 ? null : [run.time.estimated.includes("paths") ? "self on this path (est.)" : "self", `${amount(tree.self[node])}, ${percent(tree.self[node], all)}`, exactAmount(tree.self[node])],
      node === 0 || tree.calls[node] === UNKNOWN ? null : [tree.calls[node] === 1 ? "call" : "calls", count(tree.calls[node]), ""],
    ];
    fill(
      this.about,
      el("b", { className: "name" }, node !== 0 && id !== OTHERS ? fullLink(run, id) : this.name(node)),
      ...facts.filter(Boolean).map(([label, value, title]) => el("span", { className: "fact", title }, el("b", { textContent: value }), ` ${label}`)),
    );
    this.about.querySelector("a")?.removeAttribute("tabindex");
  }

  /** Shows which colour is which module. */
  explain(colours) {
    fill(this.legend, ...colours.map(([colour, name]) => {
      const sample = el("i");
      sample.style.background = colour;
      return el("span", {}, sample, visible(name));
    }));
    this.legend.hidden = colours.length < 2;
  }

  escape() {
    if (this.test) {
      this.search.value = this.query = "";
      this.highlight = UNKNOWN;
      this.mark();
      return true;
    }
    if (this.root === 0) return false;
    this.go({ node: null, function: null });
    return true;
  }

  focus() {
    (this.form === "tree" ? this.rows.list.element : this.flame.canvas).focus({ preventScroll: true });
  }
}

/** The paths as a tree of rows. */
class PathRows {
  constructor(view) {
    this.view = view;
    this.open = new Set([0]);
    this.guess = view.run.time.estimated.includes("paths") ? " (est.)" : "";
    const head = (text, className) => el("span", { role: "columnheader", className, textContent: text });
    this.list = new VirtualList({
      label: "Call paths", role: "treegrid", rowHeight: 24,
      header: el("div", { className: "head", role: "row" }, head(`Inclusive${this.guess}`, "number"), head(`Self${this.guess}`, "number"), head("Calls", "number"), head("Path", "name")),
      makeRow: () => el("div", {}, el("span", { className: "number", role: "gridcell" }, el("span", { className: "share" }), el("span")), el("span", { className: "number", role: "gridcell" }), el("span", { className: "number", role: "gridcell" }), el("span", { className: "name", role: "gridcell" })),
      fillRow: (row, at) => this.fillRow(row, this.nodes[at]),
      open: (at) => this.toggle(this.nodes[at]),
      key: (event, at) => this.key(event, at),
      select: (at) => view.describe(this.nodes[at]),
    });
    this.list.element.style.setProperty("--columns", "minmax(9.5em, 12em) 7em 8.5em minmax(10em, 1fr)");
    this.list.space.addEventListener("click", (event) => {
      if (event.target.classList.contains("twist")) this.toggle(this.nodes[Number(event.target.closest("[data-index]").dataset.index)]);
    });
    this.element = this.list.element;
    this.nodes = [];
  }

  /** Forgets the rows of the tree before, and opens the path with the most time. */
  reset() {
    const { tree } = this.view;
    this.open = new Set([0]);
    this.nodes = [];
    this.list.resize(0);
    for (let node = tree.first[0]; node !== UNKNOWN && tree.total[node] * 2 >= tree.total[0]; node = tree.first[node]) this.open.add(node);
  }

  update() {
    const { tree, root } = this.view;
    this.nodes = [];
    const stack = [root];
    while (stack.length > 0) {
      const node = stack.pop();
      this.nodes.push(node);
      if (!this.open.has(node)) continue;
      const children = [];
      for (let child = tree.first[node]; child !== UNKNOWN; child = tree.next[child]) children.push(child);
      stack.push(...children.reverse());
    }
    this.list.resize(this.nodes.length);
  }

  toggle(node) {
    if (this.view.tree.first[node] === UNKNOWN) return;
    if (!this.open.delete(node)) this.open.add(node);
    this.update();
    this.list.choose(this.nodes.indexOf(node));
  }

  key(event, at) {
    const node = this.nodes[at];
    if (node === undefined) return false;
    const isOpen = this.open.has(node) && this.view.tree.first[node] !== UNKNOWN;
    if (event.key === "ArrowRight") {
      if (isOpen) this.list.choose(at + 1);
      else this.toggle(node);
      return true;
    }
    if (event.key === "ArrowLeft") {
      if (isOpen) this.toggle(node);
      else this.list.choose(this.nodes.indexOf(this.view.tree.parent[node]));
      return true;
    }
    return false;
  }

  fillRow(row, node) {
    const { tree, test, run, root } = this.view;
    const [inclusive, self, calls, name] = row.children;
    const depth = tree.depth[node] - tree.depth[root];
    setShare(inclusive.firstChild, tree.total[node], tree.total[0]);
    inclusive.lastChild.textContent = seenAmount(tree.total[node]);
    inclusive.title = `Inclusive: ${exactAmount(tree.total[node])}`;
    self.textContent = node === 0 ? "" : seenAmount(tree.self[node]);
    self.title = node === 0 ? "" : `Self: ${exactAmount(tree.self[node])}`;
    calls.textContent = node === 0 ? "" : count(tree.calls[node]);
    const leaf = tree.first[node] === UNKNOWN;
    const id = tree.func[node];
    const twist = el("span", { className: "twist", textContent: leaf ? "" : this.open.has(node) ? "▾" : "▸", "aria-hidden": "true" });
    const shown = node === 0 || id === OTHERS ? el("span", { className: "quiet", textContent: this.view.name(node) }) : functionLink(run, id);
    fill(name, twist, shown);
    name.title = id === OTHERS ? "" : describe(run, id);
    name.style.paddingLeft = `${Math.min(depth, 60) * 14}px`;
    name.classList.toggle("hit", Boolean(test && id !== OTHERS && test(id)));
    row.setAttribute("aria-level", String(depth + 1));
    if (leaf) row.removeAttribute("aria-expanded");
    else row.setAttribute("aria-expanded", String(this.open.has(node)));
  }
}
