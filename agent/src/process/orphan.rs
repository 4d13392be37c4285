//! Writes the profile of a process that outlives the injector, at the process's end, by running the injector's own
//! `--recover`. The run folder has a link to that command.
#![allow(unsafe_code, reason = "a child is forked without the C library, and executes a program")]

use crate::hot::times;
use crate::os::files;
use crate::os::task;
use crate::process::run;
use crate::program::failure;
use gprofinject_abi::COMMAND_FILE;

/// Runs when the program has called exit(), after the program's own handlers.
pub(crate) extern "C" fn end() {
    let _ = times::calls::leave_out(|| failure::guarded(recover));
}

fn recover() {
    let place = run::place();
    if place.is_none() || run::is_injector_there() {
        return;
    }
    let command = place.shared(COMMAND_FILE);
    let folder = place.shared("");
    // SAFETY: the child is a process of its own, so it does not keep this one from ending; no process waits for it,
    // and it prints nothing, because its descriptors lead to /dev/null. It only makes system calls: it executes a
    // program or ends, and never returns. The strings and arrays that it passes are on the stack until then, and are
    // terminated as execve demands.
    unsafe {
        if task::fork() != Ok(0) {
            return;
        }
        task::leave_session();
        for fd in 0..3 {
            files::close(fd);
        }
        for _ in 0..3 {
            // These are the lowest free descriptors: 0, 1 and 2.
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
