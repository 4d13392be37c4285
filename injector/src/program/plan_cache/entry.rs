//! A file with one plan. Only this user can have written it, but it may be damaged, and another user may have
//! replaced it before the folder was private.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Deref;

use gprofinject_plan::Plan;
use rustix::fs::{self, FileType, Mode, Stat};

use crate::os::sys::{self, Mapped};
use crate::program::plan_cache::key::Key;
use crate::store::private_folder::PrivateFolder;

/// ```text
/// plan file | decisions | length of the plan file | length of the decisions | checksum | magic
/// ```
///
/// The checksum covers the key, both lengths and both parts, so an entry under another key's name counts as damaged, too. The plan file comes
/// first, aligned to pages like the file, so that it can be used where it is mapped.
const MAGIC: [u8; 8] = *b"gpicache";
const TRAILER: usize = 2 * size_of::<u64>() + blake3::OUT_LEN + MAGIC.len();

/// The length in bytes above which a plan is not kept and a file is not read.
pub(super) const MOST: u64 = 256 << 20;

/// An entry, mapped.
pub(super) struct Entry {
    mapped: Mapped,
    file_len: usize,
    decisions_len: usize,
}

impl Entry {
    /// The decisions; see [`Plan::from_stored`].
    pub(super) fn decisions(&self) -> &[u8] {
        self.mapped.get(self.file_len..self.file_len + self.decisions_len).unwrap_or_default()
    }
}

/// This is the plan file.
impl Deref for Entry {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.mapped.get(..self.file_len).unwrap_or_default()
    }
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
    let entry = is_entry(&stat).then(|| parse(Mapped::new(&file).ok()?, key))??;
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
        && (TRAILER as u64..=MOST).contains(&(stat.st_size as u64))
}

/// Checks an entry. It is mapped, because only this user can truncate it, and gprofinject replaces and removes entries only.
fn parse(mapped: Mapped, key: &Key) -> Option<Entry> {
    let (parts, trailer) = mapped.split_last_chunk::<TRAILER>()?;
    let (file_len, rest) = trailer.split_first_chunk::<8>()?;
    let (decisions_len, rest) = rest.split_first_chunk::<8>()?;
    let (sum, magic) = rest.split_first_chunk::<{ blake3::OUT_LEN }>()?;
    let (file_len, decisions_len) = (u64::from_le_bytes(*file_len), u64::from_le_bytes(*decisions_len));
    if magic != MAGIC || file_len.checked_add(decisions_len)? != parts.len() as u64 {
        return None;
    }
    if Checksum::new(key, file_len, decisions_len).add(parts).value() != *sum {
        return None;
    }
    Some(Entry { file_len: file_len as usize, decisions_len: decisions_len as usize, mapped })
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
    if file_len + decisions_len + TRAILER as u64 > MOST {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    let sum = Checksum::new(key, file_len, decisions_len);
    let sum = plan_file.iter().fold(sum, |sum, piece| sum.add(piece.as_ref())).add(decisions);
    plan_file.iter().try_for_each(|piece| file.write_all(piece.as_ref()))?;
    file.write_all(decisions)?;
    file.write_all(&file_len.to_le_bytes())?;
    file.write_all(&decisions_len.to_le_bytes())?;
    file.write_all(&sum.value())?;
    file.write_all(&MAGIC)
}

struct Checksum(blake3::Hasher);

impl Checksum {
    fn new(key: &Key, file_len: u64, decisions_len: u64) -> Checksum {
        let sum = Checksum(blake3::Hasher::new());
        sum.add(&key.0).add(&file_len.to_le_bytes()).add(&decisions_len.to_le_bytes())
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
