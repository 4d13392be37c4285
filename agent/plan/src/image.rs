//! What an ELF file says of its code: functions, their extents, kinds and frames, and the addresses that
//! data points at.

/// A program, read and checked. Addresses are link addresses.
#[derive(Debug)]
pub struct Image<'d> {
    pub kind: ImageKind,
    /// e_entry.
    pub entry: u64,
    /// Address of the program headers when loaded.
    pub phdr: u64,
    /// Extents of all PT_LOAD segments, as mapped (page-aligned).
    pub lo: u64,
    pub hi: u64,
    /// The executable PT_LOAD segments with their file contents.
    pub code: Vec<CodeSegment<'d>>,
    /// Sorted by address, one for each address (aliases merged), no two overlap.
    pub functions: Vec<Function<'d>>,
    /// Sorted: addresses in code that data holds pointers to (relocations, and words of an ET_EXEC).
    pub code_pointers: Vec<u64>,
    /// Sorted: landing pads from the exception tables.
    pub landing_pads: Vec<u64>,
    pub facts: Facts,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageKind {
    /// ET_EXEC: loaded where it was linked.
    Exec,
    /// ET_DYN with an entry point.
    Pie,
}

#[derive(Clone, Copy, Debug)]
pub struct CodeSegment<'d> {
    pub address: u64,
    pub bytes: &'d [u8],
}

/// What else decides about hooking.
#[derive(Debug, Default)]
pub struct Facts {
    /// PT_INTERP, if any; none: a static program.
    pub interpreter: Option<String>,
    /// There is a .symtab with functions in it.
    pub has_symtab: bool,
    /// The program has landing pads or its own unwinder.
    pub unwinds: bool,
    pub go: bool,
    pub build_id: Option<Vec<u8>>,
    /// Sorted: addresses in code that dynamic relocations write to (DT_TEXTREL).
    pub text_relocations: Vec<u64>,
}

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
