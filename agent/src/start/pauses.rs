//! The hooks of libraries while the hooks are paused, and when they come back.

use crate::os::kernel;
use crate::os::lookup;
use crate::program::libraries::{self, Library};
use crate::program::text;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// AT_BASE of the process, once libraries can be hooked; 0 before. Stored once.
pub(crate) static DYNAMIC_LINKER: AtomicU64 = AtomicU64::new(0);
/// Whether the hooks are out because of [`unpatch_all`]. Of libraries that are loaded then, only the patches are written that
/// stay.
static PAUSED: AtomicBool = AtomicBool::new(false);

/// Checks that no thread is loading or unloading a library, so that [`unpatch_all`] and [`patch_all`] find all libraries
/// either hooked or not. All other threads are stopped.
///
/// # Errors
/// Returns EAGAIN if a thread is.
pub(crate) fn check_settled() -> Result<(), i32> {
    let dynamic_linker = DYNAMIC_LINKER.load(Ordering::Relaxed);
    let is_settled = dynamic_linker == 0 || lookup::all_objects(dynamic_linker, |_| {});
    if is_settled && !libraries::is_busy() { Ok(()) } else { Err(kernel::EAGAIN) }
}

/// Returns whether the hooks are out because of [`unpatch_all`].
pub(crate) fn are_out() -> bool {
    PAUSED.load(Ordering::SeqCst)
}

/// Returns whether a library's text is there and has its hooks, while all other threads are stopped.
pub(crate) fn is_hooked(library: &Library) -> bool {
    let mut is_present = cfg!(feature = "standalone");
    let dynamic_linker = DYNAMIC_LINKER.load(Ordering::Relaxed);
    if !is_present && dynamic_linker != 0 {
        lookup::all_objects(dynamic_linker, |map| is_present |= library.start == map.bias);
    }
    library.is_loaded() && is_present && !are_out() && text::is_patched(&library.module)
}

/// Restores the original instructions of all libraries but for the patches that stay, while all other threads are stopped.
/// Frames that are on the stack still return through the arenas.
///
/// # Errors
/// Returns the first errno with which a library's text could not be written. The other libraries are restored.
pub(crate) fn unpatch_all() -> Result<(), i32> {
    PAUSED.store(true, Ordering::SeqCst);
    each_present(|library| match text::is_patched(&library.module) {
        true => text::unpatch(&library.module),
        // Another library may have come to the same place without the agent's notice.
        false => Ok(()),
    })
}

/// Writes the patches of all libraries again that [`unpatch_all`] has removed, and those of libraries that were loaded
/// since, while all other threads are stopped.
///
/// # Errors
/// Returns the first errno with which a library's text could not be written. The other libraries are hooked.
pub(crate) fn patch_all() -> Result<(), i32> {
    PAUSED.store(false, Ordering::SeqCst);
    each_present(|library| match text::is_paused(&library.module) {
        true => text::patch(&library.module),
        false => Ok(()),
    })
}

/// Restores the original instructions of those patches of libraries that have stayed after [`unpatch_all`], while all other
/// threads are stopped.
///
/// # Errors
/// Returns EAGAIN, without doing anything, if a thread is loading or unloading a library, and otherwise the first errno with which
/// a library's text could not be written. The other libraries are restored.
pub(crate) fn unpatch_rest() -> Result<(), i32> {
    let mut loaded = (0..libraries::used()).filter_map(libraries::get).filter(|library| library.is_loaded());
    if !loaded.any(|library| text::has_rest(&library.module)) {
        return Ok(());
    }
    if !cfg!(feature = "standalone") {
        check_settled()?;
    }
    each_present(|library| match text::is_paused(&library.module) {
        true => text::unpatch_rest(&library.module),
        false => Ok(()),
    })
}

/// Calls `work` with each library that counts as loaded and is in the dynamic linker's lists. Returns the first error. musl
/// unloads none, so that its lists, which another thread may be changing, do not matter.
fn each_present(mut work: impl FnMut(&Library) -> Result<(), i32>) -> Result<(), i32> {
    let mut result = Ok(());
    let dynamic_linker = DYNAMIC_LINKER.load(Ordering::Relaxed);
    let mut work_with = |is_it: &dyn Fn(&Library) -> bool| {
        let all = (0..libraries::used()).filter_map(libraries::get);
        for library in all.filter(|library| library.is_loaded() && is_it(library)) {
            let done = work(library);
            result = result.and(done);
        }
    };
    if cfg!(feature = "standalone") {
        work_with(&|_| true);
    } else if dynamic_linker != 0 {
        lookup::all_objects(dynamic_linker, |map| work_with(&|library| library.start == map.bias));
    }
    result
}

/// Writes the patches of a library: if the hooks are out at present, only those that stay.
pub(crate) fn patch(library: &Library) -> Result<(), i32> {
    match PAUSED.load(Ordering::SeqCst) {
        true => text::patch_rest(&library.module),
        false => text::patch(&library.module),
    }
}
