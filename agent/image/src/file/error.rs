//! The reasons why a file cannot be read as a program, in words for the user who has typed its name.

/// The file is no x86-64 Linux program, or a damaged one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The file has no ELF magic: a script, a text, an empty file.
    #[error("not an ELF program")]
    NotElf,
    #[error("a 32-bit program; only 64-bit x86 programs can be profiled")]
    ThirtyTwoBit,
    #[error("a big-endian program; only x86-64 programs can be profiled")]
    BigEndian,
    /// The machine's usual name, or its number in e_machine.
    #[error("a program for {0}; only x86-64 programs can be profiled")]
    OtherMachine(String),
    #[error("{0}, not a program")]
    NotExecutable(NotExecutable),
    #[error("a shared library, not a program")]
    SharedLibrary,
    /// No executable segment has bytes in the file, as in a separate debug file
    /// (`objcopy --only-keep-debug`).
    #[error("no machine code in the file")]
    NoCode,
    /// The headers claim more bytes than the file has.
    #[error("the file is truncated: {what} ({len} bytes at offset {offset:#x}) is not all there")]
    Truncated { what: &'static str, offset: u64, len: u64 },
    /// A field at a file offset has an impossible value.
    #[error("the file is damaged: {what} at offset {offset:#x} is {value:#x}")]
    Corrupt { what: &'static str, offset: u64, value: u64 },
}

/// What an ELF file may be, other than a program or a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotExecutable {
    #[error("an object file (.o)")]
    Object,
    #[error("a core dump")]
    Core,
    #[error("an ELF file of unknown type {0:#x}")]
    Unknown(u16),
}
