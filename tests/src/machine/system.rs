//! The process behind a [`crate::machine::Machine`]: shared memory, fork, ptrace.
#![allow(unsafe_code, reason = "system calls with pointers to locals, and one mapping handed out as slices")]

use crate::machine::state::{INT3, State, Stop};
use anyhow::{Context, Result, bail, ensure};
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

/// The end of user space.
const SPACE: u64 = 0x7fff_ffff_f000;
const NT_X86_XSTATE: usize = 0x202;
/// A request of ptrace that the libc crate does not have for this target.
const SYSEMU: libc::c_uint = 31;
/// The CPU time between two checks of whether a run ends.
const TICK_MICROSECONDS: i64 = 4000;
/// The length of what glibc registers for each thread.
const RSEQ_LEN: u64 = 32;
const RSEQ_SIGNATURE: u64 = 0x5305_3053;
const RSEQ_UNREGISTER: u64 = 1;
const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// The areas, mapped in this process and in the child at the same addresses.
pub(super) struct Memory {
    base: u64,
    areas: Vec<u64>,
    len: usize,
}

impl Memory {
    pub(super) fn map(base: u64, areas: &[u64], len: usize) -> Result<Memory> {
        let mut memory = Memory { base, areas: Vec::new(), len };
        for &area in areas {
            let address = (base + area) as *mut libc::c_void;
            let protection = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
            let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
            // SAFETY: with MAP_FIXED_NOREPLACE no other mapping is changed.
            let got = unsafe { libc::mmap(address, len, protection, flags, -1, 0) };
            ensure!(got == address, "cannot map {:#x}: {}", base + area, io::Error::last_os_error());
            memory.areas.push(area);
        }
        Ok(memory)
    }

    pub(super) fn area(&mut self, area: u64) -> &mut [u8] {
        assert!(self.areas.contains(&area));
        // SAFETY: `map` has mapped it for as long as `self` lives, from which it is borrowed. The child
        // writes there only while `Child::run` waits for it, when there is no slice, because `Machine` lends
        // them mutably.
        unsafe { std::slice::from_raw_parts_mut((self.base + area) as *mut u8, self.len) }
    }

    /// Returns the address ranges around and between the areas.
    fn gaps(&self) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut from = 0;
        for area in &self.areas {
            gaps.push((from, self.base + area));
            from = self.base + area + self.len as u64;
        }
        gaps.push((from, SPACE));
        gaps
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for area in &self.areas {
            // SAFETY: `map` has mapped it, and slices of it cannot outlive `self`.
            unsafe { libc::munmap((self.base + area) as *mut libc::c_void, self.len) };
        }
    }
}

/// A stopped child process.
pub(super) struct Child {
    pid: libc::pid_t,
    initial: State,
}

impl Child {
    pub(super) fn start(memory: &mut Memory) -> Result<Child> {
        // SAFETY: the child only makes system calls.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let tick = libc::timeval { tv_sec: 0, tv_usec: TICK_MICROSECONDS };
            let timer = libc::itimerval { it_interval: tick, it_value: tick };
            // SAFETY: these are system calls; the timer's pointer is to a local variable.
            unsafe {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                libc::signal(libc::SIGVTALRM, libc::SIG_DFL);
                if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) == 0 {
                    libc::raise(libc::SIGSTOP);
                    libc::setitimer(libc::ITIMER_VIRTUAL, &timer, null_mut());
                    libc::raise(libc::SIGSTOP);
                }
                libc::_exit(1)
            }
        }
        ensure!(pid > 0, "fork: {}", io::Error::last_os_error());
        let empty = State { general: zeroed_registers(), extended: Vec::new() };
        let mut child = Child { pid, initial: empty };
        ensure!(child.wait()?.is_some(), "the child cannot be traced");
        let options = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD;
        child.request(libc::PTRACE_SETOPTIONS, 0, options as usize)?;
        child.request(libc::PTRACE_CONT, 0, 0)?;
        ensure!(child.wait()? == Some(libc::SIGSTOP), "the child is gone");
        child.initial = child.state()?;
        child.strip(memory)?;
        let g = &mut child.initial.general;
        for register in [
            &mut g.rax,
            &mut g.rbx,
            &mut g.rcx,
            &mut g.rdx,
            &mut g.rsi,
            &mut g.rdi,
            &mut g.rbp,
            &mut g.rsp,
            &mut g.r8,
            &mut g.r9,
            &mut g.r10,
            &mut g.r11,
            &mut g.r12,
            &mut g.r13,
            &mut g.r14,
            &mut g.r15,
            &mut g.fs_base,
            &mut g.gs_base,
        ] {
            *register = 0;
        }
        // There is no system call to restart.
        g.orig_rax = u64::MAX;
        Ok(child)
    }

    pub(super) fn initial(&self) -> &State {
        &self.initial
    }

    /// Unmaps everything except the areas.
    fn strip(&mut self, memory: &mut Memory) -> Result<()> {
        let first = memory.areas[0];
        memory.area(first)[..2].copy_from_slice(&SYSCALL);
        let at = memory.base + first;
        // The kernel writes there whenever the process is scheduled.
        if let Some(offset) = rseq_offset() {
            let address = self.initial.general.fs_base.wrapping_add(offset);
            self.call(at, libc::SYS_rseq, [address, RSEQ_LEN, RSEQ_UNREGISTER, RSEQ_SIGNATURE])?;
        }
        for (from, to) in memory.gaps() {
            let result = self.call(at, libc::SYS_munmap, [from, to - from, 0, 0])?;
            ensure!(result == 0, "munmap in the child: {result}");
        }
        memory.area(first).fill(INT3);
        Ok(())
    }

    /// Makes a system call in the child, where `at` is the address of a `syscall` instruction.
    fn call(&mut self, at: u64, number: i64, arguments: [u64; 4]) -> Result<i64> {
        let mut general = self.initial.general;
        (general.rip, general.rax, general.orig_rax) = (at, number as u64, u64::MAX);
        [general.rdi, general.rsi, general.rdx, general.r10] = arguments;
        self.set_general(&general)?;
        self.request(libc::PTRACE_SINGLESTEP, 0, 0)?;
        ensure!(self.wait()? == Some(libc::SIGTRAP), "system call {number} in the child");
        Ok(self.state()?.general.rax as i64)
    }

    pub(super) fn run(&mut self, state: &mut State, patience: u32) -> Result<Stop> {
        self.set_general(&state.general)?;
        self.set_extended(&mut state.extended)?;
        for _ in 0..patience {
            self.request(SYSEMU, 0, 0)?;
            let Some(signal) = self.wait()? else { return Ok(Stop::Killed) };
            if signal == libc::SIGVTALRM {
                continue;
            }
            *state = self.state()?;
            let at = state.general.rip;
            return Ok(match signal {
                _ if signal == libc::SIGTRAP | 0x80 => Stop::SystemCall,
                libc::SIGTRAP => Stop::Breakpoint(at - 1),
                _ => Stop::Signal(signal, at),
            });
        }
        *state = self.state()?;
        Ok(Stop::Endless)
    }

    /// Waits until the child stops. Returns the signal, or `None` if the child has ended.
    fn wait(&mut self) -> Result<Option<i32>> {
        let mut status = 0;
        // SAFETY: the pointer is to a local variable.
        let got = unsafe { libc::waitpid(self.pid, &mut status, 0) };
        ensure!(got == self.pid, "waitpid: {}", io::Error::last_os_error());
        if libc::WIFSTOPPED(status) {
            return Ok(Some(libc::WSTOPSIG(status)));
        }
        self.pid = 0;
        Ok(None)
    }

    fn state(&self) -> Result<State> {
        let mut general = zeroed_registers();
        self.request(libc::PTRACE_GETREGS, 0, &raw mut general as usize)?;
        let mut extended = vec![0_u8; 0x4000];
        let mut part = libc::iovec { iov_base: extended.as_mut_ptr().cast(), iov_len: extended.len() };
        self.request(libc::PTRACE_GETREGSET, NT_X86_XSTATE, &raw mut part as usize)?;
        extended.truncate(part.iov_len);
        Ok(State { general, extended })
    }

    fn set_general(&self, general: &libc::user_regs_struct) -> Result<()> {
        self.request(libc::PTRACE_SETREGS, 0, general as *const _ as usize)
    }

    fn set_extended(&self, extended: &mut [u8]) -> Result<()> {
        let mut part = libc::iovec { iov_base: extended.as_mut_ptr().cast(), iov_len: extended.len() };
        self.request(libc::PTRACE_SETREGSET, NT_X86_XSTATE, &raw mut part as usize)
    }

    fn request(&self, request: libc::c_uint, address: usize, data: usize) -> Result<()> {
        if self.pid == 0 {
            bail!("the child is gone");
        }
        let address = null::<u8>().wrapping_add(address);
        // SAFETY: the callers pass what the request expects: numbers, or pointers to local variables of the
        // right size.
        let result = unsafe { libc::ptrace(request, self.pid, address, data) };
        if result == -1 {
            return Err(io::Error::last_os_error()).with_context(|| format!("ptrace request {request}"));
        }
        Ok(())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.pid > 0 {
            // SAFETY: it takes no pointers but null, and the process is a child that has not been waited for.
            unsafe {
                libc::kill(self.pid, libc::SIGKILL);
                libc::waitpid(self.pid, null_mut(), 0);
            }
        }
    }
}

/// Returns the offset from the thread pointer at which glibc keeps its restartable sequence, if it has one.
fn rseq_offset() -> Option<u64> {
    // SAFETY: the name is a C string. If the symbol exists, it is a ptrdiff_t that never changes.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()).cast::<u64>().as_ref().copied() }
}

fn zeroed_registers() -> libc::user_regs_struct {
    // SAFETY: this is a structure of plain integers.
    unsafe { MaybeUninit::zeroed().assume_init() }
}
