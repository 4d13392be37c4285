// The values of arguments and results: how often each was seen, and in whose calls. `values.rs`, beside this file, makes the texts.

class ValuesView {
  constructor(run) {
    this.run = run;
    this.search = el("input", { type: "search", placeholder: "Filter by name", "aria-label": "Filter by name", oninput: () => this.filter() });
    this.cards = run.values.map((argument) => [`${run.names[argument.function]} ${argument.name}`.toLowerCase(), this.argument(argument)]);
    this.element = el(
      "section", { className: "view summary values" },
      el("div", { className: "bar" }, this.search),
      el("div", { className: "stack" }, ...this.cards.map(([, card]) => card)),
    );
  }

  /** Returns a section with the tables of an argument. */
  argument(argument) {
    const { run } = this;
    const title = el("h2", {}, functionLink(run, argument.function), ` ${visible(argument.name)}`);
    const counted = (rows, heading) => this.table(heading, argument.calls, rows.map(({ calls, text }) => [calls, el("span", { className: "name", textContent: visible(text) })]), 0);
    const by = (rows, heading, more) => this.table(heading, argument.calls, rows.map((row) => [row.calls, this.caller(row), el("span", { className: "name quiet", textContent: visible(row.text) })]), more);
    return el(
      "section", { className: "card" }, title,
      el("p", { textContent: visible(argument.summary) }),
      counted(argument.values, "Value"),
      argument.histogram.length > 0 ? counted(argument.histogram, "Range") : null,
      by(argument.callers, "Caller", argument.more[0]),
      argument.paths.length > 0 ? by(argument.paths, "Path", argument.more[1]) : null,
    );
  }

  /** Returns a caller or a path: links to its functions. */
  caller({ functions, before }) {
    const names = functions.flatMap((id, at) => [at > 0 || before !== null ? " › " : null, functionLink(this.run, id)]);
    const links = [before, ...names].filter((part) => part !== null);
    return el("span", { className: "name" }, ...links);
  }

  table(heading, all, rows, more) {
    const heads = ["Share", "Calls", heading, ...(rows[0]?.length > 2 ? ["Values"] : [])];
    const cells = rows.map(([calls, ...others]) => [shareCell(calls, all), el("span", { className: "number", textContent: count(calls) }), ...others]);
    return smallTable(heading, heads, cells, more > 0 ? el("span", { className: "quiet", textContent: `and ${more} more` }) : null);
  }

  filter() {
    const test = matcher(this.search.value);
    for (const [name, card] of this.cards) card.hidden = !test(name);
  }

  show() {}

  escape() {
    if (this.search.value === "") return false;
    this.search.value = "";
    this.filter();
    return true;
  }

  focus() {
    document.getElementById("main").focus({ preventScroll: true });
  }
}
