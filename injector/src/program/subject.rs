//! Determines what kind of program it is, and so what can be done with it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

use gprofinject_abi::plan::FileVersion;
use gprofinject_image::debug::DebugFile;
use gprofinject_image::headers::{self, ExecutableSegment, Header};
use gprofinject_image::{Functions, Image, Profiling, symbols};
use gprofinject_plan::PLANNER;

use crate::os::sys;
use crate::program::contents::{self, Contents, Mark};
use crate::program::privileges;

/// The program's file in memory, or why there is none.
pub(crate) struct Binary {
    contents: Result<Contents, String>,
    /// What the kernel will change about the process's ids or capabilities, if anything.
    privileges: Option<String>,
    /// The file with the names of its functions, if the program itself has none.
    debug_file: Option<DebugFile>,
    /// See [`Subject::mark`].
    mark: Option<Mark>,
    /// What an earlier run has found out about the file, if it has kept that.
    outline: Option<&'static [u8]>,
}

/// What is known about the program.
#[derive(Debug, Default)]
pub(crate) struct Subject<'d> {
    pub(crate) image: Option<Image<'d>>,
    /// The bytes of the file.
    pub(crate) bytes: &'d [u8],
    /// The debug file with the names of its functions, if the program itself has none.
    pub(crate) debug_file: Option<&'d DebugFile>,
    /// The functions of a program without an image.
    functions: Functions<'d>,
    /// Whether it has 32-bit addresses.
    pub(crate) narrow: bool,
    /// The executable segments; empty if they are not known.
    pub(crate) code: Vec<ExecutableSegment>,
    /// Why nothing can be hooked.
    pub(crate) unhookable: Option<String>,
    /// Whether no dynamic linker loads the agent, so that an usher has to put it into the process.
    pub(crate) standalone: bool,
    /// Whether musl's dynamic linker loads it. It is standalone then.
    pub(crate) musl: bool,
    /// Whether nothing can be sampled either.
    pub(crate) blind: bool,
    /// Whether its ids or capabilities will change. The kernel then ends a process's perf events.
    pub(crate) changes_ids: bool,
    /// What tells the contents of the file and of its debug file from all others, if it was asked for and can be told.
    pub(crate) mark: Option<Mark>,
    /// The version of the file, if it tells the contents from all others.
    pub(crate) version: Option<FileVersion>,
    /// Whether an earlier run has kept what was found out about the file.
    pub(crate) is_outlined: bool,
    /// Whether the dynamic linker will load libraries into it for which it does not ask.
    pub(crate) is_preloaded_to: bool,
}

impl Binary {
    /// Takes the contents of the program's file. If its plan may be `cached`, they get a mark.
    pub(crate) fn new(path: &Path, contents: io::Result<Contents>, cached: bool) -> Binary {
        let names = |contents: &Contents| gprofinject_image::debug::file_with_names(path, contents);
        let debug_file = contents.as_ref().ok().and_then(names);
        Binary::with_debug_file(path, contents, debug_file, cached)
    }

    /// Takes the contents of a file of which only the names of functions are wanted.
    pub(crate) fn with_names_alone(path: &Path, contents: Contents, cached: bool) -> Binary {
        let debug_file = gprofinject_image::debug::names_alone(path, &contents);
        Binary::with_debug_file(path, Ok(contents), debug_file, cached)
    }

    fn with_debug_file(
        path: &Path,
        contents: io::Result<Contents>,
        debug_file: Option<DebugFile>,
        cached: bool,
    ) -> Binary {
        let mark = contents.as_ref().ok().filter(|_| cached).and_then(|c| c.mark(debug_file.as_ref()));
        Binary {
            debug_file,
            contents: contents.map_err(|error| format!("it cannot be read ({})", sys::reason(&error))),
            privileges: privileges::gained(path),
            mark,
            outline: None,
        }
    }

    /// Takes what an earlier run has found out about the file, with the mark that the contents had then.
    pub(crate) fn with_outline(self, kept: &'static [u8], mark: &[u8]) -> Binary {
        // Another debug file may be there now.
        let is_same = self.mark.is_some_and(|now| now.hash().as_bytes() == mark);
        Binary { outline: is_same.then_some(kept), ..self }
    }

    /// Returns what an earlier run has found out, as an image.
    fn outlined(&self) -> Option<Image<'_>> {
        let bytes = self.contents.as_ref().ok()?;
        Image::from_outline(bytes, self.debug_file.as_ref().map(|file| file.bytes.as_slice()), self.outline?)
    }

    /// Reads it as a library.
    pub(crate) fn examine_library(&self) -> Subject<'_> {
        let bytes: &[u8] = match &self.contents {
            Err(why) => return Subject::blind(why.clone()),
            Ok(contents) => contents,
        };
        let debug_file = self.debug_file.as_ref();
        let Header::Ours(headers::Program { code, .. }) = headers::read(bytes) else {
            return Subject::blind("it is not a library for this processor".to_owned());
        };
        let read = || Image::read_library(bytes, debug_file.map(|file| file.bytes.as_slice()));
        let (image, unhookable) = match self.outlined().map_or_else(read, Ok) {
            Ok(image) if image.lo != 0 => {
                (Some(image), Some("its first segment is not at address 0".to_owned()))
            }
            Ok(image) => (Some(image), None),
            Err(error) => (None, Some(error.to_string())),
        };
        let version = self.contents.as_ref().ok().and_then(Contents::version);
        let is_outlined = self.outline.is_some();
        let mark = self.mark;
        Subject {
            image,
            bytes,
            debug_file,
            code,
            unhookable,
            mark,
            version,
            is_outlined,
            ..Subject::default()
        }
    }

    /// Determines what kind of program it is.
    pub(crate) fn examine(&self) -> Subject<'_> {
        let mut subject = match &self.contents {
            Err(why) => Subject::blind(why.clone()),
            Ok(contents) => Subject {
                mark: self.mark,
                version: contents.version(),
                is_outlined: self.outline.is_some(),
                ..examine(contents, self.debug_file.as_ref(), self.outlined())
            },
        };
        if let Some(why) = self.privileges.clone().filter(|_| !subject.blind) {
            subject.unhookable = Some(why);
            subject.changes_ids = true;
        }
        subject
    }
}

fn label(contents: blake3::Hash) -> String {
    format!("{PLANNER} {contents}")
}

/// Whether a file can be read and has these bytes.
pub(crate) fn is_file_of(path: &Path, bytes: &[u8]) -> bool {
    Contents::open(path, false).is_ok_and(|contents| *contents == *bytes)
}

impl<'d> Subject<'d> {
    /// Returns text that tells what was planned of this file from all other plans, and is the same as long as the file is.
    pub(crate) fn label(&self) -> String {
        label(self.mark.map_or_else(|| contents::of_bytes(self.bytes, self.debug_file), Mark::hash))
    }

    /// Whether such a text is that of this file.
    pub(crate) fn is_labelled(&self, text: &str) -> bool {
        let by_bytes = || label(contents::of_bytes(self.bytes, self.debug_file));
        self.mark.is_some_and(|mark| label(mark.hash()) == text) || by_bytes() == text
    }

    /// Returns the dynamic linker that the program names.
    pub(crate) fn interpreter(&self) -> Option<String> {
        match headers::read(self.bytes) {
            Header::Ours(program) => program.interpreter,
            _ => None,
        }
    }

    /// Returns the functions, sorted and without overlap.
    pub(crate) fn functions(&self) -> &Functions<'d> {
        self.image.as_ref().map_or(&self.functions, |image| &image.functions)
    }

    /// Whether gprof will find no names in the program.
    pub(crate) fn stripped(&self) -> bool {
        match &self.image {
            Some(image) => !image.facts.has_symtab || self.debug_file.is_some_and(|file| file.embedded),
            None => self.narrow && self.functions.is_empty(),
        }
    }

    /// Returns the source lines of its code, from the program or its debug file.
    pub(crate) fn lines(&self) -> Option<gprofinject_image::debug::Lines> {
        let own = gprofinject_image::debug::Lines::parse(self.bytes).ok();
        own.or_else(|| gprofinject_image::debug::Lines::parse(&self.debug_file?.bytes).ok())
    }

    /// Returns the file in which gprof finds names: the program, by the name `shown`, or its debug file.
    pub(crate) fn names_for_gprof(&self, shown: &OsStr) -> OsString {
        self.separate_file().map_or_else(|| shown.to_owned(), |file| file.path.clone().into())
    }

    /// Returns the debug file that is a file of its own, which gprof can be given.
    pub(crate) fn separate_file(&self) -> Option<&'d DebugFile> {
        self.debug_file.filter(|file| !file.embedded)
    }

    /// Whether the agent library can be put into the program.
    pub(crate) fn takes_agent(&self) -> bool {
        self.image.is_some() && self.unhookable.is_none()
    }

    /// Returns the profiling calls of a program that was built with -pg or a similar option.
    pub(crate) fn profiling(&self) -> Option<&Profiling> {
        self.image.as_ref().map(|image| &image.facts.profiling).filter(|profiling| profiling.is_built_in())
    }

    fn blind(why: String) -> Subject<'static> {
        Subject { unhookable: Some(why), blind: true, ..Subject::default() }
    }
}

fn examine<'d>(
    bytes: &'d [u8],
    debug_file: Option<&'d DebugFile>,
    outlined: Option<Image<'d>>,
) -> Subject<'d> {
    let program = match headers::read(bytes) {
        Header::Ours(program) => program,
        Header::Narrow(program, abi) => {
            return Subject {
                functions: symbols::functions(debug_file.map_or(bytes, |file| &file.bytes)).into(),
                bytes,
                debug_file,
                narrow: true,
                code: program.code,
                unhookable: Some(format!("it is a 32-bit program ({abi})")),
                ..Subject::default()
            };
        }
        Header::Foreign(what) => return Subject::blind(format!("it is {what}")),
        Header::Broken(why) => return Subject::blind(why.to_owned()),
        Header::NotElf => return Subject::blind("it is not an ELF program".to_owned()),
    };
    let is_preloaded_to = anything_is_preloaded();
    let read = || Image::read_with(bytes, debug_file.map(|file| file.bytes.as_slice()));
    let (image, fault) = match outlined.map_or_else(read, Ok) {
        Ok(mut image) => {
            image.remove_profiling(!is_preloaded_to);
            (Some(image), None)
        }
        Err(error) => (None, Some(error.to_string())),
    };
    // A Go program that needs no library sets fs itself, whoever loads it.
    let is_go = image.as_ref().is_some_and(|image| image.facts.go);
    let musl = program.interpreter.as_deref().is_some_and(loads_musl);
    let standalone = program.interpreter.is_none() || musl || is_go && !program.needs_libraries;
    let unhookable = match &program.interpreter {
        _ if (musl || program.interpreter.is_none())
            && image.as_ref().is_some_and(|image| image.facts.profiling.is_built_in()) =>
        {
            Some(
                "it is a static program with a profiler of its own (-pg), which hooks would disturb; build it without -pg"
                    .to_owned(),
            )
        }
        None => without_interpreter(bytes, &program).map(str::to_owned).or(fault),
        Some(_) if image.as_ref().is_some_and(|image| image.facts.address_sanitizer) => {
            Some("AddressSanitizer wants to be its first library (link with -static-libasan)".to_owned())
        }
        Some(_) => fault,
    };
    Subject {
        image,
        bytes,
        debug_file,
        code: program.code,
        unhookable,
        standalone,
        musl,
        is_preloaded_to,
        ..Subject::default()
    }
}

/// Returns whether a program that names this dynamic linker is loaded by musl's. Its file decides if the name does not.
fn loads_musl(interpreter: &str) -> bool {
    /// musl's file is its whole C library, and has less than a megabyte.
    const LONGEST: u64 = 16 << 20;
    let name = Path::new(interpreter).file_name().and_then(OsStr::to_str).unwrap_or_default();
    if name.starts_with("ld-musl-") || name.starts_with("ld-linux-") {
        return name.starts_with("ld-musl-");
    }
    let contents = Contents::open(Path::new(interpreter), false);
    contents.is_ok_and(|bytes| bytes.len() as u64 <= LONGEST && symbols::is_musl(&bytes))
}

/// Returns why the agent cannot be put into a file that asks for no dynamic linker, or `None` if it is a static program.
fn without_interpreter(bytes: &[u8], program: &headers::Program) -> Option<&'static str> {
    /// Linkers place fixed programs far below this address unless they are told another one.
    const FAR: u64 = 0x1000_0000;
    let first = program.code.iter().map(|segment| segment.address).min();
    // Such a program manages the address space itself and may translate its own code with that of the other program
    // (valgrind's tools do both), in which thunks have no place.
    if program.fixed && first.is_some_and(|first| first >= FAR) {
        return Some(
            "it leaves the usual addresses to a program that it loads itself, and decides what is in the address space",
        );
    }
    if symbols::is_dynamic_linker(bytes) {
        Some(
            "it is the dynamic linker, which loads another program; name that program instead, and what --library-path \
             says in LD_LIBRARY_PATH",
        )
    } else if program.needs_libraries {
        Some("it is a shared library; name a program that uses it")
    } else {
        None
    }
}

/// Whether any library is preloaded. It may define the hooks of -finstrument-functions, for which libc has
/// empty ones.
fn anything_is_preloaded() -> bool {
    let by_variable = std::env::var_os("LD_PRELOAD").is_some_and(|value| !value.is_empty());
    by_variable || std::fs::metadata("/etc/ld.so.preload").is_ok_and(|file| file.len() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_interpreter_is_told_apart() {
        let loader = std::fs::read("/lib64/ld-linux-x86-64.so.2").expect("glibc's dynamic linker");
        let said = |bytes: &[u8]| examine(bytes, None, None).unhookable.unwrap_or_default();
        assert!(said(&loader).contains("it is the dynamic linker"), "{}", said(&loader));
        let maps = std::fs::read_to_string("/proc/self/maps").expect("our own maps");
        let library =
            maps.lines().find_map(|line| line.split_whitespace().nth(5).filter(|p| p.contains("libgcc_s")));
        if let Some(library) = library {
            let library = std::fs::read(library).expect("a library");
            assert!(said(&library).contains("it is a shared library"), "{}", said(&library));
        }
    }

    #[test]
    fn what_is_no_program_is_said() {
        for bytes in [&b"#!/bin/sh\n"[..], b"", b"\x7fELF", &[0; 100]] {
            let subject = examine(bytes, None, None);
            assert!(subject.blind && subject.unhookable.is_some());
        }
    }
}
