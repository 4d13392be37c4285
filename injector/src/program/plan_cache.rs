//! Plans of earlier runs, in `$XDG_CACHE_HOME/gprofinject`: a large program is planned once.
//!
//! A plan is kept under a [`Key`], a hash of everything that it follows from: all bytes of the program, what is to be
//! hooked and how, and the planner itself. A build-id would not do. Whoever makes a program can give it the build-id of
//! another one, and we would patch that other one by the wrong plan from then on.
//!
//! What is planned is exactly what was hashed: only a program that was read into our own memory has a key, since its owner
//! could change a mapped file between the two.
//!
//! Nothing here is an error. Without a folder that only we can write to, or space in it, each run plans anew, and `-v` says
//! why.

mod entry;
pub(crate) mod key;
mod shelf;

use std::cell::{OnceCell, RefCell};
use std::ffi::OsString;
use std::path::PathBuf;
use std::thread::{self, JoinHandle};

use gprofinject_image::Image;
use gprofinject_plan::Plan;

use crate::os::say::Voice;
use crate::os::sys;
use crate::program::filters::Filters;
use crate::program::plan_cache::key::{Key, Question};
use crate::program::subject::LEAST_CODE;
use crate::store::private_folder::{Distrust, PrivateFolder};

/// The plans that are kept, and those that will be.
#[derive(Debug)]
pub(crate) struct PlanCache {
    /// None: `--no-cache`, or there is no place for a cache.
    path: Option<PathBuf>,
    voice: Voice,
    folder: OnceCell<Folder>,
    /// Plans that were made in this run.
    fresh: RefCell<Vec<(Key, &'static Plan)>>,
    writers: RefCell<Vec<JoinHandle<()>>>,
}

#[derive(Debug)]
enum Folder {
    Opened(PrivateFolder),
    /// It will be made with the first entry.
    Absent,
    /// There is no cache, or it is not to be trusted.
    None,
}

impl PlanCache {
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
        let (fresh, writers) = (RefCell::default(), RefCell::default());
        PlanCache { path, voice, folder: OnceCell::new(), fresh, writers }
    }

    /// Whether there is a cache, and plans by these filters can be in it.
    pub(crate) fn takes(&self, filters: &Filters) -> bool {
        filters.count().is_none() && !matches!(self.folder(), Folder::None)
    }

    /// The key under which the answer to the question may be kept. None: it is not kept.
    pub(crate) fn key(&self, question: &Question) -> Option<Key> {
        let code: usize = question.image.code.iter().map(|code| code.bytes.len()).sum();
        (code >= LEAST_CODE && !matches!(self.folder(), Folder::None)).then(|| question.key())?
    }

    /// The plan that an earlier run has kept.
    pub(crate) fn find(&self, key: &Key, image: &Image) -> Option<Plan> {
        let Folder::Opened(folder) = self.folder() else { return None };
        let entry::Entry { decisions, file } = entry::read(folder, key)?;
        Plan::from_stored(image, &decisions, file)
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

    /// Notes a new plan, which [`PlanCache::keep_fresh`] keeps under its key.
    pub(crate) fn add(&self, key: Key, plan: &'static Plan) {
        self.fresh.borrow_mut().push((key, plan));
    }

    /// Keeps the new plans, by a thread: the program that runs meanwhile does not wait for that.
    pub(crate) fn keep_fresh(&self) {
        let fresh = self.fresh.take();
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
        // Where no thread can be made there is no room for a cache either.
        self.writers.borrow_mut().extend(thread::Builder::new().spawn(keep).ok());
    }
}

/// Waits until all that was to be kept is written.
impl Drop for PlanCache {
    fn drop(&mut self) {
        self.keep_fresh();
        for writer in self.writers.take() {
            let _ = writer.join();
        }
    }
}

/// The folder: the one that the XDG base directory specification names.
fn place(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    // By the specification a relative path is to be ignored.
    let named = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let caches = named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")))?;
    Some(caches.join("gprofinject"))
}

#[cfg(test)]
mod tests;
