//! The symbols that linkers define at the start and the end of a program's code.

use serde::{Deserialize, Serialize};

/// The addresses of these symbols, if the program uses them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TextMarks {
    /// The address of `__executable_start` and similar symbols, where the file's first segment is.
    pub start: Option<u64>,
    /// The address of `etext` and similar symbols.
    pub end: Option<u64>,
    /// Whether data contains the address of the start.
    pub start_in_data: bool,
    pub end_in_data: bool,
}

/// Whether a name is that of the start of the text. Linkers define these symbols only if the program uses them.
pub(crate) fn is_text_start(name: &[u8]) -> bool {
    matches!(name, b"__executable_start" | b"__ehdr_start")
}

/// Whether a name is that of the end of the text.
pub(crate) fn is_text_end(name: &[u8]) -> bool {
    matches!(name, b"etext" | b"_etext" | b"__etext")
}

/// The length above which a name is none of these.
pub(crate) const MARK_MAX: usize = 32;

impl TextMarks {
    /// Records the address of a symbol, if it is one of these.
    pub(crate) fn note(&mut self, name: &[u8], address: u64) {
        if is_text_start(name) {
            self.start = Some(address);
        } else if is_text_end(name) {
            self.end = Some(address);
        }
    }
}
