//! A region file by its name in a run folder.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::SystemTime;

use gprofinject_abi::region::{Load, LoadRecord, RegionHeader};
use zerocopy::IntoBytes;

use crate::os::sys;
use crate::store::private_folder::PrivateFolder;
use crate::store::region::layout::{AgentReport, BLOCKS_MAX, Layout, Orders, read_value};
use crate::store::region::read::{Region, load_records};
use crate::store::region::ring::Rings;

/// A region file in a run folder.
#[derive(Clone, Debug)]
pub(crate) struct RegionFile {
    folder: PrivateFolder,
    name: String,
    /// The file, if it is a memory file of this run. It stays when the link to it is removed.
    held: Option<Arc<File>>,
}

impl RegionFile {
    /// Returns the region file of that name, which may not exist yet.
    pub(crate) fn new(folder: &PrivateFolder, name: String) -> RegionFile {
        RegionFile { folder: folder.clone(), name, held: None }
    }

    /// Returns the same file, which `held` refers to if that is known.
    pub(crate) fn held_by(self, held: Option<Arc<File>>) -> RegionFile {
        RegionFile { held, ..self }
    }

    /// Creates the file with a layout and the orders to the agent.
    ///
    /// # Errors
    /// It exists, or there is no space for it.
    pub(crate) fn create(&self, layout: &Layout, orders: Orders) -> io::Result<Region> {
        let file = self.folder.create_file(&self.name)?;
        begin(&file, layout, orders)?;
        Ok(Region::new(file, *layout))
    }

    /// Opens the file with a known layout.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn open(&self, layout: &Layout) -> io::Result<Region> {
        Ok(Region::new(self.file()?, *layout))
    }

    /// Opens the file to read the rings of events, while the process writes them. The file of a child that has become another user
    /// is not written to.
    ///
    /// # Errors
    /// It cannot be opened.
    pub(crate) fn rings(&self, layout: &Layout) -> io::Result<Rings> {
        match self.or_held(self.folder.open_to_write(&self.name), true) {
            Ok(file) => Ok(Rings::new(file, true, *layout)),
            Err(_) => Ok(Rings::new(self.file()?, false, *layout)),
        }
    }

    /// Reads what the agent reports, before the layout is known.
    ///
    /// # Errors
    /// The file cannot be opened or read.
    pub(crate) fn report(&self) -> io::Result<AgentReport> {
        Ok(AgentReport::of(&read_value(&self.file()?, 0)?))
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
        match sys::has_fixed_length(&file) {
            true => sys::is_mapped_for_writing(&sys::open_again(&file, true).ok()?),
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

    /// Opens the file. A child that has become another user makes a file that belongs to that user.
    fn file(&self) -> io::Result<File> {
        self.or_held(self.folder.open_of_anybody(&self.name), false)
    }

    /// Returns the file, or if it could not be opened by its name, the one that is held. A helper process has closed that, so that
    /// another file may have its number.
    fn or_held(&self, opened: io::Result<File>, write: bool) -> io::Result<File> {
        opened.or_else(|error| match self.held.as_ref().filter(|held| sys::has_fixed_length(held)) {
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

/// Gives the file, which stays sparse, the length for as many threads as the file system and the file size
/// limit allow. Returns that number of threads.
fn make_room(file: &File, layout: &Layout) -> io::Result<u64> {
    let mut blocks = BLOCKS_MAX;
    loop {
        match file.set_len(layout.blocks_offset + blocks * layout.block_len()) {
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

    use super::*;

    #[test]
    fn a_mapping_is_seen_after_its_descriptor() {
        let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
        let folder = PrivateFolder::create(place.path()).expect("a folder");
        let region = RegionFile::new(&folder, "region".into());
        let file = folder.create_file("region").expect("created");
        assert_eq!(region.is_counted_in(), Some(true));
        file.set_len(4096).expect("resized");
        is_seen(&region, file);

        let file = sys::empty_memory_file(std::path::Path::new("region")).expect("created");
        file.set_len(4096).expect("resized");
        sys::fix_length(&file).expect("fixed");
        let held = sys::open_again(&file, true).expect("opened");
        is_seen(&RegionFile::new(&folder, "none".into()).held_by(Some(Arc::new(held))), file);
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
