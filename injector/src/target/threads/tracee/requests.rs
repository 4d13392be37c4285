//! ptrace(2) of one thread, and waiting for it.

use std::io::{self, Error};
use std::ptr;
use std::time::{Duration, Instant};

use libc::{c_void, user_regs_struct};

use crate::os::sys::check;

const EVENT_STOP: i32 = 128;

pub(super) fn request(request: libc::c_uint, tid: i32, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: the callers pass what the request wants: numbers, or addresses of structures that live on.
    check(unsafe { libc::ptrace(request, tid, address as *mut c_void, data as *mut c_void) as i32 })?;
    Ok(())
}

pub(super) fn registers(tid: i32) -> io::Result<user_regs_struct> {
    // SAFETY: plain data.
    let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
    request(libc::PTRACE_GETREGS, tid, 0, &raw mut registers as usize)?;
    Ok(registers)
}

pub(super) fn set_registers(tid: i32, registers: &user_regs_struct) -> io::Result<()> {
    request(libc::PTRACE_SETREGS, tid, 0, ptr::from_ref(registers) as usize)
}

/// What a thread does when it is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// It stands still, as it was told to, or because the whole process has been stopped by a signal such as SIGSTOP. It
    /// will be stopped still when we go.
    Interrupted,
    /// It is to get this signal.
    Signal(i32),
    /// It is about to make a system call, or has made it.
    Call,
    Gone,
}

/// What a thread has done, if it has stopped.
pub(super) fn poll(tid: i32) -> io::Result<Option<Event>> {
    let mut status = 0;
    // SAFETY: `status` is valid for the call.
    match check(unsafe { libc::waitpid(tid, &mut status, libc::__WALL | libc::WNOHANG) }) {
        Ok(0) => Ok(None),
        Ok(_) if !libc::WIFSTOPPED(status) => Ok(Some(Event::Gone)),
        Ok(_) => {
            let signal = libc::WSTOPSIG(status);
            Ok(Some(match status >> 16 {
                EVENT_STOP => Event::Interrupted,
                _ if signal == libc::SIGTRAP | 0x80 => Event::Call,
                _ => Event::Signal(signal),
            }))
        }
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(Some(Event::Gone)),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(error),
    }
}

pub(super) fn wait(tid: i32, until: Instant) -> io::Result<Event> {
    let mut pauses = 0_u32;
    loop {
        if let Some(event) = poll(tid)? {
            return Ok(event);
        }
        if Instant::now() > until {
            return Err(Error::from_raw_os_error(libc::ETIMEDOUT));
        }
        pauses += 1;
        let pause = if pauses < 200 { 5 } else { 200 };
        std::thread::sleep(Duration::from_micros(pause));
    }
}

/// Waits until the thread stands still as told. Signals that come first are delivered. False: it has gone.
pub(super) fn wait_interrupted(tid: i32, until: Instant) -> io::Result<bool> {
    loop {
        match wait(tid, until)? {
            Event::Interrupted => return Ok(true),
            Event::Gone => return Ok(false),
            Event::Signal(signal) => request(libc::PTRACE_CONT, tid, 0, signal as usize)?,
            Event::Call => {
                // A stop at a system call takes the place of the one that the thread was told to make.
                request(libc::PTRACE_INTERRUPT, tid, 0, 0)?;
                request(libc::PTRACE_CONT, tid, 0, 0)?;
            }
        }
    }
}
