//! The agent's first instructions in the process.
//!
//! The library holds an indirect function (STT_GNU_IFUNC) that nobody calls: the dynamic linker runs its
//! resolver while it relocates the library, and it relocates the program last. So the hooks are in place
//! before any code of the program runs: its own resolvers, the constructors of its libraries, its
//! pre-initialisers. At that time the C library cannot be called; nothing here does.
#![allow(unsafe_code)]

use crate::children;
use crate::execute;
use crate::jumps;
use crate::mcount;
use crate::orphan;
use crate::place::Place;
use crate::seccomp;
use crate::setup;
use crate::sys;
use crate::unwind;
use core::slice;
use gprofinject_abi::{PRELOAD_VARIABLE, RUN_VARIABLE};

#[cfg(not(test))]
core::arch::global_asm!(
    ".text",
    ".hidden gprofinject_early",
    ".globl gprofinject_early",
    ".type gprofinject_early, @gnu_indirect_function",
    ".p2align 4",
    "gprofinject_early:",
    "push rbp",
    "mov rbp, rsp",
    "and rsp, -16",
    "call {early}",
    "lea rax, [rip + gprofinject_early]",
    "leave",
    "ret",
    ".size gprofinject_early, . - gprofinject_early",
    // The relocation that makes the dynamic linker run the resolver.
    ".section .data.rel.gprofinject, \"aw\", @progbits",
    ".balign 8",
    ".globl gprofinject_trigger",
    ".hidden gprofinject_trigger",
    "gprofinject_trigger:",
    ".quad gprofinject_early",
    ".text",
    ".weak __libc_stack_end",
    ".weak __register_atfork",
    early = sym early,
);

#[cfg(not(test))]
unsafe extern "C" {
    static gprofinject_trigger: u64;
}

/// What the kernel left on the stack.
pub(crate) struct Start {
    /// The environment, null-terminated.
    pub(crate) environment: *mut *mut u8,
    /// The auxiliary vector: pairs of type and value, ended by type 0.
    pub(crate) auxiliary: *const [u64; 2],
}

impl Start {
    /// # Safety
    /// `stack` must be what the kernel left: argc, argv, 0, envp, 0, auxiliary vector.
    unsafe fn of(stack: *mut u64) -> Start {
        // SAFETY: the layout is the kernel's (x86-64 psABI 3.4.1).
        unsafe {
            let arguments = *stack as usize;
            let environment = stack.add(1 + arguments + 1).cast::<*mut u8>();
            let mut end = environment;
            while !(*end).is_null() {
                end = end.add(1);
            }
            Start { environment, auxiliary: end.add(1).cast() }
        }
    }

    /// Of a process that runs already: only where its stack began, and a copy of the auxiliary vector. It has no
    /// variables of ours.
    ///
    /// # Safety
    /// The vector must be ended by type 0, and live on.
    pub(crate) unsafe fn running(stack: u64, auxiliary: *const [u64; 2]) -> Start {
        Start { environment: stack as *mut *mut u8, auxiliary }
    }

    /// An address near the oldest end of the main thread's stack.
    pub(crate) fn stack(&self) -> u64 {
        self.environment as u64
    }

    /// A value of the auxiliary vector; 0 if it has none of that type.
    pub(crate) fn auxiliary(&self, kind: u64) -> u64 {
        let mut at = self.auxiliary;
        // SAFETY: the vector is ended by type 0.
        unsafe {
            while (*at)[0] != 0 {
                if (*at)[0] == kind {
                    return (*at)[1];
                }
                at = at.add(1);
            }
        }
        0
    }

    /// The variable's string, "NAME=value" with its NUL, if it is set.
    fn variable(&self, name: &str) -> Option<*mut *mut u8> {
        let mut at = self.environment;
        // SAFETY: the environment is null-terminated and its strings are NUL-terminated; the comparison
        // ends at the first difference, so at the NUL at the latest.
        unsafe {
            while !(*at).is_null() {
                let same = name.bytes().enumerate().all(|(i, b)| *(*at).add(i) == b);
                if same && *(*at).add(name.len()) == b'=' {
                    return Some(at);
                }
                at = at.add(1);
            }
        }
        None
    }

    fn remove(&self, name: &str) {
        let Some(at) = self.variable(name) else { return };
        // SAFETY: as in `variable`; the strings and the array are the process's own, writable memory.
        unsafe {
            // Blank in /proc/self/environ too.
            let string = *at;
            slice::from_raw_parts_mut(string, length(string)).fill(0);
        }
        self.remove_pointer(at);
    }

    /// Closes the gap in the array.
    fn remove_pointer(&self, mut at: *mut *mut u8) {
        // SAFETY: `at` is an element of the null-terminated environment.
        unsafe {
            while !(*at).is_null() {
                *at = *at.add(1);
                at = at.add(1);
            }
        }
    }
}

/// Where the stack began, from field 28 of /proc/self/stat; null if it does not tell.
fn start_of_stack() -> *mut u64 {
    const FIELD: usize = 28;
    let mut text = [0_u8; 1024];
    let Ok(fd) = sys::open(b"/proc/self/stat\0", false) else { return core::ptr::null_mut() };
    let len = sys::read(fd, &mut text).unwrap_or(0);
    sys::close(fd);
    let text = text.get(..len).unwrap_or_default();
    // The second field is a name in parentheses, which may hold blanks and parentheses.
    let Some(behind) = text.iter().rposition(|&b| b == b')') else { return core::ptr::null_mut() };
    let mut fields = text.get(behind + 2..).unwrap_or_default().split(|&b| b == b' ');
    let digits = fields.nth(FIELD - 3).unwrap_or_default();
    let value = digits
        .iter()
        .fold(0_u64, |value, &b| value.wrapping_mul(10).wrapping_add(u64::from(b.wrapping_sub(b'0'))));
    value as *mut u64
}

/// # Safety
/// `string` must be NUL-terminated.
unsafe fn length(string: *const u8) -> usize {
    let mut len = 0;
    // SAFETY: passed on.
    while unsafe { *string.add(len) } != 0 {
        len += 1;
    }
    len
}

/// Auxiliary vector: where the dynamic linker is.
pub(crate) const AT_BASE: u64 = 7;
#[cfg_attr(test, allow(dead_code))]
extern "C" fn early() {
    #[cfg(not(test))]
    {
        // ld.so's __libc_stack_end: where the kernel put argc, argv, envp and the auxiliary vector. The
        // reference is weak: null where the dynamic linker is not glibc's.
        let end: *const *mut u64;
        // SAFETY: the GOT entry is relocated before any resolver runs.
        unsafe {
            core::arch::asm!("mov {}, [rip + __libc_stack_end@GOTPCREL]", out(reg) end, options(nostack, pure, readonly));
            if end.is_null() {
                return;
            }
            // A program may have its own copy of the variable (a copy relocation), filled only later.
            let stack = if (*end).is_null() { start_of_stack() } else { *end };
            if !stack.is_null() {
                begin(Start::of(stack));
            }
        }
    }
}

/// The C library's functions that ours are passed on to.
pub(crate) fn find_functions(dynamic_linker: u64) {
    jumps::prepare(dynamic_linker);
    unwind::prepare(dynamic_linker);
    children::prepare(dynamic_linker);
    execute::find(dynamic_linker);
    seccomp::prepare(dynamic_linker);
}

#[cfg_attr(test, allow(dead_code))]
fn begin(start: Start) {
    find_functions(start.auxiliary(AT_BASE));
    if !is_profiled(&start) {
        mcount::pass_on(start.auxiliary(AT_BASE));
    }
}

/// Sets up what the environment asks for. Answers whether the program is profiled.
#[cfg_attr(test, allow(dead_code))]
fn is_profiled(start: &Start) -> bool {
    let Some(variable) = start.variable(RUN_VARIABLE) else { return false };
    // SAFETY: the variable's string is NUL-terminated and begins with the name and "=".
    let place = unsafe {
        let value = (*variable).add(RUN_VARIABLE.len() + 1);
        Place::new(slice::from_raw_parts(value, length(value)))
    };
    start.remove(RUN_VARIABLE);
    restore_preload(start);
    place.is_some_and(|place| setup::run(start, &place))
}

/// Takes our library out of LD_PRELOAD: the user's own value comes back, or none.
fn restore_preload(start: &Start) {
    let Some(saved) = start.variable(PRELOAD_VARIABLE) else {
        start.remove("LD_PRELOAD");
        return;
    };
    let prefix = PRELOAD_VARIABLE.len() - "LD_PRELOAD".len();
    // "GPROFINJECT_LD_PRELOAD=value" ends with "LD_PRELOAD=value".
    // SAFETY: the string is longer than its name; the pointers are the process's own environment.
    let restored = unsafe { (*saved).add(prefix) };
    start.remove_pointer(saved);
    if let Some(preload) = start.variable("LD_PRELOAD") {
        // SAFETY: as above.
        unsafe { *preload = restored };
    }
}

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static DESTRUCTOR: extern "C" fn() = orphan::end;

/// glibc's: handlers around fork().
#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

#[cfg(not(test))]
extern "C" fn constructor() {
    type Handler = extern "C" fn();
    type Register = extern "C" fn(Option<Handler>, Option<Handler>, Option<Handler>, *const u8) -> i32;
    // SAFETY: the GOT entry is null or glibc's function of this type; the trigger is only named so that
    // the linker keeps it.
    unsafe {
        let _ = core::ptr::read_volatile(&raw const gprofinject_trigger);
        let address: *const u8;
        core::arch::asm!("mov {}, [rip + __register_atfork@GOTPCREL]", out(reg) address, options(nostack, pure, readonly));
        if !address.is_null() {
            let register = core::mem::transmute::<*const u8, Register>(address);
            let _ = register(None, None, Some(children::begin), core::ptr::null());
        }
    }
}
