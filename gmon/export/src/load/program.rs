//! A gmon.out and its program.

use std::path::Path;

use gmon::{Profile, Relation};
use gmon_run::{Module, Program};
use gprofinject_image::debug::{DebugFile, Lines, debug_files, file_with_names};
use gprofinject_image::headers;
use gprofinject_image::{FunctionKind, Image, gprof};
use object::Object;

use crate::estimate::estimate;
use crate::load::blocks;
use crate::load::charge::{Hits, Symbol, Symbols, charge};
use crate::load::contract::{Detail, LoadError};
use crate::load::lines::{Places, add_lines};
use crate::model::{Run, View};

/// Returns what a gmon.out says of its program. `bytes` is the program's file, which is at `path`.
///
/// # Errors
/// The file is not a program, or is another build than the profile's.
pub fn program(path: &Path, bytes: &[u8], profile: &Profile, detail: Detail) -> Result<Run, LoadError> {
    let (mut run, mut hits) = KnownProgram::read(path, bytes)?.charged(profile)?;
    let has_calls = !profile.arcs.is_empty();
    blocks::add(&mut run, blocks::Of { module: 0, path, bytes, has_calls }, profile, detail)?;
    estimate(&mut run);
    if detail == Detail::Lines {
        let mut places = Places::new(&mut run);
        hits.retain(|hit| hit.hits > 0.0);
        let samples: Vec<_> = hits.iter().map(|hit| (hit.function, hit.address, hit.hits)).collect();
        if let Some(lines) = lines_of(path, bytes) {
            add_lines(&mut places, 0, &lines, &samples);
        }
        places.finish();
    }
    Ok(run)
}

/// A program whose symbols were read, for the profiles of many runs.
pub struct KnownProgram {
    own: gmon::Program,
    symbols: Symbols,
    /// A run without calls and samples.
    run: Run,
}

impl KnownProgram {
    /// Reads the symbols of a program, or those of its debug file. `bytes` is the program's file, which is at `path`.
    ///
    /// # Errors
    /// The file is not a program.
    pub fn read(path: &Path, bytes: &[u8]) -> Result<KnownProgram, LoadError> {
        let own = gprof::parse(bytes)?;
        let shown = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let run = Run {
            program: name.clone(),
            view: View::Program,
            programs: vec![Program { name, processes: 1, ..Program::default() }],
            modules: vec![module(&shown, bytes)],
            ..Run::default()
        };
        let debug = file_with_names(path, bytes);
        let named = debug.as_ref().map(|debug| gprof::parse(&debug.bytes)).transpose()?;
        let known = named.as_ref().filter(|named| !named.functions().is_empty()).unwrap_or(&own);
        let end = own.code().iter().map(|range| range.end).max().unwrap_or(0);
        let symbols = match known.functions().is_empty() {
            true => nameless(&run.program, bytes, debug.as_ref().map(|debug| &*debug.bytes), end),
            false => symbols(known, end),
        };
        Ok(KnownProgram { own, symbols, run })
    }

    /// Returns the program as gprof sees it.
    pub fn program(&self) -> &gmon::Program {
        &self.own
    }

    /// Returns the functions of a run, with their calls, samples and self times, and the arcs. It has neither inclusive
    /// times nor counts of basic blocks.
    ///
    /// # Errors
    /// The profile is of another build of the program.
    pub fn functions(&self, profile: &Profile) -> Result<Run, LoadError> {
        self.charged(profile).map(|(run, _)| run)
    }

    fn charged(&self, profile: &Profile) -> Result<(Run, Vec<Hits>), LoadError> {
        if let Err(differ) = self.own.build_id.agree(profile.build_id) {
            return Err(LoadError::Build { profile: differ.other, program: differ.first });
        }
        if profile.format != self.own.format && !profile.is_empty() {
            return Err(LoadError::Format { profile: profile.format, program: self.own.format });
        }
        let mut run = self.run.clone();
        let hits = charge(&mut run, &self.symbols, profile);
        Ok((run, hits))
    }
}

/// Returns the line information of a program, from itself or from its debug file.
pub(crate) fn lines_of(path: &Path, bytes: &[u8]) -> Option<Lines> {
    let of_debug_file = |file: DebugFile| Lines::of(&file.bytes, path, Some(&file.path)).ok();
    Lines::of(bytes, path, None).ok().or_else(|| debug_files(path, bytes).find_map(of_debug_file))
}

/// Returns the module of a program's file.
fn module(path: &Path, bytes: &[u8]) -> Module {
    let code = headers::read(bytes).map(|program| program.code).unwrap_or_default();
    let build_id = object::File::parse(bytes).ok().and_then(|file| Some(file.build_id().ok()??.to_vec()));
    let first = code.first();
    Module {
        path: path.to_string_lossy().into_owned(),
        build_id: build_id.unwrap_or_default(),
        start: first.map_or(0, |segment| segment.address),
        limit: code.iter().map(|segment| segment.address.saturating_add(segment.len)).max().unwrap_or(0),
        offset: first.map_or(0, |segment| segment.offset),
        ..Module::default()
    }
}

/// Returns the symbols of a program: those that gprof knows, and those that it leaves out.
fn symbols(program: &gmon::Program, end: u64) -> Symbols {
    let symbol = |function: &gmon::Function| Symbol {
        start: function.start,
        name: function.name.clone(),
        module: Some(0),
        address: function.start,
        size: function.size,
        ..Symbol::default()
    };
    let mut list: Vec<_> = program.functions().iter().map(symbol).collect();
    list.extend(program.hidden().iter().map(|hidden| symbol(&hidden.function)));
    list.sort_by_key(|symbol| symbol.start);
    list.dedup_by_key(|symbol| symbol.start);
    for hidden in program.hidden() {
        let Some(whole) = hidden.whole.filter(|whole| whole.relation == Relation::Piece) else { continue };
        let index = |start: u64| list.binary_search_by_key(&start, |symbol| symbol.start).ok();
        if let (Some(part), Some(whole)) = (index(hidden.function.start), index(whole.start)) {
            list[part].whole = Some(whole);
        }
    }
    Symbols { list, end }
}

/// Returns the functions of a program without symbols: those that its unwind tables describe.
fn nameless(program: &str, bytes: &[u8], names: Option<&[u8]>, end: u64) -> Symbols {
    let Ok(image) = Image::read_with(bytes, names).or_else(|_| Image::read_library(bytes, names)) else {
        return Symbols { list: Vec::new(), end };
    };
    let list = image.functions.iter().map(|function| Symbol {
        start: function.address,
        name: match function.name {
            "" => format!("{program}+{:#x}", function.address),
            name => name.to_owned(),
        },
        module: Some(0),
        address: function.address,
        size: function.size,
        whole: match function.kind {
            FunctionKind::Cold(whole) => whole,
            _ => None,
        },
    });
    Symbols { list: list.collect(), end }
}
