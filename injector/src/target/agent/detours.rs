//! Functions of the process's libraries that the agent wants to see calls of: what LD_PRELOAD does for a program
//! that is started, done to one that runs.

use std::io;
use std::time::{Duration, Instant};

use gprofinject_abi::attach::DETOURS_MAX;
use gprofinject_plan::x86::detour::Detour;
use object::{Object, ObjectSymbol, SymbolKind};

use crate::os::proc::{self, Mapping};
use crate::target::agent::foreign_file;
use crate::target::agent::image::Agent;
use crate::target::process::Process;
use crate::target::threads::memory::Memory;

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

/// More of a function's code is not read: its size is the library's word.
const CODE_MAX: u64 = 4096;

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
pub(crate) struct Found {
    name: &'static str,
    at: u64,
    code: Vec<u8>,
}

/// Decides for each; `copies` is where they go. The error is the name of a needed function that cannot be redirected.
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

/// The definition that the dynamic linker finds first, of each; others are only called by that one.
pub(crate) fn find(memory: &Memory, process: &Process, mappings: &[Mapping]) -> Vec<Found> {
    let mut found: Vec<Found> = Vec::new();
    for base in libraries(memory, process, mappings).unwrap_or_default() {
        let Some(mapping) = mappings.iter().find(|mapping| mapping.lo == base) else { continue };
        let Some(bytes) = mapped(process.pid, mapping) else { continue };
        let Ok(file) = object::File::parse(&*bytes) else { continue };
        for symbol in file.dynamic_symbols().filter(|s| s.is_definition() && s.kind() == SymbolKind::Text) {
            let name = WANTED.iter().find(|name| symbol.name() == Ok(**name));
            if let Some(name) = name.filter(|name| !found.iter().any(|other| other.name == **name)) {
                let at = base.wrapping_add(symbol.address());
                // Its first instructions are enough.
                let len = symbol.size().min(CODE_MAX) as usize;
                let code = memory.bytes(at, len).unwrap_or_default();
                found.push(Found { name, at, code });
            }
        }
    }
    found
}

/// The mappings, when the dynamic linker has loaded all that the program begins with, and has nothing else under way; or
/// as they are when that takes too long.
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

/// struct r_debug (link.h): the dynamic linker's list of struct link_map, and whether it is consistent (0).
struct List {
    first: u64,
    state: u32,
}

fn list(memory: &Memory, process: &Process, mappings: &[Mapping]) -> Option<List> {
    let base = process.dynamic_linker();
    let linker = mapped(process.pid, mappings.iter().find(|mapping| mapping.lo == base)?)?;
    let file = object::File::parse(&*linker).ok()?;
    let debug = base + file.dynamic_symbols().find(|symbol| symbol.name() == Ok("_r_debug"))?.address();
    Some(List { first: memory.word(debug + 8).ok()?, state: memory.word(debug + 24).ok()? as u32 })
}

/// Where the libraries are, in the dynamic linker's order.
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

/// A mapping's file, also where it has been replaced since, or where the process has another root.
pub(crate) fn mapped(pid: i32, mapping: &Mapping) -> Option<Vec<u8>> {
    let pid = proc::visible_thread(pid);
    let kept = foreign_file::by_link(&format!("/proc/{pid}/map_files/{:x}-{:x}", mapping.lo, mapping.hi));
    let file = kept.or_else(|error| match mapping.path.ends_with(" (deleted)") {
        true => Err(error),
        false => foreign_file::in_root(pid, &mapping.path),
    });
    foreign_file::contents(&file.ok()?).ok()
}
