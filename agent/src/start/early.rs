//! The agent's first instructions in the process.
//!
//! The library has an indirect function (STT_GNU_IFUNC) that no code calls: the dynamic linker runs its resolver
//! while it relocates the library, and it relocates the program last. Therefore the hooks are in place before any
//! code of the program runs: its own resolvers, the constructors of its libraries, its pre-initialisers. At that time
//! the C library cannot be called, and nothing here calls it.
#![allow(
    unsafe_code,
    reason = "the dynamic linker is given functions to call, and what the kernel left on the stack is read"
)]

use crate::os::initial::{AT_BASE, Start};
#[cfg(not(test))]
use crate::os::stat::Stat;
use crate::process::children;
use crate::process::orphan;
use crate::program::failure;
use crate::program::provoke;
use crate::start::environment;
use crate::start::functions;
use crate::start::mcount;
use crate::start::own_memory;
use crate::start::setup;

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
    // This relocation makes the dynamic linker run the resolver.
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

#[cfg_attr(test, allow(dead_code))]
extern "C" fn early() {
    #[cfg(not(test))]
    {
        // ld.so's __libc_stack_end: the address where the kernel has stored argc, argv, envp and the auxiliary
        // vector. The reference is weak, so it is null if the dynamic linker is not glibc's.
        let end: *const *mut u64;
        // SAFETY: the dynamic linker relocates the GOT entry before it runs any resolver. The variable points to the
        // stack as the kernel has left it, and no code of the program has run.
        unsafe {
            core::arch::asm!("mov {}, [rip + __libc_stack_end@GOTPCREL]", out(reg) end, options(nostack, pure, readonly));
            if end.is_null() {
                return;
            }
            // A program may have its own copy of the variable (a copy relocation), which is filled only later.
            let stack = match *end {
                stack if stack.is_null() => Stat::read().map_or(0, |stat| stat.start_of_stack()) as *mut u64,
                stack => stack,
            };
            if !stack.is_null() {
                let start = Start::of(stack);
                let _ = failure::guarded(|| begin(start));
            }
        }
    }
}

#[cfg_attr(test, allow(dead_code))]
fn begin(start: Start) {
    provoke::read(&start);
    functions::find(start.auxiliary(AT_BASE));
    if !is_profiled(&start) {
        mcount::pass_on(start.auxiliary(AT_BASE));
    }
}

/// Sets up the process as its environment requests, and restores the environment that the user wants the program to
/// have. Returns whether the program is profiled.
#[cfg_attr(test, allow(dead_code))]
fn is_profiled(start: &Start) -> bool {
    let place = environment::take(start);
    place.is_some_and(|place| {
        own_memory::replace(&place);
        setup::run(start, &place)
    })
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
            let handlers = [children::prepare_fork, children::go_on, children::begin];
            let [before, parent, child] = handlers.map(Some);
            let _ = register(before, parent, child, core::ptr::null());
        }
    }
}
