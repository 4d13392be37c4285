//! Finds the instruction at which a process was killed by an access to memory that can never be mapped, from
//! the kernel's records of page faults.
//!
//! This is done only if basic blocks are counted. An event for each CPU writes into a ring that the kernel
//! overwrites, so nobody has to read it while the program runs. Its last record is that of the access that
//! killed the process. That is certain only for addresses at which nothing can be mapped: the first pages, to
//! which null pointers lead, and the kernel's half. Other crashes are not found: a division by zero is not a
//! page fault, and an access elsewhere may have succeeded after its page fault.
#![allow(unsafe_code, reason = "it opens a perf event and reads the buffer that the kernel fills")]

use std::io::{self, Error};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys::{bindings as sys, perf_event_open};

use crate::sampling::perf;

const PAGE: usize = 4096;
/// Nothing is mapped below the first address (vm.mmap_min_addr) or from the second one on.
const LOWEST: u64 = 0x1_0000;
const KERNEL: u64 = 1 << 63;

/// A page fault, as the event records it.
#[derive(Clone, Copy)]
struct Record {
    ip: u64,
    pid: u32,
    time: u64,
    address: u64,
}

/// The page faults of a process and of the processes that it creates.
pub(crate) struct Faults {
    rings: Vec<Ring>,
}

struct Ring {
    /// Keeps the event open.
    _event: OwnedFd,
    head: *const sys::perf_event_mmap_page,
}

impl Faults {
    /// Records the page faults of process `pid` from its next exec on.
    ///
    /// # Errors
    /// The kernel refuses perf events.
    pub(crate) fn open(pid: i32) -> io::Result<Faults> {
        let cpus = perf::online_cpus();
        Ok(Faults { rings: cpus.into_iter().map(|cpu| Ring::open(pid, cpu)).collect::<io::Result<_>>()? })
    }

    /// Returns the address of the instruction at which SIGSEGV has killed process `pid`, if it is certain.
    pub(crate) fn fatal(&self, pid: i32) -> Option<u64> {
        let last = self.rings.iter().filter_map(Ring::last).filter(|record| record.pid == pid as u32);
        let last = last.max_by_key(|record| record.time)?;
        (last.address < LOWEST || last.address >= KERNEL).then_some(last.ip)
    }
}

impl Ring {
    fn open(pid: i32, cpu: i32) -> io::Result<Ring> {
        let mut attr = sys::perf_event_attr {
            type_: sys::PERF_TYPE_SOFTWARE,
            size: size_of::<sys::perf_event_attr>() as u32,
            config: u64::from(sys::PERF_COUNT_SW_PAGE_FAULTS),
            ..Default::default()
        };
        attr.__bindgen_anon_1.sample_period = 1;
        attr.sample_type = u64::from(
            sys::PERF_SAMPLE_IP | sys::PERF_SAMPLE_TID | sys::PERF_SAMPLE_TIME | sys::PERF_SAMPLE_ADDR,
        );
        attr.set_exclude_kernel(1);
        attr.set_exclude_hv(1);
        attr.set_disabled(1);
        attr.set_enable_on_exec(1);
        attr.set_inherit(1);
        // No process is woken.
        attr.set_watermark(1);
        attr.__bindgen_anon_2.wakeup_watermark = u32::MAX;
        // SAFETY: `attr` is initialised, states its own size, and lives through the call.
        let fd = unsafe { perf_event_open(&mut attr, pid, cpu, -1, sys::PERF_FLAG_FD_CLOEXEC.into()) };
        let fd = crate::os::sys::check(fd)?;
        // SAFETY: this is a new descriptor that nobody else owns.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        // The ring is not writable, so the kernel overwrites the oldest records. SAFETY: this is a new
        // mapping at an address that the kernel chooses.
        let head = unsafe {
            libc::mmap(ptr::null_mut(), 2 * PAGE, libc::PROT_READ, libc::MAP_SHARED, event.as_raw_fd(), 0)
        };
        if head == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        Ok(Ring { _event: event, head: head.cast_const().cast() })
    }

    /// Returns the record that was written last, if it is a page fault: PERF_RECORD_SAMPLE with
    /// PERF_SAMPLE_IP, _TID, _TIME and _ADDR, in the order of perf_event_open(2).
    fn last(&self) -> Option<Record> {
        let mut words = [0_u64; 5];
        // SAFETY: `open` has mapped the control page and one page of data after it, readable, for as long as
        // `self` lives. The kernel writes data_head, a multiple of 8, after the data. Records that it writes
        // meanwhile are those of another process, and would only make these words no record of this one.
        unsafe {
            let head =
                AtomicU64::from_ptr((&raw const (*self.head).data_head).cast_mut()).load(Ordering::Acquire);
            let from = head.checked_sub(size_of_val(&words) as u64)?;
            let data = self.head.cast::<u8>().add(PAGE);
            for (word, at) in words.iter_mut().zip((from..).step_by(8)) {
                *word = data.add(at as usize % PAGE).cast::<u64>().read_volatile();
            }
        }
        let [header, ip, pid, time, address] = words;
        let (kind, size) = (header as u32, (header >> 48) as usize);
        let whole = kind == sys::PERF_RECORD_SAMPLE && size == size_of_val(&words);
        whole.then_some(Record { ip, pid: pid as u32, time, address })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: `open` has mapped it with this length, and nobody keeps a pointer into it.
        unsafe { libc::munmap(self.head.cast_mut().cast(), 2 * PAGE) };
    }
}
