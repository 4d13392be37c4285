//! Which process of a parallel job has left a file.

use std::path::Path;

/// Returns the rank in the name of a file that gprofinject has written in a parallel job: 3 for `gmon.out.rank3`, and for
/// `gmon.rank3.pb.gz`.
pub(crate) fn of_file(path: &Path) -> Option<u32> {
    let name = path.file_name()?.to_str()?;
    let ranks = name.split('.').filter_map(|part| part.strip_prefix("rank"));
    ranks
        .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
        .find_map(|digits| digits.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for (name, rank) in [
            ("gmon.out.rank3", Some(3)),
            ("x/gmon.rank12.pb.gz", Some(12)),
            ("gmon.out.rank0.node7", Some(0)),
            ("gmon.out.rankle.rank4", Some(4)),
            ("rank3/gmon.out", None),
            ("gmon.out.rank", None),
            ("gmon.out.rank+3", None),
            ("gmon.out.rank99999999999", None),
        ] {
            assert_eq!(of_file(Path::new(name)), rank, "{name}");
        }
    }
}
