//! A file with one plan. Only this user can have written it, but it may be damaged, and another user may have
//! replaced it before the folder was private.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::sync::OnceLock;

use gprofinject_abi::plan::{FileVersion, MAGIC as PLAN_MAGIC, PlanEnd};
use gprofinject_abi::region::PAGE;
use gprofinject_image::Image;
use gprofinject_plan::Plan;
use rustix::fs::{self, FileType, Mode, Stat, Timespec, Timestamps};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::os::mapped::Mapped;
use crate::os::sys;
use crate::program::contents;
use crate::program::plan_cache::key::Key;
use crate::program::subject::Subject;
use crate::store::private_folder::PrivateFolder;

/// The end of an entry:
///
/// ```text
/// image | up to 7 zeros | decisions | Trailer
/// ```
///
/// The image comes first, so that processes map what they need of it from the entry's file. The decisions begin at a multiple of eight bytes,
/// so that their tables are used where they are.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Trailer {
    /// The length of the image in bytes.
    image_len: u64,
    /// The length of the decisions in bytes.
    decisions_len: u64,
    /// The time of the last change that the file has as long as nobody changes it, in seconds since 1970. Its nanoseconds say since which
    /// start of the system that is known.
    written: u64,
    /// A hash of the key, the image and the decisions. An entry under another key's name counts as damaged, too.
    contents: [u8; blake3::OUT_LEN],
    /// A hash of the key and what is above.
    own: [u8; blake3::OUT_LEN],
    magic: [u8; 8],
    /// This makes the entry a plan file.
    end: PlanEnd,
}

const MAGIC: [u8; 8] = *b"gpicache";
/// The decisions' alignment.
const ALIGNMENT: u64 = 8;
const TRAILER: usize = size_of::<Trailer>();

/// An entry. It stays mapped to the end of this process, as what is made of it does.
#[derive(Clone, Copy)]
pub(super) struct Entry {
    bytes: &'static [u8],
    trailer: Trailer,
}

impl Entry {
    /// The decisions; see [`Plan::from_stored`].
    pub(super) fn decisions(&self) -> &'static [u8] {
        let start = self.trailer.image_len.next_multiple_of(ALIGNMENT) as usize;
        self.bytes.get(start..start + self.trailer.decisions_len as usize).unwrap_or_default()
    }

    /// The plan, from its header on, or the whole file that was read.
    pub(super) fn contents(&self) -> &'static [u8] {
        let Trailer { end, image_len, .. } = self.trailer;
        self.bytes.get(end.plan as usize..image_len as usize).unwrap_or_default()
    }
}

/// Returns the name of a key's file.
pub(super) fn name(key: &Key) -> String {
    format!("{key}{}", key.suffix)
}

/// Opens an entry, and marks it as just used. Returns `None` if there is none, or if it is not as gprofinject
/// writes it.
pub(super) fn read(folder: &PrivateFolder, key: &Key) -> Option<(Entry, File)> {
    let file = folder.open_file(&name(key)).ok()?;
    let stat = fs::fstat(&file).ok()?;
    let entry = is_entry(&stat).then(|| parse(Mapped::new(&file).ok()?, key, &stat))??;
    mark_used(&file, &entry.trailer);
    Some((entry, file))
}

/// Gives the file the time of change by which it is recognised as checked, and notes that it is used now.
fn mark_used(file: &File, trailer: &Trailer) {
    let last_access = Timespec { tv_sec: sys::unix_seconds() as i64, tv_nsec: 0 };
    let last_modification =
        Timespec { tv_sec: trailer.written as i64, tv_nsec: start_of_system().unwrap_or(0).into() };
    // On a file system that is mounted read-only, its age does not matter.
    let _ = fs::futimens(file, &Timestamps { last_access, last_modification });
}

/// Returns a number of nanoseconds that this start of the system has, and hardly another one: from 1 to 999,999,999. `None` if
/// the system has no identity.
fn start_of_system() -> Option<u32> {
    static NUMBER: OnceLock<Option<u32>> = OnceLock::new();
    *NUMBER.get_or_init(|| {
        let identity = std::fs::read("/proc/sys/kernel/random/boot_id").ok()?;
        let first = *blake3::hash(&identity).as_bytes().first_chunk()?;
        Some(u32::from_le_bytes(first) % 999_999_999 + 1)
    })
}

/// Whether a file has this user as owner, the right mode, one name, and not too few bytes.
pub(super) fn is_entry(stat: &Stat) -> bool {
    let mode = Mode::from_raw_mode(stat.st_mode);
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && stat.st_uid == sys::ids().euid
        && mode == Mode::RUSR | Mode::WUSR
        && stat.st_nlink == 1
        && stat.st_size as u64 >= TRAILER as u64
}

/// Checks an entry. It is mapped, because only this user can truncate it, and gprofinject replaces and removes entries only.
fn parse(mapped: Mapped, key: &Key, stat: &Stat) -> Option<Entry> {
    let (parts, bytes) = mapped.split_last_chunk::<TRAILER>()?;
    let trailer = Trailer::read_from_bytes(bytes).ok()?;
    let Trailer { image_len, decisions_len, end, .. } = trailer;
    let is_sound = trailer.magic == MAGIC
        && end.magic == PLAN_MAGIC
        && image_len.checked_next_multiple_of(ALIGNMENT).and_then(|start| start.checked_add(decisions_len))
            == Some(parts.len() as u64)
        && end.plan <= image_len
        && end.plan.is_multiple_of(PAGE)
        && trailer.own == sum_of_trailer(key, &trailer);
    let is_whole = || trailer.contents == *hasher(key).update(parts).finalize().as_bytes();
    (is_sound && (is_as_left(&trailer, stat) || is_whole()))
        .then(|| Entry { bytes: Box::leak(Box::new(mapped)), trailer })
}

/// Whether nobody has changed the file since gprofinject has written or checked it. The system may have stopped before the disk had all of
/// it, so that counts only if it was after the last start of the system. The time of the last access would not say that: each process
/// that maps the file changes it.
fn is_as_left(trailer: &Trailer, stat: &Stat) -> bool {
    start_of_system()
        .is_some_and(|start| (stat.st_mtime as u64, stat.st_mtime_nsec) == (trailer.written, start.into()))
}

fn sum_of_trailer(key: &Key, trailer: &Trailer) -> [u8; blake3::OUT_LEN] {
    let Trailer { image_len, decisions_len, written, contents, end, .. } = *trailer;
    let mut hasher = hasher(key);
    for number in [image_len, decisions_len, written, end.plan] {
        hasher.update(&number.to_le_bytes());
    }
    *hasher.update(&contents).finalize().as_bytes()
}

fn hasher(key: &Key) -> blake3::Hasher {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&key.hash);
    hasher
}

/// What an entry is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'s> {
    /// A plan. The bytes are those of the file that was planned, whose version is there if its text may be replaced by patched text.
    Plan { plan: &'s Plan, bytes: &'s [u8], version: Option<FileVersion> },
    /// The plan file of a library, made for the numbers of a process.
    Placed { bytes: &'s [u8] },
    /// A file, and what was found out about it. There are no bytes if they will be read from the file itself.
    File { subject: &'s Subject<'static>, bytes: &'s [u8] },
}

/// Writes an entry to a new file.
///
/// # Errors
/// It cannot be written, or would be longer than `most` bytes.
pub(super) fn write(file: &mut File, key: &Key, source: &Source, most: u64) -> io::Result<()> {
    let unkept = || io::Error::other("its parts cannot be stored");
    match *source {
        Source::Plan { plan, bytes, version } => {
            let decisions = plan.to_stored().ok_or_else(unkept)?;
            let image = plan.image(bytes, version.filter(|_| !contents::may_map_itself(bytes)));
            write_parts(file, key, &decisions, (&image.pieces, image.plan), most)
        }
        Source::Placed { bytes } => write_parts(file, key, &[], (&[bytes], 0), most),
        Source::File { subject, bytes } => {
            let mark = subject.mark.ok_or_else(unkept)?.hash();
            let outline = subject.image().and_then(Image::outline).ok_or_else(unkept)?;
            let decisions = [mark.as_bytes().as_slice(), &subject.digest().to_le_bytes(), &outline].concat();
            write_parts(file, key, &decisions, (&[bytes], 0), most)
        }
    }
}

fn write_parts(
    file: &mut File,
    key: &Key,
    decisions: &[u8],
    (image, plan): (&[impl AsRef<[u8]>], u64),
    most: u64,
) -> io::Result<()> {
    let image_len: u64 = image.iter().map(|piece| piece.as_ref().len() as u64).sum();
    let decisions_len = decisions.len() as u64;
    if image_len + decisions_len + TRAILER as u64 > most {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    let mut contents = hasher(key);
    let padding = &[0; ALIGNMENT as usize][..(image_len.next_multiple_of(ALIGNMENT) - image_len) as usize];
    for piece in image.iter().map(AsRef::as_ref).chain([padding, decisions]) {
        contents.update(piece);
        write_sparse(file, piece)?;
    }
    let end = PlanEnd { plan, magic: PLAN_MAGIC };
    let (written, contents) = (sys::unix_seconds(), *contents.finalize().as_bytes());
    let mut trailer =
        Trailer { image_len, decisions_len, written, contents, own: contents, magic: MAGIC, end };
    trailer.own = sum_of_trailer(key, &trailer);
    file.write_all(trailer.as_bytes())?;
    mark_used(file, &trailer);
    Ok(())
}

/// Writes bytes at the end of a file, and leaves out zeros, which take no space then.
fn write_sparse(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    /// What is shorter is written.
    const LEAST: usize = 64 << 10;
    let is_hole = |chunk: &[u8]| chunk.len() == LEAST && chunk.iter().all(|&byte| byte == 0);
    for part in bytes.chunks(LEAST).collect::<Vec<_>>().chunk_by(|a, b| is_hole(a) == is_hole(b)) {
        let len: usize = part.iter().map(|chunk| chunk.len()).sum();
        match part.first() {
            Some(first) if is_hole(first) => _ = file.seek(SeekFrom::Current(len as i64))?,
            _ => part.iter().try_for_each(|chunk| file.write_all(chunk))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
