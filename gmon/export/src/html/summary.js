// The first view: what was measured, and where the time went.

class SummaryView {
  constructor(run) {
    this.run = run;
    this.element = el(
      "section", { className: "view summary" },
      el(
        "div", { className: "columns" },
        el("div", { className: "stack" }, ...[this.facts(), this.modules()].filter(Boolean)),
        el("div", { className: "stack" }, ...[this.hottest(), this.threads()].filter(Boolean)),
      ),
    );
  }

  facts() {
    const list = el("dl");
    for (const { label, value } of this.run.facts) list.append(el("dt", { textContent: label }), el("dd", { textContent: visible(value) }));
    const notes = this.run.notes.map((note) => el("li", { textContent: visible(note) }));
    return el("section", { className: "card" }, el("h2", { textContent: "This run" }), list, notes.length > 0 ? el("ul", { className: "notes" }, ...notes) : null);
  }

  /** The functions with the most time of their own, or the most calls. */
  hottest() {
    const { run } = this;
    const key = run.total > 0 ? "self" : "calls";
    const column = run.columns[key];
    if (!column) return null;
    const all = sum(column);
    const ids = Array.from({ length: run.size }, (_, id) => id).filter((id) => column[id] > 0);
    sortByNumber(ids, column, true);
    const column2 = key === "self" ? run.columns.calls : null;
    const rows = ids.slice(0, 12).map((id) => [
      shareCell(column[id], all),
      el("span", { className: "number", textContent: key === "self" ? duration(column[id]) : count(column[id]), title: key === "self" ? exact(column[id]) : "" }),
      column2 ? el("span", { className: "number wide", textContent: count(column2[id]) }) : null,
      nameCell(run, id),
    ]);
    const estimated = run.time.estimated.includes(key) ? " (est.)" : "";
    const heads = [key === "self" ? `Self${estimated}` : "Calls", "", column2 ? "Calls" : null, "Function"];
    return card(key === "self" ? "Most self time" : "Most calls", heads, rows, el("a", { href: "#functions", textContent: `All ${counted(run.size, "function", "functions")}` }));
  }

  modules() {
    const { run } = this;
    const key = run.total > 0 ? "self" : "calls";
    const column = run.columns[key];
    if (!column) return null;
    const time = new Float64Array(run.modules.length);
    const calls = new Float64Array(run.modules.length);
    for (let id = 0; id < run.size; id++) {
      time[run.module[id]] += Math.max(column[id], 0);
      calls[run.module[id]] += Math.max(run.columns.calls?.[id] ?? 0, 0);
    }
    const order = sortByNumber(run.modules.map((_, at) => at).filter((at) => time[at] > 0), time, true);
    const all = sum(time);
    const rows = order.slice(0, 30).map((at) => [
      shareCell(time[at], all),
      el("span", { className: "number", textContent: key === "self" ? duration(time[at]) : count(time[at]), title: key === "self" ? exact(time[at]) : "" }),
      key === "self" ? el("span", { className: "number wide", textContent: count(calls[at]) }) : null,
      el("span", { className: "name", textContent: visible(run.modules[at].name), title: moduleTitle(run.modules[at]) }),
    ]);
    return card("Modules", [key === "self" ? "Self" : "Calls", "", key === "self" ? "Calls" : null, "Module"], rows, null);
  }

  threads() {
    const { run } = this;
    if (run.threads.length < 2) return null;
    const longest = Math.max(0, ...run.threads.map((thread) => thread.life));
    const order = run.threads.map((_, at) => at).sort((a, b) => run.threads[b].life - run.threads[a].life || a - b);
    const rows = order.slice(0, 100).map((at) => {
      const thread = run.threads[at];
      return [
        shareCell(thread.life, longest),
        el("span", { className: "number", textContent: duration(thread.life), title: exact(thread.life) }),
        el("span", { className: "number wide", textContent: duration(thread.outside), title: `No hooked function was running for ${exact(thread.outside)}` }),
        el("span", { className: "name", textContent: threadName(thread) }),
      ];
    });
    const more = run.threads.length > 100 ? el("span", { className: "quiet", textContent: `and ${run.threads.length - 100} more` }) : null;
    return card("Threads", ["Life", "", "Outside", "Thread"], rows, more);
  }

  show() {}

  escape() {
    return false;
  }

  focus() {
    document.getElementById("main").focus({ preventScroll: true });
  }
}

/** Returns a section with a small table. */
function card(title, heads, rows, foot) {
  const cells = (role, list) => list.filter((cell) => cell !== null).map((cell) => {
    if (typeof cell === "string") return el("span", { role, textContent: cell, className: cell === "Function" || cell === "Module" || cell === "Thread" ? "name" : "number" });
    cell.setAttribute("role", role);
    return cell;
  });
  const width = heads.filter((head) => head !== null).length;
  const table = el(
    "div", { className: `small-table columns-${width}`, role: "table", "aria-label": title },
    el("div", { className: "head", role: "row" }, ...cells("columnheader", heads)),
    ...rows.map((row) => el("div", { className: "row", role: "row" }, ...cells("cell", row))),
  );
  return el("section", { className: "card" }, el("h2", { textContent: title }), table, foot ? el("p", { className: "foot" }, foot) : null);
}

/** Returns a cell with a link to a function. */
function nameCell(run, id) {
  const link = functionLink(run, id);
  link.removeAttribute("tabindex");
  return el("span", { className: "name", title: describe(run, id) }, link);
}

/** Returns where a module is, and its build-id. */
function moduleTitle(module) {
  return visible(`${module.path || module.name}${module.buildId ? `\nbuild-id ${module.buildId}` : ""}`);
}
