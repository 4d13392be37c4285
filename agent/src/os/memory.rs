//! Memory mappings of the process.
#![allow(unsafe_code, reason = "mappings are made, changed and taken away")]

use crate::os::kernel::{EEXIST, EFAULT, EINVAL, ENOMEM, EPERM, call};
use crate::os::limits;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::attach;
use linux_raw_sys::general::{self, __NR_madvise, __NR_mmap, __NR_mprotect, __NR_mremap, __NR_munmap};

pub(crate) const PROT_READ: u64 = general::PROT_READ as u64;
pub(crate) const PROT_WRITE: u64 = general::PROT_WRITE as u64;
pub(crate) const PROT_EXEC: u64 = general::PROT_EXEC as u64;
const MAP_SHARED: u64 = general::MAP_SHARED as u64;
pub(crate) const MAP_PRIVATE: u64 = general::MAP_PRIVATE as u64;
pub(crate) const MAP_FIXED: u64 = general::MAP_FIXED as u64;
pub(crate) const MAP_ANONYMOUS: u64 = general::MAP_ANONYMOUS as u64;
pub(crate) const MAP_NORESERVE: u64 = general::MAP_NORESERVE as u64;
const MREMAP_MAYMOVE: u64 = general::MREMAP_MAYMOVE as u64;
const MREMAP_FIXED: u64 = general::MREMAP_FIXED as u64;
const PAGE: u64 = 4096;

/// Makes a mapping and returns its address: one that the kernel chooses, or, with MAP_FIXED, `address`.
///
/// # Safety
/// With MAP_FIXED, the caller must own what lies at `address..address + len`.
pub(crate) unsafe fn mmap(
    address: u64,
    len: u64,
    protection: u64,
    flags: u64,
    fd: i32,
    offset: u64,
) -> Result<u64, i32> {
    // What replaces another mapping takes no more address space.
    let added = if flags & MAP_FIXED == 0 { len } else { 0 };
    let data = if flags & MAP_PRIVATE != 0 && protection & PROT_WRITE != 0 { added } else { 0 };
    limits::map(added, data);
    // SAFETY: without MAP_FIXED the kernel replaces nothing; with it, the caller owns what is replaced.
    let mapped = unsafe { call(__NR_mmap, [address, len, protection, flags, fd as u64, offset]) };
    if mapped.is_err() {
        limits::unmap(added, data);
    }
    mapped
}

/// The address below which the next large mapping is to be, or 0 if it does not matter where it is.
static BELOW: AtomicU64 = AtomicU64::new(0);

/// Makes later large mappings lie far below an address. The kernel places one mapping below the other, so those of the
/// thread blocks would soon part the libraries that are loaded later from the arenas, which have to be near them.
pub(crate) fn leave_room_below(address: u64) {
    const ROOM: u64 = 64 << 30;
    BELOW.store(address.saturating_sub(ROOM) & !(PAGE - 1), Ordering::Relaxed);
}

/// Returns where to ask for a mapping, or 0 if the kernel is to choose.
fn hint(len: u64) -> u64 {
    const LARGE: u64 = 1 << 20;
    const LEAST: u64 = 1 << 32;
    if len < LARGE {
        return 0;
    }
    let next = |below: u64| below.checked_sub(len.next_multiple_of(PAGE)).filter(|&at| at >= LEAST);
    let before = BELOW.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    before.ok().and_then(next).unwrap_or(0)
}

/// Maps zeros at an address that is free, and returns that address. The mapping will be used
/// sparsely, so `madvise` forbids huge pages for it.
pub(crate) fn map_zeros(len: u64, protection: u64) -> Result<u64, i32> {
    map_zeros_at(hint(len), len, protection)
}

/// Reserves memory of which only the last `kept` bytes will be kept.
pub(crate) fn reserve(len: u64, kept: u64) -> Result<u64, i32> {
    map_zeros_at(hint(kept).saturating_sub(len - kept), len, 0)
}

/// Reserves the memory at an address, if it is free. Filters of system calls may refuse MAP_FIXED_NOREPLACE, and Linux 6.7 and later follows
/// the hint of a mapping of a large file only if 2 MiB more are free; that of a reservation it follows.
///
/// # Errors
/// Returns EEXIST if something is there, or the error number (errno) of the failed system call.
pub(crate) fn reserve_at(address: u64, len: u64) -> Result<(), i32> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    // SAFETY: the address is a hint, so the mapping replaces nothing.
    let at = unsafe { mmap(address, len, 0, flags, -1, 0) }?;
    if at == address {
        return Ok(());
    }
    // SAFETY: no other code knows of the mapping.
    let _ = unsafe { munmap(at, len) };
    Err(EEXIST)
}

/// `hint` is the address at which the memory is to be, if that is free.
fn map_zeros_at(hint: u64, len: u64, protection: u64) -> Result<u64, i32> {
    let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    // SAFETY: the address is a hint, so the mapping replaces nothing.
    let at = unsafe { mmap(hint, len, protection, flags, -1, 0) }?;
    avoid_huge_pages(at, len);
    note(at, len);
    Ok(at)
}

/// Forbids huge pages. A kernel without huge pages refuses that, which does no harm.
fn avoid_huge_pages(address: u64, len: u64) {
    // SAFETY: advice about huge pages changes no contents.
    let _ = unsafe { call(__NR_madvise, [address, len, general::MADV_NOHUGEPAGE.into()]) };
}

/// Returns whether a page that was written may be executed. PR_SET_MDWE or a security policy may forbid it;
/// then a page of code from which the right to execute was taken away could not get it back.
pub(crate) fn may_make_code() -> bool {
    // SAFETY: the kernel chooses the address, and no other code knows of the page.
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

/// Address and length of each mapping that [`map_zeros`] has made, and of the arena. An injector that leaves
/// the process reads the table and unmaps them. A mapping for which the table has no room stays in the
/// process.
pub(crate) static MAPPED: [[AtomicU64; 2]; attach::MAPPED_MAX] =
    [const { [const { AtomicU64::new(0) }; 2] }; attach::MAPPED_MAX];

/// Adds a mapping to the table.
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

/// The limit of data is not adapted, because nothing large and writable is unmapped again while the program runs.
///
/// # Safety
/// The caller must own `address..address + len`, and nothing may use it any more.
pub(crate) unsafe fn munmap(address: u64, len: u64) -> Result<u64, i32> {
    forget(address);
    // SAFETY: the caller owns the range and has given up its use.
    let unmapped = unsafe { call(__NR_munmap, [address, len]) };
    if unmapped.is_ok() {
        limits::unmap(len, 0);
    }
    unmapped
}

/// # Safety
/// The caller must own the range, and no thread may need the access that is taken away.
pub(crate) unsafe fn mprotect(address: u64, len: u64, protection: u64) -> Result<u64, i32> {
    // SAFETY: the caller owns the range, and has guaranteed that no thread needs the access that is taken
    // away.
    unsafe { call(__NR_mprotect, [address, len, protection]) }
}

/// Maps the shared memory at `address` once more, `len` bytes long, over the mappings at `to`. This is mremap(2) with an
/// old size of 0, which needs no file descriptor, so that none has to be kept open.
///
/// # Safety
/// The caller must own `to..to + len`.
pub(crate) unsafe fn map_again_over(address: u64, len: u64, to: u64) -> Result<u64, i32> {
    // SAFETY: an old size of 0 leaves the old mapping alone, and the caller owns what is replaced.
    let map = || unsafe { call(__NR_mremap, [address, 0, len, MREMAP_MAYMOVE | MREMAP_FIXED, to]) };
    let mapped = map();
    if mapped != Err(ENOMEM) {
        return mapped;
    }
    // Linux 6.17 and later compare the limit before they unmap what is replaced (mm/mremap.c, `check_prep_vma`).
    limits::map(len, 0);
    let mapped = map();
    limits::unmap(len, 0);
    mapped
}

/// Moves a mapping over the mappings at `to`.
///
/// # Safety
/// The caller must own `address..address + len`, which nothing else uses, and `to..to + len`.
pub(crate) unsafe fn move_over(address: u64, len: u64, to: u64) -> Result<u64, i32> {
    // SAFETY: the caller owns what is moved and what is replaced.
    let moved = unsafe { call(__NR_mremap, [address, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, to]) };
    if moved.is_ok() {
        forget(address);
        limits::unmap(len, 0);
    }
    moved
}

/// Maps the first `len` bytes of a file that this process shares with others. They are not part of a core dump, where a sparse file would
/// be full, and neither are those of the mappings that are made from this one. They are used sparsely, so they get no huge pages.
pub(crate) fn map_shared(fd: i32, len: u64) -> Result<u64, i32> {
    // SAFETY: the kernel chooses the address, so the mapping replaces nothing. What is not dumped stays as it is.
    unsafe {
        let at = mmap(0, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)?;
        let _ = call(__NR_madvise, [at, len, general::MADV_DONTDUMP.into()]);
        avoid_huge_pages(at, len);
        Ok(at)
    }
}

/// Makes every page of a shared mapping present and writable. If the file system is full, this is an error
/// here, and would be a SIGBUS later. A kernel before 5.14 does not support the call, and a filter may refuse it; the SIGBUS is
/// then possible.
pub(crate) fn populate(address: u64, len: u64) -> Result<(), i32> {
    // SAFETY: making pages present changes no contents.
    match unsafe { call(__NR_madvise, [address, len, general::MADV_POPULATE_WRITE.into()]) } {
        Ok(_) | Err(EINVAL | EPERM) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Returns whether a byte at an address of the process cannot be read. If the kernel does not tell, the byte
/// counts as readable.
pub(crate) fn is_unreadable(process: u32, address: u64) -> bool {
    let mut byte = 0_u8;
    // struct iovec: base, length.
    let (to, from) = ([&raw mut byte as u64, 1], [address, 1]);
    let arguments = [process.into(), &raw const to as u64, 1, &raw const from as u64, 1, 0];
    // SAFETY: process_vm_readv writes one byte, to `byte`; it checks the other address.
    unsafe { call(general::__NR_process_vm_readv, arguments) == Err(EFAULT) }
}

/// Returns how many pages of the process from an address on can be read, but at most 16. If the kernel does not tell, all of them
/// count as readable.
pub(crate) fn readable_pages(process: u32, page: u64) -> u64 {
    const MOST: usize = 16;
    let mut bytes = [0_u8; MOST];
    let to = [bytes.as_mut_ptr() as u64, MOST as u64];
    let from: [[u64; 2]; MOST] = core::array::from_fn(|n| [page.wrapping_add(PAGE * n as u64), 1]);
    let arguments = [process.into(), to.as_ptr() as u64, 1, from.as_ptr() as u64, MOST as u64, 0];
    // SAFETY: process_vm_readv writes at most `MOST` bytes, to `bytes`; it checks the other addresses, and ends at the first one that
    // it cannot read.
    match unsafe { call(general::__NR_process_vm_readv, arguments) } {
        Ok(read) => read,
        Err(EFAULT) => 0,
        Err(_) => MOST as u64,
    }
}

/// Copies bytes of a process that may not be readable, and returns the number of those that could be copied, from the first one
/// on. It is 0 if no system calls are made any more, or if the kernel or a filter forbids this one.
pub(crate) fn read(process: u32, address: u64, to: &mut [u8]) -> usize {
    // The kernel copies all of a struct iovec or nothing. The bytes end in the next page, so two are enough.
    let len = to.len().min(PAGE as usize) as u64;
    let first = (PAGE - address % PAGE).min(len);
    let into = [to.as_mut_ptr() as u64, len];
    let from = [[address, first], [address.wrapping_add(first), len - first]];
    let arguments = [process.into(), &raw const into as u64, 1, &raw const from as u64, 2, 0];
    // SAFETY: process_vm_readv writes at most `len` bytes, to `to`; it checks the other addresses.
    unsafe { call(general::__NR_process_vm_readv, arguments) }.unwrap_or(0) as usize
}
