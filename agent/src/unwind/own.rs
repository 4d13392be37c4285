//! Functions of a standalone program's own C library, which the program calls through the agent: see
//! `gprofinject_abi::plan::ArenaHeader::find_object` and the fields after it. In other processes the agent's definitions
//! take precedence over the C library's.
#![allow(unsafe_code, reason = "functions are entered in machine code")]

use crate::os::loaded::FIND_OBJECT;
use crate::unwind::jumps::PLAIN;
use crate::unwind::unwinder::ITERATE;
use core::arch::naked_asm;

/// Defines the routine `$name`, which stores the address of the program's function, r11, in `$place`, where the agent's
/// definition `$definition` finds it.
macro_rules! through {
    ($name:ident, $place:ident, $definition:ident) => {
        /// # Safety
        /// As the C library's function, with its address in r11.
        #[unsafe(naked)]
        pub(crate) unsafe extern "C" fn $name() {
            naked_asm!(
                ".cfi_startproc",
                "mov [rip+{place}], r11",
                concat!("jmp ", stringify!($definition)),
                ".cfi_endproc",
                place = sym $place,
            );
        }
    };
}

through!(gpi_find_object, FIND_OBJECT, _dl_find_object);
through!(gpi_iterate, ITERATE, dl_iterate_phdr);
through!(gpi_jump, PLAIN, longjmp);
