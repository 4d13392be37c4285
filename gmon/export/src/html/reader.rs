//! Reads the source files of a report where the debug information says that they are.

use std::io::Read;
use std::path::Path;

use gmon_run::Recording;
use gprofinject_image::debug::Authors;

use crate::html::extras::{Extras, SourceLines};
use crate::html::listings::listings_of;
use crate::load::by_program;
use crate::model::Run;

/// The size in bytes above which a source file is not read.
const MAX_SIZE: u64 = 64 << 20;

/// Calls `write` with all that a report can contain of a recording: source lines, instructions and the shares of programs. `run` is what the
/// [loader](crate::load::recording()) has made of it. Without `is_shown`, there are neither source lines nor instructions.
///
/// What `authors`, who have chosen the names of source files, could not read is left out.
pub fn with_extras<T>(
    recording: &Recording,
    run: &Run,
    authors: &Authors,
    is_shown: bool,
    write: impl FnOnce(&mut Extras) -> T,
) -> T {
    let programs = by_program(recording);
    if !is_shown {
        return write(&mut Extras { programs, ..Extras::default() });
    }
    let mut read = |path: &str| lines(path, authors);
    let listings = listings_of(recording, run);
    write(&mut Extras { source: Some(&mut read), listings, programs, timeline: None })
}

/// Returns the lines of a file from number 1 on. Bytes that are not UTF-8 are replaced.
fn lines(path: &str, authors: &Authors) -> Option<SourceLines> {
    let file = authors.open(Path::new(path)).ok()?;
    let len = file.metadata().ok()?.len();
    if len > MAX_SIZE {
        return None;
    }
    // Files of /proc say that they are empty, and are no sources.
    let mut bytes = Vec::new();
    file.take(len).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    Some((1..).zip(text.lines().map(str::to_owned)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.c");
        std::fs::write(&path, b"one\n\xff\n").expect("a file");
        let nobody = Authors::default();
        let found = lines(path.to_str().expect("UTF-8"), &nobody).expect("it is there");
        assert_eq!(
            found.into_iter().collect::<Vec<_>>(),
            [(1, "one".to_owned()), (2, "\u{fffd}".to_owned())]
        );
        assert_eq!(lines("/no/such/file", &nobody), None);
        assert_eq!(lines("/dev/zero", &nobody), None);
    }
}
