//! Phrases for messages, and text that is safe to show.

use std::borrow::Cow;
use std::io::{self, Write};

/// Returns a number of things as people say it: `1 call`, `0 calls`, `2 calls`. The phrases may be longer
/// than a noun (`1 process still runs`).
pub fn counted(number: impl TryInto<u64>, one: &str, many: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    format!("{number} {}", if number == 1 { one } else { many })
}

/// Whether a character is not seen, or changes how the text around it is seen: control characters, those that turn the
/// direction of writing, have no width, end a line or a paragraph, or are no characters. `gmon/export/src/html/format.js` has
/// the same ones.
pub fn is_hidden(c: char) -> bool {
    match c {
        // Nearly all characters of names.
        ' '..='~' => false,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' => true,
        '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' => true,
        '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' => true,
        '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' => true,
        '\u{e0000}'..='\u{e0fff}' => true,
        _ => c.is_control(),
    }
}

/// Returns a text in which each hidden character ([`is_hidden`]) is an escape sequence. Other users choose the names of files,
/// programs and functions; such text must not move the cursor, begin a line that looks like one of ours, or read as another
/// name.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if is_hidden(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    Cow::Owned(shown)
}

/// Passes JSON on with escape sequences in place of hidden characters ([`is_hidden`]), which strings may contain. Programs
/// that parse it get the same strings; a terminal that shows it is safe.
///
/// Each call of `write` must end with a whole character, as it does for serde_json and for `write!`.
#[derive(Debug)]
pub struct EscapedJson<W>(pub W);

impl<W: Write> Write for EscapedJson<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Outside of strings there are only spaces and line ends, and inside of them serde_json has escaped these.
        let is_plain = |c: char| c.is_ascii_control() && c != '\x7f' || !is_hidden(c);
        let text = match std::str::from_utf8(bytes) {
            Ok(text) if !text.chars().all(is_plain) => text,
            _ => return self.0.write(bytes),
        };
        let mut escaped = String::with_capacity(text.len() + 16);
        for c in text.chars() {
            if is_plain(c) {
                escaped.push(c);
            } else {
                c.encode_utf16(&mut [0; 2])
                    .iter()
                    .for_each(|unit| escaped.push_str(&format!("\\u{unit:04x}")));
            }
        }
        self.0.write_all(escaped.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::{EscapedJson, counted, visible};

    #[test]
    fn json_is_the_same_to_programs() {
        let mut out = EscapedJson(Vec::new());
        write!(out, "{{\n\"a\u{202e}b\u{e0041}c\": \u{7f}}}").expect("memory");
        assert_eq!(String::from_utf8_lossy(&out.0), "{\n\"a\\u202eb\\udb40\\udc41c\": \\u007f}");
    }

    #[test]
    fn other_peoples_words_do_not_move_the_cursor() {
        assert_eq!(visible("/tmp/a b \u{e9} f(int)"), "/tmp/a b \u{e9} f(int)");
        let text = "a\x1b[2Jb\r\n\u{9b}31m\u{7f}\u{202e}x\u{200b}y\u{2028}\u{feff}\u{e0041}";
        let shown = "a\\u{1b}[2Jb\\r\\n\\u{9b}31m\\u{7f}\\u{202e}x\\u{200b}y\\u{2028}\\u{feff}\\u{e0041}";
        assert_eq!(visible(text), shown);
    }

    #[test]
    fn one_is_not_many() {
        let calls = |number: u64| counted(number, "call was lost", "calls were lost");
        let said = [0, 1, 2, u64::MAX].map(calls);
        assert_eq!(said[..3], ["0 calls were lost", "1 call was lost", "2 calls were lost"]);
        assert!(said[3].ends_with("calls were lost"));
    }
}
