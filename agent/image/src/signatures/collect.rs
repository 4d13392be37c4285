//! Goes through the parameters of a function and gives each its place, as far as that is certain.

use std::sync::Arc;

use crate::signatures::assign::Assignment;
use crate::signatures::classes::Eightbyte;
use crate::signatures::convention::{Arrival, Trust, Unclear};
use crate::signatures::entry::{Agreement, Said};
use crate::signatures::model::{Parameter, Place, Rest, Type, Value};
use crate::signatures::subprogram::{Raw, Subprogram};

/// What a language says of the next parameter.
pub(crate) enum Next {
    /// It has this type, and is here.
    At(Arc<Type>, Place),
    /// It is in the source's view of the function alone, and not passed.
    Left,
    /// Nothing is certain from here on.
    End(Rest),
}

/// The parameters of a function, up to the first one that is not certain.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) rest: Option<Rest>,
    /// The number of parameters that are said to be in the registers where the convention has them.
    confirmed: usize,
}

/// Gives the parameters of a function their places. `is_hidden`: whether an address for the result comes before them.
///
/// # Errors
/// A parameter is said to be elsewhere, so the function has another convention.
pub(crate) fn collect(
    function: &Subprogram,
    trust: Trust,
    is_hidden: bool,
    next: &dyn Fn(&mut Assignment, &Raw) -> Next,
) -> Result<Collected, Unclear> {
    let mut assignment = Assignment::new(function.producer);
    if is_hidden {
        assignment.word(Eightbyte::Integer);
    }
    let rest = function.is_variadic.then_some(Rest::Variadic);
    let mut collected = Collected { rest, ..Collected::default() };
    for raw in &function.parameters {
        let (ty, place) = match next(&mut assignment, raw) {
            Next::At(ty, place) => (ty, place),
            Next::Left => continue,
            Next::End(rest) => {
                collected.rest = Some(rest);
                break;
            }
        };
        let agreement = raw.said.agrees(place);
        let place = match trust.arrival(raw.said, &raw.ty, place)? {
            Arrival::Passed => place,
            Arrival::Ignored => Place::Unread,
            Arrival::Unclear => {
                collected.rest = Some(Rest::Changed);
                break;
            }
        };
        let is_in_register =
            matches!(raw.said, Said::Register(_) | Said::Pieces(_) | Said::Pair(..) | Said::Behind(Some(_)));
        collected.confirmed += usize::from(is_in_register && agreement == Agreement::Confirmed);
        collected.parameters.push(Parameter { name: raw.name.clone(), value: Value { ty, place } });
    }
    Ok(collected)
}

/// The same for a function of which it is not known whether an address for the result comes first: the registers in which the
/// parameters are said to be decide it.
///
/// # Errors
/// They do not.
pub(crate) fn collect_either(
    function: &Subprogram,
    trust: Trust,
    next: &dyn Fn(&mut Assignment, &Raw) -> Next,
) -> Result<Collected, Unclear> {
    let fitting = |is_hidden| {
        let collected = collect(function, trust, is_hidden, next).ok()?;
        let ends_early = collected.rest == Some(Rest::Changed);
        (collected.confirmed > 0 && !ends_early).then_some(collected)
    };
    match (fitting(false), fitting(true)) {
        (Some(collected), None) | (None, Some(collected)) => Ok(collected),
        _ => Err(Unclear::Type),
    }
}
