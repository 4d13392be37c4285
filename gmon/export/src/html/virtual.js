// A list of any length, of which only the rows that are seen are in the page.

/** The rows that are kept above and below those that are seen. */
const MARGIN_ROWS = 12;

class VirtualList {
  /**
   * `makeRow()` returns a new row, `fillRow(row, index)` sets what it shows, and `open(index, event)` is what Enter and a double
   * click do. `header` is an element that stays on top.
   */
  constructor({ label, role, rowRole, rowHeight, header, makeRow, fillRow, open, key, select }) {
    Object.assign(this, { rowHeight, makeRow, fillRow, open, key, onselect: select });
    this.rowRole = rowRole;
    this.size = 0;
    this.selected = UNKNOWN;
    this.rows = new Map();
    this.spare = [];
    this.space = el("div", { className: "space", role: "rowgroup" });
    this.element = el("div", { className: "list", role, "aria-label": label, tabIndex: 0 }, header, this.space);
    this.header = header;
    this.name = `list${VirtualList.made++}`;
    this.element.addEventListener("scroll", () => this.draw(), { passive: true });
    this.element.addEventListener("keydown", (event) => this.keydown(event));
    this.space.addEventListener("click", (event) => {
      const row = event.target.closest("[data-index]");
      if (row) this.choose(Number(row.dataset.index));
    });
    this.space.addEventListener("dblclick", (event) => {
      const row = event.target.closest("[data-index]");
      if (row) this.open?.(Number(row.dataset.index), event);
    });
    this.watch = new ResizeObserver(() => this.draw());
    this.watch.observe(this.element);
  }

  /** Sets the number of rows, and shows them anew. */
  resize(size) {
    this.size = size;
    this.space.style.height = `${size * this.rowHeight}px`;
    this.element.setAttribute("aria-rowcount", String(size + (this.header ? 1 : 0)));
    if (this.selected >= size) this.selected = size - 1;
    this.refill();
  }

  /** Shows all rows anew. */
  refill() {
    for (const index of [...this.rows.keys()]) this.drop(index);
    this.draw();
  }

  drop(index) {
    const row = this.rows.get(index);
    this.rows.delete(index);
    row.hidden = true;
    // A name must be that of one row only, and a spare row has no place.
    row.removeAttribute("id");
    delete row.dataset.index;
    this.spare.push(row);
  }

  /** Returns the indexes of the rows to keep: the first, and the one after the last. */
  range() {
    const top = Math.max(0, this.element.scrollTop);
    const from = Math.max(0, Math.floor(top / this.rowHeight) - MARGIN_ROWS);
    const seen = Math.ceil(this.element.clientHeight / this.rowHeight);
    return [from, Math.min(this.size, Math.floor(top / this.rowHeight) + seen + MARGIN_ROWS)];
  }

  draw([from, to] = this.range()) {
    for (const index of [...this.rows.keys()]) if (index < from || index >= to) this.drop(index);
    for (let index = from; index < to; index++) if (!this.rows.has(index)) this.place(index);
  }

  place(index) {
    const row = this.spare.pop() ?? this.newRow();
    row.hidden = false;
    row.dataset.index = index;
    row.id = `${this.name}-${index}`;
    row.style.transform = `translateY(${index * this.rowHeight}px)`;
    row.classList.toggle("odd", index % 2 === 1);
    row.setAttribute("aria-rowindex", String(index + (this.header ? 2 : 1)));
    this.mark(row, index === this.selected);
    this.fillRow(row, index);
    this.rows.set(index, row);
  }

  newRow() {
    const row = this.makeRow();
    row.classList.add("row");
    row.setAttribute("role", this.rowRole ?? "row");
    row.style.height = `${this.rowHeight}px`;
    this.space.append(row);
    return row;
  }

  mark(row, on) {
    row.classList.toggle("selected", on);
    row.setAttribute("aria-selected", String(on));
  }

  /** Selects a row, and scrolls so that it is seen. */
  choose(index, place = "nearest") {
    if (this.size === 0) return;
    const before = this.rows.get(this.selected);
    if (before) this.mark(before, false);
    this.selected = Math.min(Math.max(index, 0), this.size - 1);
    this.show(this.selected, place);
    const row = this.rows.get(this.selected);
    if (row) {
      this.mark(row, true);
      this.element.setAttribute("aria-activedescendant", row.id);
    }
    this.onselect?.(this.selected);
  }

  /** Scrolls so that a row is seen. */
  show(index, place = "nearest") {
    const header = this.header?.offsetHeight ?? 0;
    const top = index * this.rowHeight;
    const room = this.element.clientHeight - header;
    if (place === "middle") this.element.scrollTop = top - room / 3;
    else if (top < this.element.scrollTop) this.element.scrollTop = top;
    else if (top + this.rowHeight > this.element.scrollTop + room) this.element.scrollTop = top + this.rowHeight - room;
    this.draw();
  }

  keydown(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (this.key?.(event, this.selected)) {
      event.preventDefault();
      return;
    }
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.rowHeight) - 2);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.key in steps) this.choose(this.selected === UNKNOWN ? 0 : this.selected + steps[event.key]);
    else if (event.key === "Enter" && this.selected >= 0 && event.target === this.element) this.open?.(this.selected, event);
    else return;
    event.preventDefault();
  }

  /** Has the page contain the first rows, for printing, and undoes that. */
  print(on) {
    if (on) this.draw([0, Math.min(this.size, 500)]);
    this.element.classList.toggle("printed", on);
    if (!on) this.draw();
  }
}
VirtualList.made = 0;
