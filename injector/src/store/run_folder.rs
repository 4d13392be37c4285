//! The private folder of one run, which contains the agent library, the plans, and the region file of each
//! process.
//!
//! Processes map plans and region files. If a mapped file is truncated, the next access ends the process, so these are memory files
//! of fixed lengths, to which links in the folder lead. Where that is not possible, they are in the folder.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, anyhow};
use gprofinject_abi::{FOLDER_MAX, PLAN_SUFFIX, REGION_SUFFIX};

use crate::options::EngineArg;
use crate::os::heir::Heir;
use crate::os::{limits, memory_files, proc, sys};
use crate::store::libraries::without_mark;
use crate::store::private_folder::{HEIR, PrivateFolder};
use crate::store::region::file::{self, RegionFile};
use crate::store::region::layout::{Layout, Orders};
use crate::store::region::window::Window;

/// The first process's name in the run folder.
pub(crate) const FIRST: &str = "0";

/// The suffix of the file with a process's samples that the kernel has taken, as long as the process runs.
pub(crate) const SAMPLES_SUFFIX: &str = ".samples";

/// The suffix of the file with what a process had counted when its counts were set to zero.
pub(crate) const BASELINE_SUFFIX: &str = ".baseline";

/// The room for the counters of the first threads, in bytes.
const SPARE: u64 = 1 << 20;

/// A plan file.
pub(crate) enum PlanFile {
    /// It has to be written: the pieces, in their order.
    Pieces(Vec<Cow<'static, [u8]>>),
    /// An earlier run has kept it.
    Kept(Arc<File>),
}

impl PlanFile {
    /// The length in bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            PlanFile::Pieces(pieces) => pieces.iter().map(|piece| piece.len() as u64).sum(),
            PlanFile::Kept(file) => file.metadata().map_or(0, |metadata| metadata.len()),
        }
    }
}

/// Where the libraries are that are preloaded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LibraryFile {
    /// They are files in the folder, which every process finds that may enter it.
    InFolder,
    /// The folder has links to memory files: it is mounted noexec, or takes no large files, as `/dev/shm` in containers. Only processes
    /// that may follow the links find them.
    InMemory,
}

/// The run folder. It is removed when this is dropped, unless it has to stay.
pub(crate) struct RunFolder {
    folder: PrivateFolder,
    engine: EngineArg,
    stays: bool,
    heir: Option<Heir>,
    /// The memory files, by the names of the links to them.
    held: RefCell<HashMap<String, Held>>,
    /// The process that has them open, which is the one that has made this value.
    holder: u32,
    /// The names of the files with samples.
    sampled: RefCell<HashSet<String>>,
}

/// A memory file that this process has open.
#[derive(Clone)]
struct Held {
    file: Arc<File>,
    /// The window through which it is read, if it is a region file that this process has made, and not a process that is profiled.
    window: Option<Arc<Window>>,
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if !self.stays {
            // It ends while the folder is removed.
            self.heir.iter().for_each(Heir::end);
            let _ = self.folder.remove();
        }
    }
}

/// Returns the region file of a process, by the process's name in the run folder.
pub(crate) fn region_in(folder: &PrivateFolder, name: &str) -> RegionFile {
    RegionFile::new(folder, region_file(name))
}

/// The name of a region file.
fn region_file(name: &str) -> String {
    format!("{name}{REGION_SUFFIX}")
}

/// The name of a plan file.
pub(crate) fn plan_file(name: &str) -> String {
    format!("{name}{PLAN_SUFFIX}")
}

impl RunFolder {
    /// Creates the folder in the first place that meets the conditions. The folder contains the first
    /// process's files, and there is room for its counters.
    ///
    /// # Errors
    /// No place meets the conditions.
    pub(crate) fn create(
        first: &str,
        engine: EngineArg,
        plan: &PlanFile,
        layout: &Layout,
        orders: Orders,
        heir: Option<Heir>,
    ) -> Result<RunFolder> {
        let mut refusals = Vec::new();
        let mut limited = None;
        for library in [LibraryFile::InFolder, LibraryFile::InMemory] {
            refusals.clear();
            for place in places() {
                let made = create_in(&place, engine, library, orders.shadow_stacks)
                    .and_then(|folder| folder.add(first, plan, layout, orders).map(|()| folder));
                match made {
                    Ok(mut folder) => {
                        folder.leave_to(heir);
                        return Ok(folder);
                    }
                    Err(error) => {
                        refusals.push(format!("{}: {}", place.display(), sys::reason(&error)));
                        limited = limited.or(limits::is_behind(&error).then_some(error));
                    }
                }
            }
        }
        if let Some(error) = limited {
            // Another folder would not help.
            let needed = layout.len_for(1).div_ceil(1 << 20);
            return Err(anyhow!("no place for the counters, of {needed} MiB: {}", sys::reason(&error)));
        }
        Err(anyhow!(
            "no place for the counters; set TMPDIR to a folder that takes files, with free space ({})",
            refusals.join("; ")
        ))
    }

    /// The folder's path.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the paths of the libraries that are preloaded.
    pub(crate) fn libraries(&self) -> Vec<PathBuf> {
        self.engine.libraries().map(|(name, _)| self.path().join(name)).collect()
    }

    /// Leaves the folder in place, and its memory files to the heir.
    pub(crate) fn keep(mut self) {
        self.stays = true;
        self.heir.take().into_iter().for_each(Heir::stay);
    }

    /// The folder as a private folder.
    pub(crate) fn private(&self) -> &PrivateFolder {
        &self.folder
    }

    /// Returns the region file of that name.
    pub(crate) fn region(&self, name: &str) -> RegionFile {
        let region = region_in(&self.folder, name);
        match self.held.borrow().get(&region_file(name)).cloned() {
            Some(Held { file, window }) => region.held_by(file, window, self.holder),
            None => region,
        }
    }

    /// Creates the plan file and the region file of a process.
    ///
    /// # Errors
    /// They cannot be created.
    pub(crate) fn add(&self, name: &str, plan: &PlanFile, layout: &Layout, orders: Orders) -> io::Result<()> {
        let plan_name = plan_file(name);
        let written = if let PlanFile::Pieces(_) = plan { plan.len() } else { 0 };
        let memory = self.memory_file(&plan_name);
        let needed = written + layout.reserved(orders.timer_rate) + SPARE;
        if memory.is_none() && self.folder.free_space()? < needed {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let pieces = match plan {
            PlanFile::Pieces(pieces) => pieces,
            PlanFile::Kept(file) => {
                self.folder.symlink(&sys::path_of(file), &plan_name)?;
                self.held.borrow_mut().insert(plan_name, Held { file: file.clone(), window: None });
                return self.add_region(name, layout, orders);
            }
        };
        let is_memory = memory.is_some();
        let mut file = memory.map_or_else(|| self.folder.create_file(&plan_name), Ok)?;
        for piece in pieces {
            file.write_all(piece)?;
        }
        if is_memory {
            memory_files::fix_contents(&file)?;
            self.hold(plan_name, file)?;
        }
        self.add_region(name, layout, orders)
    }

    /// Creates the files of a process that has the same plan as another one.
    ///
    /// # Errors
    /// They cannot be created.
    pub(crate) fn add_like(
        &self,
        name: &str,
        other: &str,
        layout: &Layout,
        orders: Orders,
    ) -> io::Result<()> {
        self.folder.link(&plan_file(other), &plan_file(name))?;
        let mut held = self.held.borrow_mut();
        if let Some(plan) = held.get(&plan_file(other)).cloned() {
            held.insert(plan_file(name), plan);
        }
        drop(held);
        self.add_region(name, layout, orders)
    }

    /// Creates the region file of a process.
    fn add_region(&self, name: &str, layout: &Layout, orders: Orders) -> io::Result<()> {
        let region_name = region_file(name);
        match self.memory_file(&region_name) {
            Some(file) => {
                file::begin(&file, layout, in_memory(orders))?;
                self.hold(region_name, file)
            }
            None => self.region(name).create(layout, orders).map(drop),
        }
    }

    /// Makes a memory file that will have a name in the folder. Returns `None` if links to it would lead nowhere, or if the kernel
    /// makes none, for example because the name is too long.
    fn memory_file(&self, name: &str) -> Option<File> {
        sys::sees_itself().then(|| memory_files::empty_memory_file(&self.path().join(name)).ok())?
    }

    /// Fixes the length of a memory file, and makes a link to it.
    fn hold(&self, name: String, file: File) -> io::Result<()> {
        memory_files::fix_length(&file)?;
        self.folder.symlink(&sys::path_of(&file), &name)?;
        let window = name.ends_with(REGION_SUFFIX).then(Arc::default);
        self.note(name, file, window);
        Ok(())
    }

    fn note(&self, name: String, file: File, window: Option<Arc<Window>>) {
        // The heir will put the file where the name of the file says, which whoever has made it has chosen.
        let shown = std::fs::read_link(sys::path_of(&file)).unwrap_or_default();
        if proc::memory_file_name(&shown.to_string_lossy()) == Some(&self.path().join(&name)) {
            self.heir.iter().for_each(|heir| heir.keep(&file));
        }
        self.held.borrow_mut().insert(name, Held { file: Arc::new(file), window });
    }

    /// Gives the memory files to the heir, also those that follow.
    fn leave_to(&mut self, heir: Option<Heir>) {
        // Without the link, the heir's files are not found.
        self.heir = heir.filter(|heir| self.folder.symlink(&heir.folder(), HEIR).is_ok());
        let held = self.held.borrow();
        self.heir.iter().for_each(|heir| held.values().for_each(|held| heir.keep(&held.file)));
    }

    /// Makes a link to the memory file in which a forked child counts, in place of the file of that name that the child has made
    /// in the folder. The child can have sent the descriptor of any file.
    ///
    /// # Errors
    /// It is no memory file of a fixed length, or the link cannot be made.
    pub(crate) fn adopt(&self, name: &str, file: File) -> io::Result<()> {
        if !memory_files::has_fixed_length(&file) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let name = region_file(name);
        self.folder.replace_by_symlink(&sys::path_of(&file), &name)?;
        self.note(name, file, None);
        Ok(())
    }

    /// Opens a memory file for the process to which it belongs: a region file for reading and writing, a plan for reading.
    /// Returns `None` if there is no memory file of that name.
    pub(crate) fn open_held(&self, name: &str) -> Option<File> {
        let held = self.held.borrow();
        sys::open_again(&held.get(name)?.file, name.ends_with(REGION_SUFFIX)).ok()
    }

    /// Writes a process's samples. If that fails, the old ones stay.
    pub(crate) fn keep_samples(&self, name: &str, bytes: &[u8]) {
        let name = format!("{name}{SAMPLES_SUFFIX}");
        let _ = self.folder.replace(&name, bytes);
        self.sampled.borrow_mut().insert(name);
    }

    /// Writes what a process had counted when its counts were set to zero.
    pub(crate) fn keep_baseline(&self, name: &str, bytes: &[u8]) {
        let _ = self.folder.replace(&format!("{name}{BASELINE_SUFFIX}"), bytes);
    }

    /// Removes a process's region file after its counters have been read. The plan may belong to other
    /// processes too.
    pub(crate) fn remove_region(&self, name: &str) {
        self.region(name).remove();
        if let (Some(held), Some(heir)) = (self.held.borrow_mut().remove(&region_file(name)), &self.heir) {
            heir.release(&held.file);
        }
        self.remove_samples(name);
    }

    fn remove_samples(&self, name: &str) {
        let samples = format!("{name}{SAMPLES_SUFFIX}");
        if self.sampled.borrow_mut().remove(&samples) {
            let _ = self.folder.remove_file(&samples);
        }
    }

    /// Makes the files of a process that has ended those of a process that will run the same program, under the same name. Returns
    /// whether that was possible. It is not if the region file is not a memory file that this process has made, or if somebody can still
    /// write to it. Nothing but the header is in it then, and most of its pages need not be made again.
    pub(crate) fn renew(&self, name: &str, layout: &Layout, orders: Orders) -> bool {
        let held = self.held.borrow().get(&region_file(name)).cloned();
        let is_done = held.is_some_and(|held| {
            let renew = |window: &Arc<Window>| file::renew(&held.file, window, layout, in_memory(orders));
            held.window.as_ref().is_some_and(|window| renew(window).is_ok_and(|is_done| is_done))
        });
        if is_done {
            self.remove_samples(name);
        }
        is_done
    }

    /// Whether the files of that name can be found by it: whoever may enter the folder can have removed the names.
    pub(crate) fn is_in_place(&self, name: &str) -> bool {
        let region = region_file(name);
        let target = self.held.borrow().get(&region).map(|held| sys::path_of(&held.file));
        let is_linked = target
            .is_some_and(|target| self.folder.read_link(&region).is_ok_and(|to| Path::new(&to) == target));
        is_linked && self.folder.has(&plan_file(name))
    }
}

/// Returns the orders for a region file that is a memory file.
fn in_memory(orders: Orders) -> Orders {
    Orders { maps_whole: !proc::is_memory_promised(), ..orders }
}

fn places() -> Vec<PathBuf> {
    let named = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let mut places: Vec<PathBuf> = [
        named("XDG_RUNTIME_DIR"),
        Some("/dev/shm".into()),
        named("TMPDIR"),
        Some("/tmp".into()),
        Some("/var/tmp".into()),
    ]
    .into_iter()
    .flatten()
    .collect();
    places.dedup();
    places
}

fn create_in(
    place: &Path,
    engine: EngineArg,
    library: LibraryFile,
    shadow_stacks: bool,
) -> io::Result<RunFolder> {
    let libraries_len: usize = engine.libraries().map(|(_, bytes)| bytes.len()).sum();
    if library == LibraryFile::InFolder && sys::free_space(place)? < libraries_len as u64 {
        return Err(io::Error::from_raw_os_error(libc::ENOSPC));
    }
    let folder = PrivateFolder::create(place)?;
    let folder = RunFolder {
        folder,
        engine,
        stays: false,
        heir: None,
        held: RefCell::default(),
        holder: std::process::id(),
        sampled: RefCell::default(),
    };
    if !loadable(folder.path().as_os_str()) || folder.path().as_os_str().len() + 32 > FOLDER_MAX {
        return Err(io::Error::other("LD_PRELOAD cannot name files in it"));
    }
    for (name, bytes) in engine.libraries() {
        let bytes = if shadow_stacks { Cow::Borrowed(bytes) } else { Cow::Owned(without_mark(bytes)) };
        match library {
            LibraryFile::InFolder => {
                let mut file = folder.folder.create_read_only(name)?;
                file.write_all(&bytes)?;
                check_executable(&file)?;
            }
            LibraryFile::InMemory => {
                let unsupported = || io::Error::other("links in it lead to no memory files");
                let mut file = folder.memory_file(name).ok_or_else(unsupported)?;
                file.write_all(&bytes)?;
                memory_files::fix_contents(&file)?;
                check_executable(&file)?;
                folder.hold(name.to_owned(), file)?;
            }
        }
    }
    Ok(folder)
}

fn check_executable(library: &File) -> io::Result<()> {
    match sys::maps_executable(library) {
        true => Ok(()),
        false => Err(io::Error::other("code there cannot be executed (noexec)")),
    }
}

/// Whether LD_PRELOAD can contain a path: the dynamic linker treats blanks and colons as separators and
/// expands `$`.
fn loadable(path: &OsStr) -> bool {
    !path.as_bytes().iter().any(|byte| byte.is_ascii_whitespace() || matches!(byte, b':' | b'$'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::shape::Shape;

    #[test]
    fn memory_files_cannot_be_truncated_and_outlive_their_links() {
        let place = tempfile::tempdir().expect("a folder");
        let folder =
            create_in(place.path(), EngineArg::Builtin, LibraryFile::InMemory, true).expect("a folder");
        let shape = Shape { text: (0x1000, 0x2000), arena: 0, arena_len: 0, text_shift: 1, arena_shift: 4 };
        let layout = Layout::new(shape, 16, 0, None, None);
        folder
            .add("0", &PlanFile::Pieces(vec![Cow::Borrowed(b"plan")]), &layout, Orders::default())
            .expect("added");

        let by_link = folder.private().open_to_write("0.region").expect("followed");
        assert!(by_link.set_len(0).is_err() && by_link.set_len(1 << 60).is_err());
        let mut plan = folder.private().open_to_write("0.plan").expect("followed");
        assert!(plan.write_all(b"other").is_err() && plan.set_len(0).is_err());
        assert_eq!(folder.private().read("0.plan", 100).expect("readable"), b"plan");
        let library = std::fs::read(&folder.libraries()[0]).expect("followed");
        assert!(EngineArg::Builtin.libraries().next().is_some_and(|(_, bytes)| bytes == library));
        assert!(folder.open_held("0.region").is_some() && folder.open_held("1.region").is_none());
        folder.private().remove_file("0.region").expect("removed");
        let report = folder.region("0").open(&layout).and_then(|region| region.report());
        assert!(!report.expect("readable").1, "damaged");

        // Only a memory file of a fixed length is taken over, whatever a process has sent.
        let sent = folder.private().create_file("sent").expect("created");
        assert!(folder.adopt("f1", sent).is_err());
        let sent = memory_files::empty_memory_file(&folder.path().join("f1.region")).expect("created");
        assert!(folder.adopt("f1", sent.try_clone().expect("duplicated")).is_err());
        memory_files::fix_length(&sent).expect("fixed");
        folder.private().create_file("f1.region").expect("created");
        folder.adopt("f1", sent).expect("taken over");
        assert!(folder.private().open_of_anybody("f1.region").is_ok());
        folder.remove_region("f1");
        assert!(!folder.private().has("f1.region") && folder.open_held("f1.region").is_none());
    }

    #[test]
    fn names_that_the_linker_would_misread_are_avoided() {
        assert!(loadable(OsStr::new("/run/user/0")));
        for path in ["/a b", "/a:b", "/$ORIGIN", "/a\tb"] {
            assert!(!loadable(OsStr::new(path)));
        }
    }
}
