//! Orders of the injector to a running process; see `gprofinject_abi::attach`.
//!
//! They are carried out in a thread that was stopped anywhere, perhaps with locks held: like all of the agent,
//! they call nothing of the program's and use no heap.
#![allow(unsafe_code)]

use crate::agent::Agent;
use crate::birth;
use crate::cells;
use crate::early::{self, AT_BASE, Start};
use crate::lookup;
use crate::place::{Files, Place};
use crate::setup;
use crate::sys;
use crate::text;
use crate::timer;
use crate::unwind;
#[cfg(not(test))]
use crate::vectors::{restore_vectors, save_vectors};
use crate::words;
use gprofinject_abi::attach::{Command, Order};
use gprofinject_abi::region::State;

#[cfg_attr(test, allow(dead_code))]
unsafe extern "C" fn carry_out(order: *mut Order) {
    // SAFETY: the injector's order, which it does not touch until it is done.
    let order = unsafe { &mut *order };
    let result = match order.command.get() {
        Some(Command::Prepare) => prepare(order),
        Some(Command::Arm) => arm(order),
        Some(Command::Pause) => {
            timer::stop_all(Agent::get());
            text::unpatch()
        }
        Some(Command::Resume) => text::patch_again().map(|()| timer::start_again(Agent::get())),
        Some(Command::Leave) => {
            birth::put_back();
            Ok(())
        }
        None => Err(sys::EINVAL),
    };
    order.result = match result {
        Ok(()) => 0,
        Err(errno) => errno.into(),
    };
}

fn prepare(order: &mut Order) -> Result<(), i32> {
    let result = prepare_with(order);
    for descriptor in order.descriptors.into_iter().filter(|descriptor| *descriptor >= 0) {
        sys::close(descriptor as i32);
    }
    result
}

fn prepare_with(order: &mut Order) -> Result<(), i32> {
    order.mapped = &raw const sys::MAPPED as u64;
    let place = order.place.get(..order.place_len as usize).and_then(Place::new).ok_or(sys::EINVAL)?;
    lookup::set_detours(order.detours.get(..order.detours_count as usize).unwrap_or_default());
    // SAFETY: the order lives as long as we do.
    let start = unsafe { Start::running(order.stack, order.auxiliary.as_ptr()) };
    birth::prepare(start.auxiliary(AT_BASE))?;
    early::find_functions(start.auxiliary(AT_BASE));
    let [region, plan] = order.descriptors.map(|descriptor| descriptor as i32);
    let files = match region.min(plan) {
        0.. => Files::Open { region, plan },
        _ => Files::Named(&place),
    };
    setup::prepare(&start, &files)?;
    // SAFETY: the words of the thread that we have borrowed.
    let words = unsafe { *words::get() };
    order.words = words;
    birth::set_words(words.block, words.cells);
    order.shadows = cells::table();
    unwind::set_get_gr(order.get_gr);
    order.waiting = unwind::waiting();
    Ok(())
}

fn arm(order: &mut Order) -> Result<(), i32> {
    let agent = Agent::get();
    if agent.region.is_null() {
        return Err(sys::EINVAL);
    }
    order.step = 1;
    birth::redirect().inspect_err(|_| birth::put_back())?;
    order.step = 2;
    // SAFETY: the region header stays mapped; nobody else writes this part of it now.
    let header = unsafe { &mut *agent.header() };
    setup::arm(header);
    if header.state != State::Armed.code() {
        birth::put_back();
        return Err(header.errno);
    }
    Ok(())
}

/// The order's way in: rdi = the order, rsp = a stack of the injector's making.
///
/// # Safety
/// Only for the injector.
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
        "2:",
        "mov eax, 34", // pause
        "syscall",
        "jmp 2b",
        carry_out = sym carry_out,
        done = const core::mem::offset_of!(Order, done),
    );
}
