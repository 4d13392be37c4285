//! The shared libraries of a run, each planned once, however many processes load it.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use gprofinject_abi::ask::{ARENAS_SPAN, Question};
use gprofinject_abi::plan::LIBRARIES;
use gprofinject_abi::region::PAGE;
use gprofinject_image::headers;
use gprofinject_plan::Placement;
use gprofinject_plan::Plan;

use crate::os::gaps;
use crate::os::memory_files;
use crate::os::proc::Mapping;
use crate::os::{proc, progress, sys};
use crate::program::contents::Contents;
use crate::program::libs;
use crate::program::memory;
use crate::program::numbered::Numbered;
use crate::program::plan_cache::PlanCache;
use crate::program::plan_cache::key::ReadFor;
use crate::program::planned::Planned;
use crate::program::planner::Planner;
use crate::program::profilee::{Identity, identity};
use crate::store::purpose::Purpose;

/// The greatest number of libraries of a run. A process can name any number of files.
const MOST: usize = 4096;

/// Why a library is not hooked, as its [`Display`](fmt::Display) says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The user has left it out, and the agent needs nothing of it.
    Unneeded,
    /// It consists of data.
    NoFunctions,
    /// The user wants none of its functions, or none can be hooked.
    NoneChosen,
    /// It cannot be hooked, for this reason.
    Impossible(Arc<str>),
}

impl Refusal {
    /// Whether the library has functions that the user wants hooked.
    pub(crate) fn hides_code(&self) -> bool {
        matches!(self, Refusal::Impossible(_))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Unneeded => "the agent needs nothing of it",
            Refusal::NoFunctions => "it has no functions",
            Refusal::NoneChosen => "none of its functions is selected, or can be hooked (see --list)",
            Refusal::Impossible(why) => why,
        })
    }
}

impl<W: Into<Arc<str>>> From<W> for Refusal {
    fn from(why: W) -> Refusal {
        Refusal::Impossible(why.into())
    }
}

/// A library. It lives as long as the injector.
pub(crate) struct Library {
    /// The number of its plan.
    pub(crate) number: u32,
    pub(crate) binary: PathBuf,
    pub(crate) purpose: Purpose,
    pub(crate) planned: &'static Planned<'static, 'static>,
    /// Its plan files, for processes whose arenas are where the plan has them.
    placed: Files,
    /// The image that an earlier run has kept.
    image: Option<Arc<File>>,
    /// The name of the image's file.
    image_name: Option<String>,
}

/// The plan files of a library, by the numbers for which they were made. Processes that load the same libraries in the same order
/// share them.
#[derive(Default)]
struct Files(Mutex<HashMap<Placement, Arc<File>>>);

impl Files {
    /// Returns the file for these numbers, which is made if there is none.
    /// `make` learns how many there are.
    fn get_or<E>(
        &self,
        at: Placement,
        make: impl FnOnce(usize) -> Result<Arc<File>, E>,
    ) -> Result<Arc<File>, E> {
        /// A process can ask for any numbers.
        const MOST: usize = 32;
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = files.get(&at) {
            return Ok(file.clone());
        }
        let file = make(files.len())?;
        if files.len() < MOST {
            files.insert(at, file.clone());
        }
        Ok(file)
    }
}

impl Library {
    /// Whether a file, by its name among a process's mappings, is the library's own, or the image whose text processes map in its place.
    pub(crate) fn is_mapped_as(&self, file: &str) -> bool {
        let name = file.trim_end_matches(" (deleted)").rsplit('/').next();
        self.binary == Path::new(file) || name.is_some() && name == self.image_name.as_deref()
    }

    /// The name of its file.
    pub(crate) fn name(&self) -> &str {
        self.binary.file_name().and_then(OsStr::to_str).unwrap_or("library")
    }
}

/// All libraries of a run.
#[derive(Default)]
pub(crate) struct Libraries {
    /// By number; one that `--recover` cannot read any more is missing.
    all: Numbered<Library>,
    /// The libraries by their files and what they are planned for; for those that are not hooked, the reason.
    known: HashMap<(Identity, Purpose), Result<&'static Library, Refusal>>,
    /// The files that were searched for code that copies the stack, and whether it was found.
    searched: HashMap<Identity, bool>,
}

impl Libraries {
    /// Returns the libraries that are hooked in some process, by the numbers of their plans.
    pub(crate) fn numbered(&self) -> &Numbered<Library> {
        &self.all
    }

    /// Returns whether it was decided already whether the library in a file is hooked.
    pub(crate) fn knows(&self, path: &Path) -> bool {
        identity(path).is_some_and(|identity| self.known.contains_key(&(identity, Purpose::Hooks)))
    }

    /// Plans the libraries of an earlier run again, with the same numbers.
    pub(crate) fn again(files: &[(PathBuf, Purpose)], planner: &Planner) -> Libraries {
        let mut libraries = Libraries::default();
        for (path, purpose) in files.iter().take(MOST) {
            if libraries.at(path, path, *purpose, planner).is_err() {
                libraries.all.add(None);
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
        purpose: Purpose,
        planner: &Planner,
    ) -> Result<&'static Library, Refusal> {
        let identity = identity(path).ok_or("it cannot be read")?;
        if let Some(known) = self.known.get(&(identity, purpose)) {
            return known.clone();
        }
        let what = || format!("planning {}", binary.display());
        let planned =
            progress::during(planner.cache.voice(), what, || planned(path, binary, purpose, planner));
        memory::plan_made();
        self.enter((identity, purpose), binary, planned, planner)
    }

    /// Returns whether the agent needs hooks in the library in a file that can be read at `path` now, that messages call `binary`, and that
    /// the user has left out, in a process of glibc's: whether it may copy parts of the stack, and functions are hooked.
    pub(crate) fn may_need_gates(&mut self, path: &Path, binary: &Path, planner: &Planner) -> bool {
        let is_runtime = binary.file_name().and_then(OsStr::to_str).is_some_and(libs::is_runtime);
        if !planner.hooks_functions() || is_runtime {
            return false;
        }
        let Some(identity) = identity(path) else { return false };
        if let Some(&known) = self.searched.get(&identity) {
            return known;
        }
        let may_copy =
            Contents::open(path, false).is_ok_and(|bytes| gprofinject_plan::may_copy_stack(&bytes));
        if self.searched.len() < MOST {
            self.searched.insert(identity, may_copy);
        }
        may_copy
    }

    /// Plans those of these libraries that are not known yet, on all processors. The first path is one by which the file
    /// can be read now, the second its name.
    pub(crate) fn plan_ahead(&mut self, files: &[(PathBuf, &Path)], planner: &Planner) {
        let mut new: Vec<(Identity, &(PathBuf, &Path))> = Vec::new();
        for file in files {
            if let Some(identity) = identity(&file.0)
                && !self.known.contains_key(&(identity, Purpose::Hooks))
                && new.iter().all(|(other, _)| *other != identity)
            {
                new.push((identity, file));
            }
        }
        if new.is_empty() {
            return;
        }
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let made: Vec<OnceLock<Result<&'static Planned, String>>> =
            new.iter().map(|_| OnceLock::new()).collect();
        let worker = || {
            while let Some((index, (_, (path, binary)))) =
                Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|index| Some((index, new.get(index)?)))
            {
                let _ = made[index].set(planned(path, binary, Purpose::Hooks, planner));
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
                let _ = self.enter((*identity, Purpose::Hooks), binary, made, planner);
            }
        }
    }

    /// Enters what was decided about a library.
    fn enter(
        &mut self,
        key: (Identity, Purpose),
        binary: &Path,
        planned: Result<&'static Planned<'static, 'static>, String>,
        planner: &Planner,
    ) -> Result<&'static Library, Refusal> {
        let caution = planned.as_ref().ok().and_then(|planned| planned.plan.as_ref()?.caution.as_ref());
        if let Some(caution) = caution {
            planner.cache.voice().warn(format_args!("{}: {caution}", binary.display()));
        }
        let made =
            planned.map_err(Refusal::from).and_then(|planned| self.add(binary, key.1, planned, planner));
        if self.known.len() < MOST {
            self.known.insert(key, made.clone());
        }
        made
    }

    fn add(
        &mut self,
        binary: &Path,
        purpose: Purpose,
        planned: &'static Planned<'static, 'static>,
        planner: &Planner,
    ) -> Result<&'static Library, Refusal> {
        if self.all.next() >= MOST {
            return Err("there are too many libraries".into());
        }
        planner.keep(binary, ReadFor::Library, planned);
        if let Some(obstacle) = &planned.obstacle {
            return Err(obstacle.as_str().into());
        }
        let is_patched = planned.plan.as_ref().is_some_and(|plan| !plan.patches().is_empty());
        if planned.hooked() == 0 && !(purpose.is_musl() && is_patched) {
            if !purpose.is_wanted() {
                return Err(Refusal::Unneeded);
            }
            return Err(match planned.plan.as_ref().and_then(|plan| plan.downgrade.as_deref()) {
                Some(why) => why.into(),
                None if planned.found() == 0 => Refusal::NoFunctions,
                None => Refusal::NoneChosen,
            });
        }
        let number = self.all.next() as u32;
        let (binary, image) = (binary.to_owned(), planned.image_file());
        let placed = Files::default();
        let path = image.as_ref().and_then(|image| std::fs::read_link(sys::path_of(image)).ok());
        let image_name = path.and_then(|path| Some(path.file_name()?.to_str()?.to_owned()));
        let library: &'static Library =
            Box::leak(Box::new(Library { number, binary, purpose, planned, placed, image, image_name }));
        self.all.add(Some(library));
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
    purpose: Purpose,
    planner: &Planner,
) -> Result<&'static Planned<'static, 'static>, String> {
    let subject = planner.library_subject(path);
    match subject.kind.unhookable() {
        Some(why) => Err(why.to_owned()),
        None => Ok(Box::leak(Box::new(planner.library(subject, binary, purpose)))),
    }
}

/// A library for which there is a place in a process.
#[derive(Debug)]
pub(crate) struct Placed {
    /// The plan file.
    pub(crate) file: Arc<File>,
    /// An image whose text has the patches that lead to the arena there, if there is one.
    pub(crate) image: Option<Arc<File>>,
    /// The bytes of its home slots.
    pub(crate) slot_bytes: u32,
    /// The address of its arena.
    pub(crate) arena: u64,
}

/// Makes the plan file of a library for the numbers that are free in a process. The arena is where the plan has it, or if something else
/// is there, where the `mappings` of the process leave room. The functions with the numbers `off` are switched off from the beginning.
/// `cache` has the files of earlier runs, if they may be used.
///
/// # Errors
/// The library does not fit there, or there is no memory.
pub(crate) fn placed(
    library: &Library,
    question: &Question,
    off: &BTreeSet<u32>,
    mappings: impl FnOnce() -> Vec<Mapping>,
    cache: Option<&PlanCache>,
) -> Result<Placed, &'static str> {
    const DISTANT: &str = "no addresses are free within reach of its code for what gprofinject adds";
    const CROWDED: &str = "the libraries before it have taken the room that a thread has for counters; --libs and -X leave \
                           others out";
    const ODD: &str = "the process has asked for a place that cannot be";
    let plan = library.planned.plan.as_ref().ok_or("it has no plan")?;
    let is_aligned = question.first_counter.is_multiple_of(8)
        && question.arenas.is_multiple_of(PAGE)
        && question.bias.is_multiple_of(PAGE);
    if !is_aligned || question.first_function < LIBRARIES {
        return Err(ODD);
    }
    let slot_bytes = u32::try_from(plan.slot_bytes).map_err(|_| CROWDED)?;
    let slots_end = question.first_slot.checked_add(slot_bytes).ok_or(CROWDED)?;
    let counters_end = u64::from(question.first_counter) + plan.counter_bytes();
    let has_counters = plan.counter_bytes() == 0 || counters_end <= question.counters_end.into();
    if slots_end > question.slots_end || !has_counters {
        return Err(CROWDED);
    }
    let usual = plan.arena.wrapping_add(question.bias);
    let is_within = |arena: u64| {
        arena.checked_sub(question.arenas).is_some_and(|before| before + plan.arena_len <= ARENAS_SPAN)
    };
    let arena = match question.is_taken == 0 && is_within(usual) {
        true => usual,
        false => elsewhere(question, plan.arena_len, &mappings()).ok_or(DISTANT)?,
    };
    let placement = Placement {
        moved: arena.wrapping_sub(usual) as i64,
        first_function: question.first_function,
        first_slot: question.first_slot,
        first_tail: question.first_tail,
        first_counter: question.first_counter,
        words: question.words,
    };
    let made = || {
        let mut fits = false;
        let pieces = library.planned.pieces();
        let file = memory_files::memory_file(&pieces, |bytes| {
            let placed = plan.place(&placement, bytes);
            fits = placed.and_then(|()| Plan::switch_off(off.iter().copied(), bytes)).is_some();
        })
        .map_err(|_| "there is no memory for its plan")?;
        if fits { Ok(Arc::new(File::from(file))) } else { Err(DISTANT) }
    };
    let is_usual = arena == usual && off.is_empty();
    // What is traced of arguments is not in the key.
    let kept = cache.zip(library.planned.key.as_ref().filter(|_| library.planned.arguments.is_none()));
    let kept_or_made = |others: usize| {
        /// Threads may load libraries in another order each time, so that these numbers do not come again.
        const MOST_KEPT: usize = 4;
        let Some((cache, key)) = kept else { return made() };
        if let Some(file) = cache.find_placed(key, &placement) {
            return Ok(file);
        }
        let file = made()?;
        if others < MOST_KEPT {
            cache.add_placed(key, &placement, &file);
        }
        Ok(file)
    };
    let file = if is_usual { library.placed.get_or(placement, kept_or_made)? } else { made()? };
    let image = library.image.clone().filter(|_| is_usual);
    Ok(Placed { file, image, slot_bytes, arena })
}

/// Returns a free address for the arena of a library, from which all of the library can be reached.
fn elsewhere(question: &Question, len: u64, mappings: &[Mapping]) -> Option<u64> {
    /// The kernel usually places the process's next mapping next to the library, and the plan file is one.
    const AWAY: u64 = 64 << 20;
    let start = question.start;
    let first = mappings.iter().find(|mapping| mapping.lo == start)?;
    let is_of_it = |mapping: &&Mapping| {
        mapping.inode == first.inode
            && mapping.path == first.path
            && mapping.lo.wrapping_sub(start) < gaps::REACH
    };
    let end = mappings.iter().filter(is_of_it).map(|mapping| mapping.hi).max()?;
    let lo = question.arenas.max(end.saturating_sub(gaps::REACH));
    let hi = question.arenas.saturating_add(ARENAS_SPAN).min(start.saturating_add(gaps::REACH));
    gaps::place(mappings, &(lo..hi), len, (start, AWAY))
}

/// Returns the name by which others need the library in a file, if it has one.
pub(crate) fn soname(path: &Path) -> Option<String> {
    headers::soname(&Contents::open(path, false).ok()?)
}

/// Whether a file is the one from which a process has mapped the page at an address.
pub(crate) fn is_mapped_at(pid: i32, address: u64, file: &std::fs::Metadata) -> bool {
    proc::inode_at(pid, address).is_ok_and(|inode| inode == file.ino())
}

#[cfg(test)]
pub(crate) mod tests;
