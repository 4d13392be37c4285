//! Functions of the process's libraries that the agent wants to see calls of: what LD_PRELOAD does for a program
//! that is started, done to one that runs.

use std::fs::File;
use std::path::Path;

use gprofinject_abi::attach::DETOURS_MAX;
use gprofinject_plan::detour::Detour;
use object::{Object, ObjectSymbol, SymbolKind};

use super::image::Agent;
use super::process::Mapping;
use super::tracee::Memory;
use crate::sys::Mapped;

/// What the agent defines and a running program should call. Not what has to do with children and executed
/// programs: they are seen to otherwise, or not followed.
const WANTED: [&str; 10] = [
    "_dl_find_object",
    "dl_iterate_phdr",
    "_Unwind_Backtrace",
    "_Unwind_SetIP",
    "_Unwind_GetCFA",
    "backtrace",
    "siglongjmp",
    "__longjmp_chk",
    "prctl",
    "syscall",
];

/// Without these no exception finds its way through a hooked frame.
const NEEDED: [&str; 2] = ["_dl_find_object", "dl_iterate_phdr"];

/// Room for one copy of first instructions.
pub(crate) const COPY: u64 = 128;

#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) at: u64,
    pub(crate) copy: u64,
    pub(crate) detour: Detour,
    /// What stands at `at`.
    pub(crate) before: Vec<u8>,
}

/// A function in the process's memory.
struct Found {
    name: &'static str,
    at: u64,
    size: u64,
}

/// Decides for each; `copies` is where they go. The error is the name of a needed one that cannot be led.
pub(crate) fn plan(
    memory: &Memory,
    mappings: &[Mapping],
    agent: &Agent,
    base: u64,
    copies: u64,
) -> Result<Vec<Planned>, &'static str> {
    let mut planned: Vec<Planned> = Vec::new();
    for found in find(mappings) {
        if planned.len() == DETOURS_MAX || planned.iter().any(|other| other.at == found.at) {
            continue;
        }
        let copy = copies + planned.len() as u64 * COPY;
        let made = agent.function(found.name).and_then(|to| {
            let code = memory.bytes(found.at, found.size as usize).ok()?;
            let detour = Detour::new(&code, found.at, copy, base + to)?;
            let before = code.get(..detour.replacement.len())?.to_vec();
            (detour.original.len() as u64 <= COPY).then_some(Planned { at: found.at, copy, detour, before })
        });
        match made {
            Some(made) => planned.push(made),
            None if NEEDED.contains(&found.name) => return Err(found.name),
            None => {}
        }
    }
    Ok(planned)
}

/// Looks into each library once.
fn find(mappings: &[Mapping]) -> Vec<Found> {
    let mut found = Vec::new();
    let mut seen: Vec<&str> = Vec::new();
    for mapping in mappings.iter().filter(|mapping| mapping.path.contains(".so")) {
        if mapping.offset != 0 || seen.contains(&mapping.path.as_str()) {
            continue;
        }
        seen.push(&mapping.path);
        let Ok(bytes) = File::open(Path::new(&mapping.path)).and_then(|file| Mapped::new(&file)) else {
            continue;
        };
        let Ok(file) = object::File::parse(&*bytes) else { continue };
        for symbol in file.dynamic_symbols().filter(|s| s.is_definition() && s.kind() == SymbolKind::Text) {
            if let Some(name) = WANTED.iter().find(|name| symbol.name() == Ok(**name)) {
                found.push(Found { name, at: mapping.lo + symbol.address(), size: symbol.size() });
            }
        }
    }
    found
}
