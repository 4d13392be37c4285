//! Carries out the plan: arena, patches, first words. All of it or nothing.
#![allow(unsafe_code)]

use crate::agent::Agent;
use crate::cells;
use crate::children;
use crate::counters;
use crate::early::{AT_BASE, Start};
use crate::gate;
use crate::jumps;
use crate::mcount;
use crate::place::{Files, Place};
use crate::sys;
use crate::text;
use crate::threads;
use crate::timer;
use crate::unwind;
use crate::words;
use core::ptr;
use core::slice;
use gprofinject_abi::attach::WORDS;
use gprofinject_abi::plan::{
    ArenaHeader, CallJump, CodeRange, FunctionRecord, HookMode, MAGIC, Original, Patch, PlanHeader, Segment,
    Table, TailRecord, ThreadWords,
};
use gprofinject_abi::region::{RegionHeader, State, Trouble};
use gprofinject_abi::{VERSION, region};
use zerocopy::{FromBytes, Immutable};

pub(crate) const AT_PHDR: u64 = 3;
const AT_ENTRY: u64 = 9;
const AT_HWCAP2: u64 = 26;
/// In AT_HWCAP2: user code may set the base of gs.
const FSGSBASE: u64 = 2;

/// Why the program was left as it was.
struct Refusal {
    trouble: Trouble,
    errno: i32,
    /// Link address.
    address: u64,
}

impl Refusal {
    fn new(trouble: Trouble) -> Refusal {
        Refusal { trouble, errno: 0, address: 0 }
    }

    fn errno(trouble: Trouble, errno: i32) -> Refusal {
        Refusal { trouble, errno, address: 0 }
    }
}

/// Hooks the program, or says in the region file why not. Answers whether it did.
pub(crate) fn run(start: &Start, place: &Place) -> bool {
    let begun = sys::now();
    let Ok(header) = prepare(start, &Files::Named(place)) else { return false };
    if header.state == State::SettingUp.code() {
        arm(header);
    }
    let armed = header.state == State::Armed.code();
    if header.orders.follow != 0 {
        children::follow(place, start.auxiliary(AT_BASE));
    }
    header.setup_ns = sys::now() - begun;
    armed
}

/// All but the patches. The state stays "setting up" if they can be written. An error: there is no region file.
pub(crate) fn prepare(start: &Start, files: &Files<'_>) -> Result<&'static mut RegionHeader, i32> {
    let region = map_region(files)?;
    // SAFETY: a mapping of the region header; this is the only thread that knows of it.
    let header = unsafe { &mut *region };
    if header.orders.magic != region::MAGIC || header.orders.version != VERSION {
        return Err(sys::EINVAL);
    }
    header.pid = sys::getpid();
    header.state = State::SettingUp.code();
    if let Err(refusal) = hook(start, files, region) {
        refuse(header, refusal);
    }
    Ok(header)
}

/// Writes the patches.
pub(crate) fn arm(header: &mut RegionHeader) {
    match text::patch() {
        Ok(()) => header.state = State::Armed.code(),
        Err(errno) => refuse(header, Refusal::errno(Trouble::Protect, errno)),
    }
}

fn refuse(header: &mut RegionHeader, refusal: Refusal) {
    header.trouble = refusal.trouble.code();
    header.errno = refusal.errno;
    header.trouble_address = refusal.address;
    header.state = State::Refused.code();
}

/// Maps the header and the histogram, for ever.
fn map_region(files: &Files<'_>) -> Result<*mut RegionHeader, i32> {
    let access = sys::PROT_READ | sys::PROT_WRITE;
    files.region(|fd| {
        // SAFETY: new mappings.
        let first = unsafe { sys::mmap(0, region::PAGE, access, sys::MAP_SHARED, fd, 0) }?;
        // SAFETY: the injector made the file at least a page long.
        let len = unsafe { (*(first as *const RegionHeader)).orders.blocks_offset };
        // SAFETY: as above; the first mapping is used by nobody.
        let whole = unsafe {
            let _ = sys::munmap(first, region::PAGE);
            sys::mmap(0, len, access, sys::MAP_SHARED, fd, 0)
        };
        whole.map(|at| at as *mut RegionHeader)
    })
}

/// Maps the plan file, as long as the process lives.
fn map_plan(files: &Files<'_>) -> Result<&'static [u8], i32> {
    files.plan(|fd| {
        let len = sys::file_size(fd)?;
        // SAFETY: a new mapping replaces nothing.
        let at = unsafe { sys::mmap(0, len, sys::PROT_READ, sys::MAP_PRIVATE, fd, 0) }?;
        // SAFETY: the mapping is `len` bytes long and nobody unmaps it. The injector has finished writing the file.
        Ok(unsafe { slice::from_raw_parts(at as *const u8, len as usize) })
    })
}

/// A table of the plan file; `None` if the file does not hold the whole of it.
fn table<T: FromBytes + Immutable>(file: &'static [u8], table: Table) -> Option<&'static [T]> {
    let len = usize::try_from(table.count).ok()?.checked_mul(size_of::<T>())?;
    let bytes = file.get(usize::try_from(table.offset).ok()?..)?.get(..len)?;
    <[T]>::ref_from_bytes(bytes).ok()
}

fn hook(start: &Start, files: &Files<'_>, region: *mut RegionHeader) -> Result<(), Refusal> {
    let file = map_plan(files).map_err(|e| Refusal::errno(Trouble::Files, e))?;
    let damaged = || Refusal::new(Trouble::Version);
    let (plan, _) = PlanHeader::ref_from_prefix(file).map_err(|_| damaged())?;
    if plan.magic != MAGIC || plan.version != VERSION {
        return Err(damaged());
    }
    let bias = start.auxiliary(AT_PHDR).wrapping_sub(plan.phdr);
    if start.auxiliary(AT_ENTRY) != plan.entry.wrapping_add(bias) || !bias.is_multiple_of(region::PAGE) {
        return Err(Refusal::new(Trouble::OtherProgram));
    }
    let functions: &[FunctionRecord] = table(file, plan.functions).ok_or_else(damaged)?;
    let tails: &[TailRecord] = table(file, plan.tails).ok_or_else(damaged)?;
    let hooked: &[CodeRange] = table(file, plan.hooked).ok_or_else(damaged)?;
    let patches: &[Patch] = table(file, plan.patches).ok_or_else(damaged)?;
    let originals: &[Original] = table(file, plan.originals).ok_or_else(damaged)?;
    let call_jumps: &[CallJump] = table(file, plan.call_jumps).ok_or_else(damaged)?;
    if call_jumps.iter().any(|jump| u64::from(jump.at) + 4 > plan.arena_len) {
        return Err(damaged());
    }
    // SAFETY: the region mapping lives for ever; one thread.
    let header = unsafe { &mut *region };
    header.bias = bias;
    let arena = plan.arena.wrapping_add(bias);
    let memory = |e| Refusal::errno(Trouble::Memory, e);
    let access = sys::PROT_READ | sys::PROT_WRITE;
    let mut agent = Agent {
        functions: functions.as_ptr(),
        functions_count: functions.len() as u32,
        tails: tails.as_ptr(),
        hooked: hooked.as_ptr(),
        hooked_count: hooked.len() as u64,
        region,
        arena_lo: arena,
        arena_hi: arena.wrapping_add(plan.copies),
        copies_hi: arena.wrapping_add(plan.arena_len),
        originals: originals.as_ptr(),
        originals_count: originals.len() as u64,
        counter_bytes: plan.counter_bytes,
        fsgsbase: start.auxiliary(AT_HWCAP2) & FSGSBASE != 0,
        frame_tables: plan.frame_tables,
        stubs: plan.stubs,
        stub_len: plan.stub_len,
        tail_code: plan.tail_code,
        text_lo: plan.text_lo.wrapping_add(bias),
        text_hi: plan.text_hi.wrapping_add(bias),
        bias,
        stack_end: start.stack(),
        stack_lo: start.stack().saturating_sub(stack_room()),
        main_thread: words::thread_pointer(),
        libc: jumps::libc_text(start.auxiliary(AT_BASE)),
        both: plan.hooks == HookMode::Both.code(),
        frida: plan.frida != 0,
        // Writable, because a return address of 0 (a coroutine's first frame) finds its arc there.
        no_block: sys::map_zeros(header.orders.block_len, access).map_err(memory)?,
        lost_block: sys::map_zeros(header.orders.block_len, access).map_err(memory)?,
        block_len: header.orders.block_len,
        blocks_offset: header.orders.blocks_offset,
        blocks_max: header.orders.blocks_max,
        slot_bytes: header.orders.slot_bytes,
        slot_chunk: header.orders.slot_chunk,
        timer_rate: header.orders.timer_rate,
        pid: header.pid,
        counts_nowhere: false,
        guest: false,
    };
    if plan.hooks_removed != 0 && mcount::has_hooks(start.auxiliary(AT_BASE), agent.libc) {
        return Err(Refusal::new(Trouble::Hooks));
    }
    check(patches, bias)?;
    let shadows = cells::prepare().map_err(memory)?;
    fill_arena(file, plan, arena, bias, shadows)?;
    threads::prepare(&agent).map_err(memory)?;
    if agent.timer_rate != 0 && timer::prepare().is_err() {
        agent.timer_rate = 0;
        header.lost_timers += 1;
    }
    // SAFETY: one thread, no hooks yet; all tables are mapped for ever.
    unsafe { Agent::install(agent) };
    set_words(&agent);
    counters::count_in(&agent, agent.no_block);
    if functions.is_empty() && agent.timer_rate != 0 && timer::start_for_process(&agent).is_err() {
        header.lost_timers += 1;
    }
    text::prepare(start, patches, call_jumps, (arena, plan.arena_len), bias);
    Ok(())
}

/// How far down from its beginning nothing can lie but the main thread's stack. The kernel puts mappings below the
/// limit that held when the program was executed, and never closer than 128 MiB (arch/x86/mm/mmap.c, `mmap_base`);
/// where there is no limit, it puts them at the other end of the address space. A program that runs already may have
/// changed its limit.
fn stack_room() -> u64 {
    const GAP: u64 = 128 << 20;
    const UNLIMITED: u64 = 64 << 30;
    let attached = words::offset() == WORDS as i64;
    sys::stack_limit().min(if attached { GAP } else { UNLIMITED })
}

/// Compares the text in memory with what was planned for.
fn check(patches: &[Patch], bias: u64) -> Result<(), Refusal> {
    for patch in patches {
        let len = patch.len as usize;
        // SAFETY: the program is the planned one, so the address lies in its mapped text.
        let text = unsafe { slice::from_raw_parts(patch.address.wrapping_add(bias) as *const u8, len) };
        if patch.original.get(..len) != Some(text) {
            return Err(Refusal { address: patch.address, ..Refusal::new(Trouble::TextDiffers) });
        }
    }
    Ok(())
}

fn fill_arena(
    file: &'static [u8],
    plan: &PlanHeader,
    arena: u64,
    bias: u64,
    shadows: u64,
) -> Result<(), Refusal> {
    let damaged = || Refusal::new(Trouble::Version);
    let segments: &[Segment] = table(file, plan.segments).ok_or_else(damaged)?;
    let tls_fixups: &[u32] = table(file, plan.tls_fixups).ok_or_else(damaged)?;
    let bias_fixups: &[u32] = table(file, plan.bias_fixups).ok_or_else(damaged)?;
    let failed = |e| Refusal::errno(Trouble::Arena, e);
    let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS | sys::MAP_NORESERVE | sys::MAP_FIXED_NOREPLACE;
    // SAFETY: MAP_FIXED_NOREPLACE replaces nothing.
    let at = unsafe { sys::mmap(arena, plan.arena_len, sys::PROT_READ | sys::PROT_WRITE, flags, -1, 0) };
    match at.map_err(failed)? {
        at if at == arena => sys::note(arena, plan.arena_len),
        // Kernels before 4.17 take the address as a hint.
        elsewhere => {
            // SAFETY: a mapping that was just made.
            let _ = unsafe { sys::munmap(elsewhere, plan.arena_len) };
            return Err(failed(sys::EEXIST));
        }
    }
    sys::prefer_huge_pages(arena, plan.arena_len);
    for segment in segments {
        let fits = segment.arena_offset.checked_add(segment.len).is_some_and(|end| end <= plan.arena_len);
        let contents = file
            .get(segment.file_offset as usize..)
            .and_then(|rest| rest.get(..segment.len as usize))
            .filter(|_| fits)
            .ok_or_else(damaged)?;
        // SAFETY: the segment lies within the arena, which this function has just mapped, writable, for itself.
        unsafe {
            let to = (arena + segment.arena_offset) as *mut u8;
            ptr::copy_nonoverlapping(contents.as_ptr(), to, contents.len());
        }
    }
    let tls = words::offset() as i32;
    for &at in tls_fixups {
        if u64::from(at) + 4 <= plan.arena_len {
            let word = (arena + u64::from(at)) as *mut i32;
            // SAFETY: inside the arena.
            unsafe { word.write_unaligned(word.read_unaligned().wrapping_add(tls)) };
        }
    }
    for &at in bias_fixups {
        if u64::from(at) + 8 <= plan.arena_len {
            let word = (arena + u64::from(at)) as *mut u64;
            // SAFETY: inside the arena.
            unsafe { word.write_unaligned(word.read_unaligned().wrapping_add(bias)) };
        }
    }
    let half_bias_fixups: &[u32] = table(file, plan.half_bias_fixups).ok_or_else(damaged)?;
    for &at in half_bias_fixups {
        if u64::from(at) + 4 <= plan.arena_len {
            let word = (arena + u64::from(at)) as *mut u32;
            // SAFETY: inside the arena.
            unsafe { word.write_unaligned(word.read_unaligned().wrapping_add(bias as u32)) };
        }
    }
    let gates = ArenaHeader {
        miss: gate::gpi_miss as *const () as u64,
        miss_entry: gate::gpi_miss_entry as *const () as u64,
        window: gate::gpi_window as *const () as u64,
        exit: gate::gpi_exit as *const () as u64,
        tail: gate::gpi_tail as *const () as u64,
        shadows,
        backtrace: unwind::gpi_backtrace as *const () as u64,
        land: unwind::gpi_land as *const () as u64,
    };
    // SAFETY: the plan leaves room for the header in the arena, which is ours and writable.
    unsafe {
        ((arena + plan.arena_header) as *mut ArenaHeader).write_unaligned(gates);
        sys::mprotect(arena, plan.arena_len, sys::PROT_READ | sys::PROT_EXEC).map_err(failed)?;
    }
    Ok(())
}

/// Gives this thread, and through the TLS image every later one, words that lead to the slow path.
fn set_words(agent: &Agent) {
    // No window: the word before these zeros is 0.
    let words = ThreadWords { block: agent.no_block, cells: agent.no_block + 64, ..ThreadWords::default() };
    // SAFETY: this thread's words and the image, which the linker was told to leave writable; the C
    // library copies the image for this thread once more when it has relocated everything.
    unsafe {
        *words::get() = words;
        if let Some(image) = words::image() {
            *image = words;
        }
    }
}
