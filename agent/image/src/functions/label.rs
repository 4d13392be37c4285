//! A name of an address in code, from whichever table.

/// The length above which a name is ignored.
pub(crate) const NAME_MAX: usize = 1 << 14;

/// A symbol with an address in code.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Label<'d> {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) name: &'d str,
    /// How good the name is for its address; smaller is better. See `rank` in `functions/symbols.rs`.
    pub(crate) rank: u8,
    pub(crate) kind: LabelKind,
    pub(crate) local: bool,
    /// The number of STT_FILE symbols before this one. Local symbols with the same number belong to one
    /// object file.
    pub(crate) file: u32,
}

/// The kinds of labels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LabelKind {
    Function,
    Ifunc,
    /// STT_NOTYPE: hand-written assembly, or a symbol that the linker has defined.
    Bare,
}
