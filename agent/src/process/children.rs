//! Forked children: each child counts from zero in a region file of its own.
//!
//! glibc's fork() calls the agent's fork handler in the child. `_Fork`, and `clone` without CLONE_VM, call no handlers. For them, the
//! agent defines functions of the same names, which call the C library's functions. A child of vfork, or of any clone that shares
//! memory, runs in its parent's memory: its calls before it executes a program are counted as the parent's. If the parent does not wait,
//! they are counted in a thread block of the child's own ([`crate::process::sharing`]).
//!
//! A *guest* is a forked child that can make no region file. Such a child counts in thread blocks of its own in its parent's file.
#![allow(unsafe_code, reason = "functions of the C library are defined; a region file is mapped")]

use crate::hot::sharers;
use crate::hot::threads;
use crate::hot::times;
use crate::hot::times::ring;
use crate::os::dispatch;
use crate::os::files;
use crate::os::kernel;
use crate::os::lookup;
use crate::os::memory;
use crate::os::place::Place;
use crate::os::task;
use crate::process::fork_stack;
use crate::process::run;
use crate::program::agent::{self, Agent, unread_region};
use crate::program::failure;
use crate::program::libraries;
use crate::program::provoke;
use crate::unwind::landings;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::region::{LoadRecord, PAGE, RegionHeader, State};
use gprofinject_abi::shared::RegionRef;
use gprofinject_abi::{REGION_SUFFIX, ask};

/// The addresses of the C library's functions that the definitions below call. Stored once, before the first hook is in place.
static FORK: AtomicU64 = AtomicU64::new(0);
static CLONE: AtomicU64 = AtomicU64::new(0);

/// Looks up the C library's functions.
pub(crate) fn prepare(dynamic_linker: u64) {
    FORK.store(lookup::function(dynamic_linker, b"_Fork"), Ordering::Relaxed);
    CLONE.store(lookup::function(dynamic_linker, b"clone"), Ordering::Relaxed);
}

/// Returns whether a range of addresses contains the C library's text.
pub(crate) fn is_in((lo, hi): (u64, u64)) -> bool {
    (lo..hi).contains(&FORK.load(Ordering::Relaxed))
}

/// The fork handler that the C library calls before a fork.
pub(crate) extern "C" fn prepare_fork() {
    times::forks::prepare();
    times::inherited::list();
}

/// The fork handler that the C library calls in the parent, after a fork or a failed attempt.
pub(crate) extern "C" fn go_on() {
    times::forks::go_on();
}

/// Sets up the agent in a forked child. This is the first code of the agent that runs there.
pub(crate) extern "C" fn begin() {
    fork_stack::with_room(set_up);
}

extern "C" fn set_up() {
    let parent = Agent::get();
    dispatch::restore(dispatch::EXEMPT);
    sharers::begin_child(parent);
    let begun = !parent.is_set_up || failure::guarded(|| begin_counting(parent)).is_some();
    times::forks::begun();
    times::calls::leave_out_beginning();
    if !begun {
        // No event of this process may be counted in the parent's file.
        threads::lose(parent);
        parent.region.lost_children().fetch_add(1, Ordering::Relaxed);
    }
}

fn begin_counting(parent: &Agent) {
    provoke::at(provoke::Place::Fork);
    landings::begin_child();
    // The agent may be set up already: the definition of `_Fork` below does so before the C library calls the fork handler.
    let is_frozen = kernel::is_frozen();
    if !is_frozen && parent.pid == task::getpid() {
        return;
    }
    let follows = !run::place().is_none();
    let Some(own) = agent::reserve() else {
        // The child's calls are lost, and the parent's header reports that.
        threads::lose(parent);
        parent.region.lost_children().fetch_add(1, Ordering::Relaxed);
        return;
    };
    libraries::nobody_is_busy();
    if is_frozen {
        // The agent may make no system calls any more, so the child's calls are lost. The parent's header reports that if the child
        // was to be followed.
        threads::lose(parent);
        own.install(Agent { counts_nowhere: !follows, ..*parent });
        return;
    }
    let child = if follows && !parent.counts_nowhere {
        let child = begin_followed(parent).or_else(|| begin_guest(parent));
        if child.is_none() {
            parent.region.lost_children().fetch_add(1, Ordering::Relaxed);
        }
        child
    } else {
        None
    };
    own.install(child.unwrap_or_else(|| begin_alone(parent)));
}

/// Sets up a child that counts in a region file of its own. Returns `None` if that is not possible.
fn begin_followed(parent: &Agent) -> Option<Agent> {
    let pid = task::getpid();
    let orders = &parent.orders;
    let len = orders.blocks_offset + orders.blocks_max * orders.block_len;
    let before = *run::place();
    let mut place = before.sibling(b'f', pid);
    let mut file = place.file(REGION_SUFFIX);
    let fd = match files::create(file.path(), len) {
        Err(kernel::EEXIST) => {
            // The process number was used before, in this or another PID namespace.
            place = run::place().sibling(b'g', task::now() as u32);
            file = place.file(REGION_SUFFIX);
            files::create(file.path(), len)
        }
        result => result,
    };
    let fd = fd.ok()?;
    // Whoever can open the file can truncate it, so the child counts in a memory file if the injector will take that from this user.
    // The injector makes a link to it in place of the file.
    let injector = run::reach();
    let memory = injector.filter(|&fd| files::peer(fd).is_ok_and(|peer| peer.user == task::geteuid()));
    let memory = memory.and_then(|_| files::create_in_memory(file.path(), len).ok());
    let region = map_header(memory.unwrap_or(fd), parent);
    files::close(fd);
    let maps_whole = memory.is_some() && orders.maps_whole != 0;
    let child = region.map(|region| Agent { region, pid, guest: false, maps_whole, ..*parent });
    let child = child.filter(|child| threads::begin_child(parent, child) && run::follow(&place));
    match &child {
        Some(child) => {
            child.region.state().store(State::Armed.code().0, Ordering::Release);
            announce(injector, (&place, &before), memory);
        }
        None => files::remove(file.path()),
    }
    [injector, memory].into_iter().flatten().for_each(files::close);
    child
}

/// Sends the names of the child's region file and of the parent's to the injector, and the descriptor if it is a memory file. If no injector listens, the file
/// is found when the run is collected.
fn announce(injector: Option<i32>, (place, parent): (&Place, &Place), memory: Option<i32>) {
    let mut packet = [0; 2 + 2 * ask::NAME_MAX];
    let mut len = 0;
    for part in [&[ask::FORKED][..], place.name(), &[ask::OF], parent.name()] {
        let Some(to) = packet.get_mut(len..len + part.len()) else { return };
        to.copy_from_slice(part);
        len += part.len();
    }
    let Some(packet) = packet.get(..len) else { return };
    let send = |fd: i32| match memory {
        Some(memory) => files::send_with(fd, packet, &[memory]).is_ok(),
        None => files::send(fd, packet).is_ok(),
    };
    // There may have been no descriptor for the connection, or it was silent for too long.
    let sent = injector.is_some_and(send)
        || run::reach().is_some_and(|again| {
            let sent = send(again);
            files::close(again);
            sent
        });
    if !sent {
        ring::expect_no_reader();
    }
}

/// Maps the new region's header and histogram, and copies the parent's orders. Returns `None` if that fails.
fn map_header(fd: i32, parent: &Agent) -> Option<RegionRef> {
    let orders = parent.orders;
    let at = memory::map_shared(fd, orders.blocks_offset).ok()?;
    let reserved = if parent.timer_rate == 0 { PAGE } else { orders.blocks_offset };
    if memory::populate(at, reserved).is_err() {
        // SAFETY: no other code knows of the mapping.
        let _ = unsafe { memory::munmap(at, orders.blocks_offset) };
        return None;
    }
    let header = NonNull::new(at as *mut RegionHeader)?;
    // SAFETY: the mapping is at least a page long and is never unmapped, and no other code has its address yet. From now on, only
    // `RegionRef` accesses the header.
    let region = unsafe {
        header.write(RegionHeader {
            orders,
            state: State::SettingUp.code(),
            pid: task::getpid(),
            bias: parent.program.bias,
            inside_256: parent.region.inside_256().load(Ordering::Relaxed),
            outside_256: parent.region.outside_256().load(Ordering::Relaxed),
            spread_256: parent.region.spread_256().load(Ordering::Relaxed),
            short_256: parent.region.short_256().load(Ordering::Relaxed),
            agent_lo: parent.region.agent_lo().load(Ordering::Relaxed),
            agent_hi: parent.region.agent_hi().load(Ordering::Relaxed),
            frida_patched: parent.region.frida_patched().load(Ordering::Relaxed),
            ..RegionHeader::default()
        });
        RegionRef::new(header)
    };
    if orders.loads_offset != 0 {
        // The entries for libraries are valid in the child too, which has the libraries at the same addresses.
        let len = (libraries::used() as usize * size_of::<LoadRecord>()) as u64;
        let (from, to) = (parent.region.address() + orders.loads_offset, at + orders.loads_offset);
        if memory::populate(to, len.next_multiple_of(PAGE)).is_ok() {
            // SAFETY: both tables are mapped, and `len` covers no more than their entries. Only a thread that handles a change of the
            // loaded libraries writes to the parent's table; the child has one thread, and no other code has the address of its own
            // table yet.
            unsafe { core::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, len as usize) };
        }
    }
    Some(region)
}

/// Sets up a guest: a child that counts in thread blocks of its own in its parent's file. This is for children that can make no file,
/// because they cannot access the folder any more, have no file descriptor left, or have reached a limit.
fn begin_guest(parent: &Agent) -> Option<Agent> {
    // The histogram of the timer's samples belongs to the parent, so the child takes no samples.
    let child = Agent { pid: task::getpid(), timer_rate: 0, guest: true, ..*parent };
    if !threads::begin_guest(parent, &child) {
        return None;
    }
    parent.region.guests().fetch_add(1, Ordering::Relaxed);
    Some(child)
}

/// Sets up a child that is not followed, whose counts must not be written to the parent's file.
fn begin_alone(parent: &Agent) -> Agent {
    ring::expect_no_reader();
    let region = unread_region();
    let child = Agent { region, pid: task::getpid(), timer_rate: 0, counts_nowhere: true, ..*parent };
    if !threads::begin_child(parent, &child) {
        threads::lose(parent);
    }
    child
}

/// The function and the argument that the program has passed to `clone`.
#[repr(C)]
struct Task {
    function: unsafe extern "C" fn(u64) -> i32,
    argument: u64,
}

/// The function with which a child of `clone` begins.
///
/// # Safety
/// `task` must be the task that `clone` below has stored.
unsafe extern "C" fn first(task: *const Task) -> i32 {
    begin();
    // SAFETY: the child has a copy of its parent's stack, on which `clone` has stored the task. The program has passed the function
    // and its argument to be called like this.
    unsafe { ((*task).function)((*task).argument) }
}

#[cfg(not(test))]
mod offered {
    use crate::hot::times::inherited;
    use crate::process::children::{CLONE, FORK, begin, first};
    use core::arch::naked_asm;
    use linux_raw_sys::general;

    /// # Safety
    /// The contract is that of glibc's `_Fork`.
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C" fn _Fork() {
        naked_asm!(
            "sub rsp, 8",
            "call {list}",
            "call [rip + {real}]",
            "test eax, eax",
            "jnz 2f",
            "call {begin}",
            "xor eax, eax",
            "2:",
            "add rsp, 8",
            "ret",
            list = sym inherited::list,
            real = sym FORK,
            begin = sym begin,
        );
    }

    /// clone(function, stack, flags, argument, parent's number, thread area, child's number): a child with a copy of the memory begins in
    /// `first`.
    ///
    /// # Safety
    /// The contract is that of glibc's `clone`.
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C" fn clone() {
        naked_asm!(
            "test rdi, rdi", // without a function, the real function returns an error
            "jz 2f",
            "test edx, {clone_vm}",
            "jnz 3f",
            "mov rax, [rsp+8]", // the seventh argument
            "push rbp",
            "mov rbp, rsp",
            "sub rsp, 16",
            "mov [rsp], rdi",
            "mov [rsp+8], rcx",
            "sub rsp, 8",
            "push rax",
            "push rsi",
            "push rdx",
            "push r8",
            "push r9",
            "call {list}",
            "pop r9",
            "pop r8",
            "pop rdx",
            "pop rsi",
            "lea rcx, [rsp+16]",
            "lea rdi, [rip + {first}]",
            "call [rip + {real}]",
            "leave",
            "ret",
            "2:",
            "jmp [rip + {real}]",
            "3:",
            "mov eax, edx",
            "mov r10, rsi",
            "mov r11, [rip + {real}]",
            "jmp gpi_share_words",
            clone_vm = const general::CLONE_VM,
            list = sym inherited::list,
            first = sym first,
            real = sym CLONE,
        );
    }
}
