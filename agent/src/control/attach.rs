//! Orders of the injector to a running process; see `gprofinject_abi::attach`.
//!
//! Orders are carried out in a thread that was stopped at any point, perhaps with locks held. Like the whole
//! agent, this code calls no function of the program and uses no heap.
#![allow(unsafe_code, reason = "the injector calls a function with the address of an order")]

use crate::control::own;
use crate::hot::cells;
use crate::hot::timers;
use crate::hot::times;
use crate::os::files;
use crate::os::initial::{AT_BASE, Start};
use crate::os::kernel;
use crate::os::lookup;
use crate::os::memory;
use crate::os::place::Place;
#[cfg(not(test))]
use crate::os::vectors::{restore_vectors, save_vectors};
use crate::os::words;
use crate::process::birth;
use crate::process::run;
use crate::program::agent::{self, Agent};
use crate::program::failure;
use crate::program::libraries;
use crate::program::switches;
use crate::program::text;
use crate::start::loads;
use crate::start::notice;
use crate::start::pauses;
use crate::start::process_files::Files;
use crate::start::setup;
use crate::unwind::landings;
use core::sync::atomic::Ordering;
use gprofinject_abi::attach::{Command, NOTICE_LEN, Order};
use gprofinject_abi::plan::ThreadWords;
use linux_raw_sys::general;

/// Carries out the order. Returns whether the thread may then make a system call to sleep.
#[cfg_attr(test, allow(dead_code))]
unsafe extern "C" fn carry_out(order: *mut Order) -> bool {
    // SAFETY: `gprofinject_control` passes on its argument, the address from the injector. The injector does
    // not write to the order until `done` is set, after this call, and it polls that field with system calls.
    let order = unsafe { &mut *order };
    kernel::refuse(&order.refused);
    // The process has entered seccomp since, and what its filters refuse is known now.
    let is_thawed = order.knows_filters != 0 && kernel::is_frozen_for_good();
    if is_thawed {
        kernel::freeze(false);
    }
    // Orders to pause and to leave are carried out even if the agent has panicked.
    let result = failure::attempt(|| match order.command.get() {
        _ if own::begin(order).is_err() => Err(kernel::EPERM),
        Some(Command::Prepare) => prepare(order),
        Some(Command::Load) => load(order),
        Some(Command::Records) => {
            own::give_records(order);
            Ok(())
        }
        Some(Command::Arm) => arm(order),
        Some(Command::Pause) => pause(Agent::get()),
        Some(Command::Resume) => resume(Agent::get()),
        Some(Command::Choose) => choose(order),
        Some(Command::Leave) => {
            order.records_of_functions = agent::records_of_functions();
            birth::put_back()?;
            let libraries = pauses::unpatch_rest();
            text::unpatch_rest(&Agent::get().program)?;
            libraries
        }
        None => Err(kernel::EINVAL),
    });
    order.result = match result {
        Some(Ok(())) => 0,
        Some(Err(errno)) => errno.into(),
        None => kernel::EFAULT.into(),
    };
    if is_thawed {
        kernel::freeze(true);
    }
    !kernel::is_refused(general::__NR_pause) && !kernel::is_frozen()
}

fn prepare(order: &mut Order) -> Result<(), i32> {
    let result = prepare_with(order);
    for descriptor in order.descriptors.into_iter().filter(|descriptor| *descriptor >= 0) {
        files::close(descriptor as i32);
    }
    result
}

fn prepare_with(order: &mut Order) -> Result<(), i32> {
    order.mapped = &raw const memory::MAPPED as u64;
    let place = order.place.get(..order.place_len as usize).and_then(Place::new).ok_or(kernel::EINVAL)?;
    lookup::set_detours(order.detours.get(..order.detours_count as usize).unwrap_or_default());
    // SAFETY: the vector in the order is ended by type 0, because it has room for more than the injector writes, and
    // the order outlives `start`.
    let start = unsafe { Start::running(order.stack, order.auxiliary.as_ptr()) };
    own::prepare(&start)?;
    run::trust_outsider(order.outsider as u32);
    let [region, plan] = order.descriptors.map(|descriptor| descriptor as i32);
    let files = match region.min(plan) {
        0.. => Files::Open { region, plan },
        _ => Files::Named(&place),
    };
    setup::prepare(&start, &files)?;
    // The words of the thread that the injector has borrowed are also those of every new thread.
    let words = words::get();
    let (block, cells) = (words.block().load(Ordering::Relaxed), words.cells().load(Ordering::Relaxed));
    let library_last = words.library_last().load(Ordering::Relaxed);
    order.words = ThreadWords { block, cells, library_last, ..ThreadWords::default() };
    birth::set_words(block, cells, library_last);
    if libraries::are_prepared()
        && let Some(notice) = notice::prepare_running(start.auxiliary(AT_BASE), &place)
    {
        let mut jump = [0; 8];
        if let Some(notice) = notice {
            jump[..NOTICE_LEN].copy_from_slice(&notice.jump);
            order.notice = [notice.function, u64::from_le_bytes(jump)];
        }
        order.free = loads::free();
    }
    own::report(order);
    order.shadows = cells::table();
    landings::set_get_gr(order.get_gr);
    order.waiting = landings::waiting();
    Ok(())
}

/// Prepares the hooks of a library.
fn load(order: &mut Order) -> Result<(), i32> {
    let [_, plan] = order.descriptors.map(|descriptor| descriptor as i32);
    let loaded = loads::load(&order.library, plan, birth::is_redirected);
    files::close(plan);
    landings::set_get_gr(order.get_gr);
    order.free = loads::free();
    loaded
}

fn arm(order: &mut Order) -> Result<(), i32> {
    let agent = Agent::get();
    if !agent.is_set_up {
        return Err(kernel::EINVAL);
    }
    pauses::check_settled()?;
    order.step = 1;
    let back_out = || {
        let _ = birth::put_back();
    };
    birth::redirect().inspect_err(|_| back_out())?;
    order.step = 2;
    // First the libraries: musl's dynamic linker makes the threads, which must not begin with the words of others.
    loads::arm().inspect_err(|_| back_out())?;
    order.step = 3;
    setup::arm(agent.region, agent).inspect_err(|_| {
        let _ = pauses::unpatch_all();
        back_out();
    })
}

/// Removes the patches of the program and of all libraries.
fn pause(agent: &Agent) -> Result<(), i32> {
    pauses::check_settled()?;
    timers::stop(agent);
    let libraries = pauses::unpatch_all();
    text::unpatch(&agent.program)?;
    // Calls that are open now take no time until the hooks are resumed.
    times::clock::stop();
    libraries
}

/// Writes the patches again.
fn resume(agent: &Agent) -> Result<(), i32> {
    pauses::check_settled()?;
    text::patch_again(&agent.program)?;
    let libraries = pauses::patch_all();
    times::calls::go_on();
    timers::start_again(agent);
    libraries
}

/// Switches functions of a module off or on.
fn choose(order: &Order) -> Result<(), i32> {
    let agent = Agent::get();
    if !agent.is_set_up {
        return Err(kernel::EINVAL);
    }
    pauses::check_settled()?;
    switches::prepare()?;
    let (module, is_hooked) = match order.module {
        0 => (&agent.program, !pauses::are_out()),
        first => {
            let mut all = (0..libraries::used()).filter_map(libraries::get);
            let library = all.find(|library| u64::from(library.module.first) == first);
            let library = library.ok_or(kernel::EINVAL)?;
            (&library.module, pauses::is_hooked(library))
        }
    };
    switches::set(module, order.first as usize, &order.choice, order.off != 0);
    text::switch(module, is_hooked)
}

/// The entry point for orders: rdi = the order, rsp = a stack that the injector has made.
///
/// # Safety
/// Only the injector may call this function.
#[cfg(not(test))]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn gprofinject_control() {
    core::arch::naked_asm!(
        "cld",
        "mov rbx, rdi",
        save_vectors!(),
        "call {carry_out}",
        restore_vectors!(),
        "mov qword ptr [rbx+{done}], 1",
        "test al, al",
        "jz 3f",
        "2:",
        "mov eax, {pause}",
        "syscall",
        "jmp 2b",
        "3:",                           // no system call: the injector takes the thread out in some microseconds
        "pause",
        "jmp 3b",
        pause = const general::__NR_pause,
        carry_out = sym carry_out,
        done = const core::mem::offset_of!(Order, done),
    );
}
