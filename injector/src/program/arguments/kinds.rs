//! Converts types and formats to the kinds of values in a trace.
//!
//! A kind determines how the bytes that a fetch reads are shown, so this module makes both together. A value that cannot be read has
//! no fetch, and the kind "unsupported".

use gmon_trace::value::{Field, ValueKind};
use gprofinject_abi::args::{Fetch, INTEGERS, ON_STACK, Op, RAW_MAX, VECTOR};
use gprofinject_image::signatures::{self, Pointee, Shape, StringLayout, Struct, Type};
use gprofinject_plan::fetches;

use crate::program::arguments::spec::{Format, ValueSpec};

/// The maximum number of elements of an array that are shown.
const ELEMENTS_MAX: u64 = 16;
/// The maximum depth of nested structures that are shown.
const DEPTH_MAX: u32 = 6;

/// Returns the kind of a value, and the fetch that reads it, if it can be read.
pub(crate) fn of_value(value: &signatures::Value) -> (ValueKind, Option<Fetch>) {
    match fetches::fetch(value) {
        None => (ValueKind::Unsupported, None),
        Some(fetch) => (of_type(&value.ty, fetch.op.get()), Some(fetch)),
    }
}

/// Returns the kind of a value of this type that is read by this operation.
fn of_type(ty: &Type, op: Option<Op>) -> ValueKind {
    match op {
        Some(Op::CString) => ValueKind::CString,
        Some(Op::Str | Op::Text) => ValueKind::RustStr,
        Some(Op::StdString | Op::LibcxxString | Op::OldString) => ValueKind::StdString,
        _ => of_bytes(ty, 0),
    }
}

/// Returns the kind of a value of this type that is shown from its bytes alone, without following pointers.
fn of_bytes(ty: &Type, depth: u32) -> ValueKind {
    let bytes = ty.size as u8;
    match &ty.shape {
        Shape::Signed => ValueKind::Signed { bytes },
        Shape::Unsigned => ValueKind::Unsigned { bytes },
        Shape::Bool => ValueKind::Bool,
        // In a structure, a character is one byte.
        Shape::Char if depth > 0 && ty.size > 1 => ValueKind::Unsigned { bytes },
        Shape::Char => ValueKind::Char,
        Shape::Float => ValueKind::Float { bytes },
        Shape::Enum(all) => of_enum(all, bytes),
        Shape::Pointer(Pointee::Function) => ValueKind::FunctionPointer,
        Shape::Pointer(_) => ValueKind::Pointer,
        Shape::Struct(object) if depth < DEPTH_MAX => structure(object, ty.size, depth),
        Shape::Array { element, .. } if element.shape == Shape::Char && element.size == 1 => {
            ValueKind::Characters { bytes: u32::try_from(ty.size).unwrap_or(u32::MAX) }
        }
        Shape::Array { element, count } if depth < DEPTH_MAX => {
            let elements = (0..(*count).min(ELEMENTS_MAX)).map_while(|n| {
                let offset = n.checked_mul(element.size)?;
                field(String::new(), offset, of_bytes(element, depth + 1))
            });
            let bytes = u32::try_from(ty.size).unwrap_or(u32::MAX);
            ValueKind::Struct { name: String::new(), fields: elements.collect(), bytes }
        }
        _ => ValueKind::Unsupported,
    }
}

fn structure(object: &Struct, size: u64, depth: u32) -> ValueKind {
    let text = |name: &Option<std::sync::Arc<str>>| name.as_deref().unwrap_or_default().to_owned();
    let fields = object.fields.iter().filter_map(|of| {
        let whole = of_bytes(&of.ty, depth + 1);
        let kind = match of.bits {
            Some(bits) => of_bits(whole, bits),
            None => whole,
        };
        field(text(&of.name), of.offset, kind)
    });
    let bytes = u32::try_from(size).unwrap_or(u32::MAX);
    ValueKind::Struct { name: text(&object.name), fields: fields.collect(), bytes }
}

/// Returns the kind of a bit-field with values of a kind, by the bits before it in its structure and its width.
fn of_bits(kind: ValueKind, (start, width): (u64, u64)) -> ValueKind {
    let of = match kind {
        ValueKind::Char => ValueKind::Signed { bytes: 1 },
        ValueKind::Signed { .. } | ValueKind::Unsigned { .. } | ValueKind::Bool | ValueKind::Enum { .. } => {
            kind
        }
        _ => return ValueKind::Unsupported,
    };
    match width {
        1..=64 => ValueKind::Bits { start: (start % 8) as u8, width: width as u8, of: Box::new(of) },
        _ => ValueKind::Unsupported,
    }
}

/// Returns a field, or `None` if it begins beyond the bytes that are read.
fn field(name: String, offset: u64, kind: ValueKind) -> Option<Field> {
    let offset = u32::try_from(offset).ok().filter(|&offset| (offset as usize) < RAW_MAX)?;
    Some(Field { name, offset, kind })
}

/// Returns the name of a value that has none: its place in the calling convention.
pub(crate) fn place_name(fetch: &Fetch) -> String {
    match fetch.sources[0] {
        source if source < INTEGERS => format!("arg{}", source + 1),
        ON_STACK => format!("stack+{}", fetch.offsets[0] / 8 + 1),
        source => format!("fparg{}", source.saturating_sub(VECTOR) + 1),
    }
}

fn of_enum(all: &signatures::Enum, bytes: u8) -> ValueKind {
    let variants = all.variants.iter().map(|(name, value)| (*value, name.to_string()));
    let name = all.name.as_deref().unwrap_or_default().to_owned();
    ValueKind::Enum { name, variants: variants.collect(), bytes }
}

/// The assumed size in bytes of an enumeration, which a specification does not contain.
const ENUM_BYTES: u8 = 4;

/// Returns the kind and the fetch of a value of a specification. `enumeration` finds an enumeration by its name; `strings` is the layout
/// of the module's `std::string`.
pub(crate) fn of_spec(
    spec: &ValueSpec,
    strings: StringLayout,
    enumeration: impl FnOnce(&str) -> Option<std::sync::Arc<signatures::Enum>>,
) -> (ValueKind, Fetch) {
    let scalar = |bytes: u8, is_signed| fetches::scalar(spec.word, bytes.into(), is_signed);
    match &spec.format {
        Format::Signed { bytes } => (ValueKind::Signed { bytes: *bytes }, scalar(*bytes, true)),
        Format::Unsigned { bytes } => (ValueKind::Unsigned { bytes: *bytes }, scalar(*bytes, false)),
        Format::Hex { bytes } => (ValueKind::Hex, scalar(*bytes, false)),
        Format::Octal { bytes } => (ValueKind::Octal, scalar(*bytes, false)),
        Format::Char => (ValueKind::Char, scalar(1, true)),
        Format::Float { bytes: 16 } => (ValueKind::Float { bytes: 16 }, fetches::on_stack(spec.word, 16)),
        Format::Float { bytes } => (ValueKind::Float { bytes: *bytes }, scalar(*bytes, false)),
        Format::CString => (ValueKind::CString, fetches::at_address(Op::CString, spec.word)),
        Format::StdString => (ValueKind::StdString, fetches::at_address(fetches::string(strings), spec.word)),
        Format::Address => (ValueKind::Pointer, scalar(8, false)),
        Format::FunctionPointer => (ValueKind::FunctionPointer, scalar(8, false)),
        Format::Enum(name) => match enumeration(name) {
            Some(all) => (of_enum(&all, ENUM_BYTES), scalar(ENUM_BYTES, all.is_signed)),
            None => (ValueKind::Signed { bytes: ENUM_BYTES }, scalar(ENUM_BYTES, true)),
        },
    }
}
