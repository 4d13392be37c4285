//! Names as text, although a symbol table may have any bytes.

use std::collections::HashSet;
use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

/// Returns a name as text, in which each byte that belongs to no character of UTF-8 is an escape sequence such as `\xff`.
///
/// Nearly all names are borrowed from the table. The others live as long as this process, each once, so that all names can be
/// borrowed.
pub(crate) fn of(name: &[u8]) -> &str {
    match std::str::from_utf8(name) {
        Ok(name) => name,
        Err(_) => kept(escaped(name)),
    }
}

fn escaped(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len() + 16);
    for chunk in name.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

/// Returns the same text for as long as this process lives.
fn kept(text: String) -> &'static str {
    static KEPT: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
    let kept = kept.get_or_insert_default();
    if let Some(known) = kept.get(text.as_str()) {
        return known;
    }
    let text: &'static str = text.leak();
    kept.insert(text);
    text
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn names_that_are_not_utf_8_are_shown() {
        assert_eq!(of(b"main"), "main");
        assert_eq!(of("\u{e9}".as_bytes()), "\u{e9}");
        assert_eq!(of(b"f\xff\xc3(int)\xe2\x82"), "f\\xff\\xc3(int)\\xe2\\x82");
        assert!(std::ptr::eq(of(b"\x80"), of(b"\x80")));
    }
}
