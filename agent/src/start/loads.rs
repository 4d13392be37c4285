//! Hooks libraries: those that are loaded when the program starts, and those that are loaded later.
//!
//! For each library, the agent sends the injector a descriptor of its file and the places that are free. The injector
//! answers with a plan file that was made for these places, and the agent carries it out as it does with the program's.
//!
//! The libraries of the start are mapped when the agent's first code runs. For later ones, the dynamic linker calls an empty
//! function each time it has changed its lists (`_dl_debug_state`, for debuggers): after it has mapped a library and before
//! the library's constructors run. That function is redirected to [`changed`].
#![allow(
    unsafe_code,
    reason = "the dynamic linker's text is patched, and the headers of loaded libraries are read"
)]

use crate::hot::gate;
use crate::hot::times::values;
use crate::hot::{archive, cells, objects, sites, thread_blocks};
use crate::os::files;
use crate::os::kernel;
use crate::os::lookup::{self, LinkMap, Segments};
use crate::os::memory;
use crate::os::place::Place;
use crate::os::task;
#[cfg(not(test))]
use crate::os::vectors::{restore_vectors, save_vectors};
#[cfg(not(feature = "standalone"))]
use crate::os::words;
#[cfg(not(feature = "standalone"))]
use crate::process::birth;
use crate::program::agent::{self, Agent, GATE_FACTS, LIBRARY_GATE_FACTS};
use crate::program::failure;
use crate::program::libraries::{self, Library, busy};
use crate::program::module::Module;
use crate::program::switches;
use crate::program::text;
use crate::start::arena::{self, Room};
use crate::start::asking::{self, AT_FDCWD, Unhooked, ask, has_path};
use crate::start::load_table::{note, set_state};
use crate::start::own;
use crate::start::pauses::{DYNAMIC_LINKER, patch};
use crate::start::plan::PlanFile;
use crate::start::refusal::Refusal;
use crate::unwind::backtraces;
use crate::unwind::landings;
use crate::unwind::stack_copies;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::VERSION;
use gprofinject_abi::ask::{LOADED, Question};
use gprofinject_abi::attach::{LibraryOrder, NOTICE_LEN};
use gprofinject_abi::plan::{ArenaHeader, MAGIC, Patch};
use gprofinject_abi::region::{LIBRARY_BYTES, Load, LoadRecord, Trouble};

/// Hooks the libraries that are loaded, and arranges for later ones.
pub(crate) fn prepare(dynamic_linker: u64, place: &Place) {
    DYNAMIC_LINKER.store(dynamic_linker, Ordering::Relaxed);
    if !asking::begin(place) {
        return;
    }
    // The lists of musl's dynamic linker, which has not begun yet, are empty, and the agent knows only of itself.
    update(cfg!(not(feature = "standalone")));
    redirect(dynamic_linker);
}

/// Hooks musl's dynamic linker, which is the C library as well, before its first instruction. `name` is the path by which
/// the program names it.
///
/// # Errors
/// It is not hooked. Then nothing in the process may be: the threads that it makes would share the words of their parents.
#[cfg(feature = "standalone")]
pub(crate) fn hook_dynamic_linker(
    dynamic_linker: u64,
    name: *const u8,
    place: &Place,
) -> Result<(), Unhooked> {
    if !asking::begin(place) {
        return Err(Unhooked::Failed(kernel::EINVAL));
    }
    hook(&LinkMap::named(dynamic_linker, name))
}

/// The dynamic linker calls this when it has changed its lists.
extern "C" fn changed() {
    let agent = Agent::get();
    if agent.is_set_up && !agent.counts_nowhere && !kernel::is_frozen() {
        let _ = failure::guarded(|| update(false));
        libraries::nobody_is_busy();
    }
}

/// Compares the dynamic linker's lists with the hooked libraries: hooks what is new, and notes what is gone. `at_start` is
/// whether the dynamic linker still loads the program, whose lists are then complete although it does not say so.
fn update(at_start: bool) {
    let dynamic_linker = DYNAMIC_LINKER.load(Ordering::Relaxed);
    if !lookup::all_objects(dynamic_linker, |_| {}) && !at_start {
        return;
    }
    UPDATES.fetch_add(1, Ordering::Relaxed);
    // The dynamic linker holds its lock, so no other thread is here, and nothing is loaded or unloaded meanwhile.
    let gone = (0..libraries::used()).filter_map(|index| Some((index, libraries::get(index)?)));
    for (index, library) in gone.filter(|(_, library)| library.is_loaded()) {
        let mut is_there = false;
        lookup::all_objects(dynamic_linker, |map| is_there |= map.bias == library.start);
        if !is_there {
            busy(|| {
                forget_places();
                libraries::set_loaded(index, false);
                set_state(index, Load::Gone);
            });
        }
    }
    lookup::all_objects(dynamic_linker, |map| {
        #[cfg(feature = "standalone")]
        note_code(map);
        if is_known(map) || asking::is_over() {
            return;
        }
        match hook(map) {
            Ok(()) => {}
            Err(Unhooked::NotWanted) => {}
            Err(Unhooked::Failed(_)) => lose(),
        }
    });
}

/// Notes where the code of an object is that the dynamic linker has loaded.
#[cfg(feature = "standalone")]
fn note_code(map: &LinkMap) {
    // SAFETY: the bytes at the load bias of an object are its ELF header, if they look like it.
    unsafe {
        if map.bias != 0
            && !memory::is_unreadable(task::getpid(), map.bias)
            && *(map.bias as *const [u8; 4]) == *b"\x7fELF"
            && let Some(segments) = lookup::segments_of(map.bias)
        {
            crate::os::loaded::add_code(segments.code);
        }
    }
}

/// Counts a library that was wanted and is not hooked.
fn lose() {
    Agent::get().region.lost_libraries().fetch_add(1, Ordering::Relaxed);
}

/// The objects about which the injector was asked, and the number of the update in which each was last seen: a hash table
/// by the load bias, of limited size. An object that is not in it is asked about again, which only takes time.
static ASKED: [[AtomicU64; 2]; 1024] = [const { [const { AtomicU64::new(0) }; 2] }; 1024];
/// The number of updates.
static UPDATES: AtomicU64 = AtomicU64::new(0);

/// Returns whether nothing has to be done for an object: it is the program or no file, or it is hooked, or the injector
/// does not want it.
fn is_known(map: &LinkMap) -> bool {
    if map.bias == 0 || map.bias == Agent::get().program.load_bias || !has_path(map.name) {
        return true;
    }
    let at_its_place = (0..libraries::used())
        .filter_map(|index| Some((index, libraries::get(index)?)))
        .filter(|(_, library)| library.start == map.bias);
    for (index, library) in at_its_place {
        if !library.is_loaded() && file_of(map) == Some(library.file) {
            busy(|| load_again(index, library));
        }
        if library.is_loaded() {
            return true;
        }
    }
    let [place, seen] = &ASKED[(map.bias >> 12) as usize % ASKED.len()];
    let now = UPDATES.load(Ordering::Relaxed);
    // If the last update did not see it, this is another object at the same place.
    let was_seen = seen.swap(now, Ordering::Relaxed) == now - 1;
    place.swap(map.bias, Ordering::Relaxed) == map.bias && was_seen
}

/// Returns the identity of the file from which an object was loaded, unless it was removed.
fn file_of(map: &LinkMap) -> Option<files::Identity> {
    let fd = files::open_path(AT_FDCWD, map.name as u64).ok()?;
    let identity = files::identity(fd);
    files::close(fd);
    identity.ok()
}

/// Hooks a library that was unloaded and has been loaded from the same file at the same address, if its text is the same.
fn load_again(index: u32, library: &Library) {
    if text::first_difference(library.module.patches, 0).is_none() {
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

/// Asks the injector about a library, and hooks it.
fn hook(map: &LinkMap) -> Result<(), Unhooked> {
    let failed = Unhooked::Failed;
    // SAFETY: a library that the dynamic linker has loaded from a file begins with its ELF header, if its first segment has
    // link address 0. The bytes are compared before anything else is read.
    let Segments { headers, code: extent } = unsafe {
        if memory::is_unreadable(task::getpid(), map.bias) || *(map.bias as *const [u8; 4]) != *b"\x7fELF" {
            return Err(Unhooked::Failed(0));
        }
        lookup::segments_of(map.bias).ok_or(Unhooked::NotWanted)?
    };
    let question = question(map.bias);
    let fd = files::open_path(AT_FDCWD, map.name as u64).map_err(failed)?;
    let (identity, answer) = (files::identity(fd), ask(&question, fd));
    files::close(fd);
    let identity = identity.map_err(failed)?;
    let (answer, plan) = answer?;
    let Some(plan) = plan.filter(|_| answer.hooked != 0) else { return Err(Unhooked::NotWanted) };
    let file = PlanFile::open(plan);
    files::close(plan);
    let file = file.map_err(failed)?;
    file.note();
    let record = LoadRecord {
        plan: answer.plan,
        first_function: question.first_function,
        first_slot: question.first_slot,
        slot_bytes: answer.slot_bytes,
        bias: map.bias,
        lo: extent.0,
        hi: extent.1,
        ..LoadRecord::default()
    };
    let hooked = busy(|| {
        // Nothing is given out for a library whose text is not its file's.
        if text::first_difference(patches(&file, (record.lo, record.hi))?, 0).is_some() {
            return Err(Refusal::new(Trouble::TextDiffers));
        }
        let index = add(&file, identity, headers, &question, &record)?;
        write(index)
    });
    hooked.map_err(|refusal| Unhooked::Failed(refusal.errno))
}

/// Returns the question about a library with this load bias, with the places that are free for it.
fn question(bias: u64) -> Question {
    let free = libraries::free();
    let arenas = agent::libraries_thunks();
    let counters = thread_blocks::library_counters(Agent::get());
    Question {
        kind: u64::from(LOADED).to_le_bytes(),
        bias,
        start: bias,
        arenas: arenas.start,
        free: free.arena,
        end: arenas.end,
        first_function: free.function,
        first_slot: slots_start().max(libraries::slots_end() as u32),
        slots_end: slots_start() + LIBRARY_BYTES as u32,
        first_tail: free.tail,
        first_counter: counters.max(libraries::counters_end()) as u32,
        counters_end: (counters + Agent::get().orders.library_counter_bytes) as u32,
    }
}

/// Returns the patches of a library's plan, all of which lie in its text.
fn patches(file: &PlanFile, (lo, hi): (u64, u64)) -> Result<&'static [Patch], Refusal> {
    let patches: &[Patch] = file.table(file.header()?.patches)?;
    // A patch of another file's plan may lead anywhere.
    let is_inside = |patch: &Patch| patch.address >= lo && patch.address + u64::from(patch.len) <= hi;
    if patches.iter().all(is_inside) { Ok(patches) } else { Err(Refusal::new(Trouble::TextDiffers)) }
}

/// Prepares the hooks of a library by its plan, whose [`patches`] were checked: everything but the patches. Returns the
/// library's index.
fn add(
    file: &PlanFile,
    identity: files::Identity,
    headers: (u64, u64, u64),
    question: &Question,
    record: &LoadRecord,
) -> Result<u32, Refusal> {
    let damaged = || Refusal::new(Trouble::Version);
    let plan = file.header()?;
    let (lo, hi) = (record.lo, record.hi);
    let arena_end = plan.arena.checked_add(plan.arena_len).ok_or_else(damaged)?;
    let fits = plan.magic == MAGIC
        && plan.version == VERSION
        && (plan.standalone != 0) == cfg!(feature = "standalone")
        && plan.records_base == question.arenas
        && plan.first_function == question.first_function
        && plan.arena == question.free
        && plan.first_counter == question.first_counter.into()
        && plan.counter_bytes <= (question.counters_end - question.first_counter).into()
        && arena_end <= question.end;
    if !fits {
        return Err(damaged());
    }
    let module = Module { headers, load_bias: record.bias, ..file.module(plan, 0)? };
    arena::fill(file, plan, 0, &gates(), Room::Reserved)?;
    let (functions, tails) =
        libraries::adopt(module.first, module.functions, module.tails).ok_or_else(damaged)?;
    let module = Module { functions, tails, ..module };
    agent::note_copies(module.arena_hi..module.copies_hi);
    let index = libraries::add(record.bias, (lo, hi), identity, module).ok_or_else(damaged)?;
    let library = libraries::get(index).ok_or_else(damaged)?;
    let module = &library.module;
    values::add(module);
    let failed = |errno| Refusal::errno(Trouble::Memory, errno);
    if switches::set_as_planned(module).map_err(failed)? {
        text::switch(module, false).map_err(failed)?;
    }
    let record = LoadRecord {
        functions: functions.len() as u32,
        arena: plan.arena,
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

/// Hooks a library that [`add`] has prepared, that is loaded, and whose text is its file's.
fn write(index: u32) -> Result<(), Refusal> {
    let Some(library) = libraries::get(index) else { return Err(Refusal::new(Trouble::Version)) };
    let (lo, hi) = library.extent();
    archive_others(lo, hi, Some(index));
    forget_places();
    libraries::set_loaded(index, true);
    if let Err(errno) = patch(library) {
        libraries::set_loaded(index, false);
        set_state(index, Load::Refused);
        return Err(Refusal::errno(Trouble::Memory, errno));
    }
    set_state(index, Load::Hooked);
    #[cfg(not(feature = "standalone"))]
    if !words::is_attached() {
        let module = &library.module;
        birth::redirect_forks((lo, hi), |from, to| {
            module.patches.iter().any(|patch| {
                let at = module.bias.wrapping_add(patch.address);
                at < to && from < at + u64::from(patch.len)
            })
        });
    }
    Ok(())
}

/// The state of the dynamic linker's function that tells debuggers of changes.
pub(crate) struct Notice {
    /// Its address.
    pub(crate) function: u64,
    /// A jump from there to the agent.
    pub(crate) jump: [u8; NOTICE_LEN],
}

/// Prepares for libraries in a process that already runs, if they can be hooked. Returns how the agent would learn of changes,
/// if it can.
pub(crate) fn prepare_running(dynamic_linker: u64, place: &Place) -> Option<Option<Notice>> {
    let notice = notice(dynamic_linker);
    // In a process of musl's, the dynamic linker and the libraries that are there have to be hooked all the same.
    if cfg!(feature = "standalone") && notice.is_none() {
        lose();
    } else {
        notice.as_ref()?;
    }
    asking::begin(place).then_some(())?;
    DYNAMIC_LINKER.store(dynamic_linker, Ordering::Relaxed);
    Some(notice)
}

/// Returns the places that are free for the next library of a process that already runs.
pub(crate) fn free() -> Question {
    question(0)
}

/// Prepares the hooks of a library of a process that already runs. `is_redirected` says whether there is anything else
/// in a range of addresses that the agent overwrites.
///
/// # Errors
/// Returns an errno if the library cannot be hooked.
pub(crate) fn load(
    order: &LibraryOrder,
    plan: i32,
    is_redirected: impl Fn(u64, u64) -> bool,
) -> Result<(), i32> {
    let file = PlanFile::open(plan)?;
    file.note();
    let question = question(order.start);
    let [lo, hi] = order.text;
    let record = LoadRecord {
        plan: order.plan,
        first_function: question.first_function,
        first_slot: question.first_slot,
        slot_bytes: order.slot_bytes,
        bias: order.start,
        lo,
        hi,
        ..LoadRecord::default()
    };
    let errno = |refusal: Refusal| if refusal.errno != 0 { refusal.errno } else { kernel::EINVAL };
    if patches(&file, (lo, hi))
        .map_err(errno)?
        .iter()
        .any(|patch| is_redirected(patch.address, patch.address + u64::from(patch.len)))
    {
        return Err(kernel::EINVAL);
    }
    let [at, size, count] = order.headers;
    add(&file, files::Identity(order.file), (at, size, count), &question, &record).map_err(errno)?;
    Ok(())
}

/// Hooks the libraries that [`load`] has prepared and that the process has not unloaded since. All other threads are
/// stopped, and [`crate::start::pauses::check_settled`] has found nothing.
///
/// # Errors
/// musl's dynamic linker cannot be hooked; nothing else is then. The error is an errno.
pub(crate) fn arm() -> Result<(), i32> {
    let dynamic_linker = DYNAMIC_LINKER.load(Ordering::Relaxed);
    #[cfg(feature = "standalone")]
    if dynamic_linker != 0 {
        arm_dynamic_linker(dynamic_linker)?;
        lookup::all_objects(dynamic_linker, note_code);
    }
    for index in 0..libraries::used() {
        let Some(library) = libraries::get(index).filter(|library| !library.is_loaded()) else { continue };
        let mut is_there = false;
        lookup::all_objects(dynamic_linker, |map| {
            is_there |= map.bias == library.start && file_of(map) == Some(library.file);
        });
        // If another library is there, the agent asks about it at the next change.
        if !is_there {
            set_state(index, Load::Refused);
        } else if text::first_difference(library.module.patches, 0).is_some() {
            set_state(index, Load::Refused);
            lose();
        } else if busy(|| write(index)).is_err() {
            lose();
        }
    }
    Ok(())
}

/// Hooks musl's dynamic linker, which is never unloaded.
#[cfg(feature = "standalone")]
fn arm_dynamic_linker(dynamic_linker: u64) -> Result<(), i32> {
    let is_it = |index: &u32| libraries::get(*index).is_some_and(|library| library.start == dynamic_linker);
    let index = (0..libraries::used()).find(is_it).ok_or(kernel::ENOENT)?;
    let library = libraries::get(index).filter(|library| !library.is_loaded());
    if library.is_some_and(|library| text::first_difference(library.module.patches, 0).is_some()) {
        return Err(kernel::EINVAL);
    }
    if library.is_some() { busy(|| write(index)).map_err(|refusal| refusal.errno) } else { Ok(()) }
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

/// Forgets what is known of return addresses, because other code may have come to their places.
fn forget_places() {
    sites::forget();
    objects::forget();
}

/// Returns the addresses of the slow paths for libraries' thunks.
fn gates() -> ArenaHeader {
    let [begin, end, mark] = own::times_gates(&Agent::get().orders);
    let header = ArenaHeader {
        miss: gate::gpi_library_miss as *const () as u64,
        miss_entry: gate::gpi_library_miss_entry as *const () as u64,
        window: gate::gpi_library_window as *const () as u64,
        exit: gate::gpi_library_exit as *const () as u64,
        tail: gate::gpi_library_tail as *const () as u64,
        shadows: cells::table(),
        backtrace: backtraces::gpi_backtrace as *const () as u64,
        land: landings::gpi_land as *const () as u64,
        stack_copy: stack_copies::gate(),
        begin,
        end,
        mark,
        program_labels: GATE_FACTS.labels(),
        library_labels: LIBRARY_GATE_FACTS.labels(),
        ..ArenaHeader::default()
    };
    own::with_calls(header)
}

/// Returns the offset of the library slots in a thread block.
fn slots_start() -> u32 {
    thread_blocks::library_slots(Agent::get()) as u32
}

/// Returns the function that the dynamic linker calls after a change, and a jump from there to the agent. The function is
/// empty, so it need not run. Returns `None` if it is not as expected, or if no code can be changed.
fn notice(dynamic_linker: u64) -> Option<Notice> {
    /// ret, in some builds after endbr64; then padding up to the next function, which begins at a multiple of 16.
    const RET: u8 = 0xc3;
    const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
    let function = lookup::change_notice(dynamic_linker);
    let (lo, hi) = lookup::text_around(dynamic_linker, function);
    if function == 0
        || function < lo
        || function + 16 > hi
        || !function.is_multiple_of(16)
        || !memory::may_make_code()
    {
        return None;
    }
    // SAFETY: the bytes are in the dynamic linker's text, which is mapped.
    let code = unsafe { *(function as *const [u8; 16]) };
    let empty = code[0] == RET || code[..4] == ENDBR64 && code[4] == RET;
    let stub = gpi_changed as *const () as u64;
    let distance = i32::try_from(stub.wrapping_sub(function + NOTICE_LEN as u64) as i64).ok()?;
    let mut jump = [0xe9, 0, 0, 0, 0];
    jump[1..].copy_from_slice(&distance.to_le_bytes());
    empty.then_some(Notice { function, jump })
}

/// Redirects that function, before the program's own threads exist.
fn redirect(dynamic_linker: u64) {
    let Some(Notice { function, jump }) = notice(dynamic_linker) else {
        // The libraries of the start of a program of musl's are loaded later, too.
        if cfg!(feature = "standalone") {
            lose();
        }
        return;
    };
    let page = function & !4095;
    // SAFETY: the pages are the dynamic linker's own, and no other thread runs. This thread runs the dynamic linker's code
    // again only afterwards.
    unsafe {
        if memory::mprotect(page, 4096, memory::PROT_READ | memory::PROT_WRITE).is_ok() {
            core::ptr::copy_nonoverlapping(jump.as_ptr(), function as *mut u8, jump.len());
        }
        let _ = memory::mprotect(page, 4096, memory::PROT_READ | memory::PROT_EXEC);
    }
}

#[cfg(not(test))]
core::arch::global_asm!(
    ".text",
    ".hidden gpi_changed",
    ".globl gpi_changed",
    ".p2align 4",
    ".type gpi_changed, @function",
    // The dynamic linker calls this in place of an empty function, so every register is preserved.
    "gpi_changed:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbp, 0",
    "mov rbp, rsp",
    ".cfi_def_cfa_register rbp",
    "push rax",
    "push rcx",
    "push rdx",
    "push rsi",
    "push rdi",
    "push r8",
    "push r9",
    "push r10",
    "push r11",
    "and rsp, -16",
    save_vectors!(),
    "call {changed}",
    restore_vectors!(),
    "lea rsp, [rbp-72]",
    "pop r11",
    "pop r10",
    "pop r9",
    "pop r8",
    "pop rdi",
    "pop rsi",
    "pop rdx",
    "pop rcx",
    "pop rax",
    "pop rbp",
    ".cfi_def_cfa rsp, 8",
    "ret",
    ".cfi_endproc",
    ".size gpi_changed, . - gpi_changed",
    changed = sym changed,
);

#[cfg(not(test))]
unsafe extern "C" {
    fn gpi_changed();
}

#[cfg(test)]
fn gpi_changed() {}
