//! The start of a memory file of the injector's own, mapped from the first time that it is read on. Processes of the same program get the
//! file one after the other, and to map it for each would take as long as to read it.

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

use crate::os::shared::{Access, Part};

/// The bytes that are mapped at most. In most files, all that are not holes are among them.
pub(super) const WINDOW: u64 = 1 << 30;

/// The mapping, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Window(Mutex<Option<Arc<Part>>>);

impl Window {
    /// Returns the mapping of a file, which is always the same one. Returns `None` if it cannot be mapped.
    pub(super) fn part(&self, file: &File) -> Option<Arc<Part>> {
        let mut part = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if part.is_none() {
            let len = file.metadata().ok()?.len().min(WINDOW);
            *part = Part::of(file, 0..len, Access::Clear).ok().map(Arc::new);
        }
        part.clone()
    }

    /// Removes the mapping. As long as there is one, the kernel does not tell whether another process has one.
    pub(super) fn close(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}
