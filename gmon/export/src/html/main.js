// Which view is shown, by the address's hash; the keys; light and dark.

const VIEWS = [
  { key: "summary", title: "Summary", make: (run) => new SummaryView(run) },
  { key: "functions", title: "Functions", make: (run) => new FunctionsView(run) },
  { key: "graph", title: "Call graph", make: (run) => (run.size > 0 ? new GraphView(run) : nothing("No functions", "The profile names no function.", null)) },
  {
    key: "flame", title: "Flame graph",
    make: (run) => (run.nodes ? new PathsView(run) : nothing("No times in this report", "A flame graph shows times, and this run has none. To measure the time of each call path:", "gprofinject --paths PROGRAM && gmon html")),
  },
  {
    key: "source", title: "Source",
    make: (run) => (run.sources?.length ? new SourceView(run) : nothing("No source in this report", "No source line of the functions is known. To count how often each line ran, of a program that was compiled with -g:", "gprofinject --count lines PROGRAM && gmon html")),
  },
  {
    key: "assembly", title: "Disassembly",
    make: (run) => (run.code?.length ? new AssemblyView(run) : nothing("No instructions in this report", "The files of the program and its libraries are not here, or the report was written without them. To count how often each instruction ran:", "gprofinject --count blocks PROGRAM && gmon html")),
  },
  {
    key: "timeline", title: "Time line",
    make: (run) => (run.timeline ? new TimelineView(run) : nothing("No trace in this report", "A time line shows when each call began and ended, which a trace has:", "gprofinject --trace gmon.trace PROGRAM && gmon html --trace gmon.trace")),
  },
  {
    key: "values", title: "Values",
    make: (run) => (run.values ? new ValuesView(run) : nothing("No values in this report", "No values of arguments were kept. To keep those of a function, with the paths of its calls:", "gprofinject --paths --values 'FUNCTION@arg1/u64' PROGRAM && gmon html")),
  },
];

const KEYS = [
  ["1 … 8", "the views, from Summary to Values"],
  ["/", "search, or filter by name"],
  ["↑ ↓ PgUp PgDn Home End", "move in a table; in the flame graph, to the parent and to the child with the most time"],
  ["← →", "in the flame graph, to the calls beside; in the tree, close and open"],
  ["Enter", "go to the function's callers and callees; in the flame graph, zoom"],
  ["← → + -", "in the time line, move and zoom"],
  ["Escape", "clear the search, zoom out, close this help"],
  ["Alt ← Alt →", "back and forward, as everywhere in a browser"],
  ["t", "light or dark"],
  ["?", "this help"],
];

/** Returns a view that says why there is nothing to see. */
function nothing(title, text, command) {
  const element = el("section", { className: "view" }, empty(title, text, command));
  return { element, show() {}, escape: () => false, focus: () => document.getElementById("main").focus({ preventScroll: true }) };
}

class Page {
  constructor(run) {
    this.run = run;
    this.made = new Map();
    this.main = document.getElementById("main");
    document.getElementById("program").textContent = visible(run.program);
    fill(document.getElementById("views"), ...VIEWS.map(({ key, title }) => el("a", { href: `#${key}`, textContent: title, "data-view": key })));
    window.addEventListener("hashchange", () => this.go());
    window.addEventListener("keydown", (event) => this.keydown(event));
    window.addEventListener("beforeprint", () => this.print(true));
    window.addEventListener("afterprint", () => this.print(false));
    document.getElementById("theme").addEventListener("click", () => switchTheme(this.view));
    document.getElementById("help-button").addEventListener("click", () => this.help());
    this.go();
  }

  /** Shows what the hash says. */
  go() {
    const [key, query] = location.hash.slice(1).split("?");
    if (key === "main") return;
    const view = VIEWS.find((view) => view.key === key) ?? VIEWS[0];
    if (!this.made.has(view.key)) this.made.set(view.key, view.make(this.run));
    const changed = this.view !== this.made.get(view.key);
    // An element that leaves the page forgets how far it was scrolled.
    if (changed && this.view?.list) this.view.scrolled = this.view.list.element.scrollTop;
    this.view = this.made.get(view.key);
    if (changed) {
      fill(this.main, this.view.element);
      for (const link of document.querySelectorAll("#views a")) {
        if (link.dataset.view === view.key) link.setAttribute("aria-current", "page");
        else link.removeAttribute("aria-current");
      }
      if (this.view.list) this.view.list.element.scrollTop = this.view.scrolled ?? 0;
      this.view.list?.draw();
    }
    document.getElementById("tip").hidden = true;
    this.view.show?.(new URLSearchParams(query ?? ""));
    document.title = `${visible(this.run.program)}: ${view.title}`;
    if (changed) this.view.focus();
    // What is shown now, which may be later than what the address says.
    this.hash = location.hash;
  }

  keydown(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (document.getElementById("help").open) return;
    if (event.key === "Escape") {
      if (this.view.escape()) event.preventDefault();
      if (typing) this.view.focus();
      return;
    }
    if (typing) return;
    const number = Number(event.key);
    if (event.key === "/" && this.view.search) {
      this.view.search.focus();
      this.view.search.select();
    } else if (event.key === "/") {
      location.hash = "#functions";
      setTimeout(() => this.made.get("functions")?.search.focus());
    } else if (event.key === "?") this.help();
    else if (event.key === "t") switchTheme(this.view);
    else if (Number.isInteger(number) && number >= 1 && number <= VIEWS.length) location.hash = `#${VIEWS[number - 1].key}`;
    else return;
    event.preventDefault();
  }

  help() {
    const dialog = document.getElementById("help");
    fill(
      dialog,
      el("h2", { id: "help-title", textContent: "Keys" }),
      el("dl", {}, ...KEYS.flatMap(([key, text]) => [el("dt", {}, el("kbd", { textContent: key })), el("dd", { textContent: text })])),
      el("form", { method: "dialog" }, el("button", { textContent: "Close" })),
    );
    dialog.showModal();
  }

  /** While the page is printed, it is light, and the lists contain their first rows. */
  print(on) {
    const { dataset } = document.documentElement;
    if (on) this.screenTheme = dataset.theme;
    if (on) dataset.theme = "light";
    else dataset.theme = this.screenTheme;
    this.view.flame?.draw();
    this.view.list?.print(on);
    this.view.rows?.list?.print(on);
  }
}

async function start() {
  followBrowser();
  BROWSER_IS_DARK.addEventListener("change", () => {
    followBrowser();
    window.page?.view.flame?.draw();
  });
  const main = document.getElementById("main");
  try {
    if (typeof DecompressionStream === "undefined") throw new Error("this browser has no DecompressionStream; Chrome 80, Firefox 113 and Safari 16.4 have it");
    const data = document.getElementById("data");
    const raw = await unpack(data.textContent);
    data.remove();
    setKind(raw.time.kind);
    window.page = new Page(new Run(raw));
    // The next task but the frame's own comes when the page has been painted.
    requestAnimationFrame(() => setTimeout(() => performance.mark("shown")));
  } catch (error) {
    fill(main, el("p", { className: "problem", role: "alert", textContent: `The profile cannot be shown: ${error.message}` }));
    throw error;
  }
}

start();
