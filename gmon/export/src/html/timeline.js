// The view of a trace: the calls of each thread on a line of time, the callers above what they call.

/** The heights of a thread's title and of a row of calls, in pixels. */
const LANE_TITLE = 20;
const LANE_ROW = 17;
/** The height of the scale above all threads. */
const SCALE = 20;

class TimelineView {
  constructor(run) {
    this.run = run;
    this.line = run.timeline;
    this.names = this.line.names.map(visible);
    this.labels = this.names.map((name, at) => visible(this.line.short[at] ?? name));
    this.ids = new Map(run.names.map((name, id) => [name, id]));
    this.end = Math.max(this.line.end, 1);
    this.from = 0;
    this.span = this.end;
    this.chosen = null;
    this.hover = null;
    this.lanes = placed(this.line.lanes);
    this.height = this.lanes.reduce((end, lane) => Math.max(end, lane.top + lane.height), SCALE);
    this.build();
  }

  build() {
    const button = (textContent, title, onclick) => el("button", { type: "button", textContent, title, onclick });
    this.status = el("output", { className: "status" });
    const bar = el(
      "div", { className: "bar" },
      button("Zoom in", "+", () => this.zoom(0.5)), button("Zoom out", "-", () => this.zoom(2)), button("All", "Escape", () => this.look(0, this.end)),
      el("span", { className: "quiet", textContent: "Drag to move, Ctrl and the wheel to zoom, double click for one call" }), this.status,
    );
    this.canvas = el("canvas", { tabIndex: 0, role: "application", "aria-label": "Time line. Left and right move, plus and minus zoom, Escape shows all." });
    this.space = el("div", { className: "flame-space" }, this.canvas);
    this.space.style.height = `${this.height}px`;
    this.area = el("div", { className: "flame timeline" }, this.space);
    this.about = el("div", { className: "about", "aria-live": "polite" });
    this.element = el("section", { className: "view" }, bar, this.note(), this.area, this.about);
    this.area.addEventListener("scroll", () => this.paint(), { passive: true });
    this.canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.canvas.addEventListener("mousedown", (event) => { this.drag = { x: event.clientX, y: event.clientY, from: this.from, top: this.area.scrollTop, moved: false }; });
    this.canvas.addEventListener("mousemove", (event) => this.move(event));
    this.canvas.addEventListener("mouseup", (event) => this.release(event));
    this.canvas.addEventListener("mouseleave", () => this.leave());
    this.canvas.addEventListener("dblclick", (event) => this.open(event));
    this.canvas.addEventListener("keydown", (event) => this.keydown(event));
    new ResizeObserver(() => this.paint()).observe(this.area);
    this.flame = { draw: () => this.paint() };
    this.describe();
  }

  /** Returns what is said of what is left out, or null if nothing is. */
  note() {
    const { line } = this;
    const kept = line.lanes.reduce((sum, lane) => sum + lane.start.length, 0);
    const parts = [];
    if (line.leftOut > 0) parts.push(`${count(kept)} of ${counted(kept + line.leftOut, "call", "calls")} of the trace are here: the longest of each thread`);
    if (line.threadsLeftOut > 0) parts.push(`${counted(line.threadsLeftOut, "thread is", "threads are")} left out`);
    return parts.length === 0 ? null : el("p", { className: "guess", textContent: `${parts.join("; ")}. gmon trace shows all of it.` });
  }

  show() {
    this.paint();
  }

  /** Shows a part of the time, as far as there is one. */
  look(from, span) {
    this.span = Math.min(Math.max(span, 20), this.end);
    this.from = Math.min(Math.max(from, 0), this.end - this.span);
    this.paint();
  }

  /** Changes how much is seen, with a place of the window (0 to 1) staying where it is. */
  zoom(factor, place = 0.5) {
    const fixed = this.from + place * this.span;
    const span = Math.min(Math.max(this.span * factor, 20), this.end);
    this.look(fixed - place * span, span);
  }

  paint() {
    const { canvas, area } = this;
    const [width, height] = [area.clientWidth, area.clientHeight];
    if (width === 0 || height === 0) return;
    const scale = window.devicePixelRatio || 1;
    Object.assign(canvas, { width: Math.round(width * scale), height: Math.round(height * scale) });
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    const style = getComputedStyle(document.documentElement);
    const value = (name) => style.getPropertyValue(name).trim();
    this.paper = { dark: value("--dark") === "1", text: value("--text"), box: value("--box-text"), quiet: value("--quiet"), rest: value("--line"), page: value("--page"), ring: value("--focus") };
    context.font = `11px ${value("--text-font")}`;
    context.textBaseline = "middle";
    this.boxes = [];
    const top = area.scrollTop;
    for (const lane of this.lanes) {
      if (lane.top + lane.height < top || lane.top > top + height) continue;
      this.lane(context, lane, lane.top - top, width);
    }
    this.scale(context, width);
    this.status.textContent = `${duration(Math.round(this.span))} of ${duration(this.end)}`;
  }

  lane(context, lane, y, width) {
    context.fillStyle = this.paper.quiet;
    context.fillText(lane.title, 2, y + LANE_TITLE / 2);
    const perPixel = width / this.span;
    for (let depth = 0; depth < lane.rows.length; depth++) {
      const rowY = y + LANE_TITLE + depth * LANE_ROW;
      if (rowY + LANE_ROW < 0 || rowY > this.area.clientHeight) continue;
      this.row(context, lane, lane.rows[depth], rowY, perPixel);
    }
  }

  row(context, lane, row, y, perPixel) {
    // The calls of a row follow each other, so all after the last one that began before are seen.
    let at = Math.max(0, firstAfter(row, lane.start, this.from) - 1);
    let drawn = -1;
    for (; at < row.length; at++) {
      const span = row[at];
      const x = (lane.start[span] - this.from) * perPixel;
      if (x > this.area.clientWidth) break;
      const right = x + lane.length[span] * perPixel;
      // What is narrower than half a pixel shares it with its neighbours.
      if (right < 0 || right < drawn + 0.5) continue;
      drawn = right;
      const left = Math.max(x, 0);
      this.box(context, { lane, span, x: left, y, width: Math.max(Math.min(right, this.area.clientWidth) - left, 0.5) });
    }
  }

  box(context, box) {
    const { lane, span, x, y, width } = box;
    const id = lane.function[span];
    const light = this.paper.dark ? 30 + shadeOf(id) * 8 : 78 + shadeOf(id) * 9;
    context.fillStyle = `hsl(${HUES[Math.floor(shadeOf(id * 7 + 3) * HUES.length)]} ${this.paper.dark ? 36 : 66}% ${light.toFixed(0)}%)`;
    context.fillRect(x, y, width > 2 ? width - 0.7 : width, LANE_ROW - 1);
    this.boxes.push(box);
    if (this.isSame(this.chosen, box) || this.isSame(this.hover, box)) {
      context.strokeStyle = this.paper.ring;
      context.strokeRect(x + 0.5, y + 0.5, Math.max(width - 1.5, 1), LANE_ROW - 2);
    }
    if (width < 26) return;
    context.fillStyle = this.paper.box;
    context.fillText(Flame.prototype.fitted(context, this.labels[id], width - 6), x + 3, y + LANE_ROW / 2);
  }

  isSame(a, b) {
    return a !== null && a.lane === b.lane && a.span === b.span;
  }

  /** Draws the scale. */
  scale(context, width) {
    context.fillStyle = this.paper.page;
    context.fillRect(0, 0, width, SCALE);
    const step = niceStep((this.span * 110) / width);
    context.fillStyle = this.paper.quiet;
    for (let at = Math.ceil(this.from / step) * step; at <= this.from + this.span; at += step) {
      const x = ((at - this.from) / this.span) * width;
      context.fillRect(x, 0, 1, SCALE - 4);
      context.fillText(at === 0 ? "0" : duration(at), x + 4, SCALE / 2 - 2);
    }
    context.fillStyle = this.paper.rest;
    context.fillRect(0, SCALE - 2, width, 1);
  }

  /** Returns the box at a place of the canvas. */
  at(event) {
    const area = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - area.left, event.clientY - area.top];
    if (y < SCALE) return null;
    return this.boxes.findLast((box) => x >= box.x && x < box.x + Math.max(box.width, 1) && y >= box.y && y < box.y + LANE_ROW) ?? null;
  }

  move(event) {
    if (this.drag && event.buttons === 1) {
      const [x, y] = [event.clientX - this.drag.x, event.clientY - this.drag.y];
      this.drag.moved ||= Math.abs(x) + Math.abs(y) > 3;
      this.area.scrollTop = this.drag.top - y;
      this.look(this.drag.from - (x / this.area.clientWidth) * this.span, this.span);
      return;
    }
    const box = this.at(event);
    const tip = document.getElementById("tip");
    tip.hidden = !box;
    if (!box || !this.hover || !this.isSame(this.hover, box)) {
      this.hover = box;
      this.paint();
    }
    if (!box) return;
    fill(tip, el("b", { textContent: this.names[box.lane.function[box.span]] }), ...this.facts(box).map((text) => el("div", { textContent: text })));
    const [x, y] = [event.clientX + 14, event.clientY + 16];
    tip.style.left = `${Math.max(4, Math.min(x, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${y + tip.offsetHeight > innerHeight ? Math.max(4, event.clientY - tip.offsetHeight - 10) : y}px`;
  }

  /** Returns what is known of a call. */
  facts({ lane, span }) {
    return [`${duration(lane.length[span])} · ${exact(lane.length[span])}`, `from ${duration(lane.start[span])} on · ${lane.title}`];
  }

  release(event) {
    const moved = this.drag?.moved;
    this.drag = null;
    if (moved) return;
    this.chosen = this.at(event);
    this.describe();
    this.paint();
  }

  leave() {
    this.drag = null;
    this.hover = null;
    document.getElementById("tip").hidden = true;
    this.paint();
  }

  open(event) {
    const box = this.at(event);
    if (box) this.look(box.lane.start[box.span] - box.lane.length[box.span] * 0.05, box.lane.length[box.span] * 1.1);
  }

  wheel(event) {
    if (event.ctrlKey || event.metaKey) {
      const area = this.canvas.getBoundingClientRect();
      this.zoom(Math.exp(event.deltaY / 400), (event.clientX - area.left) / area.width);
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      this.look(this.from + ((event.deltaX || event.deltaY) / this.area.clientWidth) * this.span, this.span);
    } else return;
    event.preventDefault();
  }

  keydown(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const moves = {
      ArrowLeft: () => this.look(this.from - this.span / 5, this.span), ArrowRight: () => this.look(this.from + this.span / 5, this.span),
      ArrowUp: () => { this.area.scrollTop -= 60; }, ArrowDown: () => { this.area.scrollTop += 60; },
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), Home: () => this.look(0, this.end),
    };
    if (!(event.key in moves)) return;
    moves[event.key]();
    event.preventDefault();
  }

  /** Says what is chosen, below the line. */
  describe() {
    if (!this.chosen) {
      fill(this.about, el("span", { className: "quiet", textContent: "Click a call to see it here" }));
      return;
    }
    const { lane, span } = this.chosen;
    const name = this.names[lane.function[span]];
    const id = this.ids.get(name);
    const link = id === undefined ? name : fullLink(this.run, id);
    fill(this.about, el("b", { className: "name" }, link), ...this.facts(this.chosen).map((text) => el("span", { className: "fact", textContent: text })));
    this.about.querySelector("a")?.removeAttribute("tabindex");
  }

  escape() {
    if (this.from === 0 && this.span === this.end) return false;
    this.look(0, this.end);
    return true;
  }

  focus() {
    this.canvas.focus({ preventScroll: true });
  }
}

/** Returns the lanes with their places: of each, the indexes of its calls by depth, and where it begins in pixels. */
function placed(lanes) {
  let top = SCALE;
  return lanes.map((lane) => {
    const rows = [];
    lane.depth.forEach((depth, at) => { (rows[depth] ??= []).push(at); });
    for (let depth = 0; depth < rows.length; depth++) rows[depth] ??= [];
    const height = LANE_TITLE + rows.length * LANE_ROW + 4;
    const title = visible(`${lane.name} ${lane.tid}${lane.pid === lane.tid ? "" : `, process ${lane.pid}`}`);
    const out = { ...lane, start: summed(lane.start), rows, top, height, title };
    top += height;
    return out;
  });
}

/** Returns the first place of a row whose call begins after a time. */
function firstAfter(row, starts, time) {
  let [low, high] = [0, row.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (starts[row[middle]] > time) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Returns the least of 1, 2 and 5 times a power of ten that is not less than a number. */
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
  return [1, 2, 5, 10].map((times) => times * power).find((step) => step >= least) ?? 10 * power;
}
