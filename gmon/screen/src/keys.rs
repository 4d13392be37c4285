//! Keys, as terminals send them.

/// A key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
    Tab,
    /// Tab with Shift.
    BackTab,
    Up,
    Down,
    Left,
    Right,
    PageUp,
    PageDown,
    Home,
    End,
}

/// Returns the keys in what a terminal has sent. Anything else is left out, such as the keys of a mouse or of a terminal's
/// answers.
pub fn keys(bytes: &[u8]) -> Vec<Key> {
    let mut keys = Vec::new();
    let mut rest = bytes;
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        match first {
            0x1b => match rest.first() {
                Some(b'[' | b'O') => {
                    // Parameters, then a final byte.
                    let len = rest[1..].iter().take_while(|byte| (0x20..0x40).contains(*byte)).count();
                    let (parameters, end) = rest[1..].split_at(len);
                    keys.extend(end.first().and_then(|&end| sequence(parameters, end)));
                    rest = end.get(1..).unwrap_or_default();
                }
                _ => keys.push(Key::Escape),
            },
            b'\r' | b'\n' => keys.push(Key::Enter),
            b'\t' => keys.push(Key::Tab),
            0x7f | 0x08 => keys.push(Key::Backspace),
            0x20..0x7f => keys.push(Key::Char(char::from(first))),
            0xc2.. => {
                let len = match first {
                    0xc2..0xe0 => 2,
                    0xe0..0xf0 => 3,
                    _ => 4,
                };
                let whole = &bytes[bytes.len() - rest.len() - 1..];
                let text = whole.get(..len).and_then(|bytes| std::str::from_utf8(bytes).ok());
                if let Some(c) = text.and_then(|text| text.chars().next()).filter(|c| !c.is_control()) {
                    keys.push(Key::Char(c));
                    rest = &whole[len..];
                }
            }
            _ => {}
        }
    }
    keys
}

/// Returns the key of an escape sequence.
fn sequence(parameters: &[u8], end: u8) -> Option<Key> {
    Some(match (end, parameters) {
        (b'A', _) => Key::Up,
        (b'B', _) => Key::Down,
        (b'C', _) => Key::Right,
        (b'D', _) => Key::Left,
        (b'Z', _) => Key::BackTab,
        (b'H', _) | (b'~', b"1" | b"7") => Key::Home,
        (b'F', _) | (b'~', b"4" | b"8") => Key::End,
        (b'~', b"5") => Key::PageUp,
        (b'~', b"6") => Key::PageDown,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_terminal() {
        let typed = "a/\u{e9}\r\x1b[A\x1b[B\x1bOA\x1b[5~\x1b[1;5B\x1b[C\x1bOD\x7f\t\x1b[Z\x1b";
        let expected = [
            Key::Char('a'),
            Key::Char('/'),
            Key::Char('\u{e9}'),
            Key::Enter,
            Key::Up,
            Key::Down,
            Key::Up,
            Key::PageUp,
            Key::Down,
            Key::Right,
            Key::Left,
            Key::Backspace,
            Key::Tab,
            Key::BackTab,
            Key::Escape,
        ];
        assert_eq!(keys(typed.as_bytes()), expected);
    }

    #[test]
    fn what_is_no_key_is_left_out() {
        for bytes in
            [&b"\x1b["[..], b"\x1b[200~", b"\x1b[?1;2c", b"\xff\xfe", b"\xe2\x82", b"\x00\x01", b"\xc2\x9b"]
        {
            assert_eq!(keys(bytes), [], "{bytes:?}");
        }
        let mut random = 88_172_645_463_325_252_u64;
        for _ in 0..5000 {
            let bytes: Vec<u8> = (0..8)
                .map(|_| {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    if random.is_multiple_of(3) {
                        b"\x1b[O~;15AB\r"[(random >> 8) as usize % 10]
                    } else {
                        (random >> 16) as u8
                    }
                })
                .collect();
            assert!(keys(&bytes).len() <= bytes.len());
        }
    }
}
