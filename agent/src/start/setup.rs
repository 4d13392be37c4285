//! Carries out the plan: tables, arena, patches, initial thread words. It does all of it or nothing.
#![allow(unsafe_code, reason = "the region file is mapped, and the program's text is compared with the plan")]

use crate::hot::cells;
use crate::hot::counters;
use crate::hot::gate;
use crate::hot::slow_stack;
use crate::hot::tally;
use crate::hot::thread_blocks;
use crate::hot::timer;
use crate::hot::times;
#[cfg(not(feature = "standalone"))]
use crate::os::files;
use crate::os::initial::{AT_BASE, AT_ENTRY, AT_HWCAP2, AT_PHDR, AT_PHENT, AT_PHNUM, Start};
use crate::os::kernel;
use crate::os::limits;
#[cfg(feature = "standalone")]
use crate::os::loaded;
use crate::os::lookup;
use crate::os::memory;
use crate::os::own_image;
use crate::os::place::Place;
use crate::os::shadow_stack;
#[cfg(not(feature = "standalone"))]
use crate::os::stat;
use crate::os::task;
use crate::os::words;
use crate::process::birth;
use crate::process::execute;
use crate::process::run;
use crate::program::agent::{self, Agent};
use crate::program::failure;
use crate::program::libraries;
use crate::program::module::Module;
use crate::program::provoke;
use crate::program::text;
use crate::start::arena::{self, Room};
use crate::start::asking;
use crate::start::loads;
use crate::start::mcount;
use crate::start::notice;
use crate::start::own;
use crate::start::plan::{PatchedText, PlanFile, TextRanges};
use crate::start::process_files::Files;
use crate::start::refusal::Refusal;
use crate::start::room::Need;
use crate::unwind::signals;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use gprofinject_abi::VERSION;
use gprofinject_abi::clock::ClockKind;
use gprofinject_abi::plan::{HookMode, MAGIC};
use gprofinject_abi::region::{self, Lost, RegionHeader, RegionOrders, State, StateCode, Trouble};
use gprofinject_abi::shared::{RegionRef, WordsRef};
use gprofinject_abi::tally::ALONE;

/// A flag in AT_HWCAP2: user code may set the base of gs.
const FSGSBASE: u64 = 2;

/// Hooks the program, or reports the reason in the region file. Returns whether the program is hooked.
pub(crate) fn run(start: &Start, place: &Place) -> bool {
    let begun = task::now();
    let files = Files::Named(place);
    let Ok((region, orders)) = begin(&files) else { return false };
    let may_raise = orders.follow != 0 && cfg!(not(feature = "standalone"));
    if may_raise {
        limits::begin();
    }
    if orders.library_bytes != 0 {
        asking::announce(start.auxiliary(AT_BASE), place, (region, &orders), loads::note_asked);
    }
    let mut text = None;
    if lookup::is_in_library(start.auxiliary(AT_BASE), b"__asan_init") {
        Refusal::new(Trouble::AddressSanitizer).report(region);
    } else {
        text = finish(start, &files, region, orders);
    }
    #[cfg(feature = "standalone")]
    if state(region) == Some(State::SettingUp) && orders.library_bytes != 0 {
        hook_dynamic_linker(start, place, region);
    }
    if state(region) == Some(State::SettingUp) {
        let program = &Agent::get().program;
        let is_replaced =
            text.is_some_and(|text| text::replace(program, &text.ranges, text.file.number).is_ok());
        if is_replaced {
            note_armed(region);
        } else {
            let _ = arm(region, Agent::get());
        }
        if libraries::are_prepared() {
            notice::prepare(start.auxiliary(AT_BASE), place);
        }
        // The fork handlers of libraries that come before the agent's would make calls that are not measured.
        if orders.times_bytes != 0 {
            birth::redirect_forks(Agent::get().libc);
        }
    }
    let mut is_raised = false;
    if orders.follow != 0 && run::follow(place) {
        let is_possible = execute::prepare(start.auxiliary(AT_BASE), place);
        is_raised = may_raise && is_possible;
        // The program's own instructions lead to the agent where there is no dynamic linker of glibc's.
        if !is_possible && cfg!(not(feature = "standalone")) {
            region.unseen().fetch_or(region::UNSEEN_EXECUTED, Ordering::Relaxed);
        }
    }
    if may_raise && !is_raised {
        limits::end();
    }
    region.setup_ns().store(task::now() - begun, Ordering::Relaxed);
    state(region) == Some(State::Armed)
}

/// Hooks musl's dynamic linker, without which the program must not be hooked, or reports that it is not.
#[cfg(feature = "standalone")]
fn hook_dynamic_linker(start: &Start, place: &Place, region: RegionRef) {
    let program = &Agent::get().program;
    // SAFETY: these are the program's own headers and its load bias.
    let name = unsafe { lookup::interpreter(program.headers, program.load_bias) };
    let hook = |name| loads::hook_dynamic_linker(start.auxiliary(AT_BASE), name, place).ok();
    if !libraries::are_prepared() || name.and_then(hook).is_none() {
        Refusal::new(Trouble::DynamicLinker).report(region);
    }
}

fn state(region: RegionRef) -> Option<State> {
    StateCode(region.state().load(Ordering::Relaxed)).get()
}

/// Does everything except writing the patches. If the patches can be written, the state remains "setting up".
///
/// # Errors
/// There is no region file; the error is the errno.
pub(crate) fn prepare(start: &Start, files: &Files<'_>) -> Result<(RegionRef, RegionOrders), i32> {
    let (region, orders) = begin(files)?;
    let _ = finish(start, files, region, orders);
    Ok((region, orders))
}

/// Maps the region file, and begins the report there.
///
/// # Errors
/// There is no region file; the error is the errno.
fn begin(files: &Files<'_>) -> Result<(RegionRef, RegionOrders), i32> {
    let (region, orders) = map_region(files)?;
    region.state().store(State::SettingUp.code().0, Ordering::Relaxed);
    failure::report_to(region);
    provoke::at(provoke::Place::SetUp);
    region.pid().store(task::getpid(), Ordering::Relaxed);
    Ok((region, orders))
}

/// Does the rest of [`prepare`].
fn finish(start: &Start, files: &Files<'_>, region: RegionRef, orders: RegionOrders) -> Option<PatchedText> {
    match hook(start, files, region, orders) {
        Ok(text) => text,
        Err(refusal) => {
            refusal.report(region);
            None
        }
    }
}

/// Writes the patches, or reports the reason in the region file.
///
/// # Errors
/// The patches cannot be written; the error is the errno.
pub(crate) fn arm(region: RegionRef, agent: &Agent) -> Result<(), i32> {
    let done = text::patch(&agent.program);
    match done {
        Ok(()) => note_armed(region),
        Err(errno) => Refusal::errno(Trouble::Protect, errno).report(region),
    }
    done
}

fn note_armed(region: RegionRef) {
    region.state().store(State::Armed.code().0, Ordering::Release);
}

/// Maps the header and the histogram for the life of the process.
fn map_region(files: &Files<'_>) -> Result<(RegionRef, RegionOrders), i32> {
    files.region(|fd| {
        let first = memory::map_shared(fd, region::PAGE)?;
        // SAFETY: the injector has made the file at least a page long, and writes the orders only before the program
        // starts.
        let orders = unsafe { (*(first as *const RegionHeader)).orders };
        // SAFETY: no other code knows of the mapping, and the reference to it has ended.
        let _ = unsafe { memory::munmap(first, region::PAGE) };
        if orders.magic != region::MAGIC || orders.version != VERSION {
            return Err(kernel::EINVAL);
        }
        let whole = memory::map_shared(fd, orders.blocks_offset)?;
        // SAFETY: the header is at the beginning of the mapping, which is never unmapped. This process, its children
        // and the injector access the header by atomics, or when no process uses it any more.
        let region =
            unsafe { RegionRef::new(NonNull::new(whole as *mut RegionHeader).ok_or(kernel::EINVAL)?) };
        Ok((region, orders))
    })
}

/// Does everything up to the patches. Returns text that has them, if there is one that may take the place of the program's.
fn hook(
    start: &Start,
    files: &Files<'_>,
    region: RegionRef,
    orders: RegionOrders,
) -> Result<Option<PatchedText>, Refusal> {
    let unreadable = |errno| Refusal::errno(Trouble::Files, errno);
    let descriptor = files.plan().map_err(unreadable)?;
    let file = PlanFile::open(descriptor.number).map_err(unreadable)?;
    let plan = file.header()?;
    let is_standalone = cfg!(feature = "standalone");
    if plan.magic != MAGIC || plan.version != VERSION || (plan.standalone != 0) != is_standalone {
        return Err(Refusal::new(Trouble::Version));
    }
    let has_shadow_stack = || shadow_stack::is_on() || !words::is_attached() && shadow_stack::comes(start);
    if orders.shadow_stacks == 0 && has_shadow_stack() {
        return Err(Refusal::new(Trouble::ShadowStack));
    }
    let bias = start.auxiliary(AT_PHDR).wrapping_sub(plan.phdr);
    if start.auxiliary(AT_ENTRY) != plan.entry.wrapping_add(bias) || !bias.is_multiple_of(region::PAGE) {
        return Err(Refusal::new(Trouble::OtherProgram));
    }
    region.bias().store(bias, Ordering::Relaxed);
    region.agent_lo().store(own_image::start(), Ordering::Relaxed);
    region.agent_hi().store(own_image::end(), Ordering::Relaxed);
    let memory = |e| Refusal::errno(Trouble::Memory, e);
    let access = memory::PROT_READ | memory::PROT_WRITE;
    let need = Need::of_program(&orders, plan);
    if !need.is_met() {
        return Err(memory(kernel::ENOMEM));
    }
    // This comes before everything that takes a large part of the address space: libraries are mapped near each other, and
    // the agent's is one of them.
    if orders.library_bytes != 0 {
        let near = gate::gpi_miss as *const () as u64;
        let both = orders.library_hooks == HookMode::Both.code();
        let prepared =
            if need.with_libraries() { libraries::prepare(near, both) } else { Err(kernel::ENOMEM) };
        if let Err(errno) = prepared {
            loads::lose_in(region, core::ptr::null(), Lost::Memory, errno);
        }
    }
    own::reserve(&orders).map_err(memory)?;
    let mut agent = Agent {
        is_set_up: true,
        program: Module {
            headers: (start.auxiliary(AT_PHDR), start.auxiliary(AT_PHENT), start.auxiliary(AT_PHNUM)),
            load_bias: bias,
            ..file.module(plan, bias)?
        },
        region,
        orders,
        fsgsbase: start.auxiliary(AT_HWCAP2) & FSGSBASE != 0,
        stack_end: start.stack(),
        stack_lo: start.stack().saturating_sub(stack_room()),
        main_thread: words::thread_pointer(),
        libc: libc(start, &orders, (plan.code_lo.wrapping_add(bias), plan.code_hi.wrapping_add(bias))),
        both: plan.hooks == HookMode::Both.code(),
        small_stacks: plan.small_stacks != 0,
        frida: plan.frida != 0,
        // The block is writable, because a call with a return address of 0 (a coroutine's first frame) finds its arc
        // there.
        no_block: memory::map_zeros(orders.block_len, access).map_err(memory)?,
        lost_block: memory::map_zeros(orders.block_len, access).map_err(memory)?,
        timer_rate: orders.timer_rate,
        pid: task::getpid(),
        counts_nowhere: false,
        guest: false,
        maps_whole: orders.maps_whole != 0,
    };
    if plan.hooks_removed != 0 && !is_standalone && mcount::has_hooks(start.auxiliary(AT_BASE), agent.libc) {
        return Err(Refusal::new(Trouble::Hooks));
    }
    let ranges = if words::is_attached() { None } else { text_of_file(descriptor.number) };
    if ranges.is_none()
        && let Some(address) = text::first_difference(agent.program.patches, bias)
    {
        return Err(Refusal { address, ..Refusal::new(Trouble::TextDiffers) });
    }
    let shadows = cells::prepare().map_err(memory)?;
    // At the beginning of a standalone program the injector has reserved the arena's place.
    let room = if is_standalone && !words::is_attached() { Room::Reserved } else { Room::Free };
    arena::fill(&file, plan, bias, &own::gates(shadows, agent.small_stacks, &orders), room)?;
    thread_blocks::prepare(&agent).map_err(memory)?;
    if agent.small_stacks {
        slow_stack::prepare();
    }
    if plan.resumes != 0 {
        signals::prepare(&agent.program);
    }
    // Go replaces the signal handler. The hook of its own one leads the timers' signals to the agent.
    let is_replaced = agent.small_stacks && agent.program.functions.is_empty();
    if agent.timer_rate != 0 && (is_replaced || timer::prepare().is_err()) {
        agent.timer_rate = 0;
        region.lost_timers().fetch_add(1, Ordering::Relaxed);
    }
    if orders.tallies != 0 {
        tally::prepare().map_err(memory)?;
        tally::add(&agent.program);
    }
    if orders.times_bytes != 0 && orders.tallies != ALONE {
        let kind = orders.clock.get().unwrap_or(ClockKind::None);
        let is_forbidden = kind == ClockKind::Tsc && task::is_counter_forbidden();
        times::clock::choose(if is_forbidden { ClockKind::Gettime } else { kind });
        if is_forbidden {
            times::clock::forbid();
        } else {
            times::switches::ignore();
            times::calibration::run(region, times::gates::calibrated(&orders));
            // The instructions that a thread executes do not depend on whether it has been off the processor.
            if kind != ClockKind::Instructions {
                times::switches::prepare(start.auxiliary(AT_BASE));
            }
        }
    }
    if orders.trace_args != 0 {
        times::values::prepare().map_err(memory)?;
        times::values::add(&agent.program);
    }
    agent.tell_gates();
    agent::reserve().ok_or(memory(0))?.install(agent);
    set_words(words::get(), &agent);
    // The C library copies the image for this thread again when it has relocated everything.
    if let Some(image) = words::image() {
        set_words(image, &agent);
    }
    own::prepare(&agent);
    counters::count_in(&agent, agent.no_block);
    if agent.program.functions.is_empty()
        && agent.timer_rate != 0
        && timer::start_for_process(&agent).is_err()
    {
        region.lost_timers().fetch_add(1, Ordering::Relaxed);
    }
    Ok(ranges.map(|ranges| PatchedText { file: descriptor, ranges }))
}

/// Returns where the patched text is in the plan file, if the program's own text is certainly that of the file of which this has a copy.
#[cfg(not(feature = "standalone"))]
fn text_of_file(plan: i32) -> Option<TextRanges> {
    // A debugger may have written breakpoints into the text.
    TextRanges::of(plan, files::version_of_program().ok()?).filter(|_| stat::is_untraced())
}

/// There is none. The injector, which has put the agent into the process, still traces it.
#[cfg(feature = "standalone")]
fn text_of_file(_: i32) -> Option<TextRanges> {
    None
}

/// Returns the extent of the C library's code. `own` is that of the program's.
#[cfg(not(feature = "standalone"))]
fn libc(start: &Start, _: &RegionOrders, _own: (u64, u64)) -> (u64, u64) {
    lookup::libc_text(start.auxiliary(AT_BASE))
}

/// Returns the extent of the C library's code, which a standalone program contains, or which is musl's dynamic linker's. `own`
/// is that of the program's code.
#[cfg(feature = "standalone")]
fn libc(start: &Start, orders: &RegionOrders, own: (u64, u64)) -> (u64, u64) {
    loaded::add_code(own);
    if orders.library_bytes == 0 {
        return own;
    }
    // SAFETY: AT_BASE is the address of the dynamic linker's ELF header.
    let segments = unsafe { lookup::segments_of(start.auxiliary(AT_BASE)) };
    let code = segments.map_or((0, 0), |segments| segments.code);
    loaded::add_code(code);
    code
}

/// Returns the size in bytes of the range below the main thread's stack start that only the stack can be in. The
/// kernel places mappings below the limit that held when the program was executed, and never closer than 128 MiB
/// (arch/x86/mm/mmap.c, `mmap_base`); without a limit, it places them at the other end of the address space. A
/// program that is already running may have changed its limit.
fn stack_room() -> u64 {
    const GAP: u64 = 128 << 20;
    const UNLIMITED: u64 = 64 << 30;
    let attached = words::is_attached();
    task::stack_limit().min(if attached { GAP } else { UNLIMITED })
}

/// Sets words to values that lead to the slow path: those of a thread, or those of all later threads if the words are
/// in the TLS image.
fn set_words(words: WordsRef, agent: &Agent) {
    // There is no window yet: the word before these zeros is 0.
    words.cells().store(agent.no_block + 64, Ordering::Relaxed);
    words.block().store(agent.no_block, Ordering::Relaxed);
    for word in [words.last(), words.first_frame(), words.landing(), words.stack_lo(), words.stack_hi()] {
        word.store(0, Ordering::Relaxed);
    }
    let none = if libraries::are_prepared() { 0 } else { u64::MAX };
    words.library_last().store(none, Ordering::Relaxed);
}
