//! Follows the programs that the process executes: redirects the C library's two system calls for that to the agent.
//! All functions that execute programs (exec*, posix_spawn, system, popen) make one of these calls.
//!
//! The C library's `mov eax, number; syscall` becomes a `jmp`. The agent then asks the injector, and if the answer is
//! a name, it adds its variables to the new program's environment. This code may run while the parent's memory is
//! shared (vfork), so it allocates nothing: everything is on the stack, and a program whose data does not fit is
//! executed unchanged.
#![allow(unsafe_code, reason = "the C library's text is patched, and the strings of execve are read")]

use crate::hot::times;
use crate::os::files;
use crate::os::kernel;
use crate::os::limits;
use crate::os::lookup;
use crate::os::memory;
use crate::os::place::Place;
use crate::os::task;
use crate::process::run;
use crate::program::agent::Agent;
use crate::program::failure;
use crate::program::provoke;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::region::UNSEEN_WITHOUT_FILES;
use gprofinject_abi::{AGENT_FILE, FOLDER_MAX, FRIDA_FILE, PRELOAD_VARIABLE, RUN_VARIABLE, ask};
use linux_raw_sys::general;

/// The addresses at which the two functions continue, after their `syscall`.
static AFTER_EXECVE: AtomicU64 = AtomicU64::new(0);
static AFTER_EXECVEAT: AtomicU64 = AtomicU64::new(0);

/// glibc's fexecve, which makes the second system call itself. It is defined here, and calls glibc's function.
static FEXECVE: AtomicU64 = AtomicU64::new(0);

/// glibc's execve and execveat, for programs that make these calls with syscall(2).
pub(crate) static BY_EXECVE: AtomicU64 = AtomicU64::new(0);
pub(crate) static BY_EXECVEAT: AtomicU64 = AtomicU64::new(0);

/// Finds the C library's functions.
pub(crate) fn find(dynamic_linker: u64) {
    BY_EXECVE.store(lookup::of_libc(dynamic_linker, b"execve"), Ordering::Relaxed);
    BY_EXECVEAT.store(lookup::of_libc(dynamic_linker, b"execveat"), Ordering::Relaxed);
    FEXECVE.store(lookup::function(dynamic_linker, b"fexecve"), Ordering::Relaxed);
}

/// Redirects the C library's calls if their code is as expected. Otherwise no executed program is followed. Returns whether they are
/// redirected.
pub(crate) fn prepare(dynamic_linker: u64, place: &Place) -> bool {
    if place.folder().len() > FOLDER_MAX || !memory::may_make_code() {
        return false;
    }
    let text = lookup::libc_text(dynamic_linker);
    let mut is_done = true;
    for (name, number, stub, after) in [
        (&b"execve"[..], general::__NR_execve, gpi_execve as *const () as u64, &AFTER_EXECVE),
        (b"execveat", general::__NR_execveat, gpi_execveat as *const () as u64, &AFTER_EXECVEAT),
    ] {
        let function = lookup::of_libc(dynamic_linker, name);
        // Older C libraries have no execveat.
        if function == 0 {
            continue;
        }
        let is_there = function >= text.0 && function + 64 <= text.1;
        is_done &= is_there && redirect(function, number, stub, after);
    }
    is_done
}

/// Redirects the `mov eax, imm32; syscall` near the function's start to `stub`, and stores the address after it in
/// `after`. Returns whether that was possible.
fn redirect(function: u64, number: u32, stub: u64, after: &AtomicU64) -> bool {
    const LOOK: usize = 8;
    // SAFETY: the bytes are inside the C library's text, which is mapped.
    let code = unsafe { core::slice::from_raw_parts(function as *const u8, LOOK + 7) };
    let mut wanted = [0xb8, 0, 0, 0, 0, 0x0f, 0x05];
    wanted[1..5].copy_from_slice(&number.to_le_bytes());
    // No jump may lead between the two instructions, so only straight-line code up to there is accepted.
    let Some(at) = code.windows(7).position(|window| window == wanted) else { return false };
    let at = function + at as u64;
    let Ok(distance) = i32::try_from(stub.wrapping_sub(at + 5) as i64) else { return false };
    after.store(at + 7, Ordering::Relaxed);
    let page = at & !4095;
    let len = (at + 5).next_multiple_of(4096) - page;
    // SAFETY: the pages are the C library's own, and no other thread runs their code now.
    unsafe {
        let is_writable = memory::mprotect(page, len, memory::PROT_READ | memory::PROT_WRITE).is_ok();
        if is_writable {
            let mut jump = [0xe9, 0, 0, 0, 0];
            jump[1..].copy_from_slice(&distance.to_le_bytes());
            core::ptr::copy_nonoverlapping(jump.as_ptr(), at as *mut u8, jump.len());
        }
        let _ = memory::mprotect(page, len, memory::PROT_READ | memory::PROT_EXEC);
        is_writable
    }
}

/// The maximum number of environment variables.
const MOST: usize = 600;
/// The names of the two variables that are added.
const PRELOAD: &[u8] = PRELOAD_VARIABLE.as_bytes();
const RUN: &[u8] = RUN_VARIABLE.as_bytes();
/// The size of the room for the agent's own variables, in bytes.
const TEXT: usize = 2 * FOLDER_MAX + 1024;

/// Room for the environment of the new program. It is on the stack until the program runs.
#[repr(C)]
pub(crate) struct Room {
    environment: [*const u8; MOST + 4],
    text: [u8; TEXT],
}

/// The number of bytes that the stubs below reserve on the stack for it.
const ROOM: usize = 8 * 1024;
const _: () = assert!(size_of::<Room>() <= ROOM);

/// Returns the environment for the new program: the given one, or another one in `room`.
pub(crate) unsafe extern "C" fn environment(
    folder: i32,
    path: *const u8,
    given: *const *const u8,
    room: *mut Room,
) -> *const *const u8 {
    times::calls::end_process();
    // SAFETY: the C library's caller has passed what execve demands. The stub has reserved the room, which no other
    // code uses.
    let followed = failure::guarded(|| unsafe { followed(folder, path, given, &mut *room) });
    // A shell looks for a program in many places. What it has given back, an unprivileged process could not take again.
    // SAFETY: as above.
    if limits::are_kept() && unsafe { is_there(folder, path) } {
        limits::give_back();
    }
    followed.flatten().unwrap_or(given)
}

/// The system call has returned: the process goes on with this program.
pub(crate) unsafe extern "C" fn not_executed() {
    if limits::are_kept() {
        limits::take_again();
    }
    times::calls::execution_failed();
}

/// # Safety
/// `path` must be NUL-terminated, `given` null or an array of strings that ends with null.
unsafe fn followed(
    folder: i32,
    path: *const u8,
    given: *const *const u8,
    room: &mut Room,
) -> Option<*const *const u8> {
    if path.is_null() || run::place().is_none() || Agent::get().counts_nowhere {
        return None;
    }
    // The kernel would return an error for such a pointer, and the agent must not crash on it. (The strings of the
    // environment are not checked like this.)
    let process = task::getpid();
    let is_unreadable = |address: u64| memory::is_unreadable(process, address);
    if is_unreadable(path as u64) || !given.is_null() && is_unreadable(given as u64) {
        return None;
    }
    provoke::at(provoke::Place::Execute);
    // SAFETY: the caller has promised that `given` is null or ends with null.
    let count = unsafe { entries(given) };
    let mut name = [0; ask::NAME_MAX];
    let name = {
        // SAFETY: the caller has promised that `path` is NUL-terminated.
        let file = unsafe { Opened::program(folder, path) }?;
        if count > MOST {
            missed();
            return None;
        }
        // SAFETY: the caller has promised what that function demands.
        if unsafe { is_of_another_run(given) } {
            tell_why_alone(&file, ask::PROFILED);
            return None;
        }
        if limits::are_hard_below(ask::LEAST_SPACE) {
            tell_why_alone(&file, ask::LIMITED);
            return None;
        }
        // SAFETY: the caller has promised that the strings of `given` end with NUL.
        let label = unsafe { label_of(given) };
        ask_for_name(&file, label, &mut name)?
    };

    // The new program finds its own variables as they are. The dynamic linker and the agent obey the last ones.
    let mut own: Option<&[u8]> = None;
    let given: &[*const u8] = match count {
        0 => &[],
        // SAFETY: the caller has promised that `given` ends with null, and that element has this number.
        _ => unsafe { core::slice::from_raw_parts(given, count) },
    };
    let (kept, added) = room.environment.split_at_mut_checked(count)?;
    for (to, &entry) in kept.iter_mut().zip(given) {
        *to = entry;
        // SAFETY: the caller has promised that the strings end with NUL.
        own = unsafe { value_of(entry, PRELOAD) }.or(own);
    }
    let place = run::place();
    let mut preload: [&[u8]; 11] = [b""; 11];
    preload[..5].copy_from_slice(&[PRELOAD, b"=", place.folder(), b"/", AGENT_FILE.as_bytes()]);
    if Agent::get().frida {
        preload[5..9].copy_from_slice(&[b":", place.folder(), b"/", FRIDA_FILE.as_bytes()]);
    }
    if let Some(own) = own {
        preload[9..].copy_from_slice(&[b":", own]);
    }
    let mut text = Text { bytes: &mut room.text, len: 0 };
    let [at_preload, at_run, end, ..] = added else { return None };
    let (Some(preload), Some(run)) = (text.put(&preload), text.put(&[RUN, b"=", place.folder(), b"/", name]))
    else {
        missed();
        return None;
    };
    // These are the variables that the injector adds for the first program, in the same order.
    (*at_preload, *at_run, *end) = (preload, run, core::ptr::null());
    Some(room.environment.as_ptr())
}

/// Returns whether this is the environment with which another gprofinject starts a program that it profiles itself: the last
/// `LD_PRELOAD` begins with the agent in the folder that the last variable for the agent names.
///
/// # Safety
/// `given` must be an array of strings that end with NUL, ended by null, or null.
unsafe fn is_of_another_run(given: *const *const u8) -> bool {
    let (mut preload, mut run): (&[u8], &[u8]) = (b"", b"");
    // SAFETY: the caller has promised that.
    unsafe {
        for n in 0..entries(given) {
            let entry = *given.add(n);
            preload = value_of(entry, PRELOAD).unwrap_or(preload);
            run = value_of(entry, RUN).unwrap_or(run);
        }
    }
    let folder = run.iter().rposition(|&byte| byte == b'/').and_then(|end| run.get(..end));
    let Some(rest) = folder.and_then(|folder| preload.strip_prefix(folder)) else { return false };
    let library = rest.strip_prefix(b"/").and_then(|rest| rest.strip_prefix(AGENT_FILE.as_bytes()));
    library.is_some_and(|rest| matches!(rest.first(), None | Some(b':')))
}

/// Returns the label in an environment, or nothing. Of a variable that is there twice, the first one counts, as for getenv.
///
/// # Safety
/// `given` must be an array of strings that end with NUL, ended by null, or null.
unsafe fn label_of<'e>(given: *const *const u8) -> &'e [u8] {
    // SAFETY: the caller has promised that.
    unsafe {
        let mut labels =
            (0..entries(given)).filter_map(|n| value_of(*given.add(n), ask::LABEL_VARIABLE.as_bytes()));
        labels.next().unwrap_or_default()
    }
}

/// # Safety
/// `given` must be null or end with null.
unsafe fn entries(given: *const *const u8) -> usize {
    let mut count = 0;
    // SAFETY: the caller has promised that `given` is null or ends with null, so all entries before that null are
    // readable.
    while !given.is_null() && unsafe { !(*given.add(count)).is_null() } {
        count += 1;
    }
    count
}

/// The errors of a file that cannot be executed either.
const NO_SUCH_FILE: [i32; 7] = [
    kernel::ENOENT,
    kernel::ENOTDIR,
    kernel::EACCES,
    kernel::ELOOP,
    kernel::ENAMETOOLONG,
    kernel::EBADF,
    kernel::EFAULT,
];

/// Returns whether there is a file to be executed, as far as that can be determined.
///
/// # Safety
/// `path` must be NUL-terminated, or not readable at all.
unsafe fn is_there(folder: i32, path: *const u8) -> bool {
    // With an empty path, the descriptor may be the file.
    // SAFETY: the caller has promised that a path that can be read has a first byte.
    if path.is_null() || memory::is_unreadable(task::getpid(), path as u64) || unsafe { *path } == 0 {
        return folder >= 0;
    }
    match files::open_path(folder, path as u64) {
        Ok(fd) => {
            files::close(fd);
            true
        }
        Err(errno) => !NO_SUCH_FILE.contains(&errno),
    }
}

/// The file to be executed.
struct Opened {
    fd: i32,
    /// Whether the agent has opened the descriptor and has to close it.
    own: bool,
}

impl Opened {
    /// Finds the file as the kernel does. Returns `None` if there is none, in which case the kernel will report that,
    /// or if it cannot be determined.
    ///
    /// # Safety
    /// `path` must be NUL-terminated.
    unsafe fn program(folder: i32, path: *const u8) -> Option<Opened> {
        // SAFETY: the caller has promised that `path` is NUL-terminated, so it has a first byte.
        if unsafe { *path } == 0 {
            // With AT_EMPTY_PATH the descriptor is the file.
            return (folder >= 0).then_some(Opened { fd: folder, own: false });
        }
        match files::open_path(folder, path as u64) {
            Ok(fd) => Some(Opened { fd, own: true }),
            Err(errno) => {
                if errno == kernel::EMFILE {
                    Agent::get().region.unseen().fetch_or(UNSEEN_WITHOUT_FILES, Ordering::Relaxed);
                } else if !NO_SUCH_FILE.contains(&errno) {
                    missed();
                }
                None
            }
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.own {
            files::close(self.fd);
        }
    }
}

/// Asks the injector for the name by which the new program will be followed. Returns `None` if it will not be.
fn ask_for_name<'n>(file: &Opened, label: &[u8], name: &'n mut [u8; ask::NAME_MAX]) -> Option<&'n [u8]> {
    /// This is longer than planning takes. After that time, the program is executed without being followed.
    const PATIENCE_MS: u64 = 20_000;
    let mut packet = [ask::OF; 2 + ask::LABEL_MAX];
    packet[0] = ask::EXECUTES;
    let len = packet.iter_mut().skip(2).zip(label).map(|(to, &byte)| *to = byte).count();
    let packet = packet.get(..2 + len)?;
    let Some(fd) = run::tell_with(packet, file.fd) else {
        missed();
        return None;
    };
    let len = if files::wait_readable(fd, PATIENCE_MS) { files::read(fd, name).unwrap_or(0) } else { 0 };
    files::close(fd);
    name.get(..len).filter(|name| !name.is_empty())
}

/// Tells the injector why the program that is about to be executed is not to be followed.
fn tell_why_alone(file: &Opened, reason: u8) {
    match run::tell_with(&[ask::ALONE, reason], file.fd) {
        Some(fd) => files::close(fd),
        None => missed(),
    }
}

/// Counts a program that is not followed although it might be profiled.
fn missed() {
    Agent::get().region.lost_programs().fetch_add(1, Ordering::Relaxed);
}

/// A buffer for consecutive strings.
struct Text<'r> {
    bytes: &'r mut [u8; TEXT],
    len: usize,
}

impl Text<'_> {
    /// Stores a string that consists of these parts. Returns its address, or `None` if there is no room.
    fn put(&mut self, parts: &[&[u8]]) -> Option<*const u8> {
        let start = self.len;
        for part in parts.iter().chain(&[&b"\0"[..]]) {
            self.bytes.get_mut(self.len..self.len + part.len())?.copy_from_slice(part);
            self.len += part.len();
        }
        Some(self.bytes.get(start..)?.as_ptr())
    }
}

/// # Safety
/// `text` must be NUL-terminated.
unsafe fn string<'t>(text: *const u8) -> &'t [u8] {
    let mut len = 0;
    // SAFETY: the caller has promised that `text` is NUL-terminated, so all bytes up to the NUL are readable.
    unsafe {
        while *text.add(len) != 0 {
            len += 1;
        }
        core::slice::from_raw_parts(text, len)
    }
}

/// # Safety
/// `entry` must be NUL-terminated.
unsafe fn value_of<'t>(entry: *const u8, name: &[u8]) -> Option<&'t [u8]> {
    // SAFETY: the caller has promised that `entry` is NUL-terminated, and the comparison ends at the first
    // difference, so at the NUL at the latest.
    unsafe {
        let same =
            name.iter().enumerate().all(|(i, b)| *entry.add(i) == *b) && *entry.add(name.len()) == b'=';
        same.then(|| string(entry.add(name.len() + 1)))
    }
}

#[cfg(not(test))]
core::arch::global_asm!(
    ".text",
    ".hidden gpi_execve, gpi_execveat",
    ".globl gpi_execve, gpi_execveat",
    // Reserves room on the stack, and touches it from the top down so that the kernel extends the stack.
    ".macro gpi_room",
    "push rbp",
    "mov rbp, rsp",
    "push rdi",                     // [rbp-8]
    "push rsi",                     // [rbp-16]
    "push rdx",                     // [rbp-24]
    "push r10",                     // [rbp-32]
    "push r8",                      // [rbp-40]
    "sub rsp, 4096",
    "test [rsp], rsp",
    "sub rsp, 4096",
    "and rsp, -16",
    "test [rsp], rsp",
    "mov rcx, rsp",
    ".endm",
    // If the arguments and the environment are too large with the agent's variables, the program is executed without them. In:
    // the register with the environment that was passed, where the given one is saved, and the number of the call. The system call changes no other registers.
    ".macro gpi_too_large register given number",
    "cmp rax, -{e2big}",
    "jne 9f",
    "cmp \\register, [rbp-\\given]",
    "je 9f",
    "mov \\register, [rbp-\\given]",
    "mov eax, \\number",
    "syscall",
    "9:",
    ".endm",
    // The call has returned, so the program was not executed.
    ".macro gpi_not_executed",
    "push rax",
    "push rax",
    "call {not_executed}",
    "pop rax",
    "pop rax",
    "mov rdi, [rbp-8]",
    "mov rsi, [rbp-16]",
    "mov rdx, [rbp-24]",
    "mov r10, [rbp-32]",
    "mov r8, [rbp-40]",
    ".endm",
    //
    ".p2align 4",
    ".type gpi_execve, @function",
    "gpi_execve:",                  // rdi = path, rsi = arguments, rdx = environment
    "gpi_room",
    "mov rsi, rdi",
    "mov edi, -100",                // AT_FDCWD
    "call {environment}",
    "mov rdi, [rbp-8]",
    "mov rsi, [rbp-16]",
    "mov rdx, rax",
    "mov eax, {nr_execve}",
    "syscall",
    "gpi_too_large rdx 24 {nr_execve}",
    "gpi_not_executed",
    "leave",
    "jmp [rip + {after_execve}]",
    ".size gpi_execve, . - gpi_execve",
    //
    ".p2align 4",
    ".type gpi_execveat, @function",
    "gpi_execveat:",                // rdi = folder, rsi = path, rdx = arguments, r10 = environment, r8 = flags
    "gpi_room",
    "mov rdx, r10",
    "call {environment}",
    "mov rdi, [rbp-8]",
    "mov rsi, [rbp-16]",
    "mov rdx, [rbp-24]",
    "mov r10, rax",
    "mov r8, [rbp-40]",
    "mov eax, {nr_execveat}",
    "syscall",
    "gpi_too_large r10 32 {nr_execveat}",
    "gpi_not_executed",
    "leave",
    "jmp [rip + {after_execveat}]",
    ".size gpi_execveat, . - gpi_execveat",
    //
    ".hidden gpi_fexecve",
    ".globl gpi_fexecve",
    ".p2align 4",
    ".type gpi_fexecve, @function",
    "gpi_fexecve:",                 // edi = descriptor, rsi = arguments, rdx = environment
    "test rdx, rdx",                // an error
    "jz 2f",
    "gpi_room",
    "lea rsi, [rip + 3f]",
    "call {environment}",
    "mov rdi, [rbp-8]",
    "mov rsi, [rbp-16]",
    "mov rdx, rax",
    "call [rip + {fexecve}]",
    "gpi_not_executed",
    "leave",
    "ret",
    "2:",
    "jmp [rip + {fexecve}]",
    "3: .byte 0",                   // the descriptor is the file: no path
    ".size gpi_fexecve, . - gpi_fexecve",
    e2big = const linux_raw_sys::errno::E2BIG,
    nr_execve = const general::__NR_execve,
    nr_execveat = const general::__NR_execveat,
    environment = sym environment,
    not_executed = sym not_executed,
    after_execve = sym AFTER_EXECVE,
    after_execveat = sym AFTER_EXECVEAT,
    fexecve = sym FEXECVE,
);

/// # Safety
/// As glibc's function of that name.
#[cfg(not(test))]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn fexecve() {
    core::arch::naked_asm!("jmp gpi_fexecve");
}

#[cfg(not(test))]
unsafe extern "C" {
    fn gpi_execve();
    fn gpi_execveat();
}

#[cfg(test)]
fn gpi_execve() {}
#[cfg(test)]
fn gpi_execveat() {}
