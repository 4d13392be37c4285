//! Signatures of functions in Rust.
//!
//! The convention of Rust functions is not laid down. What has never changed: a number or an address is passed as C would pass it;
//! a structure around one of them, if that is no floating-point number, is passed like it; a reference to something without a fixed
//! size is passed as two words; and an object without contents is not passed. Other structures are passed in ways that depend on
//! their layout and on the compiler's version, so nothing is said of the parameters from such a one on.

use std::sync::Arc;

use crate::signatures::assign::Assignment;
use crate::signatures::classes::Eightbyte;
use crate::signatures::collect::{Next, collect, collect_either};
use crate::signatures::convention::{Trust, Unclear};
use crate::signatures::model::{Place, Pointee, Rest, Shape, Signature, StrOrder, Struct, Type, Value, Word};
use crate::signatures::subprogram::{Raw, Subprogram};

/// The size in bytes above which every result is returned in memory.
const RETURNED_MAX: u64 = 16;

/// Returns the signature of a function with this name.
///
/// # Errors
/// It is not known which registers its parameters are in.
pub(crate) fn signature(
    function: &Subprogram,
    trust: Trust,
    name: Option<&str>,
) -> Result<Signature, Unclear> {
    // Closures and the like have a first parameter that is not said.
    if name.is_none_or(|name| name.starts_with('{')) {
        return Err(Unclear::Language);
    }
    let result = &function.result;
    let (collected, place) = match Kind::of(result) {
        Kind::Nothing => (collect(function, trust, false, &next)?, None),
        Kind::One(class) => {
            let place = match class {
                Eightbyte::Integer => Word::RAX,
                Eightbyte::Sse => Word::Vector(0),
            };
            (collect(function, trust, false, &next)?, Some(Place::Word(place)))
        }
        Kind::Two => (collect(function, trust, false, &next)?, Some(Place::Pair(Word::RAX, Word::RDX))),
        // One word at most.
        Kind::Other if result.size > 0 && result.size <= 8 => (collect(function, trust, false, &next)?, None),
        Kind::Other if result.size > RETURNED_MAX && !contains_wide_numbers(result) => {
            (collect(function, trust, true, &next)?, None)
        }
        Kind::Other => (collect_either(function, trust, &next)?, None),
    };
    let place = place.filter(|_| trust.has_result());
    let result = place.map(|place| Value { ty: shown(result), place });
    Ok(Signature { parameters: collected.parameters, rest: collected.rest, result })
}

fn next(assignment: &mut Assignment, raw: &Raw) -> Next {
    let place = match Kind::of(&raw.ty) {
        Kind::Nothing => Some(Place::Nowhere),
        Kind::One(class) => assignment.word(class).map(Place::Word),
        Kind::Two => {
            let words = (assignment.word(Eightbyte::Integer), assignment.word(Eightbyte::Integer));
            words.0.zip(words.1).map(|(low, high)| Place::Pair(low, high))
        }
        Kind::Other => None,
    };
    match place {
        Some(place) => Next::At(shown(&raw.ty), place),
        None => Next::End(Rest::Type),
    }
}

/// How a value is passed.
enum Kind {
    Nothing,
    One(Eightbyte),
    /// As an address and another word.
    Two,
    /// In a way that is not certain.
    Other,
}

impl Kind {
    fn of(ty: &Type) -> Kind {
        match &ty.shape {
            Shape::Void => Kind::Nothing,
            // A function's own type has no contents, and debug information does not tell it from a pointer to a function.
            Shape::Pointer(Pointee::Function) => Kind::Other,
            Shape::Float if matches!(ty.size, 4 | 8) => Kind::One(Eightbyte::Sse),
            Shape::Signed
            | Shape::Unsigned
            | Shape::Bool
            | Shape::Char
            | Shape::Enum(_)
            | Shape::Pointer(_)
                if ty.size <= 8 =>
            {
                Kind::One(Eightbyte::Integer)
            }
            Shape::Struct(_) if ty.size == 0 => Kind::Nothing,
            Shape::Struct(object) if is_fat(object, ty.size) => Kind::Two,
            Shape::Struct(object) if is_wrapped_word(object, ty.size) => Kind::One(Eightbyte::Integer),
            _ => Kind::Other,
        }
    }
}

/// Whether a structure has one field with contents, which is an integer or an address. It is passed like that, whatever its layout
/// (a floating-point number would not be: with `repr(C)`, it is passed in an integer register).
fn is_wrapped_word(object: &Struct, size: u64) -> bool {
    let mut fields = object.fields.iter().filter(|field| field.ty.size > 0);
    match (fields.next(), fields.next()) {
        (Some(only), None) if only.offset == 0 && only.ty.size == size && !object.is_union => {
            match &only.ty.shape {
                Shape::Struct(inner) => is_wrapped_word(inner, size),
                // What has contents is a pointer to a function.
                Shape::Pointer(Pointee::Function) => true,
                _ => matches!(Kind::of(&only.ty), Kind::One(Eightbyte::Integer)),
            }
        }
        _ => false,
    }
}

/// Whether a structure is that of a reference or a pointer to a slice, a string or a trait object.
fn is_fat(object: &Struct, size: u64) -> bool {
    let is_reference = object.name.as_deref().is_some_and(|name| name.starts_with(['&', '*']));
    let [first, second] = object.fields.as_slice() else { return false };
    let names = (first.name.as_deref(), second.name.as_deref());
    let names = matches!(names, (Some("data_ptr"), Some("length")) | (Some("pointer"), Some("vtable")));
    size == 16 && is_reference && names && (first.offset, second.offset) == (0, 8)
}

/// Returns the type by which a value is shown: a string for a reference to one.
pub(crate) fn shown(ty: &Arc<Type>) -> Arc<Type> {
    match &ty.shape {
        Shape::Struct(object) if matches!(object.name.as_deref(), Some("&str" | "&mut str")) => {
            Arc::new(Type { shape: Shape::Str(StrOrder::AddressFirst), ..(**ty).clone() })
        }
        _ => ty.clone(),
    }
}

/// Whether a type may contain numbers of 128 bits, of which two are returned in registers.
fn contains_wide_numbers(ty: &Type) -> bool {
    match &ty.shape {
        Shape::Struct(object) => object.fields.iter().any(|field| contains_wide_numbers(&field.ty)),
        Shape::Array { element, .. } => contains_wide_numbers(element),
        Shape::Signed | Shape::Unsigned | Shape::Float | Shape::Opaque => ty.size > 8,
        // An enum with data: aligned like its contents, but that is not known.
        Shape::Unknown => ty.size <= 48,
        _ => false,
    }
}
