//! Finds the interpreter in a process.

use std::path::Path;

use crate::os::proc;
use crate::python::layout::{Layout, NEWEST, OLDEST};
use crate::python::memory::{Memory, Process};
use crate::python::symbols::Symbols;

/// Where an interpreter has what is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Interpreter {
    pub(super) layout: Layout,
    /// `_PyRuntime` and `PyCode_Type`.
    pub(super) runtime: u64,
    pub(super) code_type: u64,
}

/// Whether a file has the name of CPython's program or library.
pub(crate) fn may_be(file: &str) -> bool {
    version(file).is_some()
}

/// Returns the second number of the version that is in the name of CPython's program or library, 0 if there is none.
fn version(file: &str) -> Option<u32> {
    let name = file.trim_end_matches(" (deleted)").rsplit('/').next()?;
    let rest = name.strip_prefix("libpython3").or_else(|| name.strip_prefix("python3"))?;
    let Some(rest) = rest.strip_prefix('.') else { return (rest.is_empty()).then_some(0) };
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    let (number, after) = rest.split_at(digits);
    // Debug builds and those without a global lock have a letter there.
    match after.is_empty() || after.starts_with('.') {
        true if digits > 0 => number.parse().ok(),
        true => Some(0),
        false => None,
    }
}

/// Finds the interpreter of a process in its program, which may have any name, and in the other files that it has mapped by their names. `tid`
/// is the number of one of its threads.
///
/// # Errors
/// There is none that can be read; the text says why, if one was to be expected.
pub(super) fn find(pid: i32, tid: i32) -> Result<Interpreter, Option<String>> {
    let memory = Process(tid);
    let program = proc::program(pid);
    let mut seen = Vec::new();
    let mut why = None;
    for mapping in proc::mappings(pid).unwrap_or_default() {
        let named = version(&mapping.path);
        if named.is_none() && program.as_deref() != Some(Path::new(&mapping.path)) {
            continue;
        }
        if mapping.offset != 0 || seen.contains(&mapping.path) {
            continue;
        }
        let file = gmon::visible(&mapping.path).to_string();
        match at(mapping.lo, named.unwrap_or(0), &memory) {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => {}
            Err(reason) => why = Some(format!("{file} {reason}")),
        }
        if why.is_none() && seen.is_empty() && named.is_some() {
            why = Some(format!("{file} does not export _PyRuntime"));
        }
        seen.push(mapping.path);
    }
    Err(why)
}

/// Returns the interpreter in the file that is loaded at an address, if it is there.
///
/// # Errors
/// It is of a version that is not known.
fn at(base: u64, named: u32, memory: &impl Memory) -> Result<Option<Interpreter>, String> {
    let Some(symbols) = Symbols::of(memory, base) else { return Ok(None) };
    let Some((runtime, code_type)) = symbols.address("_PyRuntime").zip(symbols.address("PyCode_Type")) else {
        return Ok(None);
    };
    // Python 3.11 and later say which they are: 0x030b07f0 is 3.11.7.
    let told = symbols.address("Py_Version").and_then(|at| memory.word(at));
    // Earlier ones are known by the functions that were new in them.
    let by_functions = || {
        let new = [(10, "Py_NewRef"), (9, "PyObject_CallNoArgs"), (8, "PyCode_NewWithPosOnlyArgs")];
        new.into_iter().find(|(_, name)| symbols.address(name).is_some()).map_or(0, |(minor, _)| minor)
    };
    let minor = match told {
        Some(version) if version >> 24 == 3 => version as u32 >> 16 & 0xff,
        Some(_) => 0,
        None if named == 0 => by_functions(),
        None => named,
    };
    match Layout::of(minor, runtime, memory) {
        Some(layout) => Ok(Some(Interpreter { layout, runtime, code_type })),
        None if (OLDEST..=NEWEST).contains(&minor) => Err("is built in a way that is not known".to_owned()),
        None => Err(format!("is not of Python 3.{OLDEST} to 3.{NEWEST}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_interpreters() {
        for (name, expected) in [
            ("/usr/bin/python3.11", Some(11)),
            ("/opt/lib/libpython3.8.so.1.0", Some(8)),
            ("/opt/lib/libpython3.12.so.1.0 (deleted)", Some(12)),
            ("/usr/bin/python3", Some(0)),
            ("/opt/lib/libpython3.so", None),
            ("/usr/bin/python3.11d", None),
            ("/usr/bin/python3.13t", None),
            ("/usr/bin/python2.7", None),
            ("/usr/bin/python3-config", None),
            ("/usr/lib/python3/dist-packages/x.so", None),
            ("python3.99999999999", None),
            ("", None),
        ] {
            assert_eq!(version(name), expected, "{name}");
        }
    }
}
