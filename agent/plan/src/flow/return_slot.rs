//! Finds the functions whose return address must be the original one.
//!
//! An exit hook replaces the return address in a function's return slot by the address of the thunk's exit
//! label. That label works only for a return from this very slot, and only once. So a function must not have
//! an exit hook if anything but its own `ret` reads, overwrites or removes its return address: if it takes
//! the address off the stack (`pop`), reads it through a pointer, discards it, or passes the address of the
//! slot on.
//!
//! Almost no function does any of this, so the work is done in two steps. [`watch::Watch`] looks at each
//! instruction in the order of addresses, follows only the registers that hold stack addresses, and notices
//! whether anything may touch the slot. Only for functions in which something may, [`examine::examine`]
//! decodes the instructions again and follows the values along all branches.

pub(crate) mod examine;
pub(crate) mod state;
pub(crate) mod uses;
pub(crate) mod watch;
