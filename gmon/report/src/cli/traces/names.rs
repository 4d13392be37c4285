//! The names of what is in a trace.

use gmon_trace::{Callee, Doing, Process, Recorded, Trace};

use crate::cli::text::{address_name, demangled, file_name, plain};

/// Returns a function's name in the symbol table, which is empty if it has none. That of a function that the trace does not define
/// is its number.
pub(crate) fn symbol(trace: &Trace, callee: Callee) -> String {
    trace.function(callee).map_or_else(|| format!("#{}", callee.number), |function| function.name.clone())
}

/// Returns the file name of a process's program.
pub(crate) fn program(process: &Process) -> String {
    match process.program.is_empty() {
        true => "[unknown]".to_owned(),
        false => file_name(&process.program),
    }
}

/// Returns the name of a thread: that of the program if it has no other one.
pub(crate) fn thread(recorded: &Recorded, tid: u32) -> String {
    recorded.threads.get(&tid).map_or_else(|| program(&recorded.process), |name| plain(name))
}

/// Returns what a thread does, in words.
pub(crate) fn doing(doing: Doing) -> String {
    match doing {
        Doing::Runs { cpu } => format!("runs on cpu {cpu}"),
        Doing::Preempted => "is preempted".to_owned(),
        Doing::Waits => "waits".to_owned(),
        Doing::Moved { cpu } => format!("is moved to cpu {cpu}"),
    }
}

/// The names of functions as they are shown, each of which is demangled once.
pub(crate) struct Names<'t> {
    trace: &'t Trace,
    /// Whether names are shown as in the symbol table.
    raw: bool,
    /// By index.
    known: Vec<Option<Box<str>>>,
    unknown: String,
}

impl<'t> Names<'t> {
    pub(crate) fn new(trace: &'t Trace, raw: bool) -> Names<'t> {
        Names { trace, raw, known: vec![None; trace.functions.len()], unknown: String::new() }
    }

    /// Returns a function's name without its parameters, or its address if it has no name.
    pub(crate) fn of(&mut self, callee: Callee) -> &str {
        let place = callee.index.and_then(|index| self.known.get_mut(index as usize));
        match place {
            Some(place) => place.get_or_insert_with(|| {
                let name = match self.trace.function(callee) {
                    Some(function) if function.name.is_empty() => address_name(function.address),
                    _ if self.raw => plain(&symbol(self.trace, callee)),
                    _ => without_parameters(&demangled(&symbol(self.trace, callee))),
                };
                name.into_boxed_str()
            }),
            None => {
                self.unknown = symbol(self.trace, callee);
                &self.unknown
            }
        }
    }

    /// Returns the file name of a function's module.
    pub(crate) fn module(&self, callee: Callee) -> String {
        self.trace
            .function(callee)
            .map_or_else(String::new, |function| file_name(self.trace.module(function)))
    }
}

/// Returns a demangled name without the list of parameters, which would stand before the arguments.
pub(crate) fn without_parameters(name: &str) -> String {
    let bare = || {
        let end = name.rfind(')')?;
        let mut depth = 0_usize;
        let start = name.get(..=end)?.char_indices().rev().find_map(|(at, c)| {
            depth = match c {
                ')' => depth + 1,
                '(' => depth - 1,
                _ => depth,
            };
            (depth == 0).then_some(at)
        })?;
        // Copies of functions that compilers make have the same parameters.
        let suffix = name.get(end + 1..).filter(|rest| rest.trim_start().starts_with('[')).unwrap_or("");
        let bare = name.get(..start)?;
        // `(anonymous namespace)::x` and `operator()` are names; nothing else ends in such a list.
        let is_name = bare.is_empty()
            || bare.ends_with("::")
            || bare.ends_with("operator")
            || end + 1 < name.len() && name.get(end + 1..)?.starts_with("::");
        (!is_name).then(|| format!("{bare}{suffix}"))
    };
    bare().unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_left_out() {
        for (full, bare) in [
            ("main", "main"),
            ("foo::bar(int)", "foo::bar"),
            ("foo::bar(int) const", "foo::bar"),
            ("f(void (*)(int), char)", "f"),
            ("functor::operator()(int, char)", "functor::operator()"),
            ("functor::operator()", "functor::operator()"),
            ("(anonymous namespace)::f(int)", "(anonymous namespace)::f"),
            ("(anonymous namespace)::x", "(anonymous namespace)::x"),
            ("f(int) [clone .part.0]", "f [clone .part.0]"),
            ("core::ops::function::FnOnce::call_once", "core::ops::function::FnOnce::call_once"),
            ("a)b", "a)b"),
        ] {
            assert_eq!(without_parameters(full), bare);
        }
    }
}
