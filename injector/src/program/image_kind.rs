//! What a program or library is, and so what can be done with it. This is decided here, and nowhere else.

use std::ffi::OsStr;
use std::path::Path;

use gprofinject_image::debug::DebugFile;
use gprofinject_image::headers::{self, ExecutableSegment, Program};
use gprofinject_image::{ElfType, Functions, Image, symbols};

use crate::program::contents::Contents;

/// What a program or library is.
#[derive(Debug)]
pub(crate) enum ImageKind<'d> {
    /// A program that glibc's dynamic linker loads, and the agent with it.
    Dynamic { image: Image<'d>, interpreter: String },
    /// A program that musl's dynamic linker loads. An usher has to put the agent into the process.
    Musl { image: Image<'d>, interpreter: String },
    /// A program that no dynamic linker loads, or one of Go's that needs no library: it sets fs itself, whoever loads it. An usher has to
    /// put the agent into the process.
    Static(Image<'d>),
    /// A library.
    Library(Image<'d>),
    /// A program or library in which nothing can be hooked, for this reason. It can be sampled. The image is there if it could be read.
    Unhookable { why: String, image: Option<Image<'d>>, changes_ids: bool },
    /// A program with 32-bit addresses, in which nothing can be hooked either. It can be sampled.
    Narrow { why: String, functions: Functions<'d>, changes_ids: bool },
    /// Nothing is known of it, for this reason: it cannot be sampled either.
    Unreadable(String),
}

use ImageKind::{Dynamic, Library, Musl, Narrow, Static, Unhookable, Unreadable};

/// A kind, and the executable segments, which are empty if they are not known.
pub(crate) type Examined<'d> = (ImageKind<'d>, Vec<ExecutableSegment>);

impl<'d> ImageKind<'d> {
    /// Determines what kind of program a file is. `debug_file` has the names of its functions, if the program itself has none, and
    /// `outlined` is what an earlier run has found out about it.
    pub(crate) fn of_program(
        bytes: &'d [u8],
        debug_file: Option<&'d DebugFile>,
        outlined: Option<Image<'d>>,
    ) -> Examined<'d> {
        let program = match headers::read(bytes) {
            Ok(program) => program,
            Err(why) => return (Unreadable(why.into_owned()), Vec::new()),
        };
        if let Some(abi) = program.narrow {
            let functions = symbols::functions(debug_file.map_or(bytes, |file| &file.bytes)).into();
            let why = format!("it is a 32-bit program ({abi})");
            return (Narrow { why, functions, changes_ids: false }, program.code);
        }
        let read = || Image::read_with(bytes, debug_file.map(|file| file.bytes.as_slice()));
        let image = outlined.map_or_else(read, Ok).map(|mut image| {
            image.remove_profiling(!anything_is_preloaded());
            image
        });
        let musl = program.interpreter.as_deref().is_some_and(loads_musl);
        let refusal = refusal(bytes, &program, image.as_ref().ok(), musl);
        let kind = match (image, refusal) {
            (image, Some(why)) => Unhookable { why: why.to_owned(), image: image.ok(), changes_ids: false },
            (Err(error), None) => Unhookable { why: error.to_string(), image: None, changes_ids: false },
            (Ok(image), None) => match program.interpreter {
                Some(interpreter) if musl => Musl { image, interpreter },
                Some(interpreter) if program.needs_libraries || !image.facts.go => {
                    Dynamic { image, interpreter }
                }
                _ => Static(image),
            },
        };
        (kind, program.code)
    }

    /// Determines what can be done with a library. The arguments are as in [`ImageKind::of_program`].
    pub(crate) fn of_library(
        bytes: &'d [u8],
        debug_file: Option<&'d DebugFile>,
        outlined: Option<Image<'d>>,
    ) -> Examined<'d> {
        let Some(program) = headers::read(bytes).ok().filter(|program| program.narrow.is_none()) else {
            return (Unreadable("it is not a library for this processor".to_owned()), Vec::new());
        };
        let unhookable = |why, image| Unhookable { why, image, changes_ids: false };
        let read = || Image::read_library(bytes, debug_file.map(|file| file.bytes.as_slice()));
        let kind = match outlined.map_or_else(read, Ok) {
            Ok(image) if image.lo != 0 => {
                unhookable("its first segment is not at address 0".to_owned(), Some(image))
            }
            Ok(image) => Library(image),
            Err(error) => unhookable(error.to_string(), None),
        };
        (kind, program.code)
    }

    /// The same program if the kernel will change its ids or capabilities, for which `why` says why nothing can be hooked. The kernel then
    /// ends a process's perf events.
    pub(crate) fn with_other_ids(self, why: String) -> ImageKind<'d> {
        let unhookable = |image| Unhookable { why: why.clone(), image, changes_ids: true };
        match self {
            Dynamic { image, .. } | Musl { image, .. } | Static(image) | Library(image) => {
                unhookable(Some(image))
            }
            Unhookable { image, .. } => unhookable(image),
            Narrow { functions, .. } => Narrow { why, functions, changes_ids: true },
            Unreadable(why) => Unreadable(why),
        }
    }

    /// Returns what was read of its code.
    pub(crate) fn image(&self) -> Option<&Image<'d>> {
        match self {
            Dynamic { image, .. } | Musl { image, .. } | Static(image) | Library(image) => Some(image),
            Unhookable { image, .. } => image.as_ref(),
            Narrow { .. } | Unreadable(_) => None,
        }
    }

    /// Returns why nothing can be hooked, so that the agent cannot be put into it. `None` if it can.
    pub(crate) fn unhookable(&self) -> Option<&str> {
        match self {
            Dynamic { .. } | Musl { .. } | Static(_) | Library(_) => None,
            Unhookable { why, .. } | Narrow { why, .. } | Unreadable(why) => Some(why),
        }
    }

    /// Whether it can be sampled.
    pub(crate) fn is_readable(&self) -> bool {
        !matches!(self, Unreadable(_))
    }

    /// Whether it has 32-bit addresses.
    pub(crate) fn is_narrow(&self) -> bool {
        matches!(self, Narrow { .. })
    }

    /// Whether its ids or capabilities will change.
    pub(crate) fn changes_ids(&self) -> bool {
        matches!(self, Unhookable { changes_ids: true, .. } | Narrow { changes_ids: true, .. })
    }

    /// Whether it is a program that takes the agent and into which no dynamic linker loads the agent.
    pub(crate) fn is_standalone(&self) -> bool {
        matches!(self, Musl { .. } | Static(_))
    }

    /// Whether it is a program that takes the agent and that musl's dynamic linker loads.
    pub(crate) fn is_musl(&self) -> bool {
        matches!(self, Musl { .. })
    }

    /// Returns the dynamic linker that a program names whose libraries can be hooked.
    pub(crate) fn interpreter(&self) -> Option<&str> {
        match self {
            Dynamic { interpreter, .. } | Musl { interpreter, .. } => Some(interpreter),
            _ => None,
        }
    }
}

/// Returns why nothing can be hooked in a program whose code could be read, or which asks for no dynamic linker.
fn refusal(bytes: &[u8], program: &Program, image: Option<&Image>, musl: bool) -> Option<&'static str> {
    let is_dynamic = program.interpreter.is_some();
    if (musl || !is_dynamic) && image.is_some_and(|image| image.facts.profiling.is_built_in()) {
        Some(
            "it is a static program with a profiler of its own (-pg), which hooks would disturb; build it without -pg",
        )
    } else if !is_dynamic {
        without_interpreter(bytes, program)
    } else if image.is_some_and(|image| image.facts.address_sanitizer) {
        Some("AddressSanitizer wants to be its first library (link with -static-libasan)")
    } else {
        None
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
fn without_interpreter(bytes: &[u8], program: &Program) -> Option<&'static str> {
    /// Linkers place fixed programs far below this address unless they are told another one.
    const FAR: u64 = 0x1000_0000;
    let first = program.code.iter().map(|segment| segment.address).min();
    // Such a program manages the address space itself and may translate its own code with that of the other program
    // (valgrind's tools do both), in which thunks have no place.
    if program.elf_type == ElfType::Exec && first.is_some_and(|first| first >= FAR) {
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
        let said = |bytes: &[u8]| {
            let (kind, _) = ImageKind::of_program(bytes, None, None);
            kind.unhookable().map(str::to_owned).unwrap_or_default()
        };
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
            let (kind, code) = ImageKind::of_program(bytes, None, None);
            assert!(matches!(kind, Unreadable(_)) && code.is_empty());
        }
    }
}
