//! From a gmon.out and its program to the recording of a run, and to its analysis.

use std::path::Path;

use gmon::{Profile, Relation};
use gmon_run::{Module, Program, Recording};
use gprofinject_image::debug::file_with_names;
use gprofinject_image::headers;
use gprofinject_image::{FunctionKind, Image, gprof};
use object::Object;

use crate::load::charge::{Symbol, Symbols, charge};
use crate::load::contract::{Detail, LoadError};
use crate::load::recording::{Files, analysis};
use crate::load::samples::Samples;
use crate::model::Run;

/// Returns what a gmon.out says of its program. `bytes` is the program's file, which is at `path`.
///
/// # Errors
/// The file is not a program, or is another build than the profile's.
pub fn program(path: &Path, bytes: &[u8], profile: &Profile, detail: Detail) -> Result<Run, LoadError> {
    let (recording, samples) = KnownProgram::read(path, bytes)?.recording(profile)?;
    Ok(analysis(&recording, &samples, Files::OfProgram(path, bytes), detail))
}

/// A program whose symbols were read, for the profiles of many runs.
pub struct KnownProgram {
    own: gmon::Program,
    symbols: Symbols,
    /// A recording of nothing but the program.
    recording: Recording,
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
        let debug = file_with_names(path, bytes);
        let named = debug.as_ref().map(|debug| gprof::parse(&debug.bytes)).transpose()?;
        let known = named.as_ref().filter(|named| !named.functions().is_empty()).unwrap_or(&own);
        let end = own.code().iter().map(|range| range.end).max().unwrap_or(0);
        let symbols = match known.functions().is_empty() {
            true => nameless(bytes, debug.as_ref().map(|debug| &*debug.bytes), end),
            false => symbols(known, end),
        };
        let recording = Recording {
            programs: vec![Program { name, processes: 1, ..Program::default() }],
            modules: vec![module(&shown, bytes)],
            ..Recording::default()
        };
        Ok(KnownProgram { own, symbols, recording })
    }

    /// Returns the program as gprof sees it.
    pub fn program(&self) -> &gmon::Program {
        &self.own
    }

    /// Returns the functions of a run, with their calls, samples and times, and the arcs. Counts of basic blocks are left out.
    ///
    /// # Errors
    /// The profile is of another build of the program.
    pub fn functions(&self, profile: &Profile) -> Result<Run, LoadError> {
        let (mut recording, samples) = self.recording(profile)?;
        recording.blocks.clear();
        Ok(analysis(&recording, &samples, Files::Unread, Detail::Functions))
    }

    /// Returns what a profile of the program has counted, and its samples.
    fn recording(&self, profile: &Profile) -> Result<(Recording, Samples), LoadError> {
        if let Err(differ) = self.own.build_id.agree(profile.build_id) {
            return Err(LoadError::Build { profile: differ.other, program: differ.first });
        }
        if profile.format != self.own.format && !profile.is_empty() {
            return Err(LoadError::Format { profile: profile.format, program: self.own.format });
        }
        let mut recording = self.recording.clone();
        let samples = charge(&mut recording, &self.symbols, profile);
        Ok((recording, samples))
    }
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
    let symbol = |function: &gmon::Function| Symbol::new(&function.name, function.start, function.size);
    let mut list: Vec<_> = program.functions().iter().map(symbol).collect();
    list.extend(program.hidden().iter().map(|hidden| symbol(&hidden.function)));
    list.sort_by_key(|symbol| symbol.function.address);
    list.dedup_by_key(|symbol| symbol.function.address);
    for hidden in program.hidden() {
        let Some(whole) = hidden.whole.filter(|whole| whole.relation == Relation::Piece) else { continue };
        let index = |start: u64| list.binary_search_by_key(&start, |symbol| symbol.function.address).ok();
        if let (Some(part), Some(whole)) = (index(hidden.function.start), index(whole.start)) {
            list[part].whole = Some(whole);
        }
    }
    Symbols { list, end }
}

/// Returns the functions of a program without symbols: those that its unwind tables describe.
fn nameless(bytes: &[u8], names: Option<&[u8]>, end: u64) -> Symbols {
    let Ok(image) = Image::read_with(bytes, names).or_else(|_| Image::read_library(bytes, names)) else {
        return Symbols { list: Vec::new(), end };
    };
    let list = image.functions.iter().map(|function| {
        let whole = match function.kind {
            FunctionKind::Cold(whole) => whole,
            _ => None,
        };
        Symbol { whole, ..Symbol::new(function.name, function.address, function.size) }
    });
    Symbols { list: list.collect(), end }
}
