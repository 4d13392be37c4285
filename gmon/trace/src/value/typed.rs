//! Values with their kinds, and their text, which resembles the source.

use std::fmt::{self, Display, Formatter, Write};

use crate::value::encoded::{Encoded, Values};
use crate::value::kind::{Field, Parameter, Signature, ValueKind};

/// A value with its kind. Its text resembles that of a debugger:
///
/// | kind | text |
/// |---|---|
/// | integers | `-1`, `0x1f`, `017` |
/// | truth values, characters | `true`, `'a'`, `'\n'`, `'\xe9'` |
/// | floating-point numbers | `0.5`, `1e300` |
/// | enumerations | `RED`, or the number if it has no name |
/// | pointers | `0x5555`, `NULL` |
/// | strings | `"abc"`, `"abc"...` if it is longer, `NULL` |
/// | structures | `{x=1, y=2}`; strings in them, and bit-fields, as if they were not in one |
/// | unreadable values | `<0x1234>`, the address |
/// | values that are not in the trace | `?` |
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Value<'s, 'b> {
    /// The value's kind.
    pub kind: &'s ValueKind,
    /// The encoded value, or `None` if it is not in the trace.
    pub encoded: Option<Encoded<'b>>,
}

/// The arguments of a call. Their text is that between the parentheses of a call: `path="a", flags=0`.
#[derive(Clone, Debug)]
pub struct Arguments<'s, 'b> {
    parameters: &'s [Parameter],
    values: Values<'b>,
}

impl Signature {
    /// Returns the arguments in the bytes of an [`Event::Data`](crate::Event::Data).
    pub fn arguments<'s, 'b>(&'s self, bytes: &'b [u8]) -> Arguments<'s, 'b> {
        Arguments { parameters: &self.parameters, values: Values::new(bytes) }
    }

    /// Returns the result in the bytes of an [`Event::Data`](crate::Event::Data), if there is one.
    pub fn result<'s, 'b>(&'s self, bytes: &'b [u8]) -> Option<Value<'s, 'b>> {
        let kind = self.result.as_ref().filter(|kind| **kind != ValueKind::Unit)?;
        let encoded = if kind.has_value() { Values::new(bytes).next() } else { None };
        Some(Value { kind, encoded })
    }
}

impl<'s, 'b> Iterator for Arguments<'s, 'b> {
    type Item = (Option<&'s str>, Value<'s, 'b>);

    fn next(&mut self) -> Option<Self::Item> {
        let (parameter, rest) = self.parameters.split_first()?;
        self.parameters = rest;
        let encoded = if parameter.kind.has_value() { self.values.next() } else { None };
        Some((parameter.name.as_deref(), Value { kind: &parameter.kind, encoded }))
    }
}

impl Display for Arguments<'_, '_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        for (index, (name, value)) in self.clone().enumerate() {
            f.write_str(if index > 0 { ", " } else { "" })?;
            if let Some(name) = name.filter(|name| !name.is_empty()) {
                write!(f, "{}=", name.escape_debug())?;
            }
            value.fmt(f)?;
        }
        Ok(())
    }
}

impl Value<'_, '_> {
    /// Returns the bytes of the string, if the value is a string.
    pub fn text(&self) -> Option<&[u8]> {
        match self.encoded? {
            Encoded::Text { bytes, .. } => Some(bytes),
            _ => None,
        }
    }

    /// Returns the value if it is a truth value.
    pub fn truth(&self) -> Option<bool> {
        match self.encoded? {
            Encoded::Scalar(value) if *self.kind == ValueKind::Bool && value & 0xff < 2 => {
                Some(value & 0xff == 1)
            }
            _ => None,
        }
    }

    /// Returns the value if it is an integer, a character or an address, but not if it is that of an enumeration.
    pub fn integer(&self) -> Option<i128> {
        match self.kind {
            ValueKind::Signed { bytes } => Some(signed(self.number()?, *bytes)),
            ValueKind::Unsigned { bytes } => i128::try_from(unsigned(self.number()?, *bytes)).ok(),
            ValueKind::Hex | ValueKind::Octal => i128::try_from(self.number()?).ok(),
            _ => None,
        }
    }

    /// Returns the value if it is an address.
    pub fn address(&self) -> Option<u64> {
        match (self.kind, self.encoded?) {
            (ValueKind::Pointer | ValueKind::FunctionPointer, Encoded::Scalar(address)) => Some(address),
            _ => None,
        }
    }

    /// Returns the value if it is a floating-point number.
    pub fn float(&self) -> Option<f64> {
        let ValueKind::Float { bytes } = self.kind else { return None };
        match bytes {
            2 => Some(half(self.number()? as u16)),
            4 => Some(f64::from(f32::from_bits(self.number()? as u32))),
            8 => Some(f64::from_bits(self.number()? as u64)),
            10 | 16 => Some(extended(self.number()?)),
            _ => None,
        }
    }

    /// Returns the value's bytes as a number, unless the value is a string or longer than 16 bytes.
    fn number(&self) -> Option<u128> {
        match self.encoded? {
            Encoded::Scalar(value) => Some(u128::from(value)),
            Encoded::Bytes(bytes) if bytes.len() <= 16 => {
                Some(bytes.iter().rev().fold(0, |number, &byte| number << 8 | u128::from(byte)))
            }
            _ => None,
        }
    }

    fn fmt_number(&self, number: u128, f: &mut Formatter<'_>) -> fmt::Result {
        match self.kind {
            ValueKind::Signed { bytes } => write!(f, "{}", signed(number, *bytes)),
            ValueKind::Unsigned { bytes } => write!(f, "{}", unsigned(number, *bytes)),
            ValueKind::Octal => write!(f, "{}{number:o}", if number == 0 { "" } else { "0" }),
            ValueKind::Bool => match number & 0xff {
                0 => f.write_str("false"),
                1 => f.write_str("true"),
                other => write!(f, "{other}"),
            },
            ValueKind::Char => fmt_char(number as u64, f),
            ValueKind::Float { bytes: 4 } => write!(f, "{:?}", f32::from_bits(number as u32)),
            ValueKind::Float { .. } => match self.float() {
                Some(float) => write!(f, "{float:?}"),
                None => write!(f, "{number:#x}"),
            },
            ValueKind::Enum { variants, bytes, .. } => {
                let is_it = |value: i64| unsigned(value as u128, *bytes) == unsigned(number, *bytes);
                match variants.iter().find(|(value, _)| is_it(*value)) {
                    Some((_, name)) => write!(f, "{}", name.escape_debug()),
                    None => write!(f, "{}", signed(number, *bytes)),
                }
            }
            ValueKind::Pointer
            | ValueKind::FunctionPointer
            | ValueKind::CString
            | ValueKind::RustStr
            | ValueKind::StdString
                if number == 0 =>
            {
                f.write_str("NULL")
            }
            _ => write!(f, "{number:#x}"),
        }
    }
}

impl Display for Value<'_, '_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Some(encoded) = self.encoded else {
            return f.write_str(if *self.kind == ValueKind::Unit { "void" } else { "?" });
        };
        match (encoded, self.kind) {
            (Encoded::Unreadable(0), _) => f.write_str("NULL"),
            (Encoded::Unreadable(address), _) => write!(f, "<{address:#x}>"),
            (Encoded::Text { bytes, is_cut }, _) => {
                fmt_text(bytes, f)?;
                f.write_str(if is_cut { "..." } else { "" })
            }
            (Encoded::Scalar(value), ValueKind::Struct { fields, .. }) => {
                fmt_struct(fields, &value.to_le_bytes(), f)
            }
            (Encoded::Bytes(bytes), ValueKind::Struct { fields, .. }) => fmt_struct(fields, bytes, f),
            (Encoded::Bytes(bytes), ValueKind::Characters { bytes: size }) => fmt_characters(bytes, *size, f),
            (_, ValueKind::Bits { start, width, of }) => match self.number() {
                Some(number) => {
                    let number = field_of_bits(number >> (start & 7), *width, of);
                    Value { kind: of, encoded: Some(Encoded::Scalar(number)) }.fmt(f)
                }
                None => f.write_str("?"),
            },
            (Encoded::Bytes(bytes), _) if bytes.len() > 16 => f.write_str("?"),
            (Encoded::Scalar(_) | Encoded::Bytes(_), _) => match self.number() {
                Some(number) => self.fmt_number(number, f),
                None => f.write_str("?"),
            },
        }
    }
}

/// Formats a structure. The recursion is bounded, because the encoding of signatures bounds the depth of structures.
fn fmt_struct(fields: &[Field], bytes: &[u8], f: &mut Formatter<'_>) -> fmt::Result {
    f.write_str("{")?;
    for (index, field) in fields.iter().enumerate() {
        f.write_str(if index > 0 { ", " } else { "" })?;
        if !field.name.is_empty() {
            write!(f, "{}=", field.name.escape_debug())?;
        }
        let start = field.offset as usize;
        let end = start.saturating_add(field.kind.bytes() as usize);
        // The trace has the beginning of a long structure.
        let is_text = matches!(field.kind, ValueKind::Characters { .. });
        let part = bytes.get(start..if is_text { end.min(bytes.len()) } else { end });
        let encoded = part.filter(|_| field.kind.has_value()).map(Encoded::Bytes);
        Value { kind: &field.kind, encoded }.fmt(f)?;
    }
    f.write_str("}")
}

/// Formats an array of `size` characters, of which these are the first ones.
fn fmt_characters(bytes: &[u8], size: u32, f: &mut Formatter<'_>) -> fmt::Result {
    let end = bytes.iter().position(|&byte| byte == 0);
    fmt_text(bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default(), f)?;
    let is_cut = end.is_none() && bytes.len() < size as usize;
    f.write_str(if is_cut { "..." } else { "" })
}

/// Returns the value of a bit-field that begins with the lowest bit of `number`.
fn field_of_bits(number: u128, width: u8, of: &ValueKind) -> u64 {
    let unused = 64 - u32::from(width.clamp(1, 64));
    let bits = (number as u64) << unused;
    let is_signed = match of {
        ValueKind::Signed { .. } => true,
        ValueKind::Enum { variants, .. } => variants.iter().any(|(value, _)| *value < 0),
        _ => false,
    };
    if is_signed { ((bits as i64) >> unused) as u64 } else { bits >> unused }
}

fn fmt_text(bytes: &[u8], f: &mut Formatter<'_>) -> fmt::Result {
    f.write_str("\"")?;
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            // An apostrophe needs no backslash in a string.
            if c == '\'' { f.write_char(c)? } else { write!(f, "{}", c.escape_debug())? }
        }
        for byte in chunk.invalid() {
            write!(f, "\\x{byte:02x}")?;
        }
    }
    f.write_str("\"")
}

/// Formats a character. A character of C is a byte, perhaps sign-extended; one of Rust has up to 21 bits.
fn fmt_char(value: u64, f: &mut Formatter<'_>) -> fmt::Result {
    let byte = (value as i64 >= -128 && (value as i64) < 256).then_some(value as u8);
    let c = match byte {
        Some(byte) if !byte.is_ascii() => return write!(f, "'\\x{byte:02x}'"),
        Some(byte) => Some(char::from(byte)),
        None => char::from_u32(value as u32),
    };
    match c {
        Some('"') => f.write_str("'\"'"),
        Some(c) => write!(f, "'{}'", c.escape_debug()),
        None => write!(f, "{value:#x}"),
    }
}

/// Returns the number of bits of a `u128` above `bytes` bytes, by which a value is shifted to remove these bits.
fn above(bytes: u8) -> u32 {
    128 - 8 * u32::from(bytes.clamp(1, 16))
}

fn signed(number: u128, bytes: u8) -> i128 {
    ((number << above(bytes)) as i128) >> above(bytes)
}

fn unsigned(number: u128, bytes: u8) -> u128 {
    number << above(bytes) >> above(bytes)
}

/// Converts a number of 16 bits: a sign, 5 bits of exponent and 10 of fraction.
fn half(bits: u16) -> f64 {
    let (exponent, fraction) = (i32::from(bits >> 10 & 0x1f), f64::from(bits & 0x3ff));
    let magnitude = match exponent {
        0x1f if fraction == 0.0 => f64::INFINITY,
        0x1f => f64::NAN,
        0 => fraction * 2_f64.powi(-24),
        _ => (fraction + 1024.0) * 2_f64.powi(exponent - 25),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

/// Converts an 80-bit number of the x87: a sign, 15 bits of exponent, and 64 bits of significand, which includes the integer bit.
fn extended(bits: u128) -> f64 {
    let (fraction, exponent) = (bits as u64, (bits >> 64) as i32 & 0x7fff);
    let sign = if bits >> 79 & 1 == 1 { -1.0 } else { 1.0 };
    let magnitude = match (exponent, fraction << 1) {
        (0x7fff, 0) => f64::INFINITY,
        (0x7fff, _) => f64::NAN,
        // The factor is applied in two steps, because the whole factor may be too small for an `f64`.
        _ => {
            fraction as f64
                * 2_f64.powi((exponent - 16383) / 2)
                * 2_f64.powi(exponent - 16383 - (exponent - 16383) / 2 - 63)
        }
    };
    sign * magnitude
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(kind: ValueKind, encoded: Encoded) -> String {
        Value { kind: &kind, encoded: Some(encoded) }.to_string()
    }

    #[test]
    fn scalars() {
        let cases = [
            (ValueKind::Signed { bytes: 4 }, 0xffff_ffff, "-1"),
            (ValueKind::Signed { bytes: 8 }, u64::MAX, "-1"),
            (ValueKind::Signed { bytes: 1 }, 0x180, "-128"),
            (ValueKind::Unsigned { bytes: 2 }, 0x1_ffff, "65535"),
            (ValueKind::Hex, 0x1f, "0x1f"),
            (ValueKind::Octal, 0o755, "0755"),
            (ValueKind::Octal, 0, "0"),
            (ValueKind::Bool, 1, "true"),
            (ValueKind::Bool, 0x100, "false"),
            (ValueKind::Bool, 7, "7"),
            (ValueKind::Char, 97, "'a'"),
            (ValueKind::Char, 10, "'\\n'"),
            (ValueKind::Char, 39, "'\\''"),
            (ValueKind::Char, 34, "'\"'"),
            (ValueKind::Char, -23_i64 as u64, "'\\xe9'"),
            (ValueKind::Char, 0x1f600, "'\u{1f600}'"),
            (ValueKind::Char, 0xd800, "0xd800"),
            (ValueKind::Float { bytes: 2 }, 0x3c00, "1.0"),
            (ValueKind::Float { bytes: 2 }, 0xc100, "-2.5"),
            (ValueKind::Float { bytes: 2 }, 0x7bff, "65504.0"),
            (ValueKind::Float { bytes: 2 }, 0x0001, "5.960464477539063e-8"),
            (ValueKind::Float { bytes: 2 }, 0xfc00, "-inf"),
            (ValueKind::Float { bytes: 4 }, u64::from(0.1_f32.to_bits()), "0.1"),
            (ValueKind::Float { bytes: 8 }, 1e300_f64.to_bits(), "1e300"),
            (ValueKind::Pointer, 0x5555, "0x5555"),
            (ValueKind::Pointer, 0, "NULL"),
            (ValueKind::FunctionPointer, 0x401000, "0x401000"),
            (ValueKind::CString, 0, "NULL"),
        ];
        for (kind, value, text) in cases {
            assert_eq!(shown(kind.clone(), Encoded::Scalar(value)), text, "{kind:?} {value:#x}");
        }
    }

    #[test]
    fn enumerations() {
        let variants = vec![(-1, "NONE".to_owned()), (2, "RED".to_owned())];
        let kind = ValueKind::Enum { name: "colour".into(), variants, bytes: 4 };
        for (value, text) in [(2, "RED"), (0xffff_ffff, "NONE"), (u64::MAX, "NONE"), (3, "3")] {
            assert_eq!(shown(kind.clone(), Encoded::Scalar(value)), text);
        }
    }

    #[test]
    fn strings() {
        for (bytes, is_cut, text) in [
            (&b"a\"b'c\n\0"[..], false, r#""a\"b'c\n\0""#),
            ("gr\u{fc}n".as_bytes(), true, "\"gr\u{fc}n\"..."),
            (b"\xff\x1b[31m", false, r#""\xff\u{1b}[31m""#),
        ] {
            assert_eq!(shown(ValueKind::CString, Encoded::Text { bytes, is_cut }), text);
        }
        assert_eq!(shown(ValueKind::CString, Encoded::Unreadable(0x1234)), "<0x1234>");
        assert_eq!(shown(ValueKind::StdString, Encoded::Unreadable(0)), "NULL");
    }

    /// 0.1L, -2.5L, infinity and the least normal number, by gcc's `long double`.
    #[test]
    fn extended_precision() {
        let kind = ValueKind::Float { bytes: 16 };
        for (bits, text) in [
            (0x3ffb_cccc_cccc_cccc_cccd_u128, "0.1"),
            (0xc000_a000_0000_0000_0000, "-2.5"),
            (0x7fff_8000_0000_0000_0000, "inf"),
            (0x0001_8000_0000_0000_0000, "0.0"),
            (0, "0.0"),
        ] {
            assert_eq!(shown(kind.clone(), Encoded::Bytes(&bits.to_le_bytes()[..10])), text);
        }
    }

    #[test]
    fn structures() {
        let field = |name: &str, offset, kind| Field { name: name.to_owned(), offset, kind };
        let point = ValueKind::Struct {
            name: "point".into(),
            fields: vec![
                field("x", 0, ValueKind::Signed { bytes: 4 }),
                field("y", 4, ValueKind::Float { bytes: 4 }),
            ],
            bytes: 8,
        };
        let bytes = [&(-3_i32).to_le_bytes()[..], &0.5_f32.to_le_bytes()].concat();
        assert_eq!(shown(point.clone(), Encoded::Bytes(&bytes)), "{x=-3, y=0.5}");
        let word = u64::from_le_bytes(bytes.clone().try_into().expect("eight bytes"));
        assert_eq!(shown(point.clone(), Encoded::Scalar(word)), "{x=-3, y=0.5}");
        let line = ValueKind::Struct {
            name: "line".into(),
            fields: vec![field("a", 0, point.clone()), field("", 8, point), field("c", 12, ValueKind::Hex)],
            bytes: 20,
        };
        let twice = [&bytes[..], &bytes].concat();
        assert_eq!(shown(line, Encoded::Bytes(&twice)), "{a={x=-3, y=0.5}, {x=-3, y=0.5}, c=?}");
    }

    #[test]
    fn bit_fields() {
        let bits = |start, width, of| ValueKind::Bits { start, width, of: Box::new(of) };
        let signs = vec![(-1, "DOWN".to_owned()), (1, "UP".to_owned())];
        let sign = ValueKind::Enum { name: String::new(), variants: signs, bytes: 4 };
        for (kind, bytes, text) in [
            (bits(3, 5, ValueKind::Unsigned { bytes: 4 }), &[0xff, 0][..], "31"),
            (bits(3, 5, ValueKind::Signed { bytes: 4 }), &[0xe8], "-3"),
            (
                bits(7, 64, ValueKind::Unsigned { bytes: 8 }),
                &[0x80, 1, 0, 0, 0, 0, 0, 0, 0x40],
                "9223372036854775811",
            ),
            (bits(1, 1, ValueKind::Bool), &[2], "true"),
            (bits(6, 2, sign.clone()), &[0xc0], "DOWN"),
            (bits(6, 2, sign), &[0x40], "UP"),
        ] {
            assert_eq!(shown(kind, Encoded::Bytes(bytes)), text);
        }
    }

    #[test]
    fn strings_in_structures() {
        let field = |name: &str, offset, kind| Field { name: name.to_owned(), offset, kind };
        let kind = ValueKind::Struct {
            name: String::new(),
            fields: vec![
                field("a", 0, ValueKind::Characters { bytes: 3 }),
                field("b", 3, ValueKind::Characters { bytes: 2 }),
                field("c", 5, ValueKind::Characters { bytes: 9 }),
                field("d", 14, ValueKind::Characters { bytes: 9 }),
            ],
            bytes: 23,
        };
        let text = r#"{a="x", b="yz", c="uvw"..., d=?}"#;
        assert_eq!(shown(kind, Encoded::Bytes(b"x\0.yzuvw")), text);
    }

    #[test]
    fn calls() {
        let parameter = |name: Option<&str>, kind| Parameter { name: name.map(str::to_owned), kind };
        let open = Signature {
            parameters: vec![
                parameter(Some("path"), ValueKind::CString),
                parameter(None, ValueKind::Unsupported),
                parameter(Some("flags"), ValueKind::Hex),
            ],
            result: Some(ValueKind::Signed { bytes: 4 }),
        };
        let mut bytes = Vec::new();
        Encoded::Text { bytes: b"/etc/passwd", is_cut: false }.put(&mut bytes);
        Encoded::Scalar(0x241).put(&mut bytes);
        assert_eq!(open.arguments(&bytes).to_string(), "path=\"/etc/passwd\", ?, flags=0x241");
        // The trace may have fewer values than the signature has parameters.
        assert_eq!(open.arguments(&bytes[..14]).to_string(), "path=\"/etc/passwd\", ?, flags=?");
        let result = |bytes: &[u8]| open.result(bytes).map(|value| value.to_string());
        let mut bytes = Vec::new();
        Encoded::Scalar(3).put(&mut bytes);
        assert_eq!(result(&bytes).as_deref(), Some("3"));
        assert_eq!(result(&[]).as_deref(), Some("?"));
        let nothing = Signature { parameters: Vec::new(), result: Some(ValueKind::Unit) };
        assert_eq!(nothing.result(&bytes), None);
    }
}
