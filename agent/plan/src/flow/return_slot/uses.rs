//! What a function does with return addresses, and the numbers of registers.

use iced_x86::Register;

/// What a function does with return addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    /// Whether it uses its own return address, or the slot that holds it, otherwise than to return.
    pub(crate) own: bool,
    /// A bit for each frame further up the stack whose return address it reads by following frame pointers.
    /// Bit 1 stands for its caller's frame (`__builtin_return_address(1)`).
    pub(crate) callers: u8,
}

/// The highest bit of [`Uses::callers`]. A function that goes further up walks the whole stack.
pub(crate) const FARTHEST: u8 = 3;

/// The number of rsp.
pub(crate) const RSP: usize = 4;

/// The number of rbp.
pub(crate) const RBP: usize = 5;

/// Returns the number of a 64-bit general register.
pub(crate) fn number(register: Register) -> Option<usize> {
    let number = (register as usize).wrapping_sub(Register::RAX as usize);
    (number < 16).then_some(number)
}
