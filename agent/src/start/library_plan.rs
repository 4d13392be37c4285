//! Hooks one library by its plan: everything but the patches first, then the patches, and these once more if the library is
//! loaded again.
//!
//! The plan was made for the numbers that [`question`] says are free. Which libraries are hooked, and when, is not decided here.

use crate::hot::gate;
use crate::hot::tally;
use crate::hot::times::values;
use crate::hot::{archive, cells, objects, sites, thread_blocks};
use crate::os::files;
use crate::os::words;
use crate::process::birth;
use crate::program::agent::{self, Agent};
use crate::program::libraries::{self, Library};
use crate::program::module::Module;
use crate::program::switches;
use crate::program::text;
use crate::start::arena::{self, Room};
use crate::start::load_table::{note, set_state};
use crate::start::own;
use crate::start::pauses::{self, patch};
use crate::start::plan::{PatchedText, PlanFile};
use crate::start::refusal::Refusal;
use core::sync::atomic::Ordering;
use gprofinject_abi::VERSION;
use gprofinject_abi::ask::{ARENAS_SPAN, LOADED, Question};
use gprofinject_abi::plan::{ArenaHeader, MAGIC, Patch};
use gprofinject_abi::region::{Load, LoadRecord, PAGE, Trouble};

/// Returns the question about a library with this load bias, with the numbers that are free for it. `is_taken` is whether something
/// else is where its plan has the arena.
pub(crate) fn question(bias: u64, is_taken: bool) -> Question {
    let free = libraries::free();
    let counters = thread_blocks::library_counters(Agent::get());
    Question {
        kind: u64::from(LOADED).to_le_bytes(),
        bias,
        start: bias,
        arenas: agent::LIBRARY_GATE_FACTS.base.load(Ordering::Relaxed),
        is_taken: is_taken.into(),
        first_function: free.function,
        first_slot: slots_start().max(libraries::slots_end() as u32),
        slots_end: thread_blocks::library_slots_end(Agent::get()) as u32,
        first_tail: free.tail,
        first_counter: counters.max(libraries::counters_end()) as u32,
        counters_end: (counters + Agent::get().orders.library_counter_bytes) as u32,
        words: words::offset(),
        name: 0,
    }
}

/// Returns the patches of the plan of a library with this load bias, all of which lie in its text.
pub(crate) fn patches(file: &PlanFile, bias: u64, (lo, hi): (u64, u64)) -> Result<&'static [Patch], Refusal> {
    let patches: &[Patch] = file.table(file.header()?.patches)?;
    // A patch of another file's plan may lead anywhere.
    let is_inside = |patch: &Patch| {
        let at = patch.address.wrapping_add(bias);
        at >= lo && at.checked_add(patch.len.into()).is_some_and(|end| end <= hi)
    };
    if patches.iter().all(is_inside) { Ok(patches) } else { Err(Refusal::new(Trouble::TextDiffers)) }
}

/// Prepares the hooks of a library by its plan, whose [`patches`] were checked: everything but the patches. Returns the
/// library's index. The errno of a refusal is EEXIST if another thread has mapped something where the arena was to be.
pub(crate) fn add(
    file: &PlanFile,
    identity: files::Identity,
    headers: (u64, u64, u64),
    question: &Question,
    record: &LoadRecord,
) -> Result<u32, Refusal> {
    let damaged = || Refusal::new(Trouble::Version);
    let plan = file.header()?;
    let (lo, hi) = (record.lo, record.hi);
    let arena = plan.arena.wrapping_add(record.bias);
    let arena_end = arena.checked_add(plan.arena_len).ok_or_else(damaged)?;
    let last = question.arenas.saturating_add(ARENAS_SPAN);
    let fits = plan.magic == MAGIC
        && plan.version == VERSION
        && (plan.standalone != 0) == cfg!(feature = "standalone")
        && plan.first_function == question.first_function
        && arena >= question.arenas
        && arena.is_multiple_of(PAGE)
        && plan.first_counter == question.first_counter.into()
        && plan.counter_bytes <= (question.counters_end - question.first_counter).into()
        && arena_end <= last;
    if !fits {
        return Err(damaged());
    }
    let module =
        Module { headers, load_bias: record.bias, base: question.arenas, ..file.module(plan, record.bias)? };
    arena::fill(file, plan, record.bias, &gates(), Room::Free)?;
    let offset = (arena - question.arenas) as u32;
    let (functions, tails) =
        libraries::adopt(module.first, module.functions, module.tails, offset).ok_or_else(damaged)?;
    let module = Module { functions, tails, ..module };
    agent::note_labels(module.arena_lo..module.arena_hi, module.copies_hi);
    let index = libraries::add(record.bias, (lo, hi), identity, module).ok_or_else(damaged)?;
    let library = libraries::get(index).ok_or_else(damaged)?;
    let module = &library.module;
    values::add(module);
    tally::add(module);
    let failed = |errno| Refusal::errno(Trouble::Memory, errno);
    if switches::set_as_planned(module).map_err(failed)? {
        text::switch(module, false).map_err(failed)?;
    }
    let record = LoadRecord {
        functions: functions.len() as u32,
        arena,
        arena_len: plan.arena_len,
        first_counter: question.first_counter,
        counter_bytes: plan.counter_bytes as u32,
        patches: module.patches.as_ptr() as u64,
        patch_count: module.patches.len() as u64,
        ..*record
    };
    if !note(index, &record) {
        return Err(damaged());
    }
    set_state(index, Load::Prepared);
    Ok(index)
}

/// Hooks a library that [`add`] has prepared, that is loaded, and whose text is its file's. `text` has the patches, if there is such a
/// text.
pub(crate) fn write(index: u32, text: Option<&PatchedText>) -> Result<(), Refusal> {
    let Some(library) = libraries::get(index) else { return Err(Refusal::new(Trouble::Version)) };
    let (lo, hi) = library.extent();
    archive_others(lo, hi, Some(index));
    forget_places();
    libraries::set_loaded(index, true);
    // While the hooks are out, the text is the library's own.
    let text = text.filter(|_| !pauses::are_out());
    let replace = |text: &PatchedText| text::replace(&library.module, &text.ranges, text.file.number).is_ok();
    if !text.is_some_and(replace)
        && let Err(errno) = patch(library)
    {
        libraries::set_loaded(index, false);
        set_state(index, Load::Refused);
        return Err(Refusal::errno(Trouble::Memory, errno));
    }
    set_state(index, Load::Hooked);
    birth::redirect_forks((lo, hi));
    Ok(())
}

/// Hooks a library that was unloaded and has been loaded from the same file at the same address, if its text is the same.
pub(crate) fn write_again(index: u32, library: &Library) {
    if text::first_difference(library.module.patches, library.module.bias).is_none() {
        let (lo, hi) = library.extent();
        archive_others(lo, hi, Some(index));
        if library.is_archived() {
            archive::restore(Agent::get(), index);
            library.set_archived(false);
        }
        forget_places();
        libraries::set_loaded(index, true);
        if patch(library).is_ok() {
            set_state(index, Load::Hooked);
        } else {
            libraries::set_loaded(index, false);
        }
    }
}

/// Marks the keys of the calls of unloaded libraries that were at these addresses, except for the one with index `but`.
fn archive_others(lo: u64, hi: u64, but: Option<u32>) {
    for index in (0..libraries::used()).filter(|&index| Some(index) != but) {
        let Some(library) = libraries::get(index) else { continue };
        if !library.is_loaded() && !library.is_archived() && library.overlaps(lo, hi) {
            let (lo, hi) = library.extent();
            archive::store(Agent::get(), index, lo, hi);
            library.set_archived(true);
            set_state(index, Load::Archived);
        }
    }
}

/// Notes that a library has been unloaded.
pub(crate) fn note_gone(index: u32) {
    forget_places();
    libraries::set_loaded(index, false);
    set_state(index, Load::Gone);
}

/// Forgets what is known of return addresses, because other code may have come to their places.
fn forget_places() {
    sites::forget();
    objects::forget();
}

/// Returns the addresses of the slow paths for libraries' thunks.
fn gates() -> ArenaHeader {
    ArenaHeader {
        miss: gate::gpi_library_miss as *const () as u64,
        miss_entry: gate::gpi_library_miss_entry as *const () as u64,
        window: gate::gpi_library_window as *const () as u64,
        exit: gate::gpi_library_exit as *const () as u64,
        tail: gate::gpi_library_tail as *const () as u64,
        ..own::common_gates(cells::table(), &Agent::get().orders)
    }
}

/// Returns the offset of the library slots in a thread block.
fn slots_start() -> u32 {
    thread_blocks::library_slots(Agent::get()) as u32
}
