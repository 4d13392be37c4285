//! Writes the profile of a process that outlives the injector. When the process ends, it runs the injector's
//! own `--recover` through the link in the run folder.
#![allow(unsafe_code, reason = "a child is forked without the C library, and executes a program")]

use crate::os::files;
use crate::os::task;
use crate::process::run;
use crate::program::failure;
use gprofinject_abi::COMMAND_FILE;

/// Runs when the program has called exit(), after its own handlers.
pub(crate) extern "C" fn end() {
    let _ = failure::guarded(recover);
}

fn recover() {
    let place = run::place();
    if place.is_none() || run::is_injector_there() {
        return;
    }
    let command = place.shared(COMMAND_FILE);
    let folder = place.shared("");
    // The command runs in a process of its own, so that this process can end. No process waits for it, and it
    // prints nothing, because its descriptors refer to `/dev/null`.
    // SAFETY: the child only makes system calls: it executes a program or ends, and never returns. The
    // strings and arrays that it executes with are on the stack until then, and end as they should.
    unsafe {
        if task::fork() != Ok(0) {
            return;
        }
        task::leave_session();
        for fd in 0..3 {
            files::close(fd);
        }
        for _ in 0..3 {
            // The lowest free descriptors, in turn.
            let _ = files::open(b"/dev/null\0", true);
        }
        let arguments = [
            c"gprofinject".as_ptr().cast::<u8>(),
            c"-q".as_ptr().cast(),
            c"--recover".as_ptr().cast(),
            folder.path().as_ptr(),
            core::ptr::null(),
        ];
        let environment = [core::ptr::null::<u8>()];
        task::execute(command.path(), &arguments, &environment);
        task::exit(127);
    }
}
