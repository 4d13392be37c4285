//! The encoding of signatures as bytes.

use crate::codec::{Cursor, Error, put, put_signed, put_text};
use crate::value::kind::{Field, Parameter, Signature, ValueKind};

/// The maximum number of parameters.
const PARAMETERS: usize = 64;
/// The maximum depth of nested structures.
const DEEPEST: u32 = 16;
/// The maximum number of fields of a parameter, including nested ones. It bounds the time to format a value.
const FIELDS: u32 = 256;
/// The maximum number of names of an enumeration's values.
const VARIANTS: usize = 1 << 12;

const SIGNED: u8 = 1;
const UNSIGNED: u8 = 2;
const HEX: u8 = 3;
const OCTAL: u8 = 4;
const BOOL: u8 = 5;
const CHAR: u8 = 6;
const FLOAT: u8 = 7;
const ENUM: u8 = 8;
const POINTER: u8 = 9;
const FUNCTION_POINTER: u8 = 10;
const C_STRING: u8 = 11;
const RUST_STR: u8 = 12;
const STD_STRING: u8 = 13;
const STRUCT: u8 = 14;
const UNIT: u8 = 15;
const UNSUPPORTED: u8 = 16;
const BITS: u8 = 17;
const CHARACTERS: u8 = 18;

/// Appends an optional signature. Parameters, fields and names beyond the limits are omitted.
pub(crate) fn put_signature(out: &mut Vec<u8>, signature: Option<&Signature>) {
    let Some(signature) = signature else {
        put(out, 0);
        return;
    };
    put(out, 1 + u64::from(signature.result.is_some()));
    let count = signature.parameters.len().min(PARAMETERS);
    put(out, count as u64);
    for parameter in signature.parameters.iter().take(count) {
        put(out, parameter.name.is_some().into());
        if let Some(name) = &parameter.name {
            put_text(out, name);
        }
        put_kind(out, &parameter.kind, 0, &mut FIELDS.clone());
    }
    if let Some(result) = &signature.result {
        put_kind(out, result, 0, &mut FIELDS.clone());
    }
}

/// Appends a kind, with at most `room` fields.
fn put_kind(out: &mut Vec<u8>, kind: &ValueKind, depth: u32, room: &mut u32) {
    let sized = |out: &mut Vec<u8>, tag: u8, bytes: u8| out.extend_from_slice(&[tag, bytes]);
    match kind {
        ValueKind::Signed { bytes } => sized(out, SIGNED, *bytes),
        ValueKind::Unsigned { bytes } => sized(out, UNSIGNED, *bytes),
        ValueKind::Hex => out.push(HEX),
        ValueKind::Octal => out.push(OCTAL),
        ValueKind::Bool => out.push(BOOL),
        ValueKind::Char => out.push(CHAR),
        ValueKind::Float { bytes } => sized(out, FLOAT, *bytes),
        ValueKind::Enum { name, variants, bytes } => {
            sized(out, ENUM, *bytes);
            put_text(out, name);
            let count = variants.len().min(VARIANTS);
            put(out, count as u64);
            for (value, name) in variants.iter().take(count) {
                put_signed(out, *value);
                put_text(out, name);
            }
        }
        ValueKind::Pointer => out.push(POINTER),
        ValueKind::FunctionPointer => out.push(FUNCTION_POINTER),
        ValueKind::CString => out.push(C_STRING),
        ValueKind::RustStr => out.push(RUST_STR),
        ValueKind::StdString => out.push(STD_STRING),
        ValueKind::Struct { name, fields, bytes } => {
            out.push(STRUCT);
            put_text(out, name);
            put(out, u64::from(*bytes));
            // Each field is preceded by a 1, because the number of fields within the limit is not known beforehand.
            for field in fields.iter().filter(|_| depth < DEEPEST) {
                let Some(less) = room.checked_sub(1) else { break };
                *room = less;
                out.push(1);
                put_text(out, &field.name);
                put(out, field.offset.into());
                put_kind(out, &field.kind, depth + 1, room);
            }
            out.push(0);
        }
        ValueKind::Bits { start, width, of } => {
            out.extend_from_slice(&[BITS, *start, *width]);
            put_kind(out, of, depth + 1, room);
        }
        ValueKind::Characters { bytes } => {
            out.push(CHARACTERS);
            put(out, u64::from(*bytes));
        }
        ValueKind::Unit => out.push(UNIT),
        ValueKind::Unsupported => out.push(UNSUPPORTED),
    }
}

/// Reads an optional signature.
///
/// # Errors
/// Returns an error if the bytes are not a signature, or exceed the limits.
pub(crate) fn signature(from: &mut Cursor) -> Result<Option<Signature>, Error> {
    let at = from.at;
    let has_result = match from.number()? {
        0 => return Ok(None),
        1 => false,
        2 => true,
        _ => return Err(Error::Value(at)),
    };
    let at = from.at;
    let count = from.number()?;
    if count > PARAMETERS as u64 {
        return Err(Error::Value(at));
    }
    let mut parameters = Vec::new();
    for _ in 0..count {
        let name = if from.flag()? { Some(from.text()?) } else { None };
        parameters.push(Parameter { name, kind: kind(from, 0, &mut FIELDS.clone())? });
    }
    let result = if has_result { Some(kind(from, 0, &mut FIELDS.clone())?) } else { None };
    Ok(Some(Signature { parameters, result }))
}

fn kind(from: &mut Cursor, depth: u32, room: &mut u32) -> Result<ValueKind, Error> {
    let at = from.at;
    Ok(match from.byte()? {
        SIGNED => ValueKind::Signed { bytes: from.byte()? },
        UNSIGNED => ValueKind::Unsigned { bytes: from.byte()? },
        HEX => ValueKind::Hex,
        OCTAL => ValueKind::Octal,
        BOOL => ValueKind::Bool,
        CHAR => ValueKind::Char,
        FLOAT => ValueKind::Float { bytes: from.byte()? },
        ENUM => {
            let (bytes, name) = (from.byte()?, from.text()?);
            let at = from.at;
            let count = from.number()?;
            if count > VARIANTS as u64 {
                return Err(Error::Value(at));
            }
            let mut variants = Vec::new();
            for _ in 0..count {
                variants.push((from.signed()?, from.text()?));
            }
            ValueKind::Enum { name, variants, bytes }
        }
        POINTER => ValueKind::Pointer,
        FUNCTION_POINTER => ValueKind::FunctionPointer,
        C_STRING => ValueKind::CString,
        RUST_STR => ValueKind::RustStr,
        STD_STRING => ValueKind::StdString,
        STRUCT => {
            let (name, bytes) = (from.text()?, from.small()?);
            let mut fields = Vec::new();
            while from.flag()? {
                *room = room.checked_sub(1).filter(|_| depth < DEEPEST).ok_or(Error::Value(at))?;
                let (name, offset) = (from.text()?, from.small()?);
                fields.push(Field { name, offset, kind: kind(from, depth + 1, room)? });
            }
            ValueKind::Struct { name, fields, bytes }
        }
        BITS if depth <= DEEPEST => {
            let (start, width) = (from.byte()?, from.byte()?);
            if start > 7 || !(1..=64).contains(&width) {
                return Err(Error::Value(at));
            }
            ValueKind::Bits { start, width, of: Box::new(kind(from, depth + 1, room)?) }
        }
        CHARACTERS => ValueKind::Characters { bytes: from.small()? },
        UNIT => ValueKind::Unit,
        UNSUPPORTED => ValueKind::Unsupported,
        _ => return Err(Error::Value(at)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(signature: &Signature) -> Result<Option<Signature>, Error> {
        let mut out = Vec::new();
        put_signature(&mut out, Some(signature));
        let mut from = Cursor::new(&out);
        let found = super::signature(&mut from)?;
        assert!(from.is_at_end());
        for len in 0..out.len() {
            assert!(super::signature(&mut Cursor::new(&out[..len])).is_err(), "{len} of {}", out.len());
        }
        Ok(found)
    }

    fn structure(fields: Vec<Field>) -> ValueKind {
        ValueKind::Struct { name: "s".into(), fields, bytes: 8 }
    }

    #[test]
    fn all_kinds() {
        let colours = vec![(-1, "none".to_owned()), (i64::MAX, "red".to_owned())];
        let field = |name: &str, offset, kind| Field { name: name.to_owned(), offset, kind };
        let kinds = [
            ValueKind::Signed { bytes: 4 },
            ValueKind::Unsigned { bytes: 16 },
            ValueKind::Hex,
            ValueKind::Octal,
            ValueKind::Bool,
            ValueKind::Char,
            ValueKind::Float { bytes: 8 },
            ValueKind::Enum { name: "colour".into(), variants: colours, bytes: 4 },
            ValueKind::Pointer,
            ValueKind::FunctionPointer,
            ValueKind::CString,
            ValueKind::RustStr,
            ValueKind::StdString,
            structure(vec![field("a", 0, ValueKind::Bool), field("", 4, structure(Vec::new()))]),
            ValueKind::Bits { start: 7, width: 64, of: Box::new(ValueKind::Signed { bytes: 8 }) },
            ValueKind::Characters { bytes: 300 },
            ValueKind::Unit,
            ValueKind::Unsupported,
        ];
        let parameters = kinds.iter().zip(0..).map(|(kind, number)| Parameter {
            name: (number % 2 == 0).then(|| format!("p{number}")),
            kind: kind.clone(),
        });
        let parameters: Vec<Parameter> = parameters.collect();
        for result in [None, Some(ValueKind::Pointer)] {
            let signature = Signature { parameters: parameters.clone(), result };
            assert_eq!(round(&signature), Ok(Some(signature)));
        }
        let mut none = Vec::new();
        put_signature(&mut none, None);
        assert_eq!(super::signature(&mut Cursor::new(&none)), Ok(None));
    }

    #[test]
    fn bits_of_bits() {
        let mut bytes = vec![1, 1, 0];
        for _ in 0..1000 {
            bytes.extend_from_slice(&[BITS, 0, 1]);
        }
        assert!(super::signature(&mut Cursor::new(&bytes)).is_err());
        for wrong in [[BITS, 8, 1], [BITS, 0, 0], [BITS, 0, 65]] {
            let bytes = [&[1, 1, 0][..], &wrong, &[HEX]].concat();
            assert!(super::signature(&mut Cursor::new(&bytes)).is_err(), "{wrong:?}");
        }
    }

    /// The writer omits exactly what the reader would reject.
    #[test]
    fn limits() {
        let int = Parameter { name: None, kind: ValueKind::Hex };
        let found = round(&Signature { parameters: vec![int; PARAMETERS + 1], result: None });
        assert_eq!(found.map(|s| s.map(|s| s.parameters.len())), Ok(Some(PARAMETERS)));

        let field = Field { name: String::new(), offset: 0, kind: ValueKind::Hex };
        let wide = structure(vec![field; FIELDS as usize + 1]);
        let found = round(&Signature { parameters: Vec::new(), result: Some(wide) });
        let Ok(Some(Signature { result: Some(ValueKind::Struct { fields, .. }), .. })) = found else {
            panic!("{found:?}");
        };
        assert_eq!(fields.len(), FIELDS as usize);

        let mut deep = structure(Vec::new());
        for _ in 0..DEEPEST + 5 {
            deep = structure(vec![Field { name: String::new(), offset: 0, kind: deep }]);
        }
        let found = round(&Signature { parameters: Vec::new(), result: Some(deep) });
        let Ok(Some(Signature { result: Some(mut kind), .. })) = found else { panic!("{found:?}") };
        let mut depth = 0;
        while let ValueKind::Struct { mut fields, .. } = kind {
            depth += 1;
            let Some(field) = fields.pop() else { break };
            kind = field.kind;
        }
        assert_eq!(depth, DEEPEST + 1);
    }
}
