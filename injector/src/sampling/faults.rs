//! Where a process was killed by an access to memory that nobody can have: the kernel's records of page faults.
//!
//! Only where blocks are counted. An event of its own for each CPU writes into a ring that the kernel overwrites, so
//! that nobody has to read it while the program runs; the last record is that of the access that killed it. That is
//! certain where nothing can ever be mapped at the address: the first pages, which null pointers lead to, and the
//! kernel's half. Other ends are not reported: a division by zero is no page fault, and of an access elsewhere nobody
//! knows later whether it went well.
#![allow(unsafe_code, reason = "it opens a perf event and reads the buffer that the kernel fills")]

use std::io::{self, Error};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys::{bindings as sys, perf_event_open};

use crate::sampling::perf;

const PAGE: usize = 4096;
/// Nothing is mapped below (vm.mmap_min_addr), nor from here on up.
const LOWEST: u64 = 0x1_0000;
const KERNEL: u64 = 1 << 63;

/// A page fault, as the event's records have it.
#[derive(Clone, Copy)]
struct Record {
    ip: u64,
    pid: u32,
    time: u64,
    address: u64,
}

/// The page faults of a process and those that it makes.
pub(crate) struct Faults {
    rings: Vec<Ring>,
}

struct Ring {
    /// Keeps the event.
    _event: OwnedFd,
    head: *const sys::perf_event_mmap_page,
}

impl Faults {
    /// From the next exec of `pid` on.
    pub(crate) fn open(pid: i32) -> io::Result<Faults> {
        let cpus = perf::online_cpus();
        Ok(Faults { rings: cpus.into_iter().map(|cpu| Ring::open(pid, cpu)).collect::<io::Result<_>>()? })
    }

    /// The address of the instruction by which process `pid`, which SIGSEGV has killed, has come to its end.
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
        // Nobody is woken.
        attr.set_watermark(1);
        attr.__bindgen_anon_2.wakeup_watermark = u32::MAX;
        // SAFETY: `attr` is initialised, it states its own size, and it lives through the call.
        let fd = unsafe { perf_event_open(&mut attr, pid, cpu, -1, sys::PERF_FLAG_FD_CLOEXEC.into()) };
        let fd = crate::os::sys::check(fd)?;
        // SAFETY: a new descriptor that nobody else owns.
        let event = unsafe { OwnedFd::from_raw_fd(fd) };
        // Not writable: then the kernel overwrites what is oldest.
        // SAFETY: a fresh mapping at a place that the kernel chooses.
        let head = unsafe {
            libc::mmap(ptr::null_mut(), 2 * PAGE, libc::PROT_READ, libc::MAP_SHARED, event.as_raw_fd(), 0)
        };
        if head == libc::MAP_FAILED {
            return Err(Error::last_os_error());
        }
        Ok(Ring { _event: event, head: head.cast_const().cast() })
    }

    /// The record written last, if that is a page fault: PERF_RECORD_SAMPLE with PERF_SAMPLE_IP, _TID, _TIME and _ADDR,
    /// in the order of perf_event_open(2).
    fn last(&self) -> Option<Record> {
        let mut words = [0_u64; 5];
        // SAFETY: `open` has mapped the control page and one page of data behind it, readable, for as long as `self`
        // lives; the kernel writes data_head, a multiple of 8, after the data. What it writes meanwhile is of another
        // process, and would only make these words no record of this one.
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
        // SAFETY: mapped by `open` with this length; nobody holds a pointer into it.
        unsafe { libc::munmap(self.head.cast_mut().cast(), 2 * PAGE) };
    }
}
