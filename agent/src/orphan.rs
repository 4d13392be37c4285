//! A process that outlives the injector has its profile written at its end all the same: by the injector's
//! own `--recover`, whose command the run folder names.
#![allow(unsafe_code)]

use crate::children;
use crate::sys;
use gprofinject_abi::COMMAND_FILE;

/// Runs when the program has called exit(), after its own handlers.
pub(crate) extern "C" fn end() {
    let place = children::place();
    if place.is_none() || children::is_injector_there() {
        return;
    }
    let command = place.shared(COMMAND_FILE);
    let folder = place.shared("");
    // A process of its own, which does not keep this one from ending. Nobody waits for it, and it says
    // nothing: its descriptors lead nowhere.
    // SAFETY: the child makes system calls and executes; it never returns.
    unsafe {
        if sys::fork() != Ok(0) {
            return;
        }
        sys::leave_session();
        for fd in 0..3 {
            sys::close(fd);
        }
        for _ in 0..3 {
            // The lowest free descriptors, in turn.
            let _ = sys::open(b"/dev/null\0", true);
        }
        let arguments = [
            c"gprofinject".as_ptr().cast::<u8>(),
            c"-q".as_ptr().cast(),
            c"--recover".as_ptr().cast(),
            folder.path().as_ptr(),
            core::ptr::null(),
        ];
        let environment = [core::ptr::null::<u8>()];
        sys::execute(command.path(), &arguments, &environment);
        sys::exit(127);
    }
}
