//! Finds the functions whose return address must be the true one.
//!
//! An exit hook replaces the return address in a function's return slot by the address of the thunk's exit label. That
//! label works only for a return from this very slot, and only once. So a function must not have an exit hook if its
//! return address is read, overwritten or removed by anything but its own `ret`: if it takes the address off the stack
//! (`pop`), reads it through any pointer, discards it, or hands out the address of the slot.
//!
//! The work is done in two steps, because almost no function does any of this. [`Watch`] looks at each
//! instruction in the order of addresses, follows only the registers that hold stack addresses, and notices whether
//! anything may touch the slot. Only for such functions [`examine`] decodes the instructions again and follows
//! the values along all branches ([`flow`]).

pub(crate) mod examine;
pub(crate) mod state;
pub(crate) mod uses;
pub(crate) mod watch;
