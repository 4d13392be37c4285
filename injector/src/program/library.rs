//! The shared libraries of a run, each planned once, however many processes load it.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use gprofinject_abi::ask::Question;
use gprofinject_abi::plan::LIBRARIES;
use gprofinject_abi::region::PAGE;
use gprofinject_image::headers;
use gprofinject_plan::Placement;

use crate::os::{proc, progress, sys};
use crate::program::memory;
use crate::program::planned::Planned;
use crate::program::planner::Planner;
use crate::program::profilee::{Identity, identity};

/// The greatest number of libraries of a run. A process can name any number of files.
const MOST: usize = 4096;

/// A library. It lives as long as the injector.
pub(crate) struct Library {
    /// The number of its plan.
    pub(crate) number: u32,
    pub(crate) binary: PathBuf,
    pub(crate) planned: &'static Planned<'static, 'static>,
}

impl Library {
    /// The name of its file.
    pub(crate) fn name(&self) -> &str {
        self.binary.file_name().and_then(OsStr::to_str).unwrap_or("library")
    }
}

/// All libraries of a run.
#[derive(Default)]
pub(crate) struct Libraries {
    /// By number; `None` for one that `--recover` cannot read any more.
    all: Vec<Option<&'static Library>>,
    /// The libraries by their files; for those that are not hooked, the reason.
    known: HashMap<Identity, Result<&'static Library, Arc<str>>>,
}

impl Libraries {
    /// Returns a library by the number of its plan.
    pub(crate) fn get(&self, number: u32) -> Option<&'static Library> {
        self.all.get(number as usize).copied().flatten()
    }

    /// Plans the libraries of an earlier run again, with the same numbers.
    pub(crate) fn again(paths: &[PathBuf], planner: &Planner) -> Libraries {
        let mut libraries = Libraries::default();
        for path in paths.iter().take(MOST) {
            if libraries.at(path, path, planner).is_err() {
                libraries.all.push(None);
            }
        }
        libraries
    }

    /// Returns the library in a file that can be read at `path` now, and that messages call `binary`.
    ///
    /// # Errors
    /// It is not hooked, for this reason.
    pub(crate) fn at(
        &mut self,
        path: &Path,
        binary: &Path,
        planner: &Planner,
    ) -> Result<&'static Library, Arc<str>> {
        let identity = identity(path).ok_or_else(|| Arc::from("it cannot be read"))?;
        if let Some(known) = self.known.get(&identity) {
            return known.clone();
        }
        let what = || format!("planning {}", binary.display());
        let planned = progress::during(planner.cache.voice(), what, || planned(path, binary, planner));
        memory::plan_made();
        self.enter(identity, binary, planned, planner)
    }

    /// Plans those of these libraries that are not known yet, on all processors. The first path is one by which the file
    /// can be read now, the second its name.
    pub(crate) fn plan_ahead(&mut self, files: &[(PathBuf, &Path)], planner: &Planner) {
        let mut new: Vec<(Identity, &(PathBuf, &Path))> = Vec::new();
        for file in files {
            if let Some(identity) = identity(&file.0)
                && !self.known.contains_key(&identity)
                && new.iter().all(|(other, _)| *other != identity)
            {
                new.push((identity, file));
            }
        }
        let lens = new.iter().map(|((_, _, len, ..), _)| usize::try_from(*len).unwrap_or(usize::MAX));
        memory::expect_plan(lens.fold(0, usize::saturating_add));
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let made: Vec<OnceLock<Result<&'static Planned, String>>> =
            new.iter().map(|_| OnceLock::new()).collect();
        let worker = || {
            while let Some((index, (_, (path, binary)))) =
                Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|index| Some((index, new.get(index)?)))
            {
                let _ = made[index].set(planned(path, binary, planner));
                done.fetch_add(1, Ordering::Relaxed);
            }
        };
        let most = thread::available_parallelism().map_or(1, usize::from).min(new.len());
        let what = || format!("planning libraries: {} of {}", done.load(Ordering::Relaxed), new.len());
        progress::during(planner.cache.voice(), what, || {
            thread::scope(|scope| {
                // Without threads, this thread does all of it.
                let spawn = |_| thread::Builder::new().spawn_scoped(scope, worker).ok();
                let others: Vec<_> = (1..most).map_while(spawn).collect();
                worker();
                // When the program is forked, this process must have one thread only.
                for other in others {
                    let _ = other.join();
                }
            });
        });
        memory::plan_made();
        for ((identity, (_, binary)), made) in new.iter().zip(made) {
            if let Some(made) = made.into_inner() {
                let _ = self.enter(*identity, binary, made, planner);
            }
        }
    }

    /// Enters what was decided about a library.
    fn enter(
        &mut self,
        identity: Identity,
        binary: &Path,
        planned: Result<&'static Planned<'static, 'static>, String>,
        planner: &Planner,
    ) -> Result<&'static Library, Arc<str>> {
        let made = planned.and_then(|planned| self.add(binary, planned, planner)).map_err(Arc::from);
        if self.known.len() < MOST {
            self.known.insert(identity, made.clone());
        }
        made
    }

    fn add(
        &mut self,
        binary: &Path,
        planned: &'static Planned<'static, 'static>,
        planner: &Planner,
    ) -> Result<&'static Library, String> {
        if self.all.len() >= MOST {
            return Err("there are too many libraries".to_owned());
        }
        planner.keep(planned);
        if planned.hooked() == 0 {
            let downgrade = planned.plan.as_ref().and_then(|plan| plan.downgrade.clone());
            return Err(downgrade.unwrap_or_else(|| match planned.found() {
                0 => "it has no functions".to_owned(),
                _ => "none of its functions is selected, or can be hooked (see --list)".to_owned(),
            }));
        }
        let number = self.all.len() as u32;
        let library: &'static Library =
            Box::leak(Box::new(Library { number, binary: binary.to_owned(), planned }));
        self.all.push(Some(library));
        Ok(library)
    }
}

/// Reads and plans a library, or finds its plan in the cache.
///
/// # Errors
/// It cannot be hooked, for this reason.
fn planned(
    path: &Path,
    binary: &Path,
    planner: &Planner,
) -> Result<&'static Planned<'static, 'static>, String> {
    let subject = planner.library_subject(path);
    match &subject.unhookable {
        Some(why) => Err(why.clone()),
        None => Ok(Box::leak(Box::new(planner.library(subject, binary)))),
    }
}

/// Returns the plan file for a library at the places that a process offers, and the bytes of its home slots. Returns
/// `None` if the library does not fit there, or if there is no memory.
pub(crate) fn placed(library: &Library, question: &Question) -> Option<(OwnedFd, u32)> {
    let plan = library.planned.plan.as_ref()?;
    let arena_end = question.free.checked_add(plan.arena_len)?;
    let slot_bytes = u32::try_from(plan.slot_bytes).ok()?;
    let slots_end = question.first_slot.checked_add(slot_bytes)?;
    let counters = u64::from(question.first_counter) + plan.counter_bytes();
    let is_aligned = question.free.is_multiple_of(PAGE)
        && question.first_counter.is_multiple_of(8)
        && question.arenas.is_multiple_of(PAGE)
        && question.bias.is_multiple_of(PAGE);
    let fits = is_aligned
        && question.free >= question.arenas
        && arena_end <= question.end
        && slots_end <= question.slots_end
        && (plan.counter_bytes() == 0 || counters <= question.counters_end.into())
        && question.first_function >= LIBRARIES;
    if !fits {
        return None;
    }
    let placement = Placement {
        bias: question.bias,
        arena: question.free,
        records_base: question.arenas,
        first_function: question.first_function,
        first_slot: question.first_slot,
        first_tail: question.first_tail,
        first_counter: question.first_counter,
    };
    let pieces = plan.encode();
    let mut fits = false;
    let file = sys::memory_file(&pieces, |bytes| fits = plan.place(&placement, bytes).is_some()).ok()?;
    fits.then_some((file, slot_bytes))
}

/// Returns the name by which others need the library in a file, if it has one.
pub(crate) fn soname(path: &Path) -> Option<String> {
    /// The length in bytes above which a file is not read for that.
    const LONGEST: u64 = 1 << 30;
    let bytes = sys::read_whole(&sys::open_regular(path).ok()?, LONGEST).ok()?;
    headers::soname(&bytes)
}

/// Whether a file is the one from which a process has mapped the page at an address.
pub(crate) fn is_mapped_at(pid: i32, address: u64, file: &std::fs::Metadata) -> bool {
    proc::inode_at(pid, address).is_ok_and(|inode| inode == file.ino())
}
