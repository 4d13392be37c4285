//! The contents of a program's or library's file, and what tells them from all others.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Deref;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use blake3::{Hash, Hasher};
use gprofinject_abi::plan::FileVersion;
use gprofinject_image::debug::DebugFile;
use memchr::memmem;

use crate::os::mapped::Mapped;
use crate::os::sys;

/// A file's contents. What is kept for the length of a run is read, unless it is long or [old](is_old): a build may run a program and
/// overwrite its file later, which would then have other names. What others than root and the user can have written is read as well.
pub(crate) struct Contents {
    bytes: Bytes,
    /// See [`settled`].
    version: Option<FileVersion>,
}

enum Bytes {
    Mapped(Mapped),
    Read(Vec<u8>),
    /// A copy that an earlier run has kept.
    Kept(&'static [u8]),
}

/// Whether a module may map its own text a second time, by what /proc/self/maps says of it, as V8 does with its built-in functions
/// (`OS::RemapPages`). What it would find there of an image has patches, which lead nowhere from another address.
pub(crate) fn may_map_itself(bytes: &[u8]) -> bool {
    let has = |text: &str| memmem::find(bytes, text.as_bytes()).is_some();
    // The first one is an option of V8's. Rust's standard library reads the list to find names.
    has("short_builtin_calls") || has("/proc/self/maps") && !has("/rustc/")
}

impl Deref for Contents {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(mapped) => mapped,
            Bytes::Read(bytes) => bytes,
            Bytes::Kept(copy) => copy,
        }
    }
}

impl Contents {
    /// Opens a file. It is read if it is `kept` for the length of the run.
    ///
    /// # Errors
    /// The file is not regular, or cannot be read.
    pub(crate) fn open(path: &Path, kept: bool) -> io::Result<Contents> {
        /// The length in bytes above which a file is mapped, because much of it is never accessed.
        const LONG: u64 = 256 << 20;
        let file = sys::open_regular(path)?;
        if !sys::is_trusted_owner(&file) {
            return Contents::read(&file);
        }
        // The version is older than the bytes: if they change in between, it will not be seen again.
        let version = if kept { settled(&file) } else { None };
        match kept && file.metadata()?.len() <= LONG && !version.as_ref().is_some_and(is_old) {
            true => Ok(Contents { version, ..Contents::read(&file)? }),
            false => Ok(Contents { bytes: Bytes::Mapped(Mapped::new(&file)?), version }),
        }
    }

    /// Maps a file that is not to be hooked, if it is one of root's or of the user who runs gprofinject; or reads it, if its owner is outside
    /// of this process's user namespace. Returns the hash of its version as well, if that tells the contents from all others.
    pub(crate) fn open_trusted(path: &Path) -> Option<(Contents, Option<Hash>)> {
        /// The length in bytes above which a file of whoever is outside is not read.
        const LONGEST: u64 = 1 << 30;
        let file = sys::open_regular(path).ok()?;
        if !sys::is_trusted_owner(&file) {
            let file = Some(file).filter(sys::is_of_outsider)?;
            let bytes = Bytes::Read(sys::read_whole(&file, LONGEST).ok()?);
            return Some((Contents { bytes, version: None }, None));
        }
        let (version, mapped) = (settled(&file), Mapped::new(&file).ok()?);
        let hash = version.as_ref().map(|version| hash_of(version, mapped.get(..HEAD).unwrap_or(&mapped)));
        Some((Contents { bytes: Bytes::Mapped(mapped), version }, hash))
    }

    /// Reads a program that another user runs, whoever has written it: that user may decide what is mounted where it lies.
    ///
    /// # Errors
    /// As for [`Contents::open`].
    pub(crate) fn open_foreign(path: &Path) -> io::Result<Contents> {
        Contents::read(&sys::open_regular(path)?)
    }

    fn read(file: &File) -> io::Result<Contents> {
        /// The length in bytes above which a file is not read.
        const LONGEST: u64 = 4 << 30;
        Ok(Contents { bytes: Bytes::Read(sys::read_whole(file, LONGEST)?), version: None })
    }

    /// Maps a file that still has this version, if nobody but root and the user can have written it.
    pub(crate) fn of_version(path: &Path, version: FileVersion) -> Option<Contents> {
        let file = sys::open_regular(path).ok().filter(sys::is_trusted_owner)?;
        let mapped = Mapped::new(&file).ok()?;
        (settled(&file)? == version)
            .then(|| Contents { bytes: Bytes::Mapped(mapped), version: Some(version) })
    }

    /// Takes a copy of a file that had this version when it was copied.
    pub(crate) fn kept(copy: &'static [u8], version: FileVersion) -> Contents {
        Contents { bytes: Bytes::Kept(copy), version: Some(version) }
    }

    /// Returns the version of the file, if it tells the contents from all others.
    pub(crate) fn version(&self) -> Option<FileVersion> {
        self.version
    }

    /// Returns what tells the contents, together with those of the debug file, from all others, or `None` if that cannot be told of a mapped
    /// file.
    pub(crate) fn mark(&self, debug_file: Option<&DebugFile>) -> Option<Mark> {
        let Some(version) = &self.version else {
            let Bytes::Read(bytes) = &self.bytes else { return None };
            return Some(Mark::Bytes(of_bytes(bytes, debug_file)));
        };
        let mut hasher = Hasher::new();
        let mut add_version = |version: &FileVersion| {
            version.iter().for_each(|number| _ = hasher.update(&number.to_le_bytes()));
        };
        add_version(version);
        if let Some(file) = debug_file.filter(|file| !file.embedded) {
            // Its bytes have been read by now, so they are older than what this looks at.
            add_version(&sys::open_regular(&file.path).ok().and_then(|file| settled(&file))?);
        }
        hasher.update(b"version").update(self.get(..HEAD).unwrap_or(self));
        Some(Mark::Version(hasher.finalize()))
    }
}

/// The length of the first part of a file, which has the ELF header and usually the build-id, in bytes.
const HEAD: usize = 4096;

/// Returns the version of a file, and a hash of it, if the version tells the contents from all others and nobody but root and the user can
/// have written the file.
pub(crate) fn version_of(path: &Path) -> Option<(FileVersion, Hash)> {
    let file = sys::open_regular(path).ok().filter(sys::is_trusted_owner)?;
    let version = settled(&file)?;
    let mut head = Vec::new();
    file.take(HEAD as u64).read_to_end(&mut head).ok()?;
    let hash = hash_of(&version, &head);
    Some((version, hash))
}

/// Returns the hash of a file's version and of its first part.
fn hash_of(version: &FileVersion, head: &[u8]) -> Hash {
    let mut hasher = Hasher::new();
    version.iter().for_each(|number| _ = hasher.update(&number.to_le_bytes()));
    hasher.update(b"file").update(head).finalize()
}

/// What tells contents from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// A hash of the file's version.
    Version(Hash),
    /// A hash of all bytes, which are in this process's own memory: what is planned is what was hashed.
    Bytes(Hash),
}

impl Mark {
    /// The hash.
    pub(crate) fn hash(self) -> Hash {
        let (Mark::Version(hash) | Mark::Bytes(hash)) = self;
        hash
    }
}

/// Returns a hash of all bytes of a file and of its debug file.
pub(crate) fn of_bytes(bytes: &[u8], debug_file: Option<&DebugFile>) -> Hash {
    let mut hasher = Hasher::new();
    // The length says where the debug file begins.
    hasher.update(b"bytes").update(&(bytes.len() as u64).to_le_bytes()).update(bytes);
    hasher.update(debug_file.map_or(&[], |file| &file.bytes)).finalize()
}

/// Whether a file with this version has not changed for so long that it is no product of a build that goes on: a package has installed it,
/// and package managers replace files by other ones. Such a file is mapped, and no copy of it is kept.
pub(crate) fn is_old(version: &FileVersion) -> bool {
    /// In seconds.
    const OLD: u64 = 3600;
    let [.., mtime, _, ctime, _] = *version;
    sys::unix_seconds().saturating_sub(mtime.max(ctime)) > OLD
}

/// Returns the version of a file. Each later change of the contents makes another one: it gives the inode a new time, which cannot be set
/// otherwise. Returns `None` if the file was changed so recently that a later change could have the same time, or if it may be changed without
/// that, because a process has it mapped for writing.
fn settled(file: &File) -> Option<FileVersion> {
    /// The coarsest times of common file systems, in seconds.
    const COARSE: i64 = 2;
    let metadata = file.metadata().ok()?;
    let now = sys::unix_seconds() as i64;
    let last = metadata.mtime().max(metadata.ctime());
    if now.saturating_sub(last) <= COARSE || sys::is_open_for_writing(file) == Some(true) {
        return None;
    }
    let times = [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()];
    let [mtime, mtime_nsec, ctime, ctime_nsec] = times.map(i64::cast_unsigned);
    Some([metadata.dev(), metadata.ino(), metadata.len(), mtime, mtime_nsec, ctime, ctime_nsec])
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Waits until a file that was changed just now has settled.
    fn wait() {
        thread::sleep(Duration::from_millis(3100));
    }

    fn mark(path: &Path) -> Option<Mark> {
        Contents::open(path, true).expect("readable").mark(None)
    }

    fn has_version(path: &Path) -> bool {
        matches!(mark(path), Some(Mark::Version(_)))
    }

    #[test]
    fn a_change_makes_another_version() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = &folder.path().join("file");
        fs::write(path, b"contents").expect("written");
        assert!(mark(path).is_some() && !has_version(path), "it could still be changed within the same tick");
        wait();
        assert!(has_version(path));
        let before = mark(path).expect("it has settled");
        assert_eq!(mark(path), Some(before));
        let modified = fs::metadata(path).and_then(|metadata| metadata.modified()).expect("known");
        // The same length, and the same time of the last change as before.
        let mut again = File::options().write(true).open(path).expect("writable");
        again.write_all(b"CONTENTS").and_then(|()| again.set_modified(modified)).expect("written");
        assert!(!has_version(path), "it is open for writing");
        drop(again);
        wait();
        assert_ne!(mark(path).expect("it has settled"), before);
    }

    #[test]
    fn what_has_not_changed_for_an_hour_is_old() {
        let now = sys::unix_seconds();
        let version = |mtime, ctime| [1, 2, 3, now - mtime, 0, now - ctime, 0];
        assert!(is_old(&version(7200, 4000)) && is_old(&version(1 << 30, 3700)));
        // The time of the last modification can be set, that of the last change cannot.
        assert!(!is_old(&version(1 << 30, 60)) && !is_old(&version(60, 60)));
        // A clock that was set back.
        assert!(!is_old(&[1, 2, 3, now + 100, 0, now + 100, 0]));
    }

    #[test]
    fn a_file_is_mapped_only_while_it_has_its_version() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = &folder.path().join("file");
        fs::write(path, b"contents").expect("written");
        wait();
        let (version, _) = version_of(path).expect("it has settled");
        let mapped = Contents::of_version(path, version).expect("unchanged");
        assert_eq!((&*mapped, mapped.version()), (b"contents".as_slice(), Some(version)));
        fs::rename(path, folder.path().join("aside")).expect("renamed");
        assert!(Contents::of_version(path, version).is_none());
        fs::write(path, b"CONTENTS").expect("written");
        wait();
        assert!(Contents::of_version(path, version).is_none(), "another file under the same name");
        assert_eq!(&*mapped, b"contents");
    }

    #[test]
    fn files_of_others_are_read() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        fs::write(file.path(), b"contents").expect("written");
        if std::os::unix::fs::chown(file.path(), Some(65534), None).is_err() {
            // Only root can give a file away.
            return;
        }
        assert!(!has_version(file.path()));
        let before = mark(file.path()).expect("its bytes cannot change");
        assert_eq!(mark(file.path()), Some(before));
        fs::write(file.path(), b"CONTENTS").expect("written");
        assert_ne!(mark(file.path()), Some(before));
    }
}
