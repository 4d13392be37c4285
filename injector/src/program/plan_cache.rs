//! The plans of earlier runs, in `$XDG_CACHE_HOME/gprofinject`, so that a large program is planned only once.
//!
//! A plan is kept under a [`Key`], a hash of everything that determines it: the program's contents
//! ([`Contents::mark`](crate::program::contents::Contents::mark)), what is hooked and how, and the planner itself. A build-id would not be enough:
//! a user can give a program the build-id of another one, and gprofinject would patch that other program by the wrong plan from then on.
//!
//! No failure here is an error. Without a folder to which only this user can write, or without space in it,
//! each run makes its plan, and `-v` says why.

mod entry;
pub(crate) mod key;
mod shelf;

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use gprofinject_image::Image;
use gprofinject_plan::{Plan, StoredFile};

use crate::os::say::Voice;
use crate::os::sys;
use crate::program::filters::Filters;
use crate::program::plan_cache::key::{Key, Question};
use crate::program::subject::LEAST_CODE;
use crate::store::private_folder::{Distrust, PrivateFolder};

/// The plans that are kept, and those that will be.
#[derive(Debug)]
pub(crate) struct PlanCache {
    /// The folder; `None` if there is `--no-cache`, or no place for a cache.
    path: Option<PathBuf>,
    voice: Voice,
    folder: OnceLock<Folder>,
    /// The plans that were made in this run.
    fresh: Mutex<Vec<(Key, &'static Plan)>>,
    writers: Mutex<Vec<JoinHandle<()>>>,
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
        PlanCache::at(path, voice)
    }

    fn at(path: Option<PathBuf>, voice: Voice) -> PlanCache {
        let (fresh, writers) = (Mutex::default(), Mutex::default());
        PlanCache { path, voice, folder: OnceLock::new(), fresh, writers }
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
        let code: usize = question.image.code.iter().map(|code| code.bytes.len()).sum();
        (code >= LEAST_CODE && !matches!(self.folder(), Folder::None)).then(|| question.key())?
    }

    /// Returns the plan that an earlier run has kept, and whether it was kept under another key: a program that was just made is known by
    /// its bytes, and later by its version.
    pub(crate) fn find(&self, question: &Question, key: &Key) -> Option<(Plan, bool)> {
        let Folder::Opened(_) = self.folder() else { return None };
        let kept = self.kept(key, question.image).map(|plan| (plan, false));
        kept.or_else(|| Some((self.kept(&question.key_by_bytes()?, question.image)?, true)))
    }

    fn kept(&self, key: &Key, image: &Image) -> Option<Plan> {
        let Folder::Opened(folder) = self.folder() else { return None };
        let entry = entry::read(folder, key)?;
        let decisions = entry.decisions().to_vec();
        Plan::from_stored(image, &decisions, StoredFile::new(entry))
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

    /// Adds a new plan, which [`PlanCache::keep_fresh`] writes under its key.
    pub(crate) fn add(&self, key: Key, plan: &'static Plan) {
        locked(&self.fresh).push((key, plan));
    }

    /// Writes the new plans in a thread, so that the program that runs meanwhile does not wait.
    pub(crate) fn keep_fresh(&self) {
        let fresh = std::mem::take(&mut *locked(&self.fresh));
        let Some(path) = self.path.clone().filter(|_| !fresh.is_empty()) else { return };
        let voice = self.voice;
        let keep = move || {
            let shelf = shelf::open(&path);
            for (key, plan) in fresh {
                let shelf = shelf.as_ref().map_err(ToString::to_string);
                let kept =
                    shelf.and_then(|shelf| shelf.keep(&key, plan).map_err(|error| sys::reason(&error)));
                let shown = path.display();
                match kept {
                    Ok(()) => voice.detail(format_args!("the plan is kept for later runs in {shown}")),
                    Err(why) => voice.detail(format_args!("the plan is not kept in {shown}: {why}")),
                }
            }
        };
        // If no thread can be created, there is no room for a cache either.
        locked(&self.writers).extend(thread::Builder::new().spawn(keep).ok());
    }
}

/// Waits until all new plans are written.
impl Drop for PlanCache {
    fn drop(&mut self) {
        self.keep_fresh();
        for writer in std::mem::take(&mut *locked(&self.writers)) {
            let _ = writer.join();
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
