//! Samples by the kernel: perf_event_open(2) with one cpu-clock event and one ring buffer for each CPU.
//!
//! Only per-CPU events can both be inherited by threads and be read through a ring buffer.
#![allow(unsafe_code, reason = "it opens perf events and reads the buffers that the kernel fills")]

use std::fs::File;
use std::io::{self, Error};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use perf_event_open_sys::{bindings as sys, ioctls, perf_event_open};

use crate::sampling::records::{self, Content, Record};

const PAGE: usize = 4096;
/// The largest number of data pages of a ring. With the page for the head, it is what perf_event_mlock_kb
/// (516) allows for each CPU.
const MOST_PAGES: usize = 128;
/// The same with stacks, if the user may have that much.
const MOST_PAGES_WITH_STACKS: usize = 256;
/// For how many seconds a ring has room for the samples of one CPU and for other records. Creating pages
/// takes time.
const SECONDS: usize = 2;
const RECORD: usize = 48;
const OTHER_RECORDS: usize = 16 * PAGE;
/// The largest number of data pages of all rings together.
const ALL_PAGES: usize = 2048;
/// The instruction pointer among the registers of PERF_SAMPLE_REGS_USER.
const USER_IP: u64 = 1 << sys::PERF_REG_X86_IP;
/// The registers by which a frame is found.
const FRAME: u64 = 1 << sys::PERF_REG_X86_BP | 1 << sys::PERF_REG_X86_SP | USER_IP;
/// The bytes of the stack that are copied with a sample at most, and in a second.
const STACK: u32 = 16 << 10;
const STACKS: u32 = 24 << 20;
/// Below so many bytes, stacks say little.
const STACK_MIN: u32 = 2 << 10;

/// What the kernel allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ability {
    /// Samples in the kernel are taken as well. They are charged to the place of the system call, as SIGPROF
    /// does.
    kernel: bool,
    /// Only threads are sampled, not child processes.
    threads_only: bool,
    /// What the scheduler does is reported.
    switches: bool,
    /// So many bytes of the stack are copied with each sample.
    stack: u32,
}

/// The processes and threads that are sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// A process and its threads, from its next exec on. Number 0 is the injector's own process, which is
    /// used for a trial.
    Process(i32),
    /// The threads of a process that already runs, from [`Perf::enable`] on.
    Running(i32),
    /// Everything on every CPU, from [`Perf::enable`] on. This is the only way to sample a program whose exec
    /// changes its user: there the kernel ends the events of the process (`perf_event_exit_task` in
    /// `fs/exec.c`). It needs CAP_PERFMON, or a kernel.perf_event_paranoid of at most 0.
    Machine,
}

/// Open perf events.
pub(crate) struct Perf {
    rings: Vec<Ring>,
    /// The events of further threads, which write into the same rings.
    others: Vec<OwnedFd>,
    ability: Ability,
    /// The last record that lay on both sides of a ring's end.
    split: Vec<u8>,
}

struct Ring {
    event: OwnedFd,
    head: *mut sys::perf_event_mmap_page,
    data_len: usize,
    /// The processor.
    cpu: u32,
    /// Whether the event's last task has ended. poll would report that again and again.
    hung_up: bool,
}

impl Perf {
    /// Opens the events. `follow` includes child processes, `switches` what the scheduler does, and `stacks` the stacks of samples.
    ///
    /// # Errors
    /// The kernel refuses perf events.
    pub(crate) fn open(
        scope: Scope,
        rate: u32,
        follow: bool,
        switches: bool,
        stacks: bool,
    ) -> io::Result<Perf> {
        // Of everything on every CPU, no stack is anybody's business.
        let stack = if stacks && scope != Scope::Machine { stack_bytes(rate) } else { 0 };
        let bytes = rate as usize * RECORD * SECONDS + OTHER_RECORDS;
        let pages = match stack {
            0 if switches => MOST_PAGES,
            0 => bytes.div_ceil(PAGE).clamp(1, MOST_PAGES).next_power_of_two(),
            _ => MOST_PAGES_WITH_STACKS,
        };
        Perf::with_rings(scope, rate, (follow, switches, stack), pages)
    }

    /// Opens the events as [`Perf::open`] does, to find out whether that is possible and what the kernel
    /// allows.
    ///
    /// # Errors
    /// The kernel refuses perf events.
    pub(crate) fn trial(scope: Scope, rate: u32, follow: bool) -> io::Result<Perf> {
        Perf::with_rings(scope, rate, (follow, false, 0), 1)
    }

    fn with_rings(
        scope: Scope,
        rate: u32,
        (follow, switches, stack): (bool, bool, u32),
        pages: usize,
    ) -> io::Result<Perf> {
        let cpus = online_cpus();
        let most = (ALL_PAGES / cpus.len().max(1)).clamp(4, MOST_PAGES_WITH_STACKS);
        let pages = pages.min(1 << most.ilog2());
        let mut refusal = Error::from_raw_os_error(libc::ENODEV);
        for ability in Ability::all(follow, switches, stack) {
            match open_all(scope, rate, &cpus, ability, pages) {
                Ok(rings) if rings.is_empty() => {}
                Ok(rings) => {
                    let mut perf = Perf { rings, others: Vec::new(), ability, split: Vec::new() };
                    if let Scope::Running(pid) = scope {
                        perf.add_threads(pid, rate, &cpus)?;
                    }
                    return Ok(perf);
                }
                Err(error) => refusal = error,
            }
        }
        Err(refusal)
    }

    /// Whether samples in the kernel are taken.
    pub(crate) fn samples_kernel(&self) -> bool {
        self.ability.kernel
    }

    /// Whether each sample wakes whoever polls the descriptors.
    pub(crate) fn wakes_at_samples(&self) -> bool {
        self.ability.stack > 0
    }

    /// The memory of all rings, in bytes.
    pub(crate) fn ring_bytes(&self) -> u64 {
        self.rings.iter().map(|ring| (ring.data_len + PAGE) as u64).sum()
    }

    /// Returns the descriptors to poll.
    pub(crate) fn descriptors(&self) -> impl Iterator<Item = RawFd> {
        self.rings.iter().filter(|ring| !ring.hung_up).map(|ring| ring.event.as_raw_fd())
    }

    /// Records that poll has reported the end of the event's task.
    pub(crate) fn hang_up(&mut self, fd: RawFd) {
        for ring in &mut self.rings {
            ring.hung_up |= ring.event.as_raw_fd() == fd;
        }
    }

    /// Starts the sampling of what already runs.
    pub(crate) fn enable(&self) {
        for event in self.rings.iter().map(|ring| &ring.event).chain(&self.others) {
            // SAFETY: the descriptor is that of a perf event, and the request has no argument.
            unsafe { ioctls::ENABLE(event.as_raw_fd(), 0) };
        }
    }

    /// Adds the other threads of the process. The threads that they create inherit the events.
    fn add_threads(&mut self, pid: i32, rate: u32, cpus: &[i32]) -> io::Result<()> {
        let threads = crate::os::proc::thread_ids(pid)?;
        for tid in threads.into_iter().filter(|&tid| tid != pid) {
            for (&cpu, ring) in cpus.iter().zip(&self.rings) {
                let event = match open_event(Scope::Running(tid), cpu, rate, self.ability) {
                    Ok(event) => event,
                    // The thread has ended since.
                    Err(error) if error.raw_os_error() == Some(libc::ESRCH) => break,
                    Err(error) => return Err(error),
                };
                // SAFETY: both are perf events of this value, on the same CPU.
                crate::os::sys::check(unsafe {
                    ioctls::SET_OUTPUT(event.as_raw_fd(), ring.event.as_raw_fd() as _)
                })?;
                self.others.push(event);
            }
        }
        Ok(())
    }

    /// Takes all records out of the rings.
    pub(crate) fn drain(&mut self, records: &mut Vec<Record>) {
        let content = Content { user_registers: self.ability.kernel, stacks: self.ability.stack > 0 };
        for ring in &self.rings {
            ring.drain(&mut self.split, |bytes| records::parse(bytes, content, ring.cpu, records));
        }
    }
}

impl Ability {
    /// Returns all combinations, the best first.
    fn all(follow: bool, switches: bool, stack: u32) -> Vec<Ability> {
        let ability = |kernel, threads_only| Ability { kernel, threads_only, switches, stack };
        if follow {
            return vec![ability(true, false), ability(false, false)];
        }
        vec![ability(true, true), ability(true, false), ability(false, true), ability(false, false)]
    }
}

/// Opens an event and closes it again. The kernel changes its own code for the first event of all processes and waits until
/// all processors have noticed, for about 10 ms; this is undone a second later.
pub(crate) fn prepare() {
    let ability = Ability { kernel: false, threads_only: false, switches: false, stack: 0 };
    let _ = open_event(Scope::Process(0), -1, 1, ability);
}

/// Returns how many bytes of the stack are copied with a sample at a rate: less at a high one, and none at one so high that there would
/// be little.
fn stack_bytes(rate: u32) -> u32 {
    let most = (STACKS / rate.max(1)).min(STACK) & !7;
    if most >= STACK_MIN { most } else { 0 }
}

fn open_all(scope: Scope, rate: u32, cpus: &[i32], ability: Ability, pages: usize) -> io::Result<Vec<Ring>> {
    let mut rings = Vec::with_capacity(cpus.len());
    for &cpu in cpus {
        match open_event(scope, cpu, rate, ability) {
            Ok(event) => rings.push(Ring::map(event, cpu as u32, pages)?),
            // The CPU has been taken offline since.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(rings)
}

fn open_event(scope: Scope, cpu: i32, rate: u32, ability: Ability) -> io::Result<OwnedFd> {
    let mut attr = sys::perf_event_attr {
        type_: sys::PERF_TYPE_SOFTWARE,
        size: size_of::<sys::perf_event_attr>() as u32,
        config: u64::from(sys::PERF_COUNT_SW_CPU_CLOCK),
        clockid: libc::CLOCK_MONOTONIC,
        ..Default::default()
    };
    attr.__bindgen_anon_1.sample_period = 1_000_000_000 / u64::from(rate.max(1));
    attr.sample_type = u64::from(sys::PERF_SAMPLE_TID | sys::PERF_SAMPLE_TIME);
    if ability.kernel {
        attr.sample_type |= u64::from(sys::PERF_SAMPLE_REGS_USER);
        attr.sample_regs_user = USER_IP;
    } else {
        attr.sample_type |= u64::from(sys::PERF_SAMPLE_IP);
        attr.set_exclude_kernel(1);
    }
    if ability.stack > 0 {
        attr.sample_type |= u64::from(sys::PERF_SAMPLE_REGS_USER | sys::PERF_SAMPLE_STACK_USER);
        attr.sample_regs_user = FRAME;
        attr.sample_stack_user = ability.stack;
    }
    attr.set_exclude_hv(1);
    attr.set_disabled(1);
    let pid = match scope {
        Scope::Process(pid) => {
            attr.set_enable_on_exec(1);
            attr.set_inherit(1);
            attr.set_inherit_thread(u64::from(ability.threads_only));
            pid
        }
        Scope::Running(tid) => {
            attr.set_inherit(1);
            attr.set_inherit_thread(u64::from(ability.threads_only));
            tid
        }
        Scope::Machine => {
            attr.set_exclude_idle(1);
            -1
        }
    };
    attr.set_use_clockid(1);
    attr.set_sample_id_all(1);
    // Reports where the program is loaded, and when another program takes its place.
    attr.set_mmap(1);
    attr.set_comm(1);
    attr.set_comm_exec(1);
    // Reports the parents of children.
    attr.set_task(1);
    attr.set_context_switch(u64::from(ability.switches));
    if ability.stack > 0 {
        // What a thread executes is read at each sample, where something has to be read.
        attr.__bindgen_anon_2.wakeup_events = 1;
    } else {
        attr.set_watermark(1);
        attr.__bindgen_anon_2.wakeup_watermark = PAGE as u32 * 2;
    }
    // SAFETY: `attr` is initialised, states its own size, and lives through the call.
    let fd = unsafe { perf_event_open(&mut attr, pid, cpu, -1, sys::PERF_FLAG_FD_CLOEXEC.into()) };
    let fd = crate::os::sys::check(fd)?;
    // SAFETY: this is a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Ring {
    /// Maps a ring with `pages` data pages, or with as many as the limit on locked memory allows.
    fn map(event: OwnedFd, cpu: u32, mut pages: usize) -> io::Result<Ring> {
        loop {
            let len = (pages + 1) * PAGE;
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: this is a new mapping at an address that the kernel chooses.
            let address = unsafe {
                libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, event.as_raw_fd(), 0)
            };
            if address != libc::MAP_FAILED {
                return Ok(Ring { event, head: address.cast(), data_len: pages * PAGE, cpu, hung_up: false });
            }
            let error = Error::last_os_error();
            let too_much = matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOMEM));
            if !too_much || pages == 1 {
                return Err(error);
            }
            pages /= 2;
        }
    }

    /// Has the records read that the kernel has written since the last call, some at a time. They are large, so that they are read where
    /// they are, but for one that lies on both sides of the ring's end: it is put together in `split`.
    fn drain(&self, split: &mut Vec<u8>, mut read: impl FnMut(&[u8])) {
        // SAFETY: `head` is the control page of a ring that `map` has mapped with `data_len` bytes after it,
        // and the mapping lives as long as `self`. Only the kernel writes data_head and the data before it.
        // It does not touch the data between data_tail, which only this function writes, and data_head. The
        // acquire load orders the data after the head, and the release store orders what has read it before the space
        // is given back.
        unsafe {
            let head = AtomicU64::from_ptr(&raw mut (*self.head).data_head).load(Ordering::Acquire);
            let tail = AtomicU64::from_ptr(&raw mut (*self.head).data_tail);
            let data = self.head.cast::<u8>().add(PAGE);
            let mut at = tail.load(Ordering::Relaxed);
            while at < head {
                let offset = (at % self.data_len as u64) as usize;
                let (here, new) = (self.data_len - offset, (head - at) as usize);
                let bytes = std::slice::from_raw_parts(data.add(offset), here.min(new));
                let mut len = records::whole(bytes);
                if len > 0 {
                    read(&bytes[..len]);
                } else {
                    split.clear();
                    split.extend_from_slice(bytes);
                    split
                        .extend_from_slice(std::slice::from_raw_parts(data, (new - bytes.len()).min(offset)));
                    len = records::first(split).unwrap_or(new);
                    read(split.get(..len).unwrap_or_default());
                }
                at += len as u64;
            }
            tail.store(at, Ordering::Release);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: `map` has mapped it with this length, and nobody keeps a pointer into it.
        unsafe { libc::munmap(self.head.cast(), self.data_len + PAGE) };
    }
}

/// Returns the numbers of the CPUs that are online.
pub(crate) fn online_cpus() -> Vec<i32> {
    match std::fs::read_to_string("/sys/devices/system/cpu/online") {
        Ok(list) => parse_cpus(&list),
        Err(_) => {
            let count = std::thread::available_parallelism().map_or(1, usize::from);
            (0..count as i32).collect()
        }
    }
}

/// Parses a list such as `0-3,8`.
fn parse_cpus(list: &str) -> Vec<i32> {
    let ranges = list.trim().split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse::<i32>().ok()?..=last.parse::<i32>().ok()?)
    });
    ranges.flatten().collect()
}

/// Returns the kernel's limit on samples per second, if it can be read.
pub(crate) fn most_samples_per_second() -> Option<u32> {
    let text = std::fs::read_to_string("/proc/sys/kernel/perf_event_max_sample_rate").ok()?;
    text.trim().parse().ok()
}

/// Says in words why the kernel has refused perf events.
pub(crate) fn refusal(error: &io::Error, scope: Scope) -> String {
    let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    let hint = match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) if scope == Scope::Machine => {
            " (the kernel lets only root sample a program that changes its ids, or anyone where \
             kernel.perf_event_paranoid is 0)"
                .into()
        }
        Some(libc::EACCES | libc::EPERM) => {
            format!(" (kernel.perf_event_paranoid is {})", paranoid.trim())
        }
        Some(libc::ENOSYS | libc::ENOENT) if !has_perf() => " (this kernel has no perf events)".into(),
        _ => String::new(),
    };
    format!("perf_event_open: {}{hint}", crate::os::sys::reason(error))
}

fn has_perf() -> bool {
    File::open("/proc/sys/kernel/perf_event_paranoid").is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists() {
        assert_eq!(parse_cpus("0-3,8\n"), [0, 1, 2, 3, 8]);
        assert_eq!(parse_cpus("0\n"), [0]);
        assert!(parse_cpus("\n").is_empty());
    }
}
