//! The names of functions that readers of a file show.

use std::borrow::Cow;
use std::thread;

use gprofinject_image::names::demangle::demangle;

use crate::model::{Function, Module, Recording};

impl Recording {
    /// Returns the name of a function that readers show.
    pub(crate) fn shown_name<'f>(&self, function: &'f Function) -> Cow<'f, str> {
        match function.name.as_str() {
            "" => Cow::Owned(self.place_name(function)),
            name if self.modules.get(function.module as usize).is_some_and(Module::is_generated) => {
                Cow::Borrowed(name)
            }
            name => demangle(name),
        }
    }

    /// Returns the names of all functions that readers show, found by as many threads as there are processors if they are many. Where there
    /// cannot be a thread, some names are `None`.
    pub(crate) fn shown_names(&self) -> Vec<Option<Cow<'_, str>>> {
        /// The number of names for which a thread is worth its beginning.
        const MANY: usize = 512;
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let each = self.functions.len().div_ceil(threads).max(MANY);
        let mut names = vec![None; self.functions.len()];
        thread::scope(|scope| {
            let mut parts = names.chunks_mut(each).zip(self.functions.chunks(each));
            let first = parts.next();
            for (names, functions) in parts {
                let find = move || self.find_names(names, functions);
                let _ = thread::Builder::new().spawn_scoped(scope, find);
            }
            if let Some((names, functions)) = first {
                self.find_names(names, functions);
            }
        });
        names
    }

    fn find_names<'f>(&self, names: &mut [Option<Cow<'f, str>>], functions: &'f [Function]) {
        names.iter_mut().zip(functions).for_each(|(name, function)| *name = Some(self.shown_name(function)));
    }

    /// Returns a name for a function that has none: its place in its file.
    pub fn place_name(&self, function: &Function) -> String {
        match self.modules.get(function.module as usize).map_or("", Module::name) {
            "" => format!("{:#x}", function.address),
            file => format!("{file}+{:#x}", function.address),
        }
    }
}
