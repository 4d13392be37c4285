//! Files in and out, with errors that begin with the file's name.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use gmon::Program;

/// More than this is no profile, but an endless pipe or device.
const MAX_SIZE: u64 = 4 << 30;

/// A gmon.out file's bytes.
pub(crate) fn read_any(path: &Path) -> Result<Vec<u8>> {
    // What does not begin as a profile is not read on: it might never end.
    read(path, b"gmon").with_context(|| path.display().to_string())
}

/// An ELF file's bytes.
pub(crate) fn read_elf(path: &Path) -> Result<Vec<u8>> {
    read(path, b"\x7fELF").with_context(|| path.display().to_string())
}

/// The profiled program.
pub(crate) fn read_program(path: &Path) -> Result<Program> {
    let bytes = read_elf(path)?;
    Program::parse(&bytes).with_context(|| path.display().to_string())
}

/// Reads a whole file if it begins with `magic`, else only its first bytes: the parser has the
/// better words for them.
fn read(path: &Path, magic: &[u8]) -> Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let mut bytes = Vec::new();
    (&mut file).take(magic.len() as u64).read_to_end(&mut bytes)?;
    if bytes == magic {
        (&mut file).take(MAX_SIZE).read_to_end(&mut bytes)?;
        if bytes.len() as u64 >= MAX_SIZE {
            bail!("no end, at offset {}, expected a file of less than 4 GiB", bytes.len());
        }
    }
    Ok(bytes)
}

/// Writes a file; what was there stays until the new one is whole.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    gmon::output::Target::check(path)
        .and_then(|target| target.write_durably(bytes))
        .with_context(|| path.display().to_string())
}
