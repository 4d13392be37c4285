// Draws the tree of paths as boxes, each as wide as its time.

/** The height of a box in pixels. */
const LEVEL = 19;
/** The narrowest box that is drawn by itself. */
const LEAST = 1.5;
/** The hues of modules, those with the most time first. */
const HUES = [28, 205, 145, 275, 345, 75, 180, 235];

class Flame {
  constructor(view) {
    this.view = view;
    this.boxes = [];
    this.selected = 0;
    this.hover = null;
    this.canvas = el("canvas", {
      tabIndex: 0, role: "application", "aria-label": "Flame graph. Arrow keys move, Enter zooms, Escape zooms out. The tree shows the same as rows.",
    });
    this.space = el("div", { className: "flame-space" }, this.canvas);
    this.element = el("div", { className: "flame" }, this.space);
    this.canvas.addEventListener("mousemove", (event) => this.point(event));
    this.canvas.addEventListener("mouseleave", () => this.leave());
    this.canvas.addEventListener("click", (event) => this.click(event));
    this.canvas.addEventListener("keydown", (event) => this.keydown(event));
    this.canvas.addEventListener("focus", () => this.paint());
    this.canvas.addEventListener("blur", () => this.paint());
    this.element.addEventListener("scroll", () => this.paint(), { passive: true });
    new ResizeObserver(() => this.draw()).observe(this.element);
    this.hueOf = null;
  }

  /** Returns a hue for each module. */
  hues() {
    if (this.hueOf) return this.hueOf;
    const { run } = this.view;
    const time = run.modules.map((_, at) => [at, 0]);
    const weight = run.columns.self ?? run.columns.calls;
    if (weight) for (let id = 0; id < run.size; id++) time[run.module[id]][1] += Math.max(weight[id], 0);
    time.sort((a, b) => b[1] - a[1] || a[0] - b[0]);
    this.hueOf = [];
    time.forEach(([module], rank) => { this.hueOf[module] = rank; });
    this.ranked = time.map(([module]) => module);
    return this.hueOf;
  }

  /** Computes where the boxes lie, and draws them. */
  draw() {
    const width = this.element.clientWidth;
    if (!this.view.tree || width === 0) return;
    this.boxes = layout(this.view.tree, this.view.root, width, LEAST);
    const levels = this.boxes.reduce((most, box) => Math.max(most, box.depth), 0) + 1;
    this.rows = Array.from({ length: levels }, () => []);
    for (const box of this.boxes) this.rows[box.depth].push(box);
    for (const row of this.rows) row.sort((a, b) => a.x - b.x);
    this.space.style.height = `${levels * LEVEL + 1}px`;
    this.paint();
  }

  /** Draws the boxes that are seen. */
  paint() {
    const { canvas, element } = this;
    const width = element.clientWidth;
    const height = element.clientHeight;
    if (!this.rows || width === 0 || height === 0) return;
    const scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    const style = getComputedStyle(document.documentElement);
    this.dark = style.getPropertyValue("--dark").trim() === "1";
    this.paper = { text: style.getPropertyValue("--box-text"), ring: style.getPropertyValue("--focus"), rest: style.getPropertyValue("--line"), page: style.getPropertyValue("--page") };
    context.font = `12px ${style.getPropertyValue("--text-font")}`;
    context.textBaseline = "middle";
    const top = element.scrollTop;
    const last = Math.min(this.rows.length - 1, Math.floor((top + height) / LEVEL));
    for (let depth = Math.floor(top / LEVEL); depth <= last; depth++) {
      for (const box of this.rows[depth]) this.box(context, box, depth * LEVEL - top);
    }
    this.legend();
  }

  /** Says which colour is which. */
  legend() {
    const hues = this.hues();
    const named = this.ranked.slice(0, HUES.length).map((module) => [this.colour(hues[module], 0.5, 1), this.view.run.modules[module].name]);
    this.view.explain(this.ranked.length > HUES.length ? [...named.slice(0, -1), [this.colour(HUES.length, 0.5, 1), "others"]] : named);
  }

  /** Returns a module's colour, a little different for each function. */
  colour(rank, shade, strength) {
    const grey = rank >= HUES.length;
    const hue = grey ? 220 : HUES[rank] + (shade - 0.5) * 22;
    const saturation = (grey ? 8 : this.dark ? 36 : 68) * strength;
    const light = this.dark ? 30 + shade * 6 : 80 + shade * 7;
    return `hsl(${hue.toFixed(0)} ${saturation.toFixed(0)}% ${light.toFixed(1)}%)`;
  }

  /** Returns the colour of a node, which is that of its module. */
  fillOf(node, id) {
    const module = id === OTHERS ? HUES.length : this.hues()[this.view.run.module[id]];
    return this.colour(module, id === OTHERS ? 0.5 : shadeOf(id), node === 0 ? 0 : 1);
  }

  box(context, box, y) {
    const { view } = this;
    const id = box.node === UNKNOWN ? OTHERS : view.tree.func[box.node];
    const [x, width] = [box.x, Math.max(box.width - (box.width > 3 ? 1 : 0.3), 0.4)];
    const faint = view.test && !(id !== OTHERS && view.test(id));
    context.globalAlpha = box.above ? 0.55 : faint ? 0.3 : 1;
    if (box.node === UNKNOWN) context.fillStyle = this.paper.rest;
    else context.fillStyle = this.fillOf(box.node, id);
    context.fillRect(x, y + 0.5, width, LEVEL - 1);
    context.globalAlpha = 1;
    if (view.test && !faint) {
      context.fillStyle = this.paper.ring;
      context.fillRect(x, y + LEVEL - 2.5, width, 2);
    }
    const isHover = this.hover === box;
    if (isHover || (box.node === this.selected && box.node !== UNKNOWN && document.activeElement === this.canvas)) {
      context.strokeStyle = this.paper.ring;
      context.lineWidth = isHover ? 1 : 2;
      context.strokeRect(x + 1, y + 1.5, Math.max(width - 2, 1), LEVEL - 3);
    }
    if (width < 28 || box.node === UNKNOWN) return;
    context.globalAlpha = faint ? 0.75 : 1;
    context.fillStyle = this.paper.text;
    context.fillText(this.fitted(context, view.label(box.node), width - 8), x + 4, y + LEVEL / 2 + 0.5);
    context.globalAlpha = 1;
  }

  /** Returns as much of a text as has room. */
  fitted(context, text, room) {
    // A letter is wider than a pixel, so what is measured is short.
    const start = text.length > room ? text.slice(0, Math.ceil(room)) : text;
    if (start === text && context.measureText(text).width <= room) return text;
    let [low, high] = [0, start.length];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (context.measureText(start.slice(0, middle) + "…").width <= room) low = middle;
      else high = middle - 1;
    }
    return low === 0 ? "" : start.slice(0, low) + "…";
  }

  /** Returns the box at a place of the canvas. */
  at(event) {
    const area = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - area.left, event.clientY - area.top + this.element.scrollTop];
    const row = this.rows?.[Math.floor(y / LEVEL)] ?? [];
    return row.find((box) => x >= box.x && x < box.x + box.width) ?? null;
  }

  point(event) {
    const box = this.at(event);
    if (box !== this.hover) {
      this.hover = box;
      this.paint();
    }
    this.canvas.style.cursor = box && box.node !== UNKNOWN ? "pointer" : "default";
    const tip = document.getElementById("tip");
    tip.hidden = !box;
    if (!box) return;
    this.tell(tip, box);
    const [x, y] = [event.clientX + 14, event.clientY + 16];
    tip.style.left = `${Math.max(4, Math.min(x, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${y + tip.offsetHeight > innerHeight ? Math.max(4, event.clientY - tip.offsetHeight - 10) : y}px`;
  }

  /** Writes what a box is into the tip. */
  tell(tip, box) {
    const { view } = this;
    const { tree, run } = view;
    if (box.node === UNKNOWN) {
      fill(tip, el("b", { textContent: "Several paths, each narrower than a pixel" }), el("div", { textContent: "Zoom in to see them." }));
      return;
    }
    const all = tree.total[0];
    const guess = run.time.estimated.includes("paths") ? " (est.)" : "";
    const id = tree.func[box.node];
    const row = (label, ns) => el("div", {}, `${label} `, el("b", { textContent: amount(ns) }), ` · ${percent(ns, all)} · ${exactAmount(ns)}`);
    fill(
      tip,
      el("b", { textContent: view.name(box.node) }),
      id === OTHERS ? null : el("div", { className: "quiet", textContent: visible(run.modules[run.module[id]].name) }),
      row(`inclusive${guess}`, tree.total[box.node]),
      box.node === 0 ? null : row(`self${guess}`, tree.self[box.node]),
      box.node === 0 || tree.calls[box.node] === UNKNOWN ? null : el("div", { textContent: counted(tree.calls[box.node], "call", "calls") }),
    );
  }

  leave() {
    this.hover = null;
    document.getElementById("tip").hidden = true;
    this.paint();
  }

  click(event) {
    const box = this.at(event);
    if (!box || box.node === UNKNOWN) return;
    this.leave();
    if (box.node === this.view.root) this.choose(box.node);
    else this.view.go({ node: box.node || null });
  }

  /** Makes a node the one that the keys move from. */
  choose(node) {
    this.selected = node;
    this.view.describe(node);
    const level = this.view.tree.depth[node] * LEVEL;
    if (level < this.element.scrollTop) this.element.scrollTop = level;
    else if (level + LEVEL > this.element.scrollTop + this.element.clientHeight) this.element.scrollTop = level + LEVEL - this.element.clientHeight;
    this.draw();
  }

  keydown(event) {
    const { tree } = this.view;
    const node = this.selected;
    const siblings = () => {
      const all = [];
      for (let at = node === 0 ? 0 : tree.first[tree.parent[node]]; at !== UNKNOWN; at = at === 0 ? UNKNOWN : tree.next[at]) all.push(at);
      return all;
    };
    const beside = (step) => {
      const all = siblings();
      return all[all.indexOf(node) + step] ?? node;
    };
    const moves = {
      ArrowDown: () => (tree.first[node] === UNKNOWN ? node : tree.first[node]),
      ArrowUp: () => (tree.parent[node] === UNKNOWN ? node : tree.parent[node]),
      ArrowLeft: () => beside(-1),
      ArrowRight: () => beside(1),
      Home: () => 0,
    };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves) this.choose(moves[event.key]());
    else if (event.key === "Enter") this.view.go({ node: node === this.view.root ? tree.parent[node] || null : node || null });
    else return;
    event.preventDefault();
  }
}

/** Returns a number from 0 to 1 that is always the same for a function, and different for neighbours. */
function shadeOf(id) {
  return (Math.imul(id + 1, 2654435761) >>> 0) / 2 ** 32;
}
