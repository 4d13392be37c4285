//! Code that the plan removes from a program.

/// Code that is overwritten by instructions without effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    pub address: u64,
    pub len: u8,
    /// Whether the code is a jump, in place of which the function returns.
    pub(crate) returns: bool,
}

impl Removed {
    /// Returns the address after the last byte.
    pub fn end(&self) -> u64 {
        self.address + u64::from(self.len)
    }

    /// Writes the replacement into `place`.
    pub(crate) fn fill(&self, place: &mut [u8]) {
        match place.split_first_mut() {
            Some((first, rest)) if self.returns => {
                *first = 0xc3;
                nops(rest);
            }
            _ => nops(place),
        }
    }
}

/// Fills `place` with as few nops as possible (Intel SDM, volume 2, NOP, table 4-12).
fn nops(mut place: &mut [u8]) {
    const NOPS: [&[u8]; 9] = [
        &[0x90],
        &[0x66, 0x90],
        &[0x0f, 0x1f, 0x00],
        &[0x0f, 0x1f, 0x40, 0x00],
        &[0x0f, 0x1f, 0x44, 0x00, 0x00],
        &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
        &[0x0f, 0x1f, 0x80, 0, 0, 0, 0],
        &[0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
        &[0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
    ];
    while !place.is_empty() {
        let len = place.len().min(NOPS.len());
        let (nop, rest) = place.split_at_mut(len);
        nop.copy_from_slice(NOPS[len - 1]);
        place = rest;
    }
}
