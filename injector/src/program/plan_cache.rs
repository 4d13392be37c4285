//! The plans of earlier runs, in `$XDG_CACHE_HOME/gprofinject`, so that a large program is planned only once.
//!
//! A plan is kept under a [`Key`], a hash of everything that determines it: the program's contents
//! ([`Contents::mark`](crate::program::contents::Contents::mark)), what is hooked and how, and the planner itself. A build-id would not be enough:
//! a user can give a program the build-id of another one, and gprofinject would patch that other program by the wrong plan from then on.
//!
//! No failure here is an error. Without a folder to which only this user can write, or without space in it,
//! each run makes its plan, and `-v` says why.

pub(crate) mod entry;
pub(crate) mod key;
mod shelf;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use gprofinject_image::Image;
use gprofinject_plan::{Placement, Plan, StoredFile};

use crate::os::mapped::Mapped;
use crate::os::say::Voice;
use crate::os::sys;
use crate::program::contents::{self, Contents};
use crate::program::filters::Filters;
use crate::program::plan_cache::entry::{Entry, Source};
use crate::program::plan_cache::key::{Key, Question, ReadFor};
use crate::program::subject::{Binary, Subject};
use crate::store::private_folder::{Distrust, PrivateFolder};

/// The plans that are kept, and those that will be.
#[derive(Debug)]
pub(crate) struct PlanCache {
    /// The folder; `None` if there is `--no-cache`, or no place for a cache.
    path: Option<PathBuf>,
    voice: Voice,
    folder: OnceLock<Folder>,
    /// The plans that were made in this run.
    fresh: Mutex<Vec<(Key, Source<'static>)>>,
    /// How many bytes are kept, if the user says so.
    bytes: Option<u64>,
    /// When this run began, in seconds since 1970.
    since: i64,
    /// Whether plans of this run have no room.
    full: Arc<AtomicBool>,
    writers: Mutex<Vec<JoinHandle<()>>>,
    /// What was said of plans that were kept, and why others were not. It is said once.
    said: Arc<Mutex<BTreeSet<Option<String>>>>,
}

#[derive(Debug)]
enum Folder {
    Opened(PrivateFolder),
    /// The folder will be created with the first entry.
    Absent,
    /// There is no cache, or it is not trusted.
    None,
}

impl PlanCache {
    /// Opens the cache if it is wanted. Reports with `-v` why it cannot be used.
    pub(crate) fn new(wanted: bool, voice: Voice) -> PlanCache {
        let path = match wanted.then(|| place(|name| std::env::var_os(name))) {
            Some(None) => {
                voice.detail("no plan cache: neither XDG_CACHE_HOME nor HOME names a folder");
                None
            }
            place => place.flatten(),
        };
        let bytes = std::env::var(SIZE).ok().filter(|size| !size.is_empty()).and_then(|size| {
            let bytes = bytes(&size);
            if bytes.is_none() {
                voice.warn(format_args!(
                    "{SIZE} is '{size}', which is no size such as 500M or 2G; 1G of plans are kept"
                ));
            }
            bytes
        });
        PlanCache::at(path, bytes, voice)
    }

    fn at(path: Option<PathBuf>, bytes: Option<u64>, voice: Voice) -> PlanCache {
        let (fresh, writers) = (Mutex::default(), Mutex::default());
        let (since, full) = (sys::unix_seconds() as i64, Arc::default());
        PlanCache {
            path,
            voice,
            folder: OnceLock::new(),
            fresh,
            bytes,
            since,
            full,
            writers,
            said: Arc::default(),
        }
    }

    /// Prints messages about plans.
    pub(crate) fn voice(&self) -> Voice {
        self.voice
    }

    /// Whether there is a cache that can contain plans by these filters.
    pub(crate) fn takes(&self, filters: &Filters) -> bool {
        filters.count().is_none() && !matches!(self.folder(), Folder::None)
    }

    /// Returns the key of a question's answer, or `None` if the answer is not kept.
    pub(crate) fn key(&self, question: &Question) -> Option<Key> {
        if matches!(self.folder(), Folder::None) { None } else { question.key() }
    }

    /// Returns the plan that an earlier run has kept under a key, and its file.
    pub(crate) fn find(&self, question: &Question, key: &Key) -> Option<(Plan, Arc<File>)> {
        self.kept(key, question.image)
    }

    /// The same for a program that was just made when it was planned: it is known by its bytes, and later by its version.
    pub(crate) fn find_by_bytes(&self, question: &Question) -> Option<Plan> {
        let Folder::Opened(_) = self.folder() else { return None };
        Some(self.kept(&question.key_by_bytes()?, question.image)?.0)
    }

    /// Reads a file, or finds what an earlier run has found out about it: then its contents are the copy that was kept, if there is one.
    pub(crate) fn read(&self, path: &Path, purpose: ReadFor) -> Binary {
        let kept = contents::version_of(path).and_then(|(version, hash)| {
            let Folder::Opened(folder) = self.folder() else { return None };
            Some((entry::read(folder, &Key::of_file(hash, purpose))?.0, version))
        });
        let kept = kept.and_then(|(entry, version)| {
            let contents = match entry.contents() {
                [] => Contents::of_version(path, version)?,
                copy => Contents::kept(copy, version),
            };
            Some((entry, contents))
        });
        let Some((entry, contents)) = kept else {
            return Binary::new(path, Contents::open(path, true), true);
        };
        outlined(Binary::new(path, Ok(contents), true), &entry)
    }

    /// Adds what was found out about a file.
    pub(crate) fn add_file(&self, path: &Path, purpose: ReadFor, subject: &'static Subject<'static>) {
        let (Some(image), Some(version)) = (subject.image(), subject.version) else { return };
        // Calls that are removed from the code of a program depend on what is preloaded.
        let is_kept = !subject.is_outlined && image.removed.is_empty();
        let found = contents::version_of(path).filter(|(now, _)| is_kept && *now == version);
        if let Some((_, hash)) = found {
            let is_read_itself = purpose == ReadFor::Names || contents::is_old(&version);
            let bytes = if is_read_itself { &[] } else { subject.bytes };
            self.add(Key::of_file(hash, purpose), Source::File { subject, bytes });
        }
    }

    /// Reads a file of which only the names of functions are wanted, and keeps it in memory to the end of this process. Returns `None` if
    /// other users of this namespace than root and this one may have written it: they could replace it by any other.
    pub(crate) fn names_of(&self, path: &Path) -> Option<&'static Subject<'static>> {
        let (contents, hash) = Contents::open_trusted(path)?;
        let mut binary = Binary::with_names_alone(path, contents, hash.is_some());
        if let (Some(hash), Folder::Opened(folder)) = (hash, self.folder())
            && let Some((entry, _)) = entry::read(folder, &Key::of_file(hash, ReadFor::Names))
        {
            binary = outlined(binary, &entry);
        }
        let binary: &'static Binary = Box::leak(Box::new(binary));
        let subject: &'static Subject = Box::leak(Box::new(binary.examine_library()));
        self.add_file(path, ReadFor::Names, subject);
        Some(subject)
    }

    fn kept(&self, key: &Key, image: &Image) -> Option<(Plan, Arc<File>)> {
        let Folder::Opened(folder) = self.folder() else { return None };
        let (entry, file) = entry::read(folder, key)?;
        let plan = Plan::from_stored(image, entry.decisions(), StoredFile::new(entry.contents())?)?;
        Some((plan, Arc::new(file)))
    }

    fn folder(&self) -> &Folder {
        let open = |path: &PathBuf| match PrivateFolder::open_own(path, 0) {
            Ok(folder) => Folder::Opened(folder),
            Err(Distrust::Absent) => Folder::Absent,
            Err(why) => {
                self.voice.detail(format_args!("no plan cache: {}: {why}", path.display()));
                Folder::None
            }
        };
        self.folder.get_or_init(|| self.path.as_ref().map_or(Folder::None, open))
    }

    /// Returns the plan file that an earlier run has kept of a library's plan, which has this key, for these numbers.
    pub(crate) fn find_placed(&self, plan: &Key, at: &Placement) -> Option<Arc<File>> {
        let Folder::Opened(folder) = self.folder() else { return None };
        let (_, file) = entry::read(folder, &Key::of_placed(plan, at))?;
        sys::maps_executable(&file).then(|| Arc::new(file))
    }

    /// Adds such a plan file.
    pub(crate) fn add_placed(&self, plan: &Key, at: &Placement, file: &File) {
        // The mapping stays to the end of this process, as plans do.
        if let Ok(bytes) = Mapped::new(file) {
            let bytes: &'static Mapped = Box::leak(Box::new(bytes));
            self.add(Key::of_placed(plan, at), Source::Placed { bytes });
        }
    }

    /// Adds a new plan, which [`PlanCache::keep_fresh`] writes under its key.
    pub(crate) fn add(&self, key: Key, source: Source<'static>) {
        locked(&self.fresh).push((key, source));
    }

    /// Waits until all new plans are written. Returns whether there was no room for some of them.
    pub(crate) fn finish(&self) -> bool {
        self.keep_fresh();
        for writer in std::mem::take(&mut *locked(&self.writers)) {
            let _ = writer.join();
        }
        self.full.load(Relaxed)
    }

    /// Writes the new plans in a thread, so that the program that runs meanwhile does not wait.
    pub(crate) fn keep_fresh(&self) {
        let fresh = std::mem::take(&mut *locked(&self.fresh));
        let Some(path) = self.path.clone().filter(|_| !fresh.is_empty()) else { return };
        let (voice, bytes, since) = (self.voice, self.bytes, self.since);
        let (said, full) = (self.said.clone(), self.full.clone());
        let keep = move || {
            let shelf = shelf::open(&path, bytes, since);
            let shelf = shelf.as_ref().map_err(ToString::to_string);
            let shown = path.display();
            for (key, source) in fresh {
                let kept =
                    shelf.clone().and_then(|s| s.keep(&key, &source).map_err(|error| sys::reason(&error)));
                let is_new = locked(&said).insert(kept.clone().err());
                match kept {
                    _ if !is_new => {}
                    Ok(()) => voice.detail(format_args!("plans are kept for later runs in {shown}")),
                    Err(why) => voice.detail(format_args!("the plan is not kept in {shown}: {why}")),
                }
            }
            if let Ok(shelf) = shelf {
                let _ = shelf.tidy();
                full.fetch_or(shelf.is_full(), Relaxed);
            }
        };
        // If no thread can be created, there is no room for a cache either.
        locked(&self.writers).extend(thread::Builder::new().spawn(keep).ok());
    }
}

/// Waits until all new plans are written.
impl Drop for PlanCache {
    fn drop(&mut self) {
        self.finish();
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds what an earlier run has found out about a file, by its entry.
fn outlined(binary: Binary, entry: &Entry) -> Binary {
    let parts = entry
        .decisions()
        .split_first_chunk()
        .and_then(|(mark, rest)| Some((mark, rest.split_first_chunk()?)));
    match parts {
        Some((mark, (digest, outline))) => {
            binary.with_outline(outline, u64::from_le_bytes(*digest), mark as &[u8; MARK])
        }
        None => binary,
    }
}

/// The bytes of a mark.
const MARK: usize = blake3::OUT_LEN;

/// The variable that says how much is kept.
pub(crate) const SIZE: &str = "GPROFINJECT_CACHE_SIZE";

/// Returns the bytes of a size that may end in K, M, G or T.
fn bytes(size: &str) -> Option<u64> {
    let units = [("T", 4), ("G", 3), ("M", 2), ("K", 1), ("", 0)];
    let (number, power) = units.iter().find_map(|(unit, power)| Some((size.strip_suffix(unit)?, *power)))?;
    number.parse::<u64>().ok()?.checked_mul(1024_u64.pow(power))
}

/// Returns the folder that the XDG base directory specification names.
fn place(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    // The specification says that a relative path is ignored.
    let named = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")))?;
    Some(caches.join("gprofinject"))
}

#[cfg(test)]
mod tests;
