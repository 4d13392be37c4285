//! This process and its threads: numbers, limits, clocks, signals, timers.
#![allow(unsafe_code, reason = "system calls read and write structures")]

use crate::os::kernel::{EBUSY, EPERM, ESRCH, call};
use linux_raw_sys::{general, prctl};

/// Returns the calling thread's number.
pub(crate) fn gettid() -> u32 {
    // SAFETY: the system call takes no arguments and touches no memory of the process.
    unsafe { call(general::__NR_gettid, []) }.unwrap_or(0) as u32
}

/// Returns the process's number.
pub(crate) fn getpid() -> u32 {
    // SAFETY: the system call takes no arguments and touches no memory of the process.
    unsafe { call(general::__NR_getpid, []) }.unwrap_or(0) as u32
}

/// Returns the process's effective user.
pub(crate) fn geteuid() -> u32 {
    // SAFETY: the system call takes no arguments and touches no memory of the process.
    unsafe { call(general::__NR_geteuid, []) }.unwrap_or(0) as u32
}

/// Returns whether a thread of a process is alive. A process that was made by `clone(CLONE_VM)` without CLONE_THREAD counts as a thread,
/// as long as it has the calling process's memory.
pub(crate) fn thread_lives(pid: u32, tid: u32) -> bool {
    // SAFETY: signal 0 is not sent.
    let result = unsafe { call(general::__NR_tgkill, [pid.into(), tid.into(), 0]) };
    result != Err(ESRCH) || shares_memory(tid)
}

/// Returns whether a thread of any process has the calling thread's memory. It has not if it has ended or executed another program.
pub(crate) fn shares_memory(tid: u32) -> bool {
    /// linux/kcmp.h, which the crate linux-raw-sys does not have.
    const KCMP_VM: u64 = 1;
    // SAFETY: the system call touches no memory of the process.
    let compared = unsafe { call(general::__NR_kcmp, [gettid().into(), tid.into(), KCMP_VM, 0, 0]) };
    match compared {
        Ok(order) => order == 0,
        // The kernel may lack the call or refuse it.
        // SAFETY: signal 0 is not sent.
        Err(_) => {
            // SAFETY: signal 0 is not sent.
            let result = unsafe { call(general::__NR_tkill, [tid.into(), 0]) };
            result != Err(ESRCH)
        }
    }
}

/// Returns the size limit of files that the process makes, in bytes.
pub(crate) fn file_size_limit() -> u64 {
    limit(general::RLIMIT_FSIZE)
}

/// Returns the size limit of the main thread's stack, in bytes.
pub(crate) fn stack_limit() -> u64 {
    limit(general::RLIMIT_STACK)
}

/// Returns a soft limit.
fn limit(resource: u32) -> u64 {
    let mut limit = general::rlimit64 { rlim_cur: u64::MAX, rlim_max: u64::MAX };
    // SAFETY: the kernel writes the limit.
    let _ = unsafe { call(general::__NR_prlimit64, [0, resource.into(), 0, &raw mut limit as u64]) };
    limit.rlim_cur
}

/// Returns the time of CLOCK_MONOTONIC in nanoseconds.
pub(crate) fn now() -> u64 {
    // struct timespec.
    let mut time = [0_u64; 2];
    let arguments = [general::CLOCK_MONOTONIC.into(), &raw mut time as u64];
    // SAFETY: the kernel writes the time.
    let _ = unsafe { call(general::__NR_clock_gettime, arguments) };
    time[0] * 1_000_000_000 + time[1]
}

// A function of its own, so that an unwinder that begins between its instructions finds the caller.
core::arch::global_asm!(
    ".text",
    ".globl gpi_flags",
    ".hidden gpi_flags",
    ".type gpi_flags, @function",
    "gpi_flags:",
    ".cfi_startproc",
    "pushfq",
    ".cfi_adjust_cfa_offset 8",
    "pop rax",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    ".cfi_endproc",
    ".size gpi_flags, . - gpi_flags",
);

unsafe extern "C" {
    /// Returns the flags of the processor.
    fn gpi_flags() -> u64;
}

/// Blocks all signals but that of a trap. Returns the mask of those that were blocked before.
///
/// A thread that executes single steps is trapped after each instruction. If the signal of a trap is blocked, the kernel ends the process
/// (`force_sig_info_to_task` in kernel/signal.c).
///
/// # Errors
/// EBUSY if the thread executes single steps, so that a handler runs after each instruction.
pub(crate) fn block_signals() -> Result<u64, i32> {
    const TRAP_FLAG: u64 = 1 << 8;
    // SAFETY: the function has no arguments and changes nothing but the register of the result.
    if unsafe { gpi_flags() } & TRAP_FLAG != 0 {
        return Err(EBUSY);
    }
    set_blocked_signals(!(1 << (general::SIGTRAP - 1)))
}

/// Sets the mask of blocked signals. Returns the mask of those that were blocked before.
pub(crate) fn set_blocked_signals(mask: u64) -> Result<u64, i32> {
    let mut old = 0_u64;
    let arguments =
        [general::SIG_SETMASK.into(), &raw const mask as u64, &raw mut old as u64, size_of::<u64>() as u64];
    // SAFETY: the kernel reads one mask and writes the other.
    unsafe { call(general::__NR_rt_sigprocmask, arguments) }?;
    Ok(old)
}

/// struct sigaction in the kernel's layout.
#[repr(C)]
pub(crate) struct SignalAction {
    pub handler: u64,
    pub flags: u64,
    pub restorer: u64,
    pub mask: u64,
}

/// # Safety
/// `action` must name a handler that may run at any instruction of any thread.
pub(crate) unsafe fn set_signal_action(signal: u32, action: &SignalAction) -> Result<u64, i32> {
    let arguments = [signal.into(), &raw const *action as u64, 0, size_of::<u64>() as u64];
    // SAFETY: the kernel reads the action. What the handler does is the caller's promise.
    unsafe { call(general::__NR_rt_sigaction, arguments) }
}

/// Makes a timer that sends `signal` every `interval` nanoseconds of CPU time. With `thread`, which must be
/// the calling thread, it measures that thread's time and sends the signal to it; otherwise it measures the
/// process's time and sends the signal to the running thread. Returns the timer's id.
pub(crate) fn start_timer(thread: Option<u32>, signal: u32, interval: u64) -> Result<i32, i32> {
    // struct sigevent: value, signo, notify, tid, padding to 64 bytes.
    let mut event = [0_u32; 16];
    event[2] = signal;
    event[3] = if thread.is_some() { general::SIGEV_THREAD_ID } else { general::SIGEV_SIGNAL };
    event[4] = thread.unwrap_or(0);
    let clock =
        if thread.is_some() { general::CLOCK_THREAD_CPUTIME_ID } else { general::CLOCK_PROCESS_CPUTIME_ID };
    let mut id = 0_i32;
    let arguments = [clock.into(), &raw const event as u64, &raw mut id as u64];
    // SAFETY: the kernel reads `event` and writes `id`.
    unsafe { call(general::__NR_timer_create, arguments) }?;
    let (seconds, rest) = (interval / 1_000_000_000, interval % 1_000_000_000);
    // struct itimerspec: interval, first expiration.
    let times = [seconds, rest, seconds, rest];
    // SAFETY: the kernel reads `times`.
    unsafe { call(general::__NR_timer_settime, [id as u64, 0, &raw const times as u64]) }?;
    Ok(id)
}

/// Deletes a timer that [`start_timer`] has made.
pub(crate) fn stop_timer(id: i32) {
    // SAFETY: no memory is involved; the timer is the agent's.
    let _ = unsafe { call(general::__NR_timer_delete, [id as u64]) };
}

/// asm/prctl.h, which the crate linux-raw-sys does not have.
pub(crate) const ARCH_SET_GS: u64 = 0x1001;

/// Sets the base of gs for the calling thread.
pub(crate) fn set_gs(base: u64) -> Result<(), i32> {
    // SAFETY: programs do not use gs; see `hot/counters.rs`.
    unsafe { call(general::__NR_arch_prctl, [ARCH_SET_GS, base]) }.map(|_| ())
}

/// Returns whether the process has the time stamp counter forbidden to itself. A program that it executes inherits that.
pub(crate) fn is_counter_forbidden() -> bool {
    let mut mode = 0_u32;
    let arguments = [prctl::PR_GET_TSC.into(), &raw mut mode as u64];
    // SAFETY: the kernel writes the mode.
    let result = unsafe { call(general::__NR_prctl, arguments) };
    result.is_ok() && mode == prctl::PR_TSC_SIGSEGV
}

/// Forks without the C library.
///
/// The C library does not know about the child, so the child may only make system calls.
pub(crate) unsafe fn fork() -> Result<u64, i32> {
    // SAFETY: the child has memory of its own; what it does there is the caller's promise.
    unsafe { call(general::__NR_fork, []) }
}

/// Makes the process the leader of a new session.
pub(crate) fn leave_session() {
    // SAFETY: the system call takes no arguments and touches no memory of the process.
    let _ = unsafe { call(general::__NR_setsid, []) };
}

/// Executes a program. Returns only if that is not possible. All strings end with a NUL, both arrays with null.
///
/// # Safety
/// The pointers must be valid.
pub(crate) unsafe fn execute(path: &[u8], arguments: &[*const u8], environment: &[*const u8]) {
    let arguments = [path.as_ptr() as u64, arguments.as_ptr() as u64, environment.as_ptr() as u64];
    // SAFETY: the kernel only reads the strings and arrays, which are there by the caller's promise.
    let _ = unsafe { call(general::__NR_execve, arguments) };
}

/// Ends the process at once.
pub(crate) fn exit(status: u64) -> ! {
    loop {
        // SAFETY: the call does not return.
        let _ = unsafe { call(general::__NR_exit_group, [status]) };
    }
}

/// Stops the calling thread for good, without using the processor. This is for cases that cannot happen, in
/// which the thread has no way to continue.
pub(crate) fn sleep_for_ever() -> ! {
    loop {
        // SAFETY: pause takes no arguments and touches no memory.
        if unsafe { call(general::__NR_pause, []) } == Err(EPERM) {
            core::hint::spin_loop();
        }
    }
}

/// Lets the calling thread sleep for so many nanoseconds, less than a second, or until a signal arrives.
pub(crate) fn nap(ns: u64) {
    // struct timespec.
    let time = [0_u64, ns];
    // SAFETY: the kernel reads the time.
    let _ = unsafe { call(general::__NR_nanosleep, [&raw const time as u64, 0]) };
}

/// Returns whether the calling thread runs on its alternate signal stack.
pub(crate) fn is_on_signal_stack() -> bool {
    const SS_ONSTACK: u64 = 1;
    // stack_t: address, flags (an int), size.
    let mut stack = [0_u64; 3];
    // SAFETY: the kernel writes the structure.
    let result = unsafe { call(general::__NR_sigaltstack, [0, &raw mut stack as u64]) };
    result.is_ok() && stack[1] & SS_ONSTACK != 0
}
