//! Forked children: each counts from zero in a region file of its own.
//!
//! glibc's fork() runs our handler in the child. Its other ways to fork, which run none (`_Fork`, `clone`
//! without CLONE_VM, `syscall`), are defined here and passed on. A child made by vfork, or by any clone that
//! shares memory, is a guest in its parent: what it calls before it executes something is the parent's.
#![allow(unsafe_code)]

use crate::agent::{Agent, add};
use crate::execute;
use crate::lookup;
use crate::place::Place;
use crate::sys;
use crate::threads;
use crate::unwind;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::region::{RegionHeader, State};
use gprofinject_abi::{ASK_FILE, REGION_SUFFIX, ask};

/// The functions that are passed on to.
static FORK: AtomicU64 = AtomicU64::new(0);
static CLONE: AtomicU64 = AtomicU64::new(0);
static SYSCALL: AtomicU64 = AtomicU64::new(0);

/// Of a process that is followed: its place; and the injector's socket as a struct sockaddr_un.
struct Run {
    place: Place,
    socket: [u8; 110],
    socket_len: usize,
}

struct Global(UnsafeCell<Run>);
// SAFETY: written by `follow`, before any code of the program runs, and by `begin` in a forked child, which
// has one thread.
unsafe impl Sync for Global {}
static RUN: Global = Global(UnsafeCell::new(Run { place: Place::NONE, socket: [0; 110], socket_len: 0 }));

fn run() -> &'static Run {
    // SAFETY: see Global.
    unsafe { &*RUN.0.get() }
}

/// The process's place in the run; [`Place::NONE`] if it is not followed.
pub(crate) fn place() -> &'static Place {
    &run().place
}

/// Finds the C library's functions.
pub(crate) fn prepare(dynamic_linker: u64) {
    for (place, name) in [(&FORK, &b"_Fork"[..]), (&CLONE, b"clone"), (&SYSCALL, b"syscall")] {
        place.store(lookup::function(dynamic_linker, name), Ordering::Relaxed);
    }
}

/// From now on children are followed, and programs that the process executes.
pub(crate) fn follow(place: &Place, dynamic_linker: u64) {
    const AF_UNIX: u8 = 1;
    let path = place.shared(ASK_FILE);
    let path = path.path();
    // SAFETY: one thread, and no code of the program has run.
    let run = unsafe { &mut *RUN.0.get() };
    // struct sockaddr_un: family, path.
    let Some(room) = run.socket.get_mut(2..2 + path.len()) else { return };
    room.copy_from_slice(path);
    run.socket[0] = AF_UNIX;
    run.socket_len = 2 + path.len();
    run.place = *place;
    execute::prepare(dynamic_linker, place);
}

/// Sends the injector a packet. None: there is no injector.
pub(crate) fn tell(packet: &[u8]) -> Option<i32> {
    tell_by(|fd| sys::send(fd, packet))
}

/// The same with a descriptor.
pub(crate) fn tell_with(packet: &[u8], passed: i32) -> Option<i32> {
    tell_by(|fd| sys::send_with(fd, packet, passed))
}

fn tell_by(send: impl FnOnce(i32) -> Result<(), i32>) -> Option<i32> {
    let run = run();
    let fd = sys::connect(run.socket.get(..run.socket_len).filter(|socket| !socket.is_empty())?).ok()?;
    if send(fd).is_err() {
        sys::close(fd);
        return None;
    }
    Some(fd)
}

/// Whether somebody listens.
pub(crate) fn is_injector_there() -> bool {
    let run = run();
    let socket = run.socket.get(..run.socket_len).unwrap_or_default();
    match sys::connect(socket) {
        Ok(fd) => {
            sys::close(fd);
            true
        }
        // Only this says that there was somebody.
        Err(errno) => errno != sys::ECONNREFUSED,
    }
}

/// The first thing that runs in a forked child.
pub(crate) extern "C" fn begin() {
    let parent = Agent::get();
    if parent.region.is_null() {
        return;
    }
    unwind::begin_child();
    if sys::is_frozen() {
        // No system call can be made; the calls are lost, as the parent's header says if it matters.
        threads::lose(parent);
        // SAFETY: a forked child has one thread.
        unsafe { Agent::install(Agent { counts_nowhere: run().place.is_none(), ..*parent }) };
        return;
    }
    if parent.pid == sys::getpid() {
        return;
    }
    if begin_followed(parent).is_none() && begin_guest(parent).is_none() {
        if !run().place.is_none() && !parent.counts_nowhere {
            // SAFETY: the region header stays mapped.
            unsafe { add(&raw mut (*parent.header()).lost_children, 1) };
        }
        begin_alone(parent);
    }
}

/// Makes the child's region file and counts there.
fn begin_followed(parent: &Agent) -> Option<()> {
    let pid = sys::getpid();
    if parent.counts_nowhere || run().place.is_none() {
        return None;
    }
    let len = parent.blocks_offset + parent.blocks_max * parent.block_len;
    let mut place = run().place.sibling(b'f', pid);
    let mut file = place.file(REGION_SUFFIX);
    let fd = match sys::create(file.path(), len) {
        Err(sys::EEXIST) => {
            // A process number that was used before, here or in another namespace of process numbers.
            place = run().place.sibling(b'g', sys::now() as u32);
            file = place.file(REGION_SUFFIX);
            sys::create(file.path(), len)
        }
        result => result,
    };
    let fd = fd.ok()?;
    let region = map_header(fd, parent);
    sys::close(fd);
    let Some(region) = region else {
        sys::remove(file.path());
        return None;
    };
    let child = Agent { region, pid, guest: false, ..*parent };
    if !threads::begin_child(parent, &child) {
        sys::remove(file.path());
        return None;
    }
    // SAFETY: one thread; the new mapping lives for ever, and nobody else knows of it.
    unsafe {
        (*region).state = State::Armed.code();
        Agent::install(child);
        (*RUN.0.get()).place = place;
    }
    let mut packet = [ask::FORKED; 1 + ask::NAME_MAX];
    let name = place.name();
    packet.get_mut(1..=name.len())?.copy_from_slice(name);
    // If nobody listens, the file is found when the run is collected.
    if let Some(fd) = tell(packet.get(..=name.len())?) {
        sys::close(fd);
    }
    Some(())
}

/// The new region's header and histogram, filled like the parent's.
fn map_header(fd: i32, parent: &Agent) -> Option<*mut RegionHeader> {
    let access = sys::PROT_READ | sys::PROT_WRITE;
    // SAFETY: a new mapping.
    let at = unsafe { sys::mmap(0, parent.blocks_offset, access, sys::MAP_SHARED, fd, 0) }.ok()?;
    let reserved = if parent.timer_rate == 0 { gprofinject_abi::region::PAGE } else { parent.blocks_offset };
    if sys::populate(at, reserved).is_err() {
        // SAFETY: nobody knows of the mapping.
        let _ = unsafe { sys::munmap(at, parent.blocks_offset) };
        return None;
    }
    let region = at as *mut RegionHeader;
    // SAFETY: both are mapped; the parent's layout is the child's.
    unsafe {
        let from = &*parent.header();
        *region = RegionHeader {
            orders: from.orders,
            state: State::SettingUp.code(),
            pid: sys::getpid(),
            bias: from.bias,
            frida_patched: from.frida_patched,
            ..RegionHeader::default()
        };
    }
    Some(region)
}

/// A child that can make no file (it cannot reach the folder any more, has no descriptor left, or a limit)
/// counts in blocks of its own in the file that its parent counts in.
fn begin_guest(parent: &Agent) -> Option<()> {
    if parent.counts_nowhere || run().place.is_none() {
        return None;
    }
    // The bins of the timer's samples are the parent's.
    let child = Agent { pid: sys::getpid(), timer_rate: 0, guest: true, ..*parent };
    if !threads::begin_guest(parent, &child) {
        return None;
    }
    // SAFETY: a forked child has one thread; the region header stays mapped.
    unsafe {
        add(&raw mut (*parent.header()).guests, 1);
        Agent::install(child);
    }
    Some(())
}

/// A child that is not followed: its counts must not reach the parent's file.
fn begin_alone(parent: &Agent) {
    let access = sys::PROT_READ | sys::PROT_WRITE;
    let alone = Agent { pid: sys::getpid(), timer_rate: 0, counts_nowhere: true, ..*parent };
    let region = sys::map_zeros(gprofinject_abi::region::PAGE, access);
    let child = region.map(|region| Agent { region: region as *mut _, ..alone });
    match child {
        Ok(child) if threads::begin_child(parent, &child) => {
            // SAFETY: a forked child has one thread.
            unsafe { Agent::install(child) };
        }
        _ => {
            threads::lose(parent);
            // SAFETY: the same.
            unsafe { Agent::install(alone) };
        }
    }
}

/// What `clone`'s child runs first.
#[repr(C)]
struct Task {
    function: unsafe extern "C" fn(u64) -> i32,
    argument: u64,
}

unsafe extern "C" fn first(task: *const Task) -> i32 {
    begin();
    // SAFETY: the child has a copy of its parent's stack, where `clone` below put the task.
    unsafe { ((*task).function)((*task).argument) }
}

#[cfg(not(test))]
mod offered {
    use super::{CLONE, FORK, SYSCALL, begin, execute, first};
    use core::arch::naked_asm;

    /// # Safety
    /// As glibc's function of that name.
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C" fn _Fork() {
        naked_asm!(
            "sub rsp, 8",
            "call [rip + {real}]",
            "test eax, eax",
            "jnz 2f",
            "call {begin}",
            "xor eax, eax",
            "2:",
            "add rsp, 8",
            "ret",
            real = sym FORK,
            begin = sym begin,
        );
    }

    /// clone(function, stack, flags, argument, ...): with memory of its own, the child begins in `first`.
    ///
    /// # Safety
    /// As glibc's function of that name.
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C" fn clone() {
        naked_asm!(
            "test edx, 0x100", // CLONE_VM
            "jnz 2f",
            "test rdi, rdi", // no function: an error, as the real one says
            "jz 2f",
            "mov rax, [rsp+8]", // the seventh argument
            "push rbp",
            "mov rbp, rsp",
            "sub rsp, 16",
            "mov [rsp], rdi",
            "mov [rsp+8], rcx",
            "mov rcx, rsp",
            "lea rdi, [rip + {first}]",
            "sub rsp, 8",
            "push rax",
            "call [rip + {real}]",
            "leave",
            "ret",
            "2:",
            "jmp [rip + {real}]",
            first = sym first,
            real = sym CLONE,
        );
    }

    /// syscall(fork), syscall(clone, flags without CLONE_VM, no stack), syscall(clone3, the same); and the ways
    /// into seccomp, which are `seccomp.rs`'s.
    ///
    /// # Safety
    /// As glibc's function of that name.
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C" fn syscall() {
        naked_asm!(
            "cmp edi, 57", // fork
            "je 3f",
            "cmp edi, 56", // clone: flags, stack
            "je 4f",
            "cmp edi, 317", // seccomp: operation (strict, filter), flags, filter
            "je 7f",
            "cmp edi, 157", // prctl
            "je 8f",
            "cmp edi, 59", // execve: path, arguments, environment
            "je 12f",
            "cmp edi, 322", // execveat: folder, path, arguments, environment, flags
            "je 13f",
            "cmp edi, 435", // clone3: struct clone_args: flags at 0, stack at 40
            "je 5f",
            "2:",
            "jmp [rip + {real}]",
            "4:",
            "test esi, 0x100", // CLONE_VM
            "jnz 2b",
            "test rdx, rdx",
            "jnz 2b",
            "jmp 3f",
            "5:",
            "cmp rdx, 64", // the first size of the structure
            "jb 2b",
            "test dword ptr [rsi], 0x100",
            "jnz 2b",
            "cmp qword ptr [rsi+40], 0",
            "jne 2b",
            "3:",
            "sub rsp, 8",
            "call [rip + {real}]",
            "test rax, rax",
            "jnz 6f",
            "call {begin}",
            "xor eax, eax",
            "6:",
            "add rsp, 8",
            "ret",
            "7:",
            "lea rax, [rsi+1]", // prctl's mode
            "mov r10, rcx",
            "jmp 9f",
            "8:",
            "cmp esi, 22", // PR_SET_SECCOMP
            "jne 2b",
            "mov rax, rdx",
            "mov r10, rcx",
            "9:",
            "mov r11, [rip + {real}]",
            "jmp gpi_enter_seccomp",
            // The C library's own function does the same, with the arguments one place further to the front.
            "12:",
            "cmp qword ptr [rip + {execve}], 0",
            "je 2b",
            "mov rdi, rsi",
            "mov rsi, rdx",
            "mov rdx, rcx",
            "jmp [rip + {execve}]",
            "13:",
            "cmp qword ptr [rip + {execveat}], 0",
            "je 2b",
            "mov rdi, rsi",
            "mov rsi, rdx",
            "mov rdx, rcx",
            "mov rcx, r8",
            "mov r8, r9",
            "jmp [rip + {execveat}]",
            execve = sym execute::BY_EXECVE,
            execveat = sym execute::BY_EXECVEAT,
            real = sym SYSCALL,
            begin = sym begin,
        );
    }
}
