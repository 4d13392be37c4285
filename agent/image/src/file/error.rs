//! Why a file cannot be read as a program, in the words of the one who typed its name.

/// The file is no x86-64 Linux program, or a damaged one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// No ELF magic: a script, a text, an empty file.
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
    /// No executable segment holds bytes: a separate debug file (`objcopy --only-keep-debug`), say.
    #[error("no machine code in the file")]
    NoCode,
    /// The headers promise more than the file has.
    #[error("the file is truncated: {what} ({len} bytes at offset {offset:#x}) is not all there")]
    Truncated { what: &'static str, offset: u64, len: u64 },
    /// A field at a file offset with a value that cannot be.
    #[error("the file is damaged: {what} at offset {offset:#x} is {value:#x}")]
    Corrupt { what: &'static str, offset: u64, value: u64 },
}

/// What an ELF file may be besides a program or a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotExecutable {
    #[error("an object file (.o)")]
    Object,
    #[error("a core dump")]
    Core,
    #[error("an ELF file of unknown type {0:#x}")]
    Unknown(u16),
}
