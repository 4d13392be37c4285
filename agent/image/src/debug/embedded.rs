//! The small debug file that some distributions put into each program: `.gnu_debugdata`.
//!
//! It is an ELF file, compressed by xz, that has no sections with contents but a symbol table. The table has the
//! functions that are not in the program's `.dynsym`.

use std::io::Read;

use lzma_rust2::XzReader;
use object::{Object, ObjectSection};

/// The size in bytes above which the file is not used.
const MAX_SIZE: u64 = 256 << 20;
/// The memory in KiB that decompression may take beyond the file itself: xz's highest level takes 65 MiB.
const MAX_MEMORY: u32 = 80 << 10;

/// Returns the file in the section of a program. Returns `None` if there is none, or if it is damaged or too large.
/// The memory grows with the data; no number in the section determines an allocation above [`MAX_MEMORY`].
pub(crate) fn embedded(program: &[u8]) -> Option<Vec<u8>> {
    let file = object::File::parse(program).ok()?;
    let section = file.section_by_name(".gnu_debugdata")?;
    decompressed(section.data().ok()?)
}

fn decompressed(data: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let reader = XzReader::new_mem_limit(data, false, MAX_MEMORY);
    reader.take(MAX_SIZE + 1).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 <= MAX_SIZE && bytes.starts_with(b"\x7fELF")).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use gprofinject_skip::{have, skipped};

    use super::*;

    /// Returns what a command makes of its input, or `None` if there is no xz.
    fn packed(test: &str, line: &str, input: &[u8]) -> Option<Vec<u8>> {
        if !have("xz") {
            skipped(test, "no xz");
            return None;
        }
        let mut shell = Command::new("sh");
        let mut child =
            shell.args(["-ec", line]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a shell");
        child.stdin.take().expect("a pipe").write_all(input).expect("it reads");
        Some(child.wait_with_output().expect("it ends").stdout)
    }

    #[test]
    fn all_levels_of_xz() {
        let input: Vec<u8> =
            b"\x7fELF".iter().copied().chain((0..100_000_u32).map(|i| (i / 7) as u8)).collect();
        for level in ["-0", "-6", "-9e", "--check=crc32", "--check=sha256", "--check=none"] {
            let Some(packed) = packed("all_levels_of_xz", &format!("xz {level}"), &input) else { return };
            assert_eq!(decompressed(&packed).as_ref(), Some(&input), "{level}");
            for len in (0..packed.len()).step_by(11) {
                assert_eq!(decompressed(&packed[..len]), None, "{level} {len}");
            }
        }
    }

    #[test]
    fn too_much_is_refused() {
        let line = "{ cat; head -c 300000000 /dev/zero; } | xz -0";
        let Some(large) = packed("too_much_is_refused", line, b"\x7fELF") else { return };
        assert!(large.len() < 1 << 20);
        assert_eq!(decompressed(&large), None);
        // A dictionary of 1 GiB.
        let line = "xz --lzma2=preset=0,dict=1GiB";
        let Some(hungry) = packed("too_much_is_refused", line, b"\x7fELF") else { return };
        assert_eq!(decompressed(&hungry), None);
        assert_eq!(decompressed(b"\x7fELF, not compressed"), None);
        assert_eq!(decompressed(b""), None);
    }
}
