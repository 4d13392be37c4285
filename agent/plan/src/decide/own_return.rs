//! Functions whose exits must not be hooked, known by their names.

use crate::decide::unwinder;
use gprofinject_image::Function;

/// Functions that return twice, or to another frame, or that save their caller's registers. Their exits
/// must not be hooked. (A function that reads its return address is recognised by its code; these are
/// known by name, because their code does not show it.)
pub(crate) const OWN_RETURN: [&str; 15] = [
    "setjmp",
    "_setjmp",
    "sigsetjmp",
    "__sigsetjmp",
    "savectx",
    "vfork",
    "getcontext",
    "swapcontext",
    // With a hook on the exit that they do not have, the time after them would be theirs until another call begins.
    "setcontext",
    "__longjmp",
    "__longjmp_cancel",
    "____longjmp_chk",
    "unw_getcontext",
    "__unw_getcontext",
    "uw_init_context_1",
];

/// The functions of C libraries that leave frames. They do not return: the cell of such a frame would stay in use, because the agent marks
/// the frames that a jump leaves before these functions run.
pub(crate) const JUMPS: [&str; 6] =
    ["longjmp", "_longjmp", "siglongjmp", "__libc_siglongjmp", "__libc_longjmp", "__longjmp_chk"];

/// Returns whether the function returns twice, or to another frame, or not at all, or saves its caller's registers.
pub(crate) fn returns_otherwise(function: &Function) -> bool {
    let is_known = |name| OWN_RETURN.contains(&name) || JUMPS.contains(&name) || unwinder::drives(name);
    function.names().any(is_known)
}
