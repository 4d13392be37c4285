//! What a function does with return addresses.

use iced_x86::Register;

/// What a function does with return addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    /// It uses its own return address, or the slot that holds it, in another way than to return.
    pub(crate) own: bool,
    /// A bit for each frame further up the stack whose return address it reads by following frame
    /// pointers: bit 1 stands for its caller's (`__builtin_return_address(1)`).
    pub(crate) callers: u8,
}

/// Frames further up are not looked for: a function that goes up that far walks the stack.
pub(crate) const FARTHEST: u8 = 3;

pub(crate) const RSP: usize = 4;

pub(crate) const RBP: usize = 5;

/// The number of a 64-bit general register.
pub(crate) fn number(register: Register) -> Option<usize> {
    let number = (register as usize).wrapping_sub(Register::RAX as usize);
    (number < 16).then_some(number)
}
