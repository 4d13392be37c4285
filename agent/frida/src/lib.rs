//! Frida's gum inside the profiled program.
//!
//! The library is preloaded besides the agent, which has set up everything except the patches of the
//! functions that the plan assigns to gum. The library's constructor asks the agent for these patches, has
//! gum redirect each function to the agent's thunk, and checks that gum has done so. After that, it does
//! nothing, because the thunks count. Another constructor, which runs first, makes the library's calls of
//! libc functions reach libc itself (`imports.rs`).
//!
//! It fails open, as the agent does: a function that gum does not patch stays unchanged, and the region file
//! holds the number of patched functions.
//!
//! The library does not use the standard library, which would load libgcc_s into programs that have none.
#![cfg(all(feature = "gum", target_arch = "x86_64", target_os = "linux"))]
#![no_std]

mod heap;
mod imports;
mod patches;
mod personality;

use core::ffi::c_void;
use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};
use frida_gum::Gum;
use frida_gum::interceptor::Interceptor;
use gprofinject_abi::frida::{ASK, Ask, Orders, Panicked};
use patches::Patches;

/// The function that the panic handler has to call, a [`Panicked`] ([`Orders::panicked`]). Null until the
/// agent has answered.
static PANICKED: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());

/// Leaves the code that has panicked, if the agent has called it; the agent reports the panic. Code that
/// panics before the agent has answered cannot continue; it sleeps for ever without using CPU time.
#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    let panicked = PANICKED.load(Ordering::Relaxed);
    if let (false, Some(place)) = (panicked.is_null(), info.location()) {
        let file = place.file();
        #[allow(unsafe_code, reason = "it calls the agent by a pointer")]
        // SAFETY: `constructor` has stored a `Panicked` there. It takes a name and its length, and the name is a constant.
        unsafe {
            core::mem::transmute::<*mut c_void, Panicked>(panicked)(
                file.as_ptr(),
                file.len() as u64,
                place.line(),
            )
        }
    }
    loop {
        #[allow(unsafe_code, reason = "a system call, since libc may not be bound yet")]
        // SAFETY: pause (34) takes no arguments and touches no memory; the kernel overwrites rcx and r11.
        unsafe {
            core::arch::asm!("syscall", inout("rax") 34u64 => _, out("rcx") _, out("r11") _, options(nostack));
        }
    }
}

#[used]
#[allow(unsafe_code, reason = "a section is named")]
// SAFETY: `.init_array` holds pointers to functions, which the dynamic linker calls once; the arguments are
// not used.
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

extern "C" fn constructor() {
    let errno = errno();
    if let Some(mut orders) = orders() {
        PANICKED.store(orders.panicked as *mut c_void, Ordering::Relaxed);
        let attempt = orders.attempt;
        #[allow(unsafe_code, reason = "it calls the agent by a pointer")]
        // SAFETY: the agent's function calls the routine with this argument, which is what the routine expects. A panic leaves
        // the routine's frames, whose values need no clean-up: gum's objects are forgotten in any case.
        unsafe {
            attempt(carry_out, ptr::from_mut(&mut orders).cast());
        }
    }
    set_errno(errno);
}

/// Asks the agent for its orders. Returns `None` if there is no agent, or if it does not hook the program.
#[allow(unsafe_code, reason = "a function is found by its name, and writes to memory")]
fn orders() -> Option<Orders> {
    let mut orders = MaybeUninit::uninit();
    // SAFETY: no other library defines a function of this name, so it is the agent's function, which fills in
    // the orders if it returns true.
    unsafe {
        let ask = libc::dlsym(libc::RTLD_DEFAULT, ASK.as_ptr());
        if ask.is_null() || !core::mem::transmute::<*mut libc::c_void, Ask>(ask)(orders.as_mut_ptr()) {
            return None;
        }
        Some(orders.assume_init())
    }
}

/// Has gum make the patches.
///
/// # Safety
/// `orders` must be the address of the agent's [`Orders`].
#[allow(unsafe_code, reason = "the orders hold pointers")]
unsafe extern "C" fn carry_out(orders: *mut c_void) {
    // SAFETY: `constructor` passes the agent's orders, which no other code uses meanwhile.
    let orders = unsafe { &*orders.cast::<Orders>() };
    // SAFETY: the orders are the agent's, whose plan stays mapped; it has compared the patches with the program's text.
    let patches = unsafe { Patches::new(orders) };
    let begun = nanoseconds();
    if patches.any() && patches.may_be_made() {
        // Both handles are kept, because gum would restore the original bytes when the last one is dropped.
        let gum = Gum::obtain();
        let mut interceptor = Interceptor::obtain(&gum);
        interceptor.begin_transaction();
        for (function, thunk) in patches.to_be_made() {
            // gum's own trampoline to the original function is not used, because the thunk continues in the
            // body that the plan contains.
            let _ = interceptor.replace_fast(function, thunk);
        }
        interceptor.end_transaction();
        patches.close();
        core::mem::forget((gum, interceptor));
    }
    orders.region.frida_patched().store(patches.made(), Ordering::Relaxed);
    orders.region.frida_ns().store(nanoseconds() - begun, Ordering::Relaxed);
}

/// Returns the time since some fixed point, in nanoseconds.
#[allow(unsafe_code, reason = "a library call with an out-pointer")]
fn nanoseconds() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a local of the right type.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, ptr::from_mut(&mut time)) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns this thread's errno. The program must find it unchanged.
#[allow(unsafe_code, reason = "libc gives a pointer to errno")]
fn errno() -> i32 {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() }
}

/// Sets this thread's errno.
#[allow(unsafe_code, reason = "libc gives a pointer to errno")]
fn set_errno(errno: i32) {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = errno };
}
