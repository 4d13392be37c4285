//! Reads and writes files. Errors begin with the file's name.

use std::collections::BTreeSet;
use std::fs::{File, FileType};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use gmon::Program;
use gmon_trace::Input;
use gprofinject_image::debug::Authors;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};

/// The size in bytes above which a file is not read: it is no profile, but an endless pipe.
const MAX_SIZE: u64 = 4 << 30;
/// How long a pipe may have no writer, in seconds: the program that writes to it may start after this one.
const WRITER_PATIENCE: i64 = 5;
/// The bytes with which gmon.out files, ELF files and files compressed with gzip begin.
const GMON: &[u8] = b"gmon";
const ELF: &[u8] = b"\x7fELF";
const GZIP: &[u8] = b"\x1f\x8b";

/// The owners of the files that this command has read.
static OWNERS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// The devices and inodes of the files that this command has read.
static INPUTS: Mutex<BTreeSet<(u64, u64)>> = Mutex::new(BTreeSet::new());

/// Refuses to write to a file that this command has read, which is probably a mistake.
///
/// # Errors
/// It has read the file.
pub(crate) fn spare_input(path: &Path) -> Result<()> {
    let Ok(metadata) = std::fs::metadata(path) else { return Ok(()) };
    let inputs = INPUTS.lock().unwrap_or_else(PoisonError::into_inner);
    if metadata.is_file() && inputs.contains(&(metadata.dev(), metadata.ino())) {
        bail!("{} is what was read, and would be lost; name another file with -o FILE", path.display());
    }
    Ok(())
}

/// Returns the owners of all files that were read so far. What the files name, these users have chosen.
pub(crate) fn owners() -> BTreeSet<u32> {
    OWNERS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Adds the owner of a file that was read elsewhere.
pub(crate) fn add_owner(uid: u32) {
    OWNERS.lock().unwrap_or_else(PoisonError::into_inner).insert(uid);
}

/// Returns a gmon.out file's bytes.
///
/// # Errors
/// The file cannot be read, or is too large.
pub(crate) fn read_any(path: &Path) -> Result<Vec<u8>> {
    // A file that does not begin as a profile is not read to its end, because it might not have one.
    read(path, GMON).with_context(|| path.display().to_string())
}

/// Returns a gmon.out file's bytes, or those of a file that is none and no recording either.
///
/// # Errors
/// The file cannot be read, is too large, or is a recording.
pub(crate) fn read_gmon(path: &Path) -> Result<Vec<u8>> {
    let bytes = read_any(path)?;
    if is_gzip(&bytes) {
        bail!("{0}: everything of a run, and no gmon.out; `gmon flat {0}` shows it", path.display());
    }
    Ok(bytes)
}

/// Returns an ELF file's bytes.
///
/// # Errors
/// The file cannot be read, or is too large.
pub(crate) fn read_elf(path: &Path) -> Result<Vec<u8>> {
    read(path, ELF).with_context(|| path.display().to_string())
}

/// Returns the bytes of a file of any kind that a run leaves: a program, a profile, or a recording. Of another
/// file, only the first bytes are returned.
///
/// # Errors
/// The file cannot be read, or is too large.
pub(crate) fn read_any_kind(path: &Path) -> Result<Vec<u8>> {
    // A pipe can be read only once, so the beginning decides what it is.
    let (file, mut bytes) = begin(path, ELF.len()).with_context(|| path.display().to_string())?;
    let magic = if bytes.starts_with(GZIP) || bytes == GMON { bytes.clone() } else { ELF.to_vec() };
    finish(file, &mut bytes, &magic).with_context(|| path.display().to_string())?;
    Ok(bytes)
}

/// Returns the bytes of a trace, of which a regular file stays where it is.
///
/// # Errors
/// The file cannot be read, or is too large to be read into memory.
pub(crate) fn trace_input(path: &Path) -> Result<Input> {
    let read = || {
        let (file, mut bytes) = open(path)?;
        if file.metadata()?.is_file() {
            return anyhow::Ok(Input::file(file)?);
        }
        // Without its beginning there may be others.
        (&file).take(MAX_SIZE).read_to_end(&mut bytes)?;
        Ok(Input::Bytes(bytes))
    };
    read().with_context(|| path.display().to_string())
}

/// Returns the text of a file that a user has written.
///
/// # Errors
/// The file cannot be read, is larger than `most` bytes, or is not UTF-8.
pub(crate) fn read_text(path: &Path, most: u64) -> Result<String> {
    let read = || {
        let (file, mut bytes) = open(path)?;
        (&file).take(most + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > most {
            bail!("larger than {most} bytes");
        }
        String::from_utf8(bytes)
            .map_err(|error| anyhow::anyhow!("not UTF-8, at offset {}", error.utf8_error().valid_up_to()))
    };
    read().with_context(|| path.display().to_string())
}

/// Returns the first bytes of a regular file, and none of another one, which can be read only once.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn read_start(path: &Path) -> Result<Vec<u8>> {
    /// As many tell all kinds of files apart.
    const LEN: usize = 16;
    let is_file = std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file());
    if !is_file {
        // It is read in full, or refused, where its contents are needed.
        return Ok(Vec::new());
    }
    Ok(begin(path, LEN).with_context(|| path.display().to_string())?.1)
}

/// Whether a file of these bytes is compressed with gzip.
pub(crate) fn is_gzip(bytes: &[u8]) -> bool {
    bytes.starts_with(GZIP)
}

/// Whether a file of these bytes is a gmon.out.
pub(crate) fn is_gmon(bytes: &[u8]) -> bool {
    bytes.starts_with(GMON)
}

/// Whether a file of these bytes is an ELF file.
pub(crate) fn is_elf(bytes: &[u8]) -> bool {
    bytes.starts_with(ELF)
}

/// Reads the profiled program.
///
/// # Errors
/// The file cannot be read, or is not an ELF file.
pub(crate) fn read_program(path: &Path) -> Result<Program> {
    parse_program(path, &read_elf(path)?)
}

/// Returns what the bytes of the profiled program say.
///
/// # Errors
/// They are not those of an ELF file.
pub(crate) fn parse_program(path: &Path, bytes: &[u8]) -> Result<Program> {
    gprofinject_image::gprof::parse(bytes).with_context(|| path.display().to_string())
}

/// Reads a whole file if it begins with `magic`, and otherwise only its first bytes: the parser has the
/// better error message for them.
fn read(path: &Path, magic: &[u8]) -> Result<Vec<u8>> {
    let (file, mut bytes) = begin(path, magic.len())?;
    finish(file, &mut bytes, magic)?;
    Ok(bytes)
}

/// Opens a file and reads its first bytes.
fn begin(path: &Path, len: usize) -> Result<(File, Vec<u8>)> {
    let (mut file, mut bytes) = open(path)?;
    (&mut file).take((len - bytes.len()) as u64).read_to_end(&mut bytes)?;
    Ok((file, bytes))
}

/// Reads the rest of a file if it begins with `magic`.
fn finish(mut file: File, bytes: &mut Vec<u8>, magic: &[u8]) -> Result<()> {
    let missing = magic.len().saturating_sub(bytes.len());
    (&mut file).take(missing as u64).read_to_end(bytes)?;
    if bytes == magic {
        (&mut file).take(MAX_SIZE).read_to_end(bytes)?;
        if bytes.len() as u64 >= MAX_SIZE {
            bail!("no end, at offset {}, expected a file of less than 4 GiB", bytes.len());
        }
    }
    Ok(())
}

/// Opens a file, or a pipe such as the shell's `<(command)`, but nothing that may have no end or no
/// beginning. Returns the file and what was already read of it, which is one byte at most.
fn open(path: &Path) -> Result<(File, Vec<u8>)> {
    let mut read = Vec::new();
    // The call must not wait: opening a named pipe in the usual way takes until a process writes to it.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let mut file = File::options().read(true).custom_flags(flags.bits() as i32).open(path)?;
    let metadata = file.metadata()?;
    add_owner(metadata.uid());
    INPUTS.lock().unwrap_or_else(PoisonError::into_inner).insert((metadata.dev(), metadata.ino()));
    let kind = metadata.file_type();
    if let Some(name) = unreadable(kind) {
        bail!("is a {name}, expected a file or a pipe");
    }
    if kind.is_fifo() {
        let mut wanted = [PollFd::new(&file, PollFlags::IN)];
        let patience = Timespec { tv_sec: WRITER_PATIENCE, tv_nsec: 0 };
        if poll(&mut wanted, Some(&patience))? == 0 {
            // A process that has the pipe open for writing may take any time, so reading has to wait for it.
            let mut byte = [0];
            match file.read(&mut byte) {
                Ok(0) => bail!("is a pipe to which no process writes"),
                Ok(_) => read.extend(byte),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    fcntl_setfl(&file, OFlags::empty())?;
    Ok((file, read))
}

/// Returns what a file is, if it can contain neither a profile nor a program.
fn unreadable(kind: FileType) -> Option<&'static str> {
    match () {
        () if kind.is_dir() => Some("folder"),
        () if kind.is_char_device() || kind.is_block_device() => Some("device"),
        () => None,
    }
}

/// Writes a file. An older file stays until the new one is complete. `authors` are those of what is in it.
///
/// # Errors
/// The file cannot be written, or was read.
pub(crate) fn replace(path: &Path, bytes: &[u8], authors: &Authors) -> Result<()> {
    spare_input(path)?;
    replace_any(path, bytes, authors)
}

/// The same also for a file that was read, as for a sum that replaces one of its parts.
///
/// # Errors
/// The file cannot be written.
pub(crate) fn replace_any(path: &Path, bytes: &[u8], authors: &Authors) -> Result<()> {
    gmon::output::Target::check(path)
        .and_then(|target| restricted(target, authors).write_durably(bytes))
        .with_context(|| path.display().to_string())
}

/// Returns the target for a report. What root makes of other users' files is for root, who may read more of them than those who
/// read the report.
pub(crate) fn restricted(target: gmon::output::Target, authors: &Authors) -> gmon::output::Target {
    match rustix::process::geteuid().is_root() && !authors.is_empty() {
        true => target.private(),
        false => target,
    }
}
