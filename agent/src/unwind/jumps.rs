//! Marks the frames that a longjmp leaves.
//!
//! Only the caller of a later call out of unhooked code depends on this: without the mark, a cell of a frame that was
//! left may be taken for that of a live frame when another function's frame covers its place.
//!
//! The library defines glibc's four functions for it, which the program and its libraries find first, and calls
//! glibc's own.
#![allow(unsafe_code, reason = "functions of the C library are defined, and a jmp_buf is read")]

use crate::hot::callers;
use crate::hot::times;
use crate::os::lookup;
use crate::os::words;
use core::arch::{asm, naked_asm};
use core::sync::atomic::{AtomicU64, Ordering};

/// glibc's `siglongjmp` (its `longjmp` and `_longjmp` are the same code) and `__longjmp_chk`.
pub(crate) static PLAIN: AtomicU64 = AtomicU64::new(0);
static CHECKED: AtomicU64 = AtomicU64::new(0);
/// glibc's `pthread_exit`, which leaves all frames of a thread.
static EXIT: AtomicU64 = AtomicU64::new(0);

/// Finds glibc's functions.
pub(crate) fn prepare(dynamic_linker: u64) {
    let plain = lookup::function(dynamic_linker, b"siglongjmp");
    PLAIN.store(plain, Ordering::Relaxed);
    let checked = lookup::function(dynamic_linker, b"__longjmp_chk");
    CHECKED.store(if checked == 0 { plain } else { checked }, Ordering::Relaxed);
    EXIT.store(lookup::function(dynamic_linker, b"pthread_exit"), Ordering::Relaxed);
}

/// Marks the frames between the stack pointer and the frame to which a jmp_buf leads.
extern "C" fn leave_frames(environment: *const u64) {
    /// Index of the stack pointer in the jmp_buf of glibc (sysdeps/x86_64/jmpbuf-offsets.h, JB_RSP) and of musl
    /// (src/setjmp/x86_64/setjmp.s).
    const STACK_POINTER: usize = 6;
    let guard: u64;
    // SAFETY: the caller passes longjmp a jmp_buf that setjmp has filled, and glibc keeps the pointer guard at fs:0x30
    // (tcbhead_t).
    let stored = unsafe {
        asm!("mov {}, fs:[0x30]", out(reg) guard, options(nostack, pure, readonly));
        *environment.add(STACK_POINTER)
    };
    // PTR_DEMANGLE, sysdeps/unix/sysv/linux/x86_64/pointer_guard.h
    let target = if is_mangled(stored, guard) { stored.rotate_right(17) ^ guard } else { stored };
    let here = &raw const guard as u64;
    // Programs that handle errors keep the jmp_buf in a frame further up. Another one may be that of a coroutine whose frames
    // are copied back later.
    let stack_hi = words::get().stack_hi().load(Ordering::Relaxed);
    let is_over = (target..stack_hi).contains(&(environment as u64));
    callers::leave(here, target, is_over);
}

/// Returns whether the C library has mangled a pointer, as glibc does. musl does not, and has small numbers where glibc
/// has its random guard.
fn is_mangled(stored: u64, guard: u64) -> bool {
    const ADDRESS_BITS: u32 = 47;
    cfg!(not(feature = "standalone")) || stored >> ADDRESS_BITS != 0 || guard >> ADDRESS_BITS != 0
}

macro_rules! pass_on {
    ($name:ident, $place:ident) => {
        /// # Safety
        /// As glibc's function of that name.
        #[cfg(not(test))]
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name() {
            naked_asm!(
                "push rdi",
                "push rsi",
                "sub rsp, 8",
                "call {leave}",
                "add rsp, 8",
                "pop rsi",
                "pop rdi",
                "jmp [rip + {place}]",
                leave = sym leave_frames,
                place = sym $place,
            );
        }
    };
}

/// A thread ends without returning from its functions: their measured calls end now. They would otherwise be open until the
/// process ends, because no landing pad in C says that the unwinder leaves them.
extern "C" fn leave_thread() {
    times::calls::leave_all();
}

/// # Safety
/// As glibc's function of that name.
#[cfg(not(test))]
#[unsafe(naked)]
#[unsafe(no_mangle)]
unsafe extern "C" fn pthread_exit() {
    naked_asm!(
        "push rdi",
        "call {leave}",
        "pop rdi",
        "jmp [rip + {place}]",
        leave = sym leave_thread,
        place = sym EXIT,
    );
}

pass_on!(longjmp, PLAIN);
pass_on!(_longjmp, PLAIN);
pass_on!(siglongjmp, PLAIN);
pass_on!(__longjmp_chk, CHECKED);
