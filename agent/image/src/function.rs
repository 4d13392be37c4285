//! A function of a program.

/// A function of a program.
#[derive(Clone, Debug)]
pub struct Function<'d> {
    pub address: u64,
    /// The size in bytes: that of the symbol, otherwise that of the FDE, otherwise up to the next function.
    pub size: u64,
    /// The end of the bytes that belong to no other function: the next function's start or the end of the
    /// section.
    pub limit: u64,
    /// The preferred name: a global one before a local one.
    pub name: &'d str,
    pub aliases: Vec<&'d str>,
    pub kind: FunctionKind,
    /// Whether the function's FDE begins with CFA = rsp + 8; `None` if it has no FDE.
    pub frame: Option<bool>,
}

impl<'d> Function<'d> {
    /// The function's name and its aliases.
    pub fn names(&self) -> impl Iterator<Item = &'d str> + Clone {
        std::iter::once(self.name).chain(self.aliases.iter().copied())
    }
}

/// The kinds of functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionKind {
    Ordinary,
    /// An STT_GNU_IFUNC symbol. Its address is that of the resolver, which is itself an ordinary function.
    IfuncResolver,
    /// A `.cold` part, which is jumped to and never called, and the index of the function to which it
    /// belongs, if it is known.
    Cold(Option<usize>),
    /// The ELF entry point.
    Start,
}
