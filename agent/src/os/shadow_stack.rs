//! The processor's shadow stack of return addresses.
#![allow(unsafe_code, reason = "an instruction that only assembly can name")]

use crate::os::files;
use crate::os::initial::{Start, Variable};
use gprofinject_abi::shadow_stack::{PROCESSORS_LEN, TUNABLES, is_asked_for, is_possible};

/// Returns whether the processor keeps a shadow stack for the calling thread.
pub(crate) fn is_on() -> bool {
    let pointer: u64;
    // SAFETY: without a shadow stack, or on an older processor, the instruction does nothing.
    unsafe {
        core::arch::asm!("rdsspq {}", inout(reg) 0_u64 => pointer, options(nomem, nostack, preserves_flags))
    };
    pointer != 0
}

/// Returns whether the C library may turn the shadow stack on when it has loaded the program. No code of the program may have run.
pub(crate) fn comes(start: &Start) -> bool {
    let asks = |variable: Variable| {
        // SAFETY: it is an element of the environment, whose string contains the name and "=".
        is_asked_for(unsafe { variable.value(TUNABLES) })
    };
    start.last(TUNABLES).is_some_and(asks) && is_known_to_be_possible()
}

/// Returns whether the processor and the kernel have shadow stacks, as far as is known.
fn is_known_to_be_possible() -> bool {
    let mut buffer = [0; PROCESSORS_LEN];
    let len = files::open(b"/proc/cpuinfo\0", false).and_then(|file| {
        let len = files::read(file, &mut buffer);
        files::close(file);
        len
    });
    is_possible(buffer.get(..len.unwrap_or(0)).unwrap_or_default())
}
