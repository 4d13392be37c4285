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
    /// Offset in `bytes` of the displacement of the jump to a call that is still made where it stands: see
    /// [`Call::InPlace`](crate::x86::relocate::call::Call::InPlace).
    pub call_jump: Option<u32>,
    /// What the instructions do to the stack frame, as DWARF call frame instructions. Empty: nothing.
    pub frames: Vec<u8>,
    /// The target of the jump in `bytes`, if that jump is all there is because there was nothing to relocate.
    pub rest: Option<u64>,
}

impl Relocated {
    /// Returns an empty result with room for what this many bytes usually become. Growing it would take
    /// longer than everything else.
    pub(crate) fn with_room(original: usize) -> Relocated {
        let (bytes, map) = (Vec::with_capacity(2 * original + 64), Vec::with_capacity(8));
        Relocated { bytes, map, ..Relocated::default() }
    }

    /// Returns the offset in `bytes` of what was the instruction at offset `original`.
    pub fn offset_of(&self, original: u32) -> Option<u32> {
        self.map.iter().find(|&&(from, _)| from == original).map(|&(_, to)| to)
    }
}
