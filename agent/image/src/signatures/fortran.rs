//! Signatures of functions in Fortran, as gfortran and other compilers with its convention make them.
//!
//! Parameters are passed by their addresses, unless they are declared VALUE, and debug information gives them the types of what the
//! addresses lead to. Where it says the parameter is tells both cases apart. The lengths of strings follow after all parameters.

use std::collections::HashMap;
use std::sync::Arc;

use crate::signatures::assign::{self, Assignment, Returned};
use crate::signatures::classes::ByteClass;
use crate::signatures::collect::{Next, collect};
use crate::signatures::convention::{Trust, Unclear};
use crate::signatures::entry::Said;
use crate::signatures::model::{Parameter, Place, Pointee, Rest, Shape, Signature, Type, Value, Word};
use crate::signatures::subprogram::{Raw, Subprogram};
use crate::signatures::types::scalar;

/// Returns the signature of a function.
///
/// # Errors
/// Its parameters are not where the convention has them.
pub(crate) fn signature(function: &Subprogram, trust: Trust) -> Result<Signature, Unclear> {
    let returned = match function.result.shape {
        Shape::Void => Returned::At(Place::Nowhere),
        _ => assign::result(&function.result),
    };
    let (is_hidden, place) = match returned {
        Returned::At(place) => (false, Some(place).filter(|_| function.result.shape != Shape::Void)),
        Returned::InMemory => (true, Some(Place::Behind(Word::RAX))),
        Returned::Unknown => return Err(Unclear::Type),
    };
    let collected = collect(function, trust, is_hidden, &next)?;
    let parameters = with_lengths(collected.parameters);
    let place = place.filter(|_| trust.has_result());
    let result = place.map(|place| Value { ty: function.result.clone(), place });
    Ok(Signature { parameters, rest: collected.rest, result })
}

fn next(assignment: &mut Assignment, raw: &Raw) -> Next {
    let address = || scalar(8, Shape::Pointer(Pointee::Other), ByteClass::Integer);
    let is_by_address = match raw.said {
        Said::Behind(_) | Said::BehindFrame => true,
        Said::Register(_) | Said::Pieces(_) | Said::Pair(..) | Said::Frame(_) => false,
        // It has gone, or nothing is said.
        Said::Nothing | Said::Computed(_) => return Next::End(Rest::Changed),
    };
    // A string is where its address leads, whatever is said, and so is what the compiler has added, but for lengths.
    let is_scalar = raw.ty.shape == Shape::Signed || raw.ty.shape == Shape::Unsigned;
    let is_by_address =
        is_by_address || matches!(raw.ty.shape, Shape::Str(_)) || raw.is_artificial && !is_scalar;
    if !is_by_address {
        return match assignment.argument(&raw.ty) {
            Some(place) => Next::At(raw.ty.clone(), place),
            None => Next::End(Rest::Type),
        };
    }
    let Some(Place::Word(word)) = assignment.argument(&address()) else { return Next::End(Rest::Type) };
    match &raw.ty.shape {
        Shape::Signed | Shape::Unsigned | Shape::Bool | Shape::Float | Shape::Char if raw.ty.size <= 8 => {
            Next::At(raw.ty.clone(), Place::Behind(word))
        }
        Shape::Str(_) => Next::At(raw.ty.clone(), Place::Behind(word)),
        Shape::Struct(object) if object.name.as_deref().is_some_and(|name| name.starts_with("complex")) => {
            Next::At(raw.ty.clone(), Place::Behind(word))
        }
        // Arrays and objects are shown as their addresses.
        _ => Next::At(Arc::new(address()), Place::Word(word)),
    }
}

/// Gives strings their lengths, and leaves out what the source does not have: lengths, and the place of a result.
fn with_lengths(parameters: Vec<Parameter>) -> Vec<Parameter> {
    let length = |parameter: &Parameter| match (&parameter.name, parameter.value.place) {
        (Some(name), Place::Word(word)) => Some((name.strip_prefix('_')?.to_owned(), word)),
        _ => None,
    };
    let lengths: HashMap<String, Word> = parameters.iter().filter_map(length).collect();
    let is_string = |ty: &Type| matches!(ty.shape, Shape::Str(_));
    let strings: Vec<Arc<str>> =
        parameters.iter().filter(|p| is_string(&p.value.ty)).filter_map(|p| p.name.clone()).collect();
    let is_added = |name: &str| {
        let of_string = name.strip_prefix('_').is_some_and(|of| strings.iter().any(|s| **s == *of));
        of_string || matches!(name, "__result" | ".__result" | "_.__result")
    };
    let kept = parameters.into_iter().filter(|p| p.name.as_deref().is_none_or(|name| !is_added(name)));
    let completed = kept.map(|mut parameter| {
        if let (Shape::Str(_), Place::Behind(address)) = (&parameter.value.ty.shape, parameter.value.place) {
            let length = parameter.name.as_deref().and_then(|name| lengths.get(name));
            parameter.value = match length {
                Some(&length) => Value { ty: parameter.value.ty, place: Place::Pair(address, length) },
                None => {
                    let ty = scalar(8, Shape::Pointer(Pointee::Other), ByteClass::Integer);
                    Value { ty: Arc::new(ty), place: Place::Word(address) }
                }
            };
        }
        parameter
    });
    completed.collect()
}
