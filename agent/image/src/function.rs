//! A function of a program.

#[derive(Clone, Debug)]
pub struct Function<'d> {
    pub address: u64,
    /// Bytes; from the symbol, else from its FDE, else up to the next function.
    pub size: u64,
    /// End of the room that belongs to nobody else: the next function's start or the end of the section.
    pub limit: u64,
    /// Preferred name: global before local.
    pub name: &'d str,
    pub aliases: Vec<&'d str>,
    pub kind: FunctionKind,
    /// Whether the function's FDE begins with CFA = rsp + 8; None: no FDE.
    pub frame: Option<bool>,
}

impl<'d> Function<'d> {
    pub fn names(&self) -> impl Iterator<Item = &'d str> + Clone {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionKind {
    Ordinary,
    /// STT_GNU_IFUNC: the symbol's address is the resolver, itself an ordinary function.
    IfuncResolver,
    /// A `.cold` part, jumped into, never called; index of the function it belongs to, where known.
    Cold(Option<usize>),
    /// The ELF entry point.
    Start,
}
