//! A program's or library's file in memory, and what is known of it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::sync::{LazyLock, OnceLock};

use gmon_run::Module;
use gprofinject_abi::plan::FileVersion;
use gprofinject_image::debug::DebugFile;
use gprofinject_image::headers::ExecutableSegment;
use gprofinject_image::{Functions, Image, Profiling};
use gprofinject_plan::PLANNER;

use crate::os::sys;
use crate::program::contents::{self, Contents, Mark};
use crate::program::image_kind::{Examined, ImageKind};
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
    /// What an earlier run has found out about the file, if it has kept that: its digest and its outline.
    kept: Option<(u64, &'static [u8])>,
}

/// What is known of a program or library.
#[derive(Debug)]
pub(crate) struct Subject<'d> {
    pub(crate) kind: ImageKind<'d>,
    /// The bytes of the file; none of one that is unreadable.
    pub(crate) bytes: &'d [u8],
    /// The debug file with the names of its functions, if the program itself has none.
    pub(crate) debug_file: Option<&'d DebugFile>,
    /// The executable segments; empty if they are not known.
    pub(crate) code: Vec<ExecutableSegment>,
    /// What tells the contents of the file and of its debug file from all others, if it was asked for and can be told.
    pub(crate) mark: Option<Mark>,
    /// The version of the file, if it tells the contents from all others.
    pub(crate) version: Option<FileVersion>,
    /// Whether an earlier run has kept what was found out about the file.
    pub(crate) is_outlined: bool,
    /// See [`Subject::digest`].
    digest: OnceLock<u64>,
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
            kept: None,
        }
    }

    /// Takes what an earlier run has found out about the file, with the mark that the contents had then.
    pub(crate) fn with_outline(self, outline: &'static [u8], digest: u64, mark: &[u8]) -> Binary {
        // Another debug file may be there now.
        let is_same = self.mark.is_some_and(|now| now.hash().as_bytes() == mark);
        Binary { kept: is_same.then_some((digest, outline)), ..self }
    }

    /// Returns what an earlier run has found out, as an image.
    fn outlined(&self) -> Option<Image<'_>> {
        let bytes = self.contents.as_ref().ok()?;
        let (_, outline) = self.kept?;
        Image::from_outline(bytes, self.debug_file.as_ref().map(|file| file.bytes.as_slice()), outline)
    }

    /// Reads it as a library.
    pub(crate) fn examine_library(&self) -> Subject<'_> {
        self.subject(self.examined(ImageKind::of_library))
    }

    /// Reads it as a program.
    pub(crate) fn examine(&self) -> Subject<'_> {
        let (kind, code) = self.examined(ImageKind::of_program);
        let kind = match &self.privileges {
            Some(why) => kind.with_other_ids(why.clone()),
            None => kind,
        };
        self.subject((kind, code))
    }

    fn examined<'b>(
        &'b self,
        examine: fn(&'b [u8], Option<&'b DebugFile>, Option<Image<'b>>) -> Examined<'b>,
    ) -> Examined<'b> {
        match &self.contents {
            Ok(contents) => examine(contents, self.debug_file.as_ref(), self.outlined()),
            Err(why) => (ImageKind::Unreadable(why.clone()), Vec::new()),
        }
    }

    fn subject<'b>(&'b self, (kind, code): Examined<'b>) -> Subject<'b> {
        let contents = self.contents.as_ref().ok();
        let is_readable = kind.is_readable();
        Subject {
            kind,
            bytes: contents.filter(|_| is_readable).map_or(&[], |contents| contents),
            debug_file: self.debug_file.as_ref().filter(|_| is_readable),
            code,
            mark: self.mark,
            version: contents.and_then(Contents::version),
            is_outlined: self.kept.is_some(),
            digest: self.kept.map_or_else(OnceLock::new, |(digest, _)| digest.into()),
        }
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

    /// Returns what tells versions of the file apart if it has no build-id ([`Module::digest_of`]), and 0 if it has one.
    pub(crate) fn digest(&self) -> u64 {
        let has_build_id =
            self.image().and_then(|image| image.facts.build_id.as_ref()).is_some_and(|id| !id.is_empty());
        *self.digest.get_or_init(|| if has_build_id { 0 } else { Module::digest_of(self.bytes) })
    }

    /// Returns what was read of its code.
    pub(crate) fn image(&self) -> Option<&Image<'d>> {
        self.kind.image()
    }

    /// Returns the functions, sorted and without overlap.
    pub(crate) fn functions(&self) -> &Functions<'d> {
        static NONE: LazyLock<Functions> = LazyLock::new(Functions::default);
        match &self.kind {
            ImageKind::Narrow { functions, .. } => functions,
            kind => kind.image().map_or(&NONE, |image| &image.functions),
        }
    }

    /// Whether gprof will find no names in the program.
    pub(crate) fn stripped(&self) -> bool {
        let is_embedded = self.debug_file.is_some_and(|file| file.embedded);
        match &self.kind {
            ImageKind::Narrow { functions, .. } => functions.is_empty(),
            kind => kind.image().is_some_and(|image| !image.facts.has_symtab || is_embedded),
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

    /// Returns the profiling calls of a program that was built with -pg or a similar option.
    pub(crate) fn profiling(&self) -> Option<&Profiling> {
        self.image().map(|image| &image.facts.profiling).filter(|profiling| profiling.is_built_in())
    }
}
