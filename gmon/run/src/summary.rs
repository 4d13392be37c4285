//! What is known of a profile in pprof's format without looking at its samples.

use flate2::read::MultiGzDecoder;

use crate::error::{MAX_SIZE, ReadError};
use crate::read::{self, MAGIC};

/// A profile in pprof's format, of whichever program has written it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// The name and the unit of each value that its samples have, such as `cpu` and `nanoseconds`.
    pub values: Vec<(String, String)>,
    /// The path of the program, or of the first file with code; empty if it is not known.
    pub program: String,
    /// The time at which the profile begins, in nanoseconds since 1970 (UTC), or 0.
    pub start_unix_ns: u64,
    /// The duration, or 0.
    pub duration_ns: u64,
    /// Whether this crate has written it, so that [`Recording::read`](crate::Recording::read) reads it.
    pub is_ours: bool,
}

impl Summary {
    /// Reads a profile that is compressed with gzip.
    ///
    /// # Errors
    /// The bytes are no such profile, or it is damaged or too large.
    pub fn read(bytes: &[u8]) -> Result<Summary, ReadError> {
        if !bytes.starts_with(&MAGIC) {
            return Err(ReadError::NotGzip(bytes.iter().copied().take(MAGIC.len()).collect()));
        }
        // Types of values, mappings, texts, times. Of the extension it is enough to know that it is there.
        let mut is_ours = false;
        let profile = read::decode(MultiGzDecoder::new(bytes), MAX_SIZE, |number| {
            is_ours |= number == u64::from(crate::wire::EXTENSION);
            matches!(number, 1 | 3 | 6 | 9 | 10)
        })?;
        let text = |index: i64| {
            let found = usize::try_from(index).ok().and_then(|index| profile.string_table.get(index));
            found.cloned().unwrap_or_default()
        };
        let values: Vec<_> =
            profile.sample_type.iter().map(|value| (text(value.r#type), text(value.unit))).collect();
        if values.is_empty() || profile.string_table.first().is_none_or(|first| !first.is_empty()) {
            return Err(ReadError::NotPprof);
        }
        Ok(Summary {
            values,
            program: profile.mapping.first().map(|mapping| text(mapping.filename)).unwrap_or_default(),
            start_unix_ns: u64::try_from(profile.time_nanos).unwrap_or(0),
            duration_ns: u64::try_from(profile.duration_nanos).unwrap_or(0),
            is_ours,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;
    use crate::{Module, Recording};

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut file = GzEncoder::new(Vec::new(), Compression::fast());
        file.write_all(bytes).expect("memory");
        file.finish().expect("memory")
    }

    #[test]
    fn of_a_file_of_ours() {
        let measured = Recording {
            start_unix_ns: 7,
            duration_ns: 8,
            modules: vec![Module { path: "/bin/prog".to_owned(), ..Module::default() }],
            ..Recording::default()
        };
        let summary = Summary::read(&measured.write()).expect("a profile");
        let names: Vec<_> = summary.values.iter().map(|(name, unit)| format!("{name}/{unit}")).collect();
        assert_eq!(names, ["calls/count"]);
        assert_eq!((summary.start_unix_ns, summary.duration_ns), (7, 8));
        assert_eq!((summary.program.as_str(), summary.is_ours), ("/bin/prog", true));
    }

    #[test]
    fn of_others() {
        // One value, cpu in nanoseconds: field 1 {1: 1, 2: 2}, field 6 "", "cpu", "nanoseconds".
        let cpu = b"\x0a\x04\x08\x01\x10\x02\x32\x00\x32\x03cpu\x32\x0bnanoseconds";
        let summary = Summary::read(&gzip(cpu)).expect("a profile");
        assert_eq!(summary.values, [("cpu".to_owned(), "nanoseconds".to_owned())]);
        assert_eq!((summary.program.as_str(), summary.is_ours), ("", false));
        assert!(matches!(Summary::read(cpu), Err(ReadError::NotGzip(_))));
        assert!(matches!(Summary::read(&gzip(b"")), Err(ReadError::NotPprof)));
        assert!(matches!(
            Summary::read(&gzip(&cpu[..9])),
            Err(ReadError::Field { .. } | ReadError::NotPprof)
        ));
        assert!(Summary::read(&gzip(b"no protocol buffers at all")).is_err());
        assert!(Summary::read(&gzip(cpu)[..20]).is_err());
    }
}
