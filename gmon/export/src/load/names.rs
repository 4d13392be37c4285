//! Demangles the names of all functions.

use gprofinject_image::names::demangle::demangle;

use crate::model::Function;

/// The number of names below which another thread is not worth its cost.
const FEW: usize = 2000;

/// Sets the demangled names of functions. Demangling takes most of the time that loading a large profile takes, so all
/// processors do it.
pub(crate) fn demangle_all(functions: &mut [Function]) {
    let set = |functions: &mut [Function]| {
        functions.iter_mut().for_each(|function| function.demangled = demangle(&function.name).into_owned());
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    if functions.len() < FEW || threads == 1 {
        return set(functions);
    }
    std::thread::scope(|scope| {
        for part in functions.chunks_mut(functions.len().div_ceil(threads)) {
            scope.spawn(move || set(part));
        }
    });
}
