//! Detours: library functions of the process that the injector redirects to the agent. They have the effect
//! that LD_PRELOAD has for a program that gprofinject starts.

use std::io;
use std::time::{Duration, Instant};

use gprofinject_abi::attach::{DETOURED, DETOURS_MAX};
use gprofinject_image::symbols::{exported_address, exported_functions};
use gprofinject_plan::x86::detour::Detour;

use crate::os::proc::Mapping;
use crate::target::agent::foreign_file::mapped;
use crate::target::agent::image::Agent;
use crate::target::process::Process;
use crate::target::threads::memory::Memory;

/// The functions without which no exception can pass a hooked frame.
const NEEDED: [&str; 2] = ["_dl_find_object", "dl_iterate_phdr"];

/// The number of bytes of a function's code that are read at most, because its size is a number that the
/// library gives.
const CODE_MAX: u64 = 4096;

/// The room in bytes for one copy of first instructions.
pub(crate) const COPY: u64 = 128;

/// A detour that can be written.
#[derive(Debug)]
pub(crate) struct Planned {
    pub(crate) at: u64,
    pub(crate) copy: u64,
    pub(crate) detour: Detour,
    /// The bytes that are at `at` now.
    pub(crate) before: Vec<u8>,
}

/// A function in the process's memory.
pub(crate) struct Found {
    name: &'static str,
    at: u64,
    code: Vec<u8>,
}

/// Decides how to redirect each function. `copies` is the address at which the copies of their first
/// instructions will be.
///
/// # Errors
/// A function of [`NEEDED`] cannot be redirected. The error is its name.
pub(crate) fn plan(
    found: &[Found],
    agent: &Agent,
    base: u64,
    copies: u64,
) -> Result<Vec<Planned>, &'static str> {
    let mut planned: Vec<Planned> = Vec::new();
    for found in found {
        if planned.len() == DETOURS_MAX || planned.iter().any(|other| other.at == found.at) {
            continue;
        }
        let copy = copies + planned.len() as u64 * COPY;
        let made = agent.function(found.name).and_then(|to| {
            let detour = Detour::new(&found.code, found.at, copy, base + to)?;
            let before = found.code.get(..detour.replacement.len())?.to_vec();
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

/// Returns for each function the definition that the dynamic linker finds first. Only that definition calls
/// the others.
pub(crate) fn find(memory: &Memory, process: &Process, mappings: &[Mapping]) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    for base in libraries(memory, process, mappings).unwrap_or_default() {
        let Some(mapping) = mappings.iter().find(|mapping| mapping.lo == base) else { continue };
        let Some(bytes) = mapped(process.pid, mapping) else { continue };
        for function in exported_functions(&bytes) {
            let name = DETOURED.iter().find(|name| function.name == **name);
            if let Some(name) = name.filter(|name| !found.iter().any(|other| other.name == **name)) {
                let at = base.wrapping_add(function.address);
                // The first instructions are enough.
                let len = function.size.min(CODE_MAX) as usize;
                let code = memory.bytes(at, len).unwrap_or_default();
                found.push(Found { name, at, code });
            }
        }
    }
    found
}

/// Returns the process's mappings after the dynamic linker has loaded all libraries that the program begins
/// with and has nothing else under way, or the present mappings if that takes too long.
///
/// # Errors
/// The mappings cannot be read.
pub(crate) fn loaded(memory: &Memory, process: &Process) -> io::Result<Vec<Mapping>> {
    const PATIENCE: Duration = Duration::from_secs(1);
    let start = Instant::now();
    loop {
        let mappings = process.mappings()?;
        let is_quiet =
            list(memory, process, &mappings).is_some_and(|list| list.first != 0 && list.state == 0);
        if is_quiet || start.elapsed() > PATIENCE || process.executes_another() {
            return Ok(mappings);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The head of struct r_debug (link.h): the dynamic linker's list of struct link_map, and its state (0 means
/// consistent).
struct List {
    first: u64,
    state: u32,
}

fn list(memory: &Memory, process: &Process, mappings: &[Mapping]) -> Option<List> {
    let base = process.dynamic_linker();
    let linker = mapped(process.pid, mappings.iter().find(|mapping| mapping.lo == base)?)?;
    let debug = match exported_address(&linker, "_r_debug") {
        Some(debug) => base + debug,
        // musl exports a pointer to it, which is not right before the dynamic linker has relocated itself.
        None => {
            let debug = memory.word(base + exported_address(&linker, "_dl_debug_addr")?).ok()?;
            Some(debug).filter(|&debug| debug > base)?
        }
    };
    Some(List { first: memory.word(debug + 8).ok()?, state: memory.word(debug + 24).ok()? as u32 })
}

/// Returns the load addresses of the libraries, in the dynamic linker's order.
fn libraries(memory: &Memory, process: &Process, mappings: &[Mapping]) -> Option<Vec<u64>> {
    const MOST: usize = 10_000;
    let mut map = list(memory, process, mappings)?.first;
    let mut bases = Vec::new();
    while map != 0 && bases.len() < MOST {
        bases.push(memory.word(map).ok()?);
        map = memory.word(map + 24).ok()?;
    }
    Some(bases)
}
