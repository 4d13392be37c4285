//! Raw system calls. No libc, and so no errno: results are `Ok(value)` or `Err(errno)`.
#![allow(unsafe_code)]

use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use gprofinject_abi::attach;

const EPERM: i32 = 1;
const EFBIG: i32 = 27;
pub(crate) const ENOENT: i32 = 2;
pub(crate) const EINTR: i32 = 4;
pub(crate) const EBADF: i32 = 9;
pub(crate) const EACCES: i32 = 13;
pub(crate) const EFAULT: i32 = 14;
pub(crate) const EEXIST: i32 = 17;
pub(crate) const ENOTDIR: i32 = 20;
pub(crate) const ENAMETOOLONG: i32 = 36;
pub(crate) const ELOOP: i32 = 40;
pub(crate) const EINVAL: i32 = 22;
pub(crate) const ECONNREFUSED: i32 = 111;
pub(crate) const ESRCH: i32 = 3;

pub(crate) const PROT_READ: u64 = 1;
pub(crate) const PROT_WRITE: u64 = 2;
pub(crate) const PROT_EXEC: u64 = 4;
pub(crate) const MAP_SHARED: u64 = 1;
pub(crate) const MAP_PRIVATE: u64 = 2;
pub(crate) const MAP_FIXED: u64 = 0x10;
pub(crate) const MAP_ANONYMOUS: u64 = 0x20;
pub(crate) const MAP_NORESERVE: u64 = 0x4000;
pub(crate) const MAP_FIXED_NOREPLACE: u64 = 0x10_0000;
const MREMAP_MAYMOVE: u64 = 1;
const MREMAP_FIXED: u64 = 2;
const MADV_POPULATE_WRITE: u64 = 23;
const O_CLOEXEC_NOFOLLOW: u64 = 0o2_000_000 | 0o400_000;

/// No system call is made any more: a filter of the program's may punish it.
static FROZEN: AtomicBool = AtomicBool::new(false);

pub(crate) fn freeze(frozen: bool) {
    FROZEN.store(frozen, Ordering::Relaxed);
}

pub(crate) fn is_frozen() -> bool {
    FROZEN.load(Ordering::Relaxed)
}

/// # Safety
/// As the system call: what the kernel is told to write or unmap must be the caller's to give.
unsafe fn syscall(number: u64, a: [u64; 6]) -> Result<u64, i32> {
    if is_frozen() {
        return Err(EPERM);
    }
    let result: i64;
    // SAFETY: the kernel clobbers rcx and r11 only; memory effects are the caller's contract.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2], in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    if (-4095..0).contains(&result) { Err(-result as i32) } else { Ok(result as u64) }
}

/// A new mapping at a place of the kernel's choice, or, with MAP_FIXED, at `address`.
///
/// # Safety
/// With MAP_FIXED, whatever lies at `address..address + len` must be the caller's to replace.
pub(crate) unsafe fn mmap(
    address: u64,
    len: u64,
    protection: u64,
    flags: u64,
    fd: i32,
    offset: u64,
) -> Result<u64, i32> {
    // SAFETY: passed on.
    unsafe { syscall(9, [address, len, protection, flags, fd as u64, offset]) }
}

/// Zeros at a place of the kernel's choice. Sparsely used: no huge pages, please.
pub(crate) fn map_zeros(len: u64, protection: u64) -> Result<u64, i32> {
    const MADV_NOHUGEPAGE: u64 = 15;
    // SAFETY: a fresh mapping replaces nothing.
    let at = unsafe { mmap(0, len, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0) }?;
    // SAFETY: changes no contents. A kernel without huge pages refuses, which is just as well.
    let _ = unsafe { syscall(28, [at, len, MADV_NOHUGEPAGE, 0, 0, 0]) };
    note(at, len);
    Ok(at)
}

/// Whether a page that was written may be executed: not under PR_SET_MDWE, nor where a policy forbids it. Who took
/// execution away from a page of code then could not give it back.
pub(crate) fn may_make_code() -> bool {
    const PAGE: u64 = 4096;
    // SAFETY: a fresh mapping replaces nothing, and nobody else knows of it.
    unsafe {
        let Ok(at) = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) else {
            return false;
        };
        (at as *mut u8).write_volatile(0);
        let may = mprotect(at, PAGE, PROT_READ | PROT_EXEC).is_ok();
        let _ = munmap(at, PAGE);
        may
    }
}

/// What [`map_zeros`] has made, and the arena: an injector that leaves the process takes it away. What finds no room stays.
pub(crate) static MAPPED: [[AtomicU64; 2]; attach::MAPPED_MAX] =
    [const { [const { AtomicU64::new(0) }; 2] }; attach::MAPPED_MAX];

pub(crate) fn note(at: u64, len: u64) {
    for [address, length] in &MAPPED {
        if address.load(Ordering::Relaxed) == 0
            && address.compare_exchange(0, at, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        {
            length.store(len, Ordering::Relaxed);
            return;
        }
    }
}

fn forget(at: u64) {
    if let Some([address, length]) = MAPPED.iter().find(|[address, _]| address.load(Ordering::Relaxed) == at)
    {
        length.store(0, Ordering::Relaxed);
        address.store(0, Ordering::Relaxed);
    }
}

/// Fewer page faults to fill the memory, and fewer misses to use it. A kernel without huge pages refuses.
pub(crate) fn prefer_huge_pages(address: u64, len: u64) {
    const MADV_HUGEPAGE: u64 = 14;
    // SAFETY: changes no contents.
    let _ = unsafe { syscall(28, [address, len, MADV_HUGEPAGE, 0, 0, 0]) };
}

/// # Safety
/// Nothing may use `address..address + len` any more.
pub(crate) unsafe fn munmap(address: u64, len: u64) -> Result<u64, i32> {
    forget(address);
    // SAFETY: passed on.
    unsafe { syscall(11, [address, len, 0, 0, 0, 0]) }
}

/// # Safety
/// The range must be the caller's, and nobody may need the access that is taken away.
pub(crate) unsafe fn mprotect(address: u64, len: u64, protection: u64) -> Result<u64, i32> {
    // SAFETY: passed on.
    unsafe { syscall(10, [address, len, protection, 0, 0, 0]) }
}

/// A second mapping of the shared memory at `address`, `len` bytes long, anywhere. (mremap with an old
/// size of 0; see mremap(2).) Needs no file descriptor, and so none has to be kept open.
pub(crate) fn map_again(address: u64, len: u64) -> Result<u64, i32> {
    // SAFETY: an old size of 0 leaves the old mapping alone, and the new one replaces nothing.
    unsafe { syscall(25, [address, 0, len, MREMAP_MAYMOVE, 0, 0]) }
}

/// The same, over what lies at `to`.
///
/// # Safety
/// `to..to + len` must be the caller's to replace.
pub(crate) unsafe fn map_again_over(address: u64, len: u64, to: u64) -> Result<u64, i32> {
    // SAFETY: passed on.
    unsafe { syscall(25, [address, 0, len, MREMAP_MAYMOVE | MREMAP_FIXED, to, 0]) }
}

/// Makes every page of a shared mapping present and writable; the file system's "full" comes back as an
/// error here and as a SIGBUS later. A kernel before 5.14 does not know it: the risk is taken then.
pub(crate) fn populate(address: u64, len: u64) -> Result<(), i32> {
    // SAFETY: changes no contents.
    match unsafe { syscall(28, [address, len, MADV_POPULATE_WRITE, 0, 0, 0]) } {
        Ok(_) | Err(EINVAL) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// `path` ends with a NUL.
pub(crate) fn open(path: &[u8], write: bool) -> Result<i32, i32> {
    let flags = O_CLOEXEC_NOFOLLOW | if write { 2 } else { 0 };
    // SAFETY: the kernel only reads the path, up to its NUL.
    unsafe { syscall(2, [path.as_ptr() as u64, flags, 0, 0, 0, 0]) }.map(|fd| fd as i32)
}

/// A new file of the user's own, as long as `len`. `path` ends with a NUL.
pub(crate) fn create(path: &[u8], len: u64) -> Result<i32, i32> {
    const O_RDWR_CREAT_EXCL: u64 = 2 | 0o100 | 0o200;
    // Beyond the limit there is a SIGXFSZ, not only an error.
    if file_size_limit() < len {
        return Err(EFBIG);
    }
    // SAFETY: the kernel only reads the path, up to its NUL.
    let fd = unsafe {
        syscall(2, [path.as_ptr() as u64, O_CLOEXEC_NOFOLLOW | O_RDWR_CREAT_EXCL, 0o600, 0, 0, 0])
    }? as i32;
    // SAFETY: no memory is involved.
    if let Err(errno) = unsafe { syscall(77, [fd as u64, len, 0, 0, 0, 0]) } {
        close(fd);
        remove(path);
        return Err(errno);
    }
    Ok(fd)
}

fn file_size_limit() -> u64 {
    const RLIMIT_FSIZE: u64 = 1;
    limit(RLIMIT_FSIZE)
}

/// How large the main thread's stack may become (RLIMIT_STACK).
pub(crate) fn stack_limit() -> u64 {
    const RLIMIT_STACK: u64 = 3;
    limit(RLIMIT_STACK)
}

/// A soft limit.
fn limit(resource: u64) -> u64 {
    // struct rlimit64: soft, hard.
    let mut limit = [u64::MAX; 2];
    // SAFETY: the kernel writes the limit.
    let _ = unsafe { syscall(302, [0, resource, 0, &raw mut limit as u64, 0, 0]) };
    limit[0]
}

/// Whether the process has one thread. If it cannot be told, no.
pub(crate) fn has_one_thread() -> bool {
    /// Offset of st_nlink in struct stat.
    const LINKS: usize = 2;
    // struct stat has 144 bytes.
    let mut stat = [0_u64; 18];
    let path = c"/proc/self/task".as_ptr() as u64;
    // SAFETY: the kernel reads the path and writes the structure.
    let result = unsafe { syscall(4, [path, &raw mut stat as u64, 0, 0, 0, 0]) };
    // A folder has two links, and one for each folder in it.
    result.is_ok() && stat[LINKS] == 3
}

/// Whether a word there cannot be read. Where the kernel does not tell, it is taken for readable.
pub(crate) fn is_unreadable(address: u64) -> bool {
    const EFAULT: i32 = 14;
    let mut byte = 0_u8;
    // struct iovec: base, length.
    let (to, from) = ([&raw mut byte as u64, 1], [address, 1]);
    let arguments = [getpid().into(), &raw const to as u64, 1, &raw const from as u64, 1, 0];
    // SAFETY: process_vm_readv writes one byte to `byte`.
    let result = unsafe { syscall(310, arguments) };
    result == Err(EFAULT)
}

/// Blocks all signals; answers with those that were blocked before.
pub(crate) fn block_signals() -> Result<u64, i32> {
    set_blocked_signals(!0)
}

/// Answers with those that were blocked before.
pub(crate) fn set_blocked_signals(mask: u64) -> Result<u64, i32> {
    const SIG_SETMASK: u64 = 2;
    let mut old = 0_u64;
    // SAFETY: the kernel reads one mask and writes the other.
    unsafe { syscall(14, [SIG_SETMASK, &raw const mask as u64, &raw mut old as u64, 8, 0, 0]) }?;
    Ok(old)
}

/// `path` ends with a NUL.
pub(crate) fn remove(path: &[u8]) {
    // SAFETY: the kernel only reads the path, up to its NUL.
    let _ = unsafe { syscall(87, [path.as_ptr() as u64, 0, 0, 0, 0, 0]) };
}

/// A connection to a SOCK_SEQPACKET socket; `address` is a struct sockaddr_un. Does not wait for a place in
/// its queue.
pub(crate) fn connect(address: &[u8]) -> Result<i32, i32> {
    const AF_UNIX: u64 = 1;
    const SOCK_SEQPACKET_CLOEXEC_NONBLOCK: u64 = 5 | 0o2_000_000 | 0o4000;
    // SAFETY: the kernel only reads the address.
    unsafe {
        let fd = syscall(41, [AF_UNIX, SOCK_SEQPACKET_CLOEXEC_NONBLOCK, 0, 0, 0, 0])? as i32;
        match syscall(42, [fd as u64, address.as_ptr() as u64, address.len() as u64, 0, 0, 0]) {
            Ok(_) => Ok(fd),
            Err(errno) => {
                close(fd);
                Err(errno)
            }
        }
    }
}

/// Sends one packet. A socket that nobody reads any more is an error, not a SIGPIPE.
pub(crate) fn send(fd: i32, packet: &[u8]) -> Result<(), i32> {
    const MSG_NOSIGNAL: u64 = 0x4000;
    // SAFETY: the kernel only reads the packet.
    unsafe { syscall(44, [fd as u64, packet.as_ptr() as u64, packet.len() as u64, MSG_NOSIGNAL, 0, 0]) }
        .map(|_| ())
}

/// Sends one packet, and with it a descriptor.
pub(crate) fn send_with(fd: i32, packet: &[u8], passed: i32) -> Result<(), i32> {
    const MSG_NOSIGNAL: u64 = 0x4000;
    const SOL_SOCKET_AND_SCM_RIGHTS: u64 = 1 | 1 << 32;
    // struct cmsghdr, which is 16 bytes long, and the descriptor: a length of 20, in 24 bytes.
    let control = [20, SOL_SOCKET_AND_SCM_RIGHTS, u64::from(passed as u32)];
    // struct iovec.
    let data = [packet.as_ptr() as u64, packet.len() as u64];
    // struct msghdr: name and its length, vectors and their number, control data and its length, flags.
    let message = [0, 0, data.as_ptr() as u64, 1, control.as_ptr() as u64, 24, 0];
    // SAFETY: the kernel only reads the message and what it points to, all of which lives through the call.
    unsafe { syscall(46, [fd as u64, message.as_ptr() as u64, MSG_NOSIGNAL, 0, 0, 0]) }.map(|_| ())
}

/// A descriptor that stands for what a path leads to, from the folder `at`; nothing is read or waited for. A bad address
/// is an error.
pub(crate) fn open_path(at: i32, path: u64) -> Result<i32, i32> {
    const O_PATH_CLOEXEC: u64 = 0o10_000_000 | 0o2_000_000;
    // SAFETY: the kernel only reads the path, up to its NUL, and checks its address.
    unsafe { syscall(257, [at as u64, path, O_PATH_CLOEXEC, 0, 0, 0]) }.map(|fd| fd as i32)
}

/// Waits until there is something to read, at most so many milliseconds. Signals do not end it.
pub(crate) fn wait_readable(fd: i32, milliseconds: u64) -> bool {
    let end = now() + milliseconds * 1_000_000;
    loop {
        let left = end.saturating_sub(now());
        // struct pollfd: descriptor, events (POLLIN), returned events.
        let mut polled = [fd as u32, 1];
        // struct timespec.
        let time = [left / 1_000_000_000, left % 1_000_000_000];
        // SAFETY: ppoll reads the time and writes the pollfd.
        let result = unsafe { syscall(271, [&raw mut polled as u64, 1, &raw const time as u64, 0, 8, 0]) };
        match result {
            Err(EINTR) if left > 0 => {}
            other => return other == Ok(1),
        }
    }
}

/// Bytes read.
pub(crate) fn read(fd: i32, buffer: &mut [u8]) -> Result<usize, i32> {
    // SAFETY: the kernel writes no more than the buffer's length.
    unsafe { syscall(0, [fd as u64, buffer.as_mut_ptr() as u64, buffer.len() as u64, 0, 0, 0]) }
        .map(|n| n as usize)
}

pub(crate) fn close(fd: i32) {
    // SAFETY: our own descriptor.
    let _ = unsafe { syscall(3, [fd as u64, 0, 0, 0, 0, 0]) };
}

/// Bytes of an open file.
pub(crate) fn file_size(fd: i32) -> Result<u64, i32> {
    // SAFETY: lseek writes no memory.
    unsafe { syscall(8, [fd as u64, 0, 2, 0, 0, 0]) }
}

/// # Safety
/// The child shares nothing with the C library, which does not know of it: it may make system calls only.
pub(crate) unsafe fn fork() -> Result<u64, i32> {
    // SAFETY: passed on.
    unsafe { syscall(57, [0; 6]) }
}

pub(crate) fn leave_session() {
    // SAFETY: no arguments.
    let _ = unsafe { syscall(112, [0; 6]) };
}

/// Returns if the program cannot be executed. All strings end with a NUL, both arrays with null.
///
/// # Safety
/// The pointers must be valid.
pub(crate) unsafe fn execute(path: &[u8], arguments: &[*const u8], environment: &[*const u8]) {
    // SAFETY: passed on.
    let _ = unsafe {
        syscall(59, [path.as_ptr() as u64, arguments.as_ptr() as u64, environment.as_ptr() as u64, 0, 0, 0])
    };
}

/// Ends the process at once.
pub(crate) fn exit(status: u64) -> ! {
    loop {
        // SAFETY: does not return.
        let _ = unsafe { syscall(231, [status, 0, 0, 0, 0, 0]) };
    }
}

/// Sets where gs points to.
pub(crate) fn set_gs(base: u64) -> Result<(), i32> {
    const ARCH_SET_GS: u64 = 0x1001;
    // SAFETY: nobody uses gs but the counters, whose block it is.
    unsafe { syscall(158, [ARCH_SET_GS, base, 0, 0, 0, 0]) }.map(|_| ())
}

pub(crate) fn gettid() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { syscall(186, [0; 6]) }.unwrap_or(0) as u32
}

pub(crate) fn getpid() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { syscall(39, [0; 6]) }.unwrap_or(0) as u32
}

/// Whether a thread of this process is alive.
pub(crate) fn thread_lives(pid: u32, tid: u32) -> bool {
    // SAFETY: signal 0 does nothing.
    let result = unsafe { syscall(234, [pid.into(), tid.into(), 0, 0, 0, 0]) };
    result != Err(ESRCH)
}

/// CLOCK_MONOTONIC, nanoseconds.
pub(crate) fn now() -> u64 {
    let mut time = [0_u64; 2];
    // SAFETY: the kernel writes 16 bytes to `time`.
    let _ = unsafe { syscall(228, [1, &raw mut time as u64, 0, 0, 0, 0]) };
    time[0] * 1_000_000_000 + time[1]
}

/// struct sigaction as the kernel has it.
#[repr(C)]
pub(crate) struct SignalAction {
    pub handler: u64,
    pub flags: u64,
    pub restorer: u64,
    pub mask: u64,
}

/// # Safety
/// `action` must name a handler that may run at any instruction of any thread.
pub(crate) unsafe fn set_signal_action(signal: i32, action: &SignalAction) -> Result<u64, i32> {
    // SAFETY: the kernel reads the action; the rest is the caller's contract.
    unsafe { syscall(13, [signal as u64, &raw const *action as u64, 0, 8, 0, 0]) }
}

/// A timer on the calling thread's CPU clock, or the whole process's, that sends `signal` every `interval`
/// nanoseconds to that thread, or to the one that is running; its id.
pub(crate) fn start_timer(thread: Option<u32>, signal: i32, interval: u64) -> Result<i32, i32> {
    const CLOCK_PROCESS_CPUTIME_ID: u64 = 2;
    const CLOCK_THREAD_CPUTIME_ID: u64 = 3;
    const SIGEV_SIGNAL: u32 = 0;
    const SIGEV_THREAD_ID: u32 = 4;
    // struct sigevent: value, signo, notify, tid, padding to 64 bytes.
    let mut event = [0_u32; 16];
    event[2] = signal as u32;
    event[3] = if thread.is_some() { SIGEV_THREAD_ID } else { SIGEV_SIGNAL };
    event[4] = thread.unwrap_or(0);
    let clock = if thread.is_some() { CLOCK_THREAD_CPUTIME_ID } else { CLOCK_PROCESS_CPUTIME_ID };
    let mut id = 0_i32;
    // SAFETY: the kernel reads `event` and writes `id`.
    unsafe { syscall(222, [clock, &raw const event as u64, &raw mut id as u64, 0, 0, 0]) }?;
    let (seconds, rest) = (interval / 1_000_000_000, interval % 1_000_000_000);
    let times = [seconds, rest, seconds, rest];
    // SAFETY: the kernel reads `times`.
    unsafe { syscall(223, [id as u64, 0, &raw const times as u64, 0, 0, 0]) }?;
    Ok(id)
}

pub(crate) fn stop_timer(id: i32) {
    // SAFETY: our own timer.
    let _ = unsafe { syscall(226, [id as u64, 0, 0, 0, 0, 0]) };
}
