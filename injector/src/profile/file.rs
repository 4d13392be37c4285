//! What a recording has of a file with code.

use gmon_run::Module;

use crate::program::subject::Subject;

/// Returns what a recording has of the file at a path. `text` has the link addresses between which its functions lie, if there are
/// several segments with code.
pub(crate) fn module(path: &str, subject: &Subject, text: (u64, u64)) -> Module {
    let build_id = subject.image().and_then(|image| image.facts.build_id.clone()).unwrap_or_default();
    let (start, limit) = text;
    let segment = subject.code.iter().find(|segment| segment.address <= start);
    // The file may be read in another folder.
    let absolute = std::path::absolute(path).map(|path| path.display().to_string());
    Module {
        path: absolute.unwrap_or_else(|_| path.to_owned()),
        digest: subject.digest(),
        build_id,
        start: segment.map_or(start, |segment| segment.address),
        limit: segment.map_or(limit, |segment| segment.address + segment.len),
        offset: segment.map_or(0, |segment| segment.offset),
    }
}
