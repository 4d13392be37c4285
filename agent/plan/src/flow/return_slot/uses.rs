//! What a function does with return addresses, and the numbers of registers.

use iced_x86::Register;

/// What a function does with return addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Uses {
    /// Whether the function uses its own return address, or the slot that holds it, for anything but a
    /// return.
    pub(crate) own: bool,
    /// Whether an instruction computes the return address anew in its slot (`add qword [rsp], 2`), so that the function returns
    /// to another place than behind its call.
    pub(crate) shifts: bool,
    /// A bit for each frame further up the stack whose return address the function reads by following
    /// frame pointers. Bit 1 means the frame of its caller (`__builtin_return_address(1)`).
    pub(crate) callers: u8,
}

/// The highest bit of [`Uses::callers`]. A function that follows more frame pointers walks the whole
/// stack.
pub(crate) const FARTHEST: u8 = 3;

/// The number of rsp.
pub(crate) const RSP: usize = 4;

/// The number of rbp.
pub(crate) const RBP: usize = 5;

/// Returns the number of a 64-bit general register, or `None` for any other register.
pub(crate) fn number(register: Register) -> Option<usize> {
    let number = (register as usize).wrapping_sub(Register::RAX as usize);
    (number < 16).then_some(number)
}
