//! A file with one plan. Only this user can have written it, but it may be damaged, and another user may have
//! replaced it before the folder was private.

use std::fs::File;
use std::io::{self, Read, Write};

use gprofinject_plan::Plan;
use rustix::fs::{self, FileType, Mode, Stat};

use crate::os::sys;
use crate::program::plan_cache::key::Key;
use crate::store::private_folder::PrivateFolder;

/// ```text
/// magic | length of the decisions | length of the plan file | checksum | decisions | plan file
/// ```
///
/// The checksum covers the key, both lengths and everything after it, so an entry under another key's name
/// counts as damaged, too.
const MAGIC: [u8; 8] = *b"gpicache";
const HEADER: usize = MAGIC.len() + 2 * size_of::<u64>() + blake3::OUT_LEN;

/// The length in bytes above which a plan is not kept and a file is not read.
pub(super) const MOST: u64 = 256 << 20;

/// The two parts of an entry; see [`Plan::from_stored`].
pub(super) struct Entry {
    pub(super) decisions: Vec<u8>,
    pub(super) file: Vec<u8>,
}

/// Returns the name of a key's file.
pub(super) fn name(key: &Key) -> String {
    format!("{key}{SUFFIX}")
}

pub(super) const SUFFIX: &str = ".plan";

/// Reads an entry, and marks it as just used. Returns `None` if there is none, or if it is not as gprofinject
/// writes it.
pub(super) fn read(folder: &PrivateFolder, key: &Key) -> Option<Entry> {
    let file = folder.open_file(&name(key)).ok()?;
    let stat = fs::fstat(&file).ok()?;
    let entry = is_entry(&stat).then(|| parse(&file, stat.st_size as u64, key))??;
    let now = fs::Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW };
    // On a file system that is mounted read-only, its age does not matter.
    let _ = fs::futimens(&file, &fs::Timestamps { last_access: now, last_modification: now });
    Some(entry)
}

/// Whether a file has this user as owner, the right mode, one name, and not too many bytes.
pub(super) fn is_entry(stat: &Stat) -> bool {
    let mode = Mode::from_raw_mode(stat.st_mode);
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && stat.st_uid == sys::ids().euid
        && mode == Mode::RUSR | Mode::WUSR
        && stat.st_nlink == 1
        && (HEADER as u64..=MOST).contains(&(stat.st_size as u64))
}

/// Reads the file; a mapped file that is truncated meanwhile would end this process. `len` is the file's
/// length, which bounds the allocation.
fn parse(mut file: &File, len: u64, key: &Key) -> Option<Entry> {
    let mut header = [0; HEADER];
    file.read_exact(&mut header).ok()?;
    let (magic, rest) = header.split_first_chunk::<8>()?;
    let (decisions_len, rest) = rest.split_first_chunk::<8>()?;
    let (file_len, checksum) = rest.split_first_chunk::<8>()?;
    let (decisions_len, file_len) = (u64::from_le_bytes(*decisions_len), u64::from_le_bytes(*file_len));
    if *magic != MAGIC || decisions_len.checked_add(file_len)?.checked_add(HEADER as u64)? != len {
        return None;
    }
    let decisions = piece(file, decisions_len)?;
    let plan_file = piece(file, file_len)?;
    let sum = Checksum::new(key, decisions_len, file_len).add(&decisions).add(&plan_file);
    (sum.value() == *checksum).then_some(Entry { decisions, file: plan_file })
}

fn piece(file: &File, len: u64) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(usize::try_from(len).ok()?).ok()?;
    file.take(len).read_to_end(&mut bytes).ok()?;
    (bytes.len() as u64 == len).then_some(bytes)
}

/// Writes a plan to a new file.
///
/// # Errors
/// It cannot be written.
pub(super) fn write(file: &mut File, key: &Key, plan: &Plan) -> io::Result<()> {
    let unkept = || io::Error::other("its parts cannot be stored");
    let decisions = plan.to_stored().ok_or_else(unkept)?;
    write_parts(file, key, &decisions, &plan.encode())
}

fn write_parts(
    file: &mut File,
    key: &Key,
    decisions: &[u8],
    plan_file: &[impl AsRef<[u8]>],
) -> io::Result<()> {
    let decisions_len = decisions.len() as u64;
    let file_len = plan_file.iter().map(|piece| piece.as_ref().len() as u64).sum();
    if HEADER as u64 + decisions_len + file_len > MOST {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    let sum = Checksum::new(key, decisions_len, file_len).add(decisions);
    let sum = plan_file.iter().fold(sum, |sum, piece| sum.add(piece.as_ref()));
    file.write_all(&MAGIC)?;
    file.write_all(&decisions_len.to_le_bytes())?;
    file.write_all(&file_len.to_le_bytes())?;
    file.write_all(&sum.value())?;
    file.write_all(decisions)?;
    plan_file.iter().try_for_each(|piece| file.write_all(piece.as_ref()))
}

struct Checksum(blake3::Hasher);

impl Checksum {
    fn new(key: &Key, decisions_len: u64, file_len: u64) -> Checksum {
        let sum = Checksum(blake3::Hasher::new());
        sum.add(&key.0).add(&decisions_len.to_le_bytes()).add(&file_len.to_le_bytes())
    }

    fn add(mut self, bytes: &[u8]) -> Checksum {
        self.0.update(bytes);
        self
    }

    fn value(&self) -> [u8; blake3::OUT_LEN] {
        *self.0.finalize().as_bytes()
    }
}

#[cfg(test)]
mod tests;
