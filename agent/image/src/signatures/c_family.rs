//! Signatures of functions in C, C++ and Objective-C.

use std::sync::Arc;

use crate::signatures::assign::{self, Assignment, Returned, passing};
use crate::signatures::classes::{ByteClass, Classes};
use crate::signatures::collect::{Next, collect, collect_either};
use crate::signatures::convention::{Trust, Unclear};
use crate::signatures::entry::Said;
use crate::signatures::model::{Passing, Place, Rest, Shape, Signature, Type, Value, Word};
use crate::signatures::subprogram::{Raw, Subprogram};
use crate::signatures::types::scalar;
use crate::signatures::units::Producer;

/// Returns the signature of a function. `is_c` tells C from the languages in which all functions are prototyped.
///
/// # Errors
/// Its parameters are not where the System V ABI has them, or it is not known where that is.
pub(crate) fn signature(function: &Subprogram, trust: Trust, is_c: bool) -> Result<Signature, Unclear> {
    let is_promoted = is_c && !function.is_prototyped;
    let producer = function.producer;
    let next = |assignment: &mut Assignment, raw: &Raw| next(assignment, raw, is_promoted, producer);
    let returned = match function.result.shape {
        Shape::Void => Returned::At(Place::Nowhere),
        _ => assign::result(&function.result),
    };
    let collected = match returned {
        Returned::Unknown => collect_either(function, trust, &next)?,
        returned => collect(function, trust, returned == Returned::InMemory, &next)?,
    };
    let place = match returned {
        Returned::At(place) => Some(place).filter(|_| function.result.shape != Shape::Void),
        Returned::InMemory => Some(Place::Behind(Word::RAX)),
        Returned::Unknown => None,
    };
    let result = place.filter(|_| trust.has_result());
    let result = result.map(|place| Value { ty: function.result.clone(), place });
    Ok(Signature { parameters: collected.parameters, rest: collected.rest, result })
}

fn next(assignment: &mut Assignment, raw: &Raw, is_promoted: bool, producer: Producer) -> Next {
    match raw.name.as_deref().filter(|_| raw.is_artificial) {
        // GCC makes several destructors of one, and none of them has this parameter of it.
        Some("__in_chrg") => return Next::Left,
        // Some constructors and destructors of a class with virtual base classes have it, and others do not.
        Some("__vtt_parm") => return Next::End(Rest::Changed),
        _ => {}
    }
    let ty = match raw.ty.shape {
        // C's functions without prototypes get a float as a double.
        Shape::Float if is_promoted && raw.ty.size == 4 => Arc::new(scalar(8, Shape::Float, ByteClass::Sse)),
        _ => raw.ty.clone(),
    };
    let place = match (passing(&ty), raw.said) {
        // The class does not say it, but its place does.
        (Passing::Unknown, Said::Behind(Some(_)) | Said::BehindFrame) => assignment.address(),
        (Passing::Unknown, Said::Register(_) | Said::Pieces(_) | Said::Pair(..) | Said::Frame(_)) => {
            assignment.value(&ty)
        }
        (Passing::Value, said) if is_wide_vector(&ty) => wide_vector(assignment, &ty, said, producer),
        _ => assignment.argument(&ty),
    };
    match place {
        Some(place) => Next::At(ty, place),
        None => Next::End(Rest::Type),
    }
}

/// Returns the place of a vector of more than 16 bytes. It is in a register if the code may use AVX, and otherwise on the stack, and
/// what is said of its place has to show which of both.
fn wide_vector(assignment: &mut Assignment, ty: &Type, said: Said, producer: Producer) -> Option<Place> {
    match said {
        Said::Register(Some(word)) if word == assignment.next_vector() => assignment.vector(ty),
        // GCC's code finds arguments on the stack by the CFA, and others where it has stored them.
        Said::Frame(Some(above_cfa)) if producer == Producer::Gcc && above_cfa >= 0 => {
            assignment.on_stack(ty)
        }
        Said::Frame(_) | Said::Computed(_) if producer == Producer::Gcc => assignment.vector(ty),
        _ => None,
    }
}

/// Whether a type is a vector of 32 or 64 bytes.
fn is_wide_vector(ty: &Type) -> bool {
    ty.shape == Shape::Opaque && matches!(ty.size, 32 | 64) && ty.classes == Classes::UNKNOWN
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signatures::model::{Field, Pointee, Struct};

    fn raw(ty: Type) -> Raw {
        Raw { name: None, ty: Arc::new(ty), is_artificial: false, said: Said::Nothing }
    }

    fn int() -> Type {
        scalar(4, Shape::Signed, ByteClass::Integer)
    }

    fn double() -> Type {
        scalar(8, Shape::Float, ByteClass::Sse)
    }

    fn long_double() -> Type {
        scalar(16, Shape::Float, ByteClass::X87)
    }

    /// Returns a structure with these fields, one after the other.
    fn structure(fields: &[Type]) -> Type {
        let (mut classes, mut size, mut align) = (Classes::EMPTY, 0_u64, 1);
        let mut all = Vec::new();
        for ty in fields {
            size = size.next_multiple_of(ty.align);
            classes.add(&ty.classes, size);
            all.push(Field { name: None, offset: size, bits: None, ty: Arc::new(ty.clone()) });
            size += ty.size;
            align = align.max(ty.align);
        }
        let object = Struct { name: None, fields: all, passing: Passing::Value, is_union: false };
        Type::new(size.next_multiple_of(align), align, Shape::Struct(Arc::new(object)), classes)
    }

    fn places(result: Type, parameters: Vec<Type>) -> Vec<Place> {
        let function = Subprogram::of(result, parameters.into_iter().map(raw).collect());
        let signature = signature(&function, Trust::Type, false).expect("a signature");
        signature.parameters.into_iter().map(|parameter| parameter.value.place).collect()
    }

    /// Figure 3.5 and 3.6 of the ABI document: `func(e, f, s, g, h, ld, m, y, n, i, j, k)`, where s is a structparm
    /// {int a, b; double d}, ld a long double and y a __m256. The document has rdi: e, rsi: f, rdx: s.a and s.b, rcx: g, r8: h,
    /// r9: i, stack 0: ld, stack 16: j, stack 24: k; xmm0: s.d, xmm1: m, ymm2: y, xmm3: n. Here y is a __m128, since the place
    /// of a __m256 depends on the options of the compiler.
    #[test]
    fn the_example_of_the_document() {
        let m128 = Type::new(16, 16, Shape::Opaque, Classes::vector());
        let s = structure(&[int(), int(), double()]);
        let parameters =
            vec![int(), int(), s, int(), int(), long_double(), double(), m128, double(), int(), int(), int()];
        let integer = |n| Place::Word(Word::Integer(n));
        let vector = |n| Place::Word(Word::Vector(n));
        let expected = [
            integer(0),
            integer(1),
            Place::Pair(Word::Integer(2), Word::Vector(0)),
            integer(3),
            integer(4),
            Place::Stack(0),
            vector(1),
            Place::Unread,
            vector(3),
            integer(5),
            Place::Word(Word::Stack(16)),
            Place::Word(Word::Stack(24)),
        ];
        assert_eq!(places(Type::void(), parameters), expected);
    }

    /// "If there are no registers available for any eightbyte of an argument, the whole argument is passed on the stack. If
    /// registers have already been assigned for some eightbytes of such an argument, the assignments get reverted."
    #[test]
    fn an_object_is_never_split_between_registers_and_stack() {
        let pointer = || scalar(8, Shape::Pointer(Pointee::Other), ByteClass::Integer);
        let two = structure(&[pointer(), pointer()]);
        let mut parameters = vec![int(); 5];
        parameters.extend([two, int(), int()]);
        let found = places(Type::void(), parameters);
        let expected = [Place::Stack(0), Place::Word(Word::Integer(5)), Place::Word(Word::Stack(16))];
        assert_eq!(found[5..], expected);
    }

    /// "If the class is MEMORY, the caller provides space for the return value and passes the address of this storage in %rdi as
    /// if it were the first argument to the function."
    #[test]
    fn a_result_in_memory_takes_the_first_register() {
        let large = structure(&[double(), double(), double()]);
        assert_eq!(places(large, vec![int()]), [Place::Word(Word::Integer(1))]);
        // A long double is returned in a register, and one in a structure as well.
        assert_eq!(places(long_double(), vec![int()]), [Place::Word(Word::Integer(0))]);
        assert_eq!(places(structure(&[long_double()]), vec![int()]), [Place::Word(Word::Integer(0))]);
    }

    #[test]
    fn results() {
        let returned = |ty: Type| assign::result(&ty);
        assert_eq!(returned(int()), Returned::At(Place::Word(Word::RAX)));
        assert_eq!(returned(double()), Returned::At(Place::Word(Word::Vector(0))));
        let pair = |low, high| Returned::At(Place::Pair(low, high));
        let floats = structure(&[double(), double()]);
        assert_eq!(returned(floats), pair(Word::Vector(0), Word::Vector(1)));
        assert_eq!(returned(structure(&[double(), int()])), pair(Word::Vector(0), Word::RAX));
        assert_eq!(returned(structure(&[int(), double()])), pair(Word::RAX, Word::Vector(0)));
        let integers = scalar(16, Shape::Signed, ByteClass::Integer);
        assert_eq!(returned(integers), pair(Word::RAX, Word::RDX));
    }
}
