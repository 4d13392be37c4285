//! Frida's gum inside the profiled program.
//!
//! The library is preloaded beside the agent, which has set up all but the patches of the functions that the
//! plan gives to gum. Its constructor asks the agent for them, has gum lead each function into the agent's
//! thunk, and looks whether gum did. From then on it does nothing: counting is the thunks' matter. Another one, which
//! runs first, sees to it that what is called of libc is libc's (`imports.rs`).
//!
//! It fails open, as the agent does: what gum does not patch stays as it was, and the region file tells how
//! many it did.
//!
//! Not the standard library: it would bring libgcc_s into programs that have none.
#![cfg(all(feature = "gum", target_arch = "x86_64", target_os = "linux"))]
#![no_std]

mod heap;
mod imports;
mod patches;
mod personality;

use core::mem::MaybeUninit;
use core::ptr;
use core::sync::atomic::Ordering;
use frida_gum::Gum;
use frida_gum::interceptor::Interceptor;
use gprofinject_abi::frida::{ASK, Ask, Orders};
use patches::Patches;

/// Nothing here panics on purpose.
#[panic_handler]
fn panic(_: &core::panic::PanicInfo) -> ! {
    loop {
        core::hint::spin_loop();
    }
}

#[used]
#[allow(unsafe_code)]
// SAFETY: `.init_array` holds pointers to functions, which the dynamic linker calls once; the arguments are not
// wanted.
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

extern "C" fn constructor() {
    let errno = errno();
    if let Some(orders) = orders() {
        carry_out(&orders);
    }
    set_errno(errno);
}

/// None: there is no agent, or it has left the program as it was.
#[allow(unsafe_code)]
fn orders() -> Option<Orders> {
    let mut orders = MaybeUninit::uninit();
    // SAFETY: a name; nobody else has one like that, so it is the agent's function, which fills in the orders
    // where it says so.
    unsafe {
        let ask = libc::dlsym(libc::RTLD_DEFAULT, ASK.as_ptr());
        if ask.is_null() || !core::mem::transmute::<*mut libc::c_void, Ask>(ask)(orders.as_mut_ptr()) {
            return None;
        }
        Some(orders.assume_init())
    }
}

fn carry_out(orders: &Orders) {
    // SAFETY: the orders are the agent's, whose plan stays mapped; it has compared the patches with the program's text.
    #[allow(unsafe_code, reason = "the orders hold pointers")]
    let patches = unsafe { Patches::new(orders) };
    let begun = nanoseconds();
    if patches.any() && patches.may_be_made() {
        // Both stay: with the last handle gum would put the original bytes back.
        let gum = Gum::obtain();
        let mut interceptor = Interceptor::obtain(&gum);
        interceptor.begin_transaction();
        for (function, thunk) in patches.to_be_made() {
            // Its own trampoline to the original is not wanted: the thunk goes on in the body that was planned.
            let _ = interceptor.replace_fast(function, thunk);
        }
        interceptor.end_transaction();
        patches.close();
        core::mem::forget((gum, interceptor));
    }
    orders.region.frida_patched().store(patches.made(), Ordering::Relaxed);
    orders.region.frida_ns().store(nanoseconds() - begun, Ordering::Relaxed);
}

#[allow(unsafe_code)]
fn nanoseconds() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a local of the right type.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, ptr::from_mut(&mut time)) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A program finds it as if we had not been there.
#[allow(unsafe_code)]
fn errno() -> i32 {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() }
}

#[allow(unsafe_code)]
fn set_errno(errno: i32) {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = errno };
}
