//! The processor's shadow stack of return addresses, which a process may have ([`gprofinject_abi::shadow_stack`]).

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

use gprofinject_abi::shadow_stack::{PROCESSORS, PROCESSORS_LEN, TUNABLES, is_asked_for, is_possible};

use crate::os::proc::{self, Status};

/// Returns whether the C library of programs that this process executes may turn shadow stacks on.
pub(crate) fn comes_with_programs() -> bool {
    let mut asking = std::env::vars_os().filter(|(name, _)| name == TUNABLES);
    asking.any(|(_, value)| is_asked_for(value.as_bytes())) && is_known_to_be_possible()
}

/// Returns whether a process has a shadow stack, or its C library may turn it on, if it has just begun.
pub(crate) fn is_on_or_comes(pid: i32) -> bool {
    let tunables = proc::variable(pid, TUNABLES.as_bytes()).ok().flatten();
    has(pid) || tunables.is_some_and(|value| is_asked_for(&value)) && is_known_to_be_possible()
}

/// Returns whether a process's first thread has one. The others have one then as well.
fn has(pid: i32) -> bool {
    let status = Status::of(pid).ok();
    let features = status.as_ref().and_then(|status| status.field("x86_Thread_features"));
    features.is_some_and(|features| features.split_ascii_whitespace().any(|feature| feature == "shstk"))
}

/// Returns whether the processor and the kernel have shadow stacks, as far as is known.
fn is_known_to_be_possible() -> bool {
    let mut bytes = Vec::new();
    // What cannot be read is not known.
    let _ = File::open(PROCESSORS).and_then(|file| file.take(PROCESSORS_LEN as u64).read_to_end(&mut bytes));
    is_possible(&bytes)
}
