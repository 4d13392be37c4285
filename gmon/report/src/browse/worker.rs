//! The thread that reads: the part of a run that was chosen, source lines and instructions. It remembers what it has read.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};

use gmon_export::Run;
use gmon_export::html::Listing;
use gmon_export::load::{Detail, recording};
use gmon_run::{Clock, Recording};
use gprofinject_image::debug::module_file;

use crate::browse::assembly::{Assembly, Module};
use crate::browse::chosen::{Chosen, part};
use crate::browse::data::Symbol;
use crate::browse::source::{self, SourceText};
use crate::cli::report_args::SourceArgs;
use crate::cli::run::{self, Source};
use crate::cli::sources::Sources;
use crate::cli::text::plain;

/// What is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// A part of the run. What is read from then on is of it.
    Choose(Chosen),
    Source(Symbol),
    Assembly(Symbol),
}

/// What was read.
pub(crate) enum Answer {
    Chosen(Chosen, Result<Box<Run>, String>),
    Source(Symbol, Result<SourceText, String>),
    Assembly(Symbol, Result<Assembly, String>),
}

/// The thread, as the browser sees it.
pub(crate) struct Worker {
    requests: Sender<Request>,
    answers: Receiver<Answer>,
}

impl Worker {
    /// Starts the thread. It writes a byte to `waker` for each answer.
    ///
    /// # Errors
    /// There can be no more threads.
    pub(crate) fn start(
        source: Source,
        sources: SourceArgs,
        mut waker: UnixStream,
    ) -> std::io::Result<Worker> {
        let (requests, wanted) = channel();
        let (found, answers) = channel();
        std::thread::Builder::new().name("reader".to_owned()).spawn(move || {
            let mut reader = Reader::new(source, sources);
            while let Ok(request) = wanted.recv() {
                // Of several requests of a kind, the user has gone past all but the last.
                let mut pending: Vec<Request> = [request].into_iter().chain(wanted.try_iter()).collect();
                while !pending.is_empty() {
                    let request = pending.remove(0);
                    let kind = std::mem::discriminant(&request);
                    if pending.iter().any(|later| std::mem::discriminant(later) == kind) {
                        continue;
                    }
                    if found.send(reader.read(request)).is_err() {
                        return;
                    }
                    let _ = waker.write(&[0]);
                }
            }
        })?;
        Ok(Worker { requests, answers })
    }

    /// Asks for something.
    pub(crate) fn ask(&self, request: Request) {
        // The thread ends only with this one.
        let _ = self.requests.send(request);
    }

    /// Returns what was read since the last call.
    pub(crate) fn answers(&self) -> impl Iterator<Item = Answer> + '_ {
        self.answers.try_iter()
    }
}

/// Reads, and remembers.
struct Reader {
    whole: Source,
    /// The part that was chosen; `None` is all.
    part: Option<Source>,
    sources: SourceArgs,
    /// The run with its source lines.
    lines: Option<Run>,
    /// The run with its counts of basic blocks, and its listings.
    listings: Option<(Run, Vec<Listing>)>,
    /// The module of which a function was shown last.
    module: Option<(gmon_run::Module, Result<Module, String>)>,
}

impl Reader {
    fn new(whole: Source, sources: SourceArgs) -> Reader {
        Reader { whole, part: None, sources, lines: None, listings: None, module: None }
    }

    fn read(&mut self, request: Request) -> Answer {
        match request {
            Request::Choose(chosen) => Answer::Chosen(chosen, self.choose(chosen).map(Box::new)),
            Request::Source(symbol) => {
                let text = self.source(&symbol);
                Answer::Source(symbol, text)
            }
            Request::Assembly(symbol) => {
                let assembly = self.assembly(&symbol);
                Answer::Assembly(symbol, assembly)
            }
        }
    }

    fn shown(&self) -> &Source {
        self.part.as_ref().unwrap_or(&self.whole)
    }

    fn choose(&mut self, chosen: Chosen) -> Result<Run, String> {
        (self.lines, self.listings) = (None, None);
        self.part = match &self.whole {
            Source::Recording { recording, subject, is_library, names } if chosen != Chosen::All => {
                Some(Source::Recording {
                    recording: Box::new(part(recording, chosen)),
                    subject: subject.clone(),
                    is_library: *is_library,
                    names: names.clone(),
                })
            }
            _ => None,
        };
        self.shown().run(Detail::Functions).map_err(|error| format!("{error:#}"))
    }

    fn source(&mut self, symbol: &Symbol) -> Result<SourceText, String> {
        if self.lines.is_none() {
            self.lines = Some(with_lines(self.shown()).map_err(|error| format!("{error:#}"))?);
        }
        let Some(lines) = &self.lines else { return Err(String::new()) };
        let name = plain(&symbol.name);
        let Some(function) = source::find(lines, symbol) else {
            return Err(format!("neither samples nor counts of basic blocks say which lines {name} ran"));
        };
        let program = self.shown().program();
        let mut sources = Sources::new(&self.sources, &program, run::authors(lines))
            .map_err(|error| format!("{error:#}"))?
            .interpreted_in(lines);
        let mut text = source::source(lines, function, &name, |path| sources.read(path))?;
        text.remark = sources.remarks().into_iter().next();
        Ok(text)
    }

    fn assembly(&mut self, symbol: &Symbol) -> Result<Assembly, String> {
        let samples = samples(self.shown(), symbol);
        if let Some(listing) = self.listing(symbol) {
            return Ok(Assembly::of(listing, &samples));
        }
        if self.module.as_ref().is_none_or(|(known, _)| *known != symbol.module) {
            self.module = Some((symbol.module.clone(), self.module(symbol)));
        }
        match &mut self.module {
            Some((_, Ok(module))) => module.assembly(symbol, &samples),
            Some((_, Err(error))) => Err(error.clone()),
            None => Err(String::new()),
        }
    }

    /// Returns the instructions of a function with their counts, if its basic blocks were counted.
    fn listing(&mut self, symbol: &Symbol) -> Option<&Listing> {
        if self.listings.is_none() {
            let is_counted = match self.shown() {
                Source::Recording { recording, .. } => !recording.blocks.is_empty(),
                Source::Profile { profiles, .. } => {
                    profiles.iter().any(|(_, profile)| !profile.blocks.is_empty())
                }
            };
            let read = || {
                let run = self.shown().run(Detail::Functions).ok()?;
                let listings = self.shown().listings(&run).ok()?;
                Some((run, listings))
            };
            self.listings = Some(is_counted.then(read).flatten().unwrap_or_default());
        }
        let (run, listings) = self.listings.as_ref()?;
        let function = source::find(run, symbol)?;
        listings.iter().find(|listing| listing.function == function)
    }

    /// Reads the code of a function's module.
    fn module(&self, symbol: &Symbol) -> Result<Module, String> {
        let path = Path::new(&symbol.module.path);
        let shown = plain(&symbol.module.path);
        if let Source::Profile { program, bytes, .. } = self.shown() {
            return Module::read(program, bytes).map_err(|error| format!("{shown}: {error}"));
        }
        if symbol.module.is_generated() {
            return Err(format!(
                "{shown}: what is interpreted or made at run time has no instructions in a file"
            ));
        }
        let found = path.is_absolute().then(|| module_file(path, &symbol.module.build_id)).flatten();
        let Some((bytes, _)) = found.filter(|(bytes, _)| symbol.module.is_of(bytes)) else {
            return Err(format!("{shown}: not there any more as it was during the run"));
        };
        Module::read(path, &bytes).map_err(|error| format!("{shown}: {error}"))
    }
}

/// Returns a run with its source lines.
fn with_lines(source: &Source) -> anyhow::Result<Run> {
    match source {
        Source::Recording { recording: measured, .. } if measured.is_measured() => {
            // The model has lines of sampled runs only, and a measured run was sampled as well.
            let sampled = Recording {
                clock: Clock::default(),
                threads: Vec::new(),
                rows: Vec::new(),
                arcs: Vec::new(),
                nodes: Vec::new(),
                stacks: Vec::new(),
                ..Recording::clone(measured)
            };
            Ok(recording(&sampled, Detail::Lines))
        }
        source => source.run(Detail::Lines),
    }
}

/// Returns the samples of a function by link address.
fn samples(source: &Source, symbol: &Symbol) -> BTreeMap<u64, u64> {
    let mut samples: BTreeMap<u64, u64> = BTreeMap::new();
    let mut add = |address: u64, number: u64| {
        let sum = samples.entry(address).or_default();
        *sum = sum.saturating_add(number);
    };
    match source {
        Source::Recording { recording, .. } => {
            let is_it = |function: &gmon_run::Function| {
                let module = recording.modules.get(function.module as usize);
                let is_named_so = function.name == symbol.name || function.name.is_empty();
                function.address == symbol.address && is_named_so && module == Some(&symbol.module)
            };
            let wanted: Vec<bool> = recording.functions.iter().map(is_it).collect();
            let is_wanted = |index: u32| wanted.get(index as usize).copied().unwrap_or(false);
            let hits = recording.hits.iter().filter(|hits| hits.address > 0 && is_wanted(hits.function));
            hits.for_each(|hits| add(hits.address, hits.samples));
        }
        Source::Profile { profiles, .. } => {
            let range = symbol.address..symbol.address.saturating_add(symbol.size.max(1));
            for histogram in profiles.iter().flat_map(|(_, profile)| &profile.histograms) {
                for (bin, &number) in histogram.bins.iter().enumerate().filter(|&(_, &number)| number > 0) {
                    // A bin covers a few bytes, so its samples may be the next instruction's.
                    let address = histogram.bin_address(bin);
                    if range.contains(&address) {
                        add(address, number);
                    }
                }
            }
        }
    }
    samples
}
