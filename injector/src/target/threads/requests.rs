//! The requests of ptrace(2) for one thread, and waiting for the thread.
#![allow(unsafe_code, reason = "it makes ptrace requests")]

use std::io::{self, Error};
use std::ptr;
use std::time::{Duration, Instant};

use libc::{c_void, user_regs_struct};

use crate::os::filter::{Filter, Instruction};
use crate::os::sys::check;

const EVENT_STOP: i32 = 128;

/// The set of registers that has the pointer to the shadow stack, since Linux 6.6 (linux/elf.h). The library libc does not have it.
const NT_X86_SHSTK: usize = 0x204;

const MASK_LEN: usize = size_of::<u64>();

/// The type of requests: the C libraries differ.
#[cfg(target_env = "gnu")]
type Request = libc::c_uint;
#[cfg(not(target_env = "gnu"))]
type Request = libc::c_int;

const GET_REGISTER_SET: Request = libc::PTRACE_GETREGSET as Request;
const SET_REGISTER_SET: Request = libc::PTRACE_SETREGSET as Request;

/// Makes a request of ptrace(2).
///
/// # Safety
/// `address` and `data` must be what the request expects. If it expects an address in this process, that
/// address must have a value of the right type during the call, which may be written to if the request
/// writes.
unsafe fn ptrace(request: Request, tid: i32, address: usize, data: usize) -> io::Result<()> {
    // SAFETY: the caller keeps the contract above. The kernel refuses requests for threads that
    // the calling thread does not trace.
    check(unsafe { libc::ptrace(request, tid, address as *mut c_void, data as *mut c_void) as i32 })?;
    Ok(())
}

/// Begins to trace a thread. The thread continues to run. When it stops later, stops at system calls can be
/// distinguished from signals.
///
/// # Errors
/// The thread cannot be traced, or has ended.
pub(super) fn seize(tid: i32) -> io::Result<()> {
    // SAFETY: no address is involved, and the options are numbers.
    unsafe { ptrace(libc::PTRACE_SEIZE, tid, 0, libc::PTRACE_O_TRACESYSGOOD as usize) }
}

/// Begins to trace a thread as [`seize`] does. The thread also stops when it has executed a program.
///
/// # Errors
/// The thread cannot be traced, or has ended.
pub(super) fn seize_to_execute(tid: i32) -> io::Result<()> {
    let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACEEXEC;
    // SAFETY: no address is involved, and the options are numbers.
    unsafe { ptrace(libc::PTRACE_SEIZE, tid, 0, options as usize) }
}

/// Leaves a thread stopped that a signal such as SIGSTOP has stopped, until its process is continued.
///
/// # Errors
/// The thread has ended.
pub(super) fn listen(tid: i32) -> io::Result<()> {
    // SAFETY: no address is involved.
    unsafe { ptrace(libc::PTRACE_LISTEN, tid, 0, 0) }
}

/// Asks a traced thread to stop.
///
/// # Errors
/// The thread has ended.
pub(super) fn interrupt(tid: i32) -> io::Result<()> {
    // SAFETY: no address is involved.
    unsafe { ptrace(libc::PTRACE_INTERRUPT, tid, 0, 0) }
}

/// Resumes a stopped thread, with a signal or with none (0).
///
/// # Errors
/// The thread has ended.
pub(super) fn resume(tid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no address is involved.
    unsafe { ptrace(libc::PTRACE_CONT, tid, 0, signal as usize) }
}

/// Resumes a stopped thread until it enters or leaves a system call.
///
/// # Errors
/// The thread has ended.
pub(super) fn resume_to_call(tid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no address is involved.
    unsafe { ptrace(libc::PTRACE_SYSCALL, tid, 0, signal as usize) }
}

/// Ends the tracing of a stopped thread, which resumes it.
///
/// # Errors
/// The thread has ended.
pub(super) fn detach(tid: i32) -> io::Result<()> {
    // SAFETY: no address is involved.
    unsafe { ptrace(libc::PTRACE_DETACH, tid, 0, 0) }
}

/// Returns the signals that a stopped thread blocks, one bit for each. Bit 0 is signal 1.
///
/// # Errors
/// The thread has ended.
pub(super) fn signal_mask(tid: i32) -> io::Result<u64> {
    let mut mask = 0_u64;
    // SAFETY: the kernel writes MASK_LEN bytes to `mask`, a local of that size.
    unsafe { ptrace(libc::PTRACE_GETSIGMASK as Request, tid, MASK_LEN, &raw mut mask as usize)? };
    Ok(mask)
}

/// Sets the signals that a stopped thread blocks; see [`signal_mask`].
///
/// # Errors
/// The thread has ended.
pub(super) fn set_signal_mask(tid: i32, mask: u64) -> io::Result<()> {
    // SAFETY: the kernel reads MASK_LEN bytes from `mask`, a local of that size.
    unsafe { ptrace(libc::PTRACE_SETSIGMASK as Request, tid, MASK_LEN, &raw const mask as usize) }
}

/// Returns the registers of a stopped thread.
///
/// # Errors
/// The thread has ended.
pub(super) fn registers(tid: i32) -> io::Result<user_regs_struct> {
    // SAFETY: the type is integers only, for which zeros are values.
    let mut registers: user_regs_struct = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel writes a structure of this type to `registers`.
    unsafe { ptrace(libc::PTRACE_GETREGS, tid, 0, &raw mut registers as usize)? };
    Ok(registers)
}

/// Sets the registers of a stopped thread.
///
/// # Errors
/// The thread has ended, or the values are not allowed.
pub(super) fn set_registers(tid: i32, registers: &user_regs_struct) -> io::Result<()> {
    // SAFETY: the kernel reads a structure of this type from where the reference points.
    unsafe { ptrace(libc::PTRACE_SETREGS, tid, 0, ptr::from_ref(registers) as usize) }
}

/// Returns the pointer to the shadow stack of a stopped thread, or `None` if it has none.
pub(super) fn shadow_stack(tid: i32) -> Option<u64> {
    let mut pointer = 0_u64;
    let mut room = libc::iovec { iov_base: (&raw mut pointer).cast(), iov_len: size_of::<u64>() };
    // SAFETY: the kernel writes no more than the length that the structure says to `pointer`, and the length to the structure.
    let done = unsafe { ptrace(GET_REGISTER_SET, tid, NT_X86_SHSTK, &raw mut room as usize) };
    (done.is_ok() && room.iov_len == size_of::<u64>() && pointer != 0).then_some(pointer)
}

/// Sets the pointer to the shadow stack of a stopped thread that has one.
///
/// # Errors
/// The thread has ended, or the value is not allowed.
pub(super) fn set_shadow_stack(tid: i32, mut pointer: u64) -> io::Result<()> {
    let mut room = libc::iovec { iov_base: (&raw mut pointer).cast(), iov_len: size_of::<u64>() };
    // SAFETY: the kernel reads as many bytes from `pointer` as the structure says.
    unsafe { ptrace(SET_REGISTER_SET, tid, NT_X86_SHSTK, &raw mut room as usize) }
}

/// Returns one of the seccomp filters of a stopped thread, or `None` if the thread has no more of them. The oldest one has the
/// index 0.
///
/// # Errors
/// EINVAL: the thread has no filters, or the kernel cannot show them. EACCES: the injector may not see them, because it does not have
/// CAP_SYS_ADMIN outside of all containers, or has filters itself.
pub(super) fn filter(tid: i32, index: usize) -> io::Result<Option<Filter>> {
    let Some(len) = filter_len(tid, index)? else { return Ok(None) };
    let mut program = vec![Instruction::default(); len];
    // SAFETY: the kernel writes the instructions, which have this layout, to the vector, which has as many: a filter never changes, and
    // the thread stands still.
    unsafe { get_filter(tid, index, program.as_mut_ptr().cast())? };
    Ok(Some(Filter(program)))
}

/// Returns the number of instructions of one of the filters; see [`filter`].
///
/// # Errors
/// As for [`filter`].
pub(super) fn filter_len(tid: i32, index: usize) -> io::Result<Option<usize>> {
    // SAFETY: without an address, the kernel writes nothing.
    match unsafe { get_filter(tid, index, ptr::null_mut()) } {
        Ok(len) => Ok(Some(len)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// # Safety
/// If `to` is not null, there must be room for the filter.
unsafe fn get_filter(tid: i32, index: usize, to: *mut c_void) -> io::Result<usize> {
    /// linux/ptrace.h; libc does not have it for every C library.
    const PTRACE_SECCOMP_GET_FILTER: Request = 0x420c;
    // SAFETY: the kernel writes a filter to where there is room for it, or nothing.
    let len = unsafe { libc::ptrace(PTRACE_SECCOMP_GET_FILTER, tid, index as *mut c_void, to) };
    usize::try_from(len).map_err(|_| Error::last_os_error())
}

/// What a traced thread has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// It stands still as it was asked to, or because a signal such as SIGSTOP has stopped the whole process.
    /// In the second case it stays stopped after its release.
    Interrupted,
    /// It is about to receive this signal.
    Signal(i32),
    /// It is entering or leaving a system call.
    Call,
    /// It has executed a program, and is about to leave the system call for that.
    Executed,
    Gone,
}

/// Returns what a thread has done if it has stopped, without waiting.
///
/// # Errors
/// waitpid(2) fails.
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
                libc::PTRACE_EVENT_EXEC => Event::Executed,
                _ if signal == libc::SIGTRAP | 0x80 => Event::Call,
                _ => Event::Signal(signal),
            }))
        }
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(Some(Event::Gone)),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(error),
    }
}

/// Waits until a thread stops and returns what it has done.
///
/// # Errors
/// It does not stop before `until`, or waitpid(2) fails.
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

/// Waits until the thread stands still as it was asked to. Signals that come first are delivered. Returns
/// false if the thread has ended.
///
/// # Errors
/// The thread does not stop before `until`.
pub(super) fn wait_interrupted(tid: i32, until: Instant) -> io::Result<bool> {
    loop {
        match wait(tid, until)? {
            Event::Interrupted => return Ok(true),
            Event::Gone => return Ok(false),
            Event::Signal(signal) => resume(tid, signal)?,
            Event::Call | Event::Executed => {
                // Such a stop takes the place of the stop that was asked for.
                interrupt(tid)?;
                resume(tid, 0)?;
            }
        }
    }
}
