//! From the bytes of a file to an [`Image`].

use std::borrow::Cow;
use std::sync::OnceLock;

use crate::facts::{Facts, NET};
use crate::file::error::ImageError;
use crate::file::{elf, entries, imports, notes, pointers, ranges};
use crate::frames::{landing_pads, unwind};
use crate::functions::{merge, symbols};
use crate::image::{Details, Image};

/// The name of Go's runtime in messages.
const GO: &str = "Go";

/// The number of bytes above which a second thread is worth its cost.
const LARGE: usize = 1 << 20;

impl<'d> Image<'d> {
    /// Reads a program's file.
    ///
    /// # Errors
    /// The file is not an x86-64 Linux program, or is damaged.
    pub fn read(bytes: &'d [u8]) -> Result<Self, ImageError> {
        Image::read_with(bytes, None)
    }

    /// Reads a program's file, with the names of functions from a separate debug file of this build if the
    /// program has none itself.
    ///
    /// # Errors
    /// The file is not an x86-64 Linux program, or is damaged.
    pub fn read_with(bytes: &'d [u8], debug_file: Option<&'d [u8]>) -> Result<Self, ImageError> {
        Ok(Image::of(&elf::Elf::parse(bytes)?, bytes, debug_file))
    }

    /// Reads a shared library's file in the same way.
    ///
    /// # Errors
    /// The file is not an x86-64 Linux library, or is damaged.
    pub fn read_library(bytes: &'d [u8], debug_file: Option<&'d [u8]>) -> Result<Self, ImageError> {
        Ok(Image::of(&elf::Elf::parse_any(bytes)?, bytes, debug_file))
    }

    fn of(elf: &elf::Elf<'d>, bytes: &'d [u8], debug_file: Option<&'d [u8]>) -> Self {
        let ranges = ranges::CodeRanges::of(elf);
        // The two sources of functions do not depend on each other.
        let (labels, unwind) = std::thread::scope(|scope| {
            let read = || unwind::Unwind::read(elf);
            let builder = std::thread::Builder::new;
            let unwind = (bytes.len() > LARGE).then(|| builder().spawn_scoped(scope, read).ok()).flatten();
            let labels = symbols::Labels::read(elf, &ranges, debug_file);
            (labels, unwind.and_then(|thread| thread.join().ok()))
        });
        let mut unwind = unwind.unwrap_or_else(|| unwind::Unwind::read(elf));
        let functions = merge::Functions::merge(elf, &ranges, &labels, &mut unwind);
        let landing_pads = landing_pads::landing_pads(elf, &ranges, &unwind.fdes);
        let mut marks = labels.marks;
        let exported = symbols::exported(elf, &ranges);
        let mut entries = entries::entries(elf);
        entries.sort_unstable();
        let mut entered = functions.inner_labels;
        entered.extend(&entries);
        let pointers = pointers::Pointers::read(elf, &ranges, entered, &mut marks);
        let notes = notes::Notes::read(elf);
        // The section that .NET's compiler puts methods in, for programs and libraries that need no runtime beside them.
        let net = elf.section(b"__managedcode").is_some();
        let mut code_pointers = pointers.to_code;
        let mut only_exported = exported.clone();
        only_exported.retain(|address| code_pointers.binary_search(address).is_err());
        only_exported.sort_unstable();
        code_pointers.extend(&exported);
        if notes.go {
            // Go's tables of methods and closures have distances from the start of the text, too.
            code_pointers.extend(functions.list.iter().map(|function| function.address));
        }
        code_pointers.sort_unstable();
        code_pointers.dedup();
        let address_sanitizer = elf.needed().any(|name| name.starts_with(b"libasan.so"));
        let mut profiling = imports::read(elf);
        profiling.starts |= labels.profiler;
        let stubs = imports::stubs(elf, &ranges, &profiling);
        let own_stubs = imports::own(elf, &ranges);
        let code_ranges = ranges.iter().map(|range| (range.start, range.end)).collect();
        let facts = Facts {
            interpreter: elf.interpreter.clone(),
            has_symtab: labels.complete,
            own_unwinder: labels.unwinder,
            runtime: labels.runtime.or(notes.go.then_some(GO)).or(net.then_some(NET)).map(Cow::Borrowed),
            go: notes.go,
            checker: labels.checker.map(Cow::Borrowed),
            marks,
            address_sanitizer,
            build_id: notes.build_id,
            text_relocations: pointers.in_code,
            tls_descriptors: pointers.tls_descriptors,
            exports_functions: symbols::exports_code(elf, &ranges, false),
            exports_code_as_data: symbols::exports_code(elf, &ranges, true),
            has_constructors: has_constructors(elf),
            profiling,
            hooks_removed: false,
            has_code_sections: elf.has_code_sections(),
        };
        let image = Image::with(elf, (bytes, debug_file), code_ranges, functions.list.into(), facts);
        let details = Details {
            code_pointers,
            relocated: pointers.relocated,
            exported,
            only_exported,
            entries,
            landing_pads,
            stubs,
            own_stubs,
            frames: unwind.keep(),
        };
        Image { details: OnceLock::from(details), ..image }
    }

    /// Reads a file again for its details.
    pub(crate) fn read_details(bytes: &'d [u8], debug_file: Option<&'d [u8]>) -> Details {
        let image = Image::read_library(bytes, debug_file);
        image.ok().and_then(|image| image.details.into_inner()).unwrap_or_default()
    }
}

/// Returns whether the dynamic linker calls functions of the file when it loads it, or at its end.
fn has_constructors(elf: &elf::Elf<'_>) -> bool {
    use ::object::elf::{DT_FINI, DT_FINI_ARRAYSZ, DT_INIT, DT_INIT_ARRAYSZ};
    [DT_INIT, DT_FINI, DT_INIT_ARRAYSZ, DT_FINI_ARRAYSZ]
        .iter()
        .any(|&tag| elf.dynamic_value(tag).is_some_and(|value| value != 0))
}
