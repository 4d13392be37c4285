//! The commands that earlier versions had under other names.

use std::ffi::OsStr;

/// The old name of each command, and what does the same now.
const MOVED: [(&str, &str); 10] = [
    ("blocks", "gmon asm --blocks"),
    ("callees", "gmon graph -f FUNCTION"),
    ("callers", "gmon graph -f FUNCTION"),
    ("coverage", "gmon lines --coverage"),
    ("dump", "gmon check --records"),
    ("files", "gmon lines --by file"),
    ("functions", "gmon lines --by function"),
    ("instructions", "gmon asm"),
    ("ranks", "gmon flat --spread"),
    ("times", "gmon flat"),
];

/// Returns the command that does what this one did.
pub(crate) fn command_of(word: &OsStr) -> Option<&'static str> {
    MOVED.iter().find(|(old, _)| word == *old).map(|(_, now)| *now)
}
