// What the report knows of a run. `data.rs`, beside this file, describes each field.

/** The columns that say how long single calls took. */
const DURATIONS = ["min", "p50", "p99", "max"];

/** What the page knows of a run. */
class Run {
  constructor(raw) {
    Object.assign(this, { program: raw.program, facts: raw.facts, notes: raw.notes, time: raw.time, timeline: raw.timeline, values: raw.values });
    this.modules = raw.modules;
    this.programs = raw.programs;
    this.processes = raw.processes;
    this.threads = raw.threads;
    this.files = raw.files;
    const f = raw.functions;
    this.names = f.name.map(visible);
    this.shorts = f.short.map((name) => (name === null ? null : visible(name)));
    this.size = this.names.length;
    this.module = f.module;
    this.file = f.file;
    this.line = f.line;
    this.columns = {};
    for (const key of ["calls", "primitive", "self", "inclusive", ...DURATIONS, "cpu", "instructions"]) {
      const column = numbers(f[key]);
      if (column) this.columns[key] = column;
    }
    this.addDerived(this.columns);
    this.total = raw.total;
    this.cycle = f.cycle;
    this.cycles = raw.cycles;
    this.arcs = {
      caller: summed(raw.arcs.caller),
      callee: raw.arcs.callee,
      calls: numbers(raw.arcs.calls),
      self: numbers(raw.arcs.self),
      inclusive: numbers(raw.arcs.inclusive),
    };
    // The caller of an arc has the number 0 if no function of the table called.
    this.byCaller = grouped(this.arcs.caller, this.size + 1);
    this.byCallee = grouped(this.arcs.callee, this.size);
    this.nodes = raw.nodes && { ...raw.nodes, calls: numbers(raw.nodes.calls), self: numbers(raw.nodes.self) };
    this.rows = raw.rows;
    this.programRows = raw.programRows;
    this.sources = raw.sources;
    this.code = raw.code;
    this.codeOf = new Map((raw.code ?? []).map((code, at) => [code.function, at]));
    this.sourceOf = new Map((raw.sources ?? []).map((source, at) => [source.file, at]));
    this.lower = null;
  }

  /** Returns a function's name with less of what is between brackets. */
  short(id) {
    return this.shorts[id] ?? this.names[id];
  }

  /** Adds the columns that follow from others. */
  addDerived(columns) {
    const { self, inclusive, primitive, cpu } = columns;
    if (inclusive && primitive && this.time.kind !== "none") {
      columns.mean = inclusive.map((ns, i) => (ns !== UNKNOWN && primitive[i] > 0 ? ns / primitive[i] : UNKNOWN));
    }
    if (self && cpu && this.time.kind !== "executed") columns.waiting = self.map((ns, i) => Math.max(0, ns - cpu[i]));
  }

  /** Returns the column by which functions are compared first: the one that says most of where the time went. */
  mainColumn() {
    if (this.total > 0) return "self";
    return this.columns.instructions && sum(this.columns.instructions) > 0 ? "instructions" : "calls";
  }

  /** Returns the columns of a part of the run (`part` below), in which a function that did not run there has UNKNOWN. */
  columnsOf({ thread, program }) {
    const [rows, of, wanted] = thread === UNKNOWN ? [this.programRows, this.programRows?.program, program] : [this.rows, this.rows?.thread, thread];
    if (wanted === UNKNOWN || !rows) return this.columns;
    const columns = {};
    for (const key of ["calls", "primitive", "self", "inclusive", ...DURATIONS]) {
      if (!rows[key]) continue;
      const column = new Float64Array(this.size).fill(UNKNOWN);
      rows[key].forEach((value, row) => {
        if (of[row] === wanted) column[rows.function[row]] = value ?? UNKNOWN;
      });
      columns[key] = column;
    }
    this.addDerived(columns);
    return columns;
  }

  /** Returns which threads a part of the run has: UNKNOWN for all, the index of one, or a set. */
  threadsOf({ thread, program }) {
    if (thread !== UNKNOWN || program === UNKNOWN) return thread;
    return new Set(this.threads.map((_, at) => at).filter((at) => this.threads[at].program === program));
  }

  /** Returns the choices of a part of the run, as groups of [word, text]; the first group has all of it. `rows`: parts that have rows only. */
  parts(rows) {
    const programs = this.programs.map((program, at) => [`p${at}`, programName(program)]);
    const threads = this.threads.map((thread, at) => [`t${at}`, threadName(thread)]);
    const known = new Set(rows ? this.programRows?.program : this.threads.map((thread) => thread.program));
    return {
      "": [["", "All of the run"]],
      Programs: this.programs.length > 1 ? programs.filter((_, at) => known.has(at)) : [],
      Threads: this.threads.length > 1 && (this.rows || !rows) ? threads : [],
    };
  }

  /** Returns the names in lower case, for searching. */
  lowerNames() {
    this.lower ??= this.names.map((name) => name.toLowerCase());
    return this.lower;
  }

  /** Returns the arcs whose callee is this function. */
  arcsInto(id) {
    return this.byCallee.items.subarray(this.byCallee.starts[id], this.byCallee.starts[id + 1]);
  }

  /** Returns the arcs whose caller is this function. */
  arcsFrom(id) {
    return this.byCaller.items.subarray(this.byCaller.starts[id + 1], this.byCaller.starts[id + 2]);
  }
}

/** Returns the part of a run that a word names: "p1" is the program with the index 1, "t2" a thread, and anything else all of the run. */
function part(word) {
  const [, kind, index] = /^([pt])(\d{1,9})$/.exec(word ?? "") ?? [];
  return { thread: kind === "t" ? Number(index) : UNKNOWN, program: kind === "p" ? Number(index) : UNKNOWN };
}

/** Returns how a program is called. */
function programName({ name, processes, pid }) {
  return visible(processes > 1 ? `${name} (${processes} processes)` : pid > 0 ? `${name} (${pid})` : name);
}

/** Returns how a thread is called. */
function threadName(thread) {
  return visible(`${thread.name || "thread"} ${thread.tid}`);
}

/** Returns the indexes of a column's elements, those with equal values together: value v has items[starts[v]..starts[v + 1]]. */
function grouped(column, values) {
  const starts = new Uint32Array(values + 1);
  for (const value of column) starts[value + 1]++;
  for (let v = 0; v < values; v++) starts[v + 1] += starts[v];
  const next = starts.slice();
  const items = new Uint32Array(column.length);
  for (let i = 0; i < column.length; i++) items[next[column[i]]++] = i;
  return { starts, items };
}
