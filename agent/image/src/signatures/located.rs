//! Signatures of functions whose parameters a compiler has changed: copies of functions with fewer parameters, and functions that
//! have lost some; and parameters of which no convention says where they are.
//!
//! The calling convention of such a function is known to the compiler alone. But optimised code says where each parameter is at
//! the entry. What is in a register there is certain, and everything else unknown, like the result.

use gimli::constants as dw;

use crate::signatures::classes::{Class, Eightbyte};
use crate::signatures::convention::Unclear;
use crate::signatures::entry::Said;
use crate::signatures::model::{Parameter, Place, Rest, Signature, Type, Value, Word};
use crate::signatures::rust;
use crate::signatures::subprogram::{Raw, Subprogram};

/// Returns the signature of a function. Parameters that are not in registers have the place [`Place::Unread`].
///
/// # Errors
/// No parameter is known to be in a register.
pub(crate) fn signature(function: &Subprogram) -> Result<Signature, Unclear> {
    let is_known = |parameter: &Parameter| parameter.value.place != Place::Unread;
    let is_rust = function.language == Some(dw::DW_LANG_Rust);
    let parameters: Vec<Parameter> = function.parameters.iter().map(|raw| located(raw, is_rust)).collect();
    // In other code, the registers are those of a later time.
    if !function.is_optimised || !parameters.iter().any(is_known) {
        return Err(Unclear::Changed);
    }
    let rest = function.is_variadic.then_some(Rest::Variadic);
    Ok(Signature { parameters, rest, result: None })
}

/// Adds the parameters after one whose type does not say where it is: optimised code says of those in registers which ones these
/// are.
pub(crate) fn completed(signature: Signature, function: &Subprogram) -> Signature {
    if signature.rest != Some(Rest::Type) || !function.is_optimised {
        return signature;
    }
    let mut signature = signature;
    let is_rust = function.language == Some(dw::DW_LANG_Rust);
    let others = function.parameters.iter().skip(signature.parameters.len());
    signature.parameters.extend(others.map(|raw| located(raw, is_rust)));
    signature.rest = function.is_variadic.then_some(Rest::Variadic);
    signature
}

fn located(raw: &Raw, is_rust: bool) -> Parameter {
    let place = match raw.said {
        Said::Register(Some(word)) if fits(&raw.ty, word) => Place::Word(word),
        Said::Pair(low, high) if raw.ty.size == 16 => Place::Pair(low, high),
        _ => Place::Unread,
    };
    let ty = if is_rust { rust::shown(&raw.ty) } else { raw.ty.clone() };
    Parameter { name: raw.name.clone(), value: Value { ty, place } }
}

/// Whether a value of a type can be in a register of this kind.
fn fits(ty: &Type, word: Word) -> bool {
    let class = match Class::of(&ty.classes, ty.size) {
        Class::One(class) => class,
        _ => return false,
    };
    match word {
        Word::Integer(_) => class == Eightbyte::Integer,
        Word::Vector(_) => class == Eightbyte::Sse,
        Word::Stack(_) => false,
    }
}
