//! The result of relocating instructions.

use iced_x86::IcedError;

/// Why instructions could not be relocated, as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmovable(pub &'static str);

impl From<IcedError> for Unmovable {
    fn from(_: IcedError) -> Unmovable {
        Unmovable("the encoder refused an instruction")
    }
}

/// Relocated instructions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Relocated {
    /// The code at the new address.
    pub bytes: Vec<u8>,
    /// For each original instruction: its offset in the original code, and its offset in `bytes`.
    pub map: Vec<(u32, u32)>,
    /// Offset in `bytes` of a u64 word with the link address to which a call returns. The agent adds the load
    /// bias to it.
    pub return_address: Option<u32>,
    /// Offset in `bytes` of the displacement of the jump to a call that is still made at its original
    /// address: see [`Call::InPlace`](crate::x86::relocate::call::Call::InPlace).
    pub call_jump: Option<u32>,
    /// What the instructions do to the stack frame, as DWARF call frame instructions; empty if they do not
    /// change the frame.
    pub frames: Vec<u8>,
    /// The target of the jump in `bytes`, if `bytes` consists of that jump alone because there was nothing to
    /// relocate.
    pub rest: Option<u64>,
}

impl Relocated {
    /// Returns an empty result with enough capacity for the relocated form of this many bytes in most cases.
    /// Reallocation would take longer than the relocation itself.
    pub(crate) fn with_room(original: usize) -> Relocated {
        let (bytes, map) = (Vec::with_capacity(2 * original + 64), Vec::with_capacity(8));
        Relocated { bytes, map, ..Relocated::default() }
    }

    /// Returns the offset in `bytes` of the code that replaces the instruction at offset `original` of the
    /// original code.
    pub fn offset_of(&self, original: u32) -> Option<u32> {
        self.map.iter().find(|&&(from, _)| from == original).map(|&(_, to)| to)
    }
}
