//! What relocation yields.

use iced_x86::IcedError;

/// Why instructions could not be moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unmovable(pub &'static str);

impl From<IcedError> for Unmovable {
    fn from(_: IcedError) -> Unmovable {
        Unmovable("the encoder refused an instruction")
    }
}

/// Relocated code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Relocated {
    pub bytes: Vec<u8>,
    /// For each original instruction: its offset in the original and in `bytes`.
    pub map: Vec<(u32, u32)>,
    /// Offset in `bytes` of a u64 that holds a link address and wants the load bias added.
    pub return_address: Option<u32>,
    /// Offset in `bytes` of the displacement that leads to a call in its place: see [`Call::InPlace`].
    pub call_jump: Option<u32>,
    /// What the instructions do to the stack, as DWARF call frame instructions; empty: nothing.
    pub frames: Vec<u8>,
    /// There was nothing to move: all it does is to jump there.
    pub rest: Option<u64>,
}

impl Relocated {
    /// With room for what most become of so many bytes: growing takes longer than all else.
    pub(crate) fn with_room(original: usize) -> Relocated {
        let (bytes, map) = (Vec::with_capacity(2 * original + 64), Vec::with_capacity(8));
        Relocated { bytes, map, ..Relocated::default() }
    }

    /// Where the instruction at offset `original` went.
    pub fn offset_of(&self, original: u32) -> Option<u32> {
        self.map.iter().find(|&&(from, _)| from == original).map(|&(_, to)| to)
    }
}
