//! Callgrind's profile format (Valgrind's manual, "Callgrind Format Specification").
//!
//! Each function has lines of its own cost, by address and source line, and a record for each arc with the inclusive cost of its
//! calls. The events are the time in nanoseconds (`ns`), then executed instructions (`Ir`) if these were counted. The inclusive
//! cost of instructions is an estimate by gprof's rule, as times are where none were measured and stacks were not sampled. A run without either has the
//! event `Calls`: a call costs one.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::estimate::estimate;
use crate::formats::names::{distinct, one_line};
use crate::model::{Arc, Frame, Line, Run, Time};

/// The name of the file or module that is not known, as Callgrind writes it.
const UNKNOWN: &str = "???";
/// The name of the caller that is not known.
const NOT_HOOKED: &str = "[not hooked]";

pub(crate) fn write(run: &Run, out: &mut dyn Write) -> io::Result<()> {
    let mut writer = Writer::new(run, out);
    writer.head()?;
    let mut arcs_of: HashMap<Option<u32>, Vec<usize>> = HashMap::new();
    for (index, arc) in run.arcs.iter().enumerate() {
        arcs_of.entry(arc.caller).or_default().push(index);
    }
    let mut spots = run.spots.as_slice();
    for index in 0..run.functions.len() as u32 {
        let len = spots.partition_point(|spot| spot.function <= index);
        let (own, rest) = spots.split_at(len);
        spots = rest;
        let arcs = arcs_of.get(&Some(index)).map_or(&[][..], Vec::as_slice);
        writer.function(index, own.iter().filter(|spot| spot.function == index), arcs)?;
    }
    if let Some(arcs) = arcs_of.get(&None) {
        writeln!(writer.out)?;
        writer.names(UNKNOWN, UNKNOWN, NOT_HOOKED)?;
        let place = Position { address: 0, line: None };
        for &arc in arcs {
            writer.call(arc, place)?;
        }
    }
    let totals = writer.totals.clone();
    writeln!(writer.out, "\ntotals: {}", numbers(&totals))
}

/// What costs are.
#[derive(Clone, Copy)]
enum Event {
    Time,
    /// Instructions that were counted in place of times.
    Executed,
    /// Instructions of the basic blocks that were counted.
    Instructions,
    Calls,
}

#[derive(Clone, Copy)]
struct Position {
    address: u64,
    line: Option<Line>,
}

struct Writer<'r, 'w> {
    run: &'r Run,
    out: &'w mut dyn Write,
    names: Vec<String>,
    events: Vec<Event>,
    /// The inclusive instructions of each arc.
    instructions: Vec<u64>,
    totals: Vec<u64>,
    objects: Numbers,
    files: Numbers,
    functions: Numbers,
    /// The file of the lines that follow.
    file: String,
}

/// The numbers by which names are known after they were written once.
#[derive(Default)]
struct Numbers(HashMap<String, usize>);

impl Numbers {
    /// Returns `(1) name` the first time, and `(1)` then.
    fn text(&mut self, name: &str) -> String {
        let next = self.0.len() + 1;
        match self.0.get(name) {
            Some(number) => format!("({number})"),
            None => {
                self.0.insert(name.to_owned(), next);
                format!("({next}) {name}")
            }
        }
    }
}

impl<'r, 'w> Writer<'r, 'w> {
    fn new(run: &'r Run, out: &'w mut dyn Write) -> Writer<'r, 'w> {
        let mut events = Vec::new();
        match run.time {
            Time::None => {}
            Time::Executed => events.push(Event::Executed),
            Time::Sampled | Time::Estimated | Time::Measured { .. } => events.push(Event::Time),
        }
        // Both are of the same name.
        let has_instructions = run.has_instructions && run.time != Time::Executed;
        if has_instructions {
            events.push(Event::Instructions);
        }
        if events.is_empty() {
            events.push(Event::Calls);
        }
        let instructions = if has_instructions { inclusive_instructions(run) } else { Vec::new() };
        let totals = vec![0; events.len()];
        Writer {
            run,
            out,
            names: distinct(run),
            events,
            instructions,
            totals,
            objects: Numbers::default(),
            files: Numbers::default(),
            functions: Numbers::default(),
            file: String::new(),
        }
    }

    fn head(&mut self) -> io::Result<()> {
        let run = self.run;
        writeln!(self.out, "# callgrind format\nversion: 1")?;
        writeln!(self.out, "creator: gprofinject {}", env!("CARGO_PKG_VERSION"))?;
        if let Some(pid) = run.threads.first().map(|thread| thread.pid) {
            writeln!(self.out, "pid: {pid}")?;
        }
        writeln!(self.out, "cmd: {}", one_line(&run.program))?;
        writeln!(self.out, "part: 1\npositions: instr line")?;
        for event in self.events.clone() {
            let (name, title) = event.names();
            writeln!(self.out, "event: {name} : {title}")?;
        }
        let names: Vec<_> = self.events.iter().map(|event| event.names().0).collect();
        writeln!(self.out, "events: {}", names.join(" "))?;
        let mut sums = vec![0_u64; self.events.len()];
        for function in &run.functions {
            let own = [function.self_ns, function.instructions, function.calls];
            for (sum, event) in sums.iter_mut().zip(&self.events) {
                *sum = sum.saturating_add(event.of(own));
            }
        }
        writeln!(self.out, "summary: {}", numbers(&sums))
    }

    /// Writes a function with its own costs and its calls.
    fn function<'s>(
        &mut self,
        index: u32,
        spots: impl Iterator<Item = &'s crate::model::Spot>,
        arcs: &[usize],
    ) -> io::Result<()> {
        let run = self.run;
        let function = &run.functions[index as usize];
        let object = run.module_of(function).map_or(UNKNOWN, |module| &module.path);
        let file = function.source.map_or(UNKNOWN, |line| run.file_of(line));
        writeln!(self.out)?;
        let name = self.names[index as usize].clone();
        self.names(object, file, &name)?;
        let mut left = [function.self_ns, function.instructions, function.calls];
        for spot in spots {
            let own = [spot.self_ns.min(left[0]), spot.instructions.min(left[1]), 0];
            left.iter_mut().zip(own).for_each(|(left, own)| *left -= own);
            self.cost(position(&spot.frames, spot.address), own)?;
        }
        let start = Position { address: function.address, line: function.source };
        self.cost(start, left)?;
        for &arc in arcs {
            let place = match run.arcs[arc].site {
                Some(site) if !run.arcs[arc].frames.is_empty() => position(&run.arcs[arc].frames, site),
                Some(site) => Position { address: site, ..start },
                None => start,
            };
            self.call(arc, place)?;
        }
        Ok(())
    }

    fn names(&mut self, object: &str, file: &str, name: &str) -> io::Result<()> {
        let (object, file) = (one_line(object), one_line(file));
        writeln!(self.out, "ob={}", self.objects.text(&object))?;
        writeln!(self.out, "fl={}", self.files.text(&file))?;
        writeln!(self.out, "fn={}", self.functions.text(name))?;
        self.file = file;
        Ok(())
    }

    /// Writes a line of own cost, if there is any.
    fn cost(&mut self, at: Position, own: [u64; 3]) -> io::Result<()> {
        let costs: Vec<u64> = self.events.iter().map(|event| event.of(own)).collect();
        if costs.iter().all(|&cost| cost == 0) {
            return Ok(());
        }
        self.totals.iter_mut().zip(&costs).for_each(|(sum, &cost)| *sum = sum.saturating_add(cost));
        self.change_file(at)?;
        writeln!(self.out, "{} {}", at.text(), numbers(&costs))
    }

    /// Writes the calls of an arc from a place in its caller.
    fn call(&mut self, index: usize, at: Position) -> io::Result<()> {
        let run = self.run;
        let arc: &Arc = &run.arcs[index];
        let callee = &run.functions[arc.callee as usize];
        let object = one_line(run.module_of(callee).map_or(UNKNOWN, |module| &module.path));
        let file = one_line(callee.source.map_or(UNKNOWN, |line| run.file_of(line)));
        self.change_file(at)?;
        writeln!(self.out, "cob={}", self.objects.text(&object))?;
        writeln!(self.out, "cfi={}", self.files.text(&file))?;
        writeln!(self.out, "cfn={}", self.functions.text(&self.names[arc.callee as usize]))?;
        let target = Position { address: callee.address, line: callee.source };
        // Readers take the cost of no call for the caller's own, so an arc of sampled stacks that was not counted has one.
        writeln!(self.out, "calls={} {}", arc.calls.max(1), target.text())?;
        let inclusive = [arc.inclusive_ns, self.instructions.get(index).copied().unwrap_or(0), arc.calls];
        let costs: Vec<u64> = self.events.iter().map(|event| event.of(inclusive)).collect();
        writeln!(self.out, "{} {}", at.text(), numbers(&costs))
    }

    /// Names the file of the lines that follow, if it is another one: that of an inlined function.
    fn change_file(&mut self, at: Position) -> io::Result<()> {
        let Some(line) = at.line else { return Ok(()) };
        let file = one_line(self.run.file_of(line));
        if file != self.file {
            writeln!(self.out, "fi={}", self.files.text(&file))?;
            self.file = file;
        }
        Ok(())
    }
}

impl Event {
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Event::Time => ("ns", "Time in nanoseconds"),
            Event::Executed | Event::Instructions => ("Ir", "Instructions executed"),
            Event::Calls => ("Calls", "Calls"),
        }
    }

    /// Returns the cost among those of time, of instructions and of calls.
    fn of(self, [time, instructions, calls]: [u64; 3]) -> u64 {
        match self {
            Event::Time | Event::Executed => time,
            Event::Instructions => instructions,
            Event::Calls => calls,
        }
    }
}

impl Position {
    fn text(self) -> String {
        format!("{:#x} {}", self.address, self.line.map_or(0, |line| line.line))
    }
}

/// Returns the place of the innermost frame.
fn position(frames: &[Frame], address: u64) -> Position {
    Position { address, line: frames.first().and_then(|frame| frame.line) }
}

/// Returns the executed instructions of each arc and of what it has called, by gprof's rule.
fn inclusive_instructions(run: &Run) -> Vec<u64> {
    let functions = run.functions.iter().cloned().map(|mut function| {
        function.self_ns = function.instructions;
        function
    });
    let mut counted = Run { functions: functions.collect(), arcs: run.arcs.clone(), ..Run::default() };
    estimate(&mut counted);
    counted.arcs.into_iter().map(|arc| arc.inclusive_ns).collect()
}

fn numbers(numbers: &[u64]) -> String {
    numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(" ")
}
