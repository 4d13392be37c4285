//! The linker's marks of a program's code.

/// Where the linker's marks of the program's code stand, if somebody asked for them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextMarks {
    /// `__executable_start` and the like: where the file's first segment is.
    pub start: Option<u64>,
    /// `etext` and the like.
    pub end: Option<u64>,
    /// Data holds the address.
    pub start_in_data: bool,
    pub end_in_data: bool,
}

// What linkers define only where somebody asks for it.

pub(crate) fn is_text_start(name: &[u8]) -> bool {
    matches!(name, b"__executable_start" | b"__ehdr_start")
}

pub(crate) fn is_text_end(name: &[u8]) -> bool {
    matches!(name, b"etext" | b"_etext" | b"__etext")
}

/// No mark's name is longer.
pub(crate) const MARK_MAX: usize = 32;

impl TextMarks {
    pub(crate) fn note(&mut self, name: &[u8], address: u64) {
        if is_text_start(name) {
            self.start = Some(address);
        } else if is_text_end(name) {
            self.end = Some(address);
        }
    }
}
