//! A region file by its name in a run folder.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::SystemTime;

use gprofinject_abi::region::{Load, LoadRecord, PAGE, RegionHeader};
use zerocopy::IntoBytes;

use crate::os::shared::{Access, Part};
use crate::os::{memory_files, sys};
use crate::store::private_folder::PrivateFolder;
use crate::store::region::layout::{AgentReport, BLOCKS_MAX, Layout, Orders, read_value};
use crate::store::region::read::{Region, load_records, next_data};
use crate::store::region::ring::Rings;
use crate::store::region::window::{WINDOW, Window};

/// A region file in a run folder.
#[derive(Clone, Debug)]
pub(crate) struct RegionFile {
    folder: PrivateFolder,
    name: String,
    /// The file, if it is a memory file of this run. It stays when the link to it is removed.
    held: Option<Held>,
}

/// An open memory file, and the number of the process that has it open. A helper that this process forks has closed it, so that
/// another file may have its number there.
#[derive(Clone, Debug)]
struct Held {
    file: Arc<File>,
    window: Option<Arc<Window>>,
    holder: u32,
}

impl RegionFile {
    /// Returns the region file of that name, which may not exist yet.
    pub(crate) fn new(folder: &PrivateFolder, name: String) -> RegionFile {
        RegionFile { folder: folder.clone(), name, held: None }
    }

    /// Returns the same file, which `file` refers to in the process `holder`, and which is mapped through the window when it is read.
    pub(crate) fn held_by(self, file: Arc<File>, window: Option<Arc<Window>>, holder: u32) -> RegionFile {
        RegionFile { held: Some(Held { file, window, holder }), ..self }
    }

    /// Creates the file with a layout and the orders to the agent.
    ///
    /// # Errors
    /// It exists, or there is no space for it.
    pub(crate) fn create(&self, layout: &Layout, orders: Orders) -> io::Result<Region> {
        let file = self.folder.create_file(&self.name)?;
        begin(&file, layout, orders)?;
        Ok(Region::new(file.into(), None, *layout))
    }

    /// Opens the file with a known layout.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn open(&self, layout: &Layout) -> io::Result<Region> {
        let window = self.held_here().and_then(|held| held.window.clone());
        Ok(Region::new(self.file()?, window, *layout))
    }

    /// Opens the file to read the rings of events, while the process writes them. The file of a child that has become another user
    /// is not written to.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn rings(&self, layout: &Layout) -> io::Result<Rings> {
        match self.or_held(self.folder.open_to_write(&self.name), true) {
            Ok(file) => Ok(Rings::new(file, true, *layout)),
            Err(_) => Ok(Rings::new(self.file_of_its_own()?, false, *layout)),
        }
    }

    /// Reads what the agent reports, before the layout is known.
    ///
    /// # Errors
    /// The file cannot be opened or read.
    pub(crate) fn report(&self) -> io::Result<AgentReport> {
        Ok(AgentReport::of(&read_value(&*self.file()?, 0)?))
    }

    /// Reads the table of libraries that the process has prepared or hooked, before the layout is known. The process
    /// can have written any numbers there.
    ///
    /// # Errors
    /// The file cannot be opened or read.
    pub(crate) fn libraries(&self) -> io::Result<Vec<LoadRecord>> {
        let file = self.file()?;
        let offset = read_value::<RegionHeader>(&file, 0)?.orders.loads_offset;
        let records = if offset == 0 { Vec::new() } else { load_records(&file, offset)? };
        let is_there =
            |record: &LoadRecord| matches!(record.state.get(), Some(Load::Hooked | Load::Prepared));
        Ok(records.into_iter().map(|(_, record)| record).filter(is_there).collect())
    }

    /// Whether a process still counts in the file; `None` if the kernel cannot tell. If none does, none may begin to.
    pub(crate) fn is_counted_in(&self) -> Option<bool> {
        let file = self.file().ok()?;
        if let Some(window) = self.held_here().and_then(|held| held.window.as_ref()) {
            window.close();
        }
        match memory_files::has_fixed_length(&file) {
            // The file may be open for reading only.
            true => sys::is_mapped_for_writing(&file)
                .or_else(|| sys::is_mapped_for_writing(&sys::open_again(&file, true).ok()?)),
            false => sys::is_open_for_writing(&file),
        }
    }

    /// Returns when the file was created, if the file system records that.
    pub(crate) fn begun(&self) -> Option<SystemTime> {
        self.file().and_then(|file| file.metadata()).and_then(|metadata| metadata.created()).ok()
    }

    /// Returns the inode number, by which mappings of the file are recognised.
    pub(crate) fn inode(&self) -> Option<u64> {
        self.file().and_then(|file| file.metadata()).map(|metadata| metadata.ino()).ok()
    }

    /// Removes the file.
    pub(crate) fn remove(&self) {
        let _ = self.folder.remove_file(&self.name);
    }

    /// Returns the file, which is opened unless this process holds it. A child that has become another user makes a file that belongs
    /// to that user.
    fn file(&self) -> io::Result<Arc<File>> {
        match self.held_here() {
            Some(held) => Ok(held.file.clone()),
            None => self.file_of_its_own().map(Arc::new),
        }
    }

    /// Returns the open file, if it is one of this process.
    fn held_here(&self) -> Option<&Held> {
        self.held.as_ref().filter(|held| held.holder == std::process::id())
    }

    /// Opens the file.
    fn file_of_its_own(&self) -> io::Result<File> {
        self.or_held(self.folder.open_of_anybody(&self.name), false)
    }

    /// Returns the file, or if it could not be opened by its name, the one that is held, unless a helper process has closed that.
    fn or_held(&self, opened: io::Result<File>, write: bool) -> io::Result<File> {
        let held = self.held.as_ref().map(|held| &held.file);
        opened.or_else(|error| match held.filter(|held| memory_files::has_fixed_length(held)) {
            Some(held) => sys::open_again(held, write).map_err(|_| error),
            None => Err(error),
        })
    }
}

/// Gives an empty file its length, a layout and the orders to the agent.
///
/// # Errors
/// There is no space for it.
pub(crate) fn begin(file: &File, layout: &Layout, orders: Orders) -> io::Result<()> {
    sys::allocate(file, layout.reserved(orders.timer_rate))?;
    let blocks_max = make_room(file, layout)?;
    file.write_all_at(layout.header(orders, blocks_max).as_bytes(), 0)
}

/// Makes a memory file that [`begin`] has made, and whose process has ended, as it was then, but for pages of zeros in place of holes.
/// Returns whether that is done: not if the file is open elsewhere, or mapped, so that somebody could write to it later.
///
/// # Errors
/// It is not such a file, or it cannot be mapped.
pub(crate) fn renew(file: &File, window: &Window, layout: &Layout, orders: Orders) -> io::Result<bool> {
    // The injector's own way to the file, which memfd_create has opened, does not count.
    if sys::is_open_for_writing(file) != Some(false) {
        return Ok(false);
    }
    let len = file.metadata()?.len();
    let mut part = window.part(file).ok_or(io::ErrorKind::OutOfMemory)?;
    let mut at = PAGE;
    while let Some(data) = next_data(file, at, len)? {
        let mut range = data.start / PAGE * PAGE..data.end.next_multiple_of(PAGE);
        if !part.has(&(range.start..range.start + PAGE)) {
            part = Part::of(file, range.start..len.min(range.start + WINDOW), Access::Clear)?.into();
        }
        range.end = range.end.min(part.end());
        at = range.end;
        part.clear(range)?;
    }
    // Up to here the file says whose it was.
    let blocks_max = len.saturating_sub(layout.blocks_offset) / layout.block_len().max(1);
    let mut page = [0; PAGE as usize];
    layout.header(orders, blocks_max).write_to_prefix(&mut page).map_err(|_| io::ErrorKind::InvalidInput)?;
    file.write_all_at(&page, 0)?;
    Ok(true)
}

/// Gives the file, which stays sparse, the length for as many threads as the file system and the file size
/// limit allow. Returns that number of threads.
fn make_room(file: &File, layout: &Layout) -> io::Result<u64> {
    let mut blocks = BLOCKS_MAX;
    loop {
        match file.set_len(layout.len_for(blocks)) {
            Ok(()) => return Ok(blocks),
            Err(error) if blocks == 1 => return Err(error),
            Err(_) => blocks /= 2,
        }
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "the test maps a file")]
mod tests {
    use std::os::fd::AsRawFd;

    use gprofinject_abi::plan::HookMode;

    use super::*;
    use crate::store::region::layout::LibraryHooks;
    use crate::store::shape::Shape;

    #[test]
    fn a_mapping_is_seen_after_its_descriptor() {
        let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
        let folder = PrivateFolder::create(place.path()).expect("a folder");
        let region = RegionFile::new(&folder, "region".into());
        let file = folder.create_file("region").expect("created");
        assert_eq!(region.is_counted_in(), Some(true));
        file.set_len(4096).expect("resized");
        is_seen(&region, file);

        let file = memory_files::empty_memory_file(std::path::Path::new("region")).expect("created");
        file.set_len(4096).expect("resized");
        memory_files::fix_length(&file).expect("fixed");
        let held = sys::open_again(&file, true).expect("opened");
        is_seen(
            &RegionFile::new(&folder, "none".into()).held_by(Arc::new(held), None, std::process::id()),
            file,
        );
    }

    /// What is not zero in a file.
    fn contents(file: &File) -> Vec<(u64, u8)> {
        let len = file.metadata().expect("readable").len();
        let (mut found, mut at) = (Vec::new(), 0);
        while let Some(data) = next_data(file, at, len).expect("known") {
            let mut bytes = vec![0; (data.end - data.start) as usize];
            file.read_exact_at(&mut bytes, data.start).expect("read");
            found.extend((data.start..).zip(bytes).filter(|(_, byte)| *byte != 0));
            at = data.end;
        }
        found
    }

    #[test]
    fn a_renewed_file_is_like_a_new_one() {
        let shape =
            Shape { text: (0x1000, 0x9000), arena: 0xa000, arena_len: 0x2000, text_shift: 1, arena_shift: 4 };
        let hooks = LibraryHooks { mode: HookMode::Both, counts: true, wanted: true };
        let layout = Layout::new(shape, 20000, 800, Some(hooks), None);
        let orders = Orders { follow: true, plan: 7, ..Orders::default() };
        let make = || {
            let file = memory_files::empty_memory_file(std::path::Path::new("region")).expect("made");
            begin(&file, &layout, orders).expect("begun");
            memory_files::fix_length(&file).expect("fixed");
            file
        };
        let (new, file) = (make(), make());
        let len = file.metadata().expect("readable").len();
        let blocks = (0..BLOCKS_MAX).step_by(1000).map(|n| layout.blocks_offset + n * layout.block_len());
        let places = blocks.flat_map(|block| [block, block + 4096 * 3 + 1, block + layout.block_len() - 9]);
        for at in [0, 8, 700, 4090, 4096, layout.loads_offset(), layout.blocks_offset - 1, len - 1]
            .into_iter()
            .chain(places)
        {
            file.write_all_at(&[0xa5; 10][..(len - at).min(10) as usize], at).expect("written");
        }
        let left = contents(&file);
        assert!(left.len() > 400);

        // Whoever can write to it could do that later.
        let other = sys::open_again(&file, true).expect("opened");
        assert!(!renew(&file, &Window::default(), &layout, orders).expect("known"));
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: this is a new mapping, which is neither read nor written.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, libc::MAP_SHARED, other.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        drop(other);
        assert!(!renew(&file, &Window::default(), &layout, orders).expect("known"));
        assert_eq!(contents(&file), left);
        // SAFETY: this is that mapping, and nothing else.
        assert_eq!(unsafe { libc::munmap(at, 4096) }, 0);

        assert!(renew(&file, &Window::default(), &layout, orders).expect("known"));
        assert_eq!(contents(&file), contents(&new));
        assert!(file.metadata().expect("readable").blocks() > new.metadata().expect("readable").blocks());
        // A file in a folder can be truncated.
        let place = tempfile::tempdir().expect("a folder");
        let folder = PrivateFolder::create(place.path()).expect("a folder");
        RegionFile::new(&folder, "region".into()).create(&layout, orders).expect("created");
        let file = folder.open_to_write("region").expect("opened");
        assert!(!renew(&file, &Window::default(), &layout, orders).is_ok_and(|is_done| is_done));
    }

    fn is_seen(region: &RegionFile, file: File) {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: this is a new mapping, which is neither read nor written.
        let at =
            unsafe { libc::mmap(std::ptr::null_mut(), 4096, access, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        assert_ne!(at, libc::MAP_FAILED);
        drop(file);
        assert_eq!(region.is_counted_in(), Some(true));
        // SAFETY: this is that mapping, and nothing else.
        assert_eq!(unsafe { libc::munmap(at, 4096) }, 0);
        assert_eq!(region.is_counted_in(), Some(false));
    }
}
