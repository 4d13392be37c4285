//! The terminal to which reports go.

use std::io::IsTerminal;
use std::sync::OnceLock;

/// The number of columns that tables need at least. On a narrower terminal, lines wrap.
const NARROWEST: usize = 40;

/// The size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    pub(crate) columns: usize,
    pub(crate) lines: usize,
}

/// Returns the size of the terminal that was standard output when this was first called; `None` if it was none. What is asked later,
/// when a pager reads standard output, gets the same answer.
pub(crate) fn size() -> Option<Size> {
    static SIZE: OnceLock<Option<Size>> = OnceLock::new();
    *SIZE.get_or_init(|| {
        let out = std::io::stdout();
        if !out.is_terminal() {
            return None;
        }
        let found = rustix::termios::tcgetwinsize(&out).ok().filter(|size| size.ws_col > 0);
        let (columns, lines) = found.map_or((80, 24), |size| (size.ws_col.into(), size.ws_row.into()));
        Some(Size { columns: usize::max(columns, NARROWEST), lines })
    })
}
