//! Demangles the names of all functions.

use std::sync::{Mutex, PoisonError};
use std::thread;

use gmon_run::Module;
use gprofinject_image::names::demangle::demangle;

use crate::model::Function;

/// The number of names below which another thread is not worth its cost.
const FEW: usize = 2000;

/// Sets the demangled names of functions of modules. Demangling takes most of the time that loading a large profile takes, so all
/// processors do it.
pub(crate) fn demangle_all(functions: &mut [Function], modules: &[Module]) {
    let is_generated: Vec<bool> = modules.iter().map(Module::is_generated).collect();
    let set = |functions: &mut [Function]| {
        for function in functions {
            function.demangled = match function.module {
                Some(module) if is_generated.get(module as usize) == Some(&true) => function.name.clone(),
                _ => demangle(&function.name).into_owned(),
            };
        }
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    if functions.len() < FEW || threads == 1 {
        return set(functions);
    }
    let parts = Mutex::new(functions.chunks_mut(functions.len().div_ceil(threads)));
    let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
    let work = || {
        while let Some(part) = next() {
            set(part);
        }
    };
    thread::scope(|scope| {
        // If no thread can be created, the calling one does all of it.
        for _ in 1..threads {
            let _ = thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
}
