//! Files in and out, with errors that begin with the file's name.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail};
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

/// Has `write` make the file; what was there stays until the new one is whole. Devices and pipes
/// are written to directly: there is nothing to keep.
pub(crate) fn replace(path: &Path, write: impl FnOnce(&File) -> Result<()>) -> Result<()> {
    // A symbolic link stays one: its target is replaced.
    let target = match fs::canonicalize(path) {
        Ok(target) => target,
        Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
        Err(error) => return Err(error.into()),
    };
    match fs::metadata(&target) {
        Ok(metadata) if metadata.is_dir() => bail!("is a folder, expected the name of a file"),
        Ok(metadata) if !metadata.is_file() => write(&File::options().write(true).open(&target)?),
        _ => {
            let (temporary, file) = create_beside(&target)?;
            let result = write(&file).and_then(|()| {
                if let Ok(metadata) = fs::metadata(&target) {
                    file.set_permissions(metadata.permissions())?;
                }
                file.sync_all()?;
                Ok(fs::rename(&temporary, &target)?)
            });
            if result.is_err() {
                // The first error is the one to tell.
                let _ = fs::remove_file(&temporary);
            }
            result
        }
    }
}

/// A new file in the target's folder, so that renaming it is one step.
fn create_beside(target: &Path) -> Result<(PathBuf, File)> {
    let name = target.file_name().ok_or_else(|| anyhow!("not a file's name"))?.to_string_lossy();
    let mut last = None;
    for attempt in 0..100 {
        let temporary = target.with_file_name(format!(".{name}.{}.{attempt}.tmp", std::process::id()));
        match File::options().write(true).create_new(true).open(&temporary) {
            Ok(file) => return Ok((temporary, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    Err(last.map_or_else(|| anyhow!("no free name for a temporary file"), Into::into))
}
