//! Compares the view of the whole process (`gmon.syms`, `gmon.whole`) with callgrind's counts: the calls of every hooked
//! function of the program and of its libraries, by caller.
//!
//! Callgrind identifies code by object file and link address. The view has only names, so both are brought to the same
//! identity: a module and a name, or a module and an address for a function without a name. `gprofinject --list` has the
//! address, the size and the name of every function, and says which ones are refused. It decides only what a function
//! is; every count comes from callgrind.
//!
//! Callgrind's records are treated as follows:
//!
//! - A call instruction in a function is an arc from this function.
//! - A jump to the start of another function is a tail call. Callgrind records it as a call or, in code without symbols,
//!   as a jump. With entry hooks only, its caller is the one of the function that jumped, or of that one's caller.
//! - A jump of a function, or of its cold part, to its own start is a loop, and no call.
//! - PLT stubs are removed. Valgrind knows no object for code in sections other than `.text`, such as libc's `.plt`, and
//!   gives its runtime address. A direct call to such an address tells where the object was loaded.
//! - For a call from code that is not hooked, the caller is any hooked function from which callgrind's calls lead
//!   there. If none does, it is nobody: the program's entry point, or `[outside]`.
//! - How often a function's first instruction was executed, less the loops to it, is how often it was entered. If this
//!   is more than the recorded calls, control ran on into it, or callgrind has lost a call. The report names such
//!   functions; up to this number, calls may be counted or not.
//! - A piece of code without a name that is in no function is a cold part of the function whose jumps lead there.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::callgrind::{Node, Profile};
use crate::elf::Program;
use crate::gprofdata;
use crate::tool::{self, Hooks};
use crate::x86::{self, Branch};
use crate::{compile, run};

/// A function as `--list` has it.
#[derive(Debug)]
struct Listed {
    size: u64,
    name: String,
    is_hooked: bool,
}

/// An object file whose functions are hooked.
struct Module {
    path: PathBuf,
    /// The file name, which is part of some names in the view.
    file: String,
    functions: BTreeMap<u64, Listed>,
    by_name: HashMap<String, u64>,
    code: Program,
    /// Where the pieces of code begin that have unwind information of their own: functions and cold parts, whose names
    /// stripped files do not have.
    pieces: Vec<u64>,
}

/// A function, or all functions of one name in a module.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// No hooked function: the program's entry point, and `[outside]`.
    Nobody,
    /// The index of the module, and the name or `+0xADDRESS`.
    Function(usize, String),
}

impl Module {
    fn key(&self, index: usize, address: u64) -> Key {
        match self.functions.get(&address).filter(|function| !function.name.is_empty()) {
            Some(function) => Key::Function(index, function.name.clone()),
            None => Key::Function(index, format!("+{address:#x}")),
        }
    }

    /// Returns the start of the function that contains an address; for a cold part, that of its parent.
    fn owner(&self, address: u64) -> Option<u64> {
        let (&start, function) = self.functions.range(..=address).next_back()?;
        if address - start >= function.size.max(1) {
            return None;
        }
        let parent = function.name.split_once(".cold").and_then(|(parent, _)| self.by_name.get(parent));
        Some(parent.copied().unwrap_or(start))
    }
}

/// The modules of a process, as far as they are hooked.
pub struct Modules {
    modules: Vec<Module>,
    /// The program's entry point.
    entry: u64,
}

impl Modules {
    /// Reads the lists of a program and of the libraries that callgrind has seen. `not_hooked` are those that a run has
    /// reported as not hooked.
    ///
    /// # Errors
    /// A list cannot be made or parsed.
    pub fn read(
        program: &Path,
        profile: &Profile,
        hooks: Hooks,
        libs: &str,
        not_hooked: &[PathBuf],
    ) -> Result<Modules> {
        // The view calls the program as the user does, and libraries as their files.
        let typed = program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let program = program.canonicalize()?;
        let is_library = |path: &&Path| {
            path.is_absolute()
                && *path != program
                && !path.components().any(|part| part.as_os_str() == "valgrind")
                && !not_hooked.iter().any(|other| other == path)
        };
        let libraries: Vec<&Path> = profile.objects.iter().map(Path::new).filter(is_library).collect();
        let folder = tempfile::tempdir()?;
        let stub = folder.path().join("stub");
        needs(&stub, &libraries)?;
        let mut modules = Vec::new();
        for module in lists(&program, hooks, libs)?.into_iter().chain(lists(&stub, hooks, libs)?) {
            let (path, functions) = module;
            let is_known = path == program || libraries.contains(&&*path);
            if !is_known || modules.iter().any(|other: &Module| other.path == path) {
                continue;
            }
            let mut by_name = HashMap::new();
            for (&address, function) in functions.iter().filter(|(_, function)| !function.name.is_empty()) {
                by_name.entry(function.name.clone()).or_insert(address);
            }
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            let file = if path == program { typed.clone() } else { name };
            let (code, pieces) = (Program::read(&path)?, pieces(&path)?);
            modules.push(Module { code, pieces, path, file, functions, by_name });
        }
        let data = std::fs::read(&program)?;
        let entry = object::Object::entry(&object::File::parse(&*data)?);
        Ok(Modules { modules, entry })
    }

    pub fn len(&self) -> usize {
        self.modules.len()
    }

    pub fn is_empty(&self) -> bool {
        self.modules.is_empty()
    }

    /// Returns the number of functions that are refused.
    pub fn refused(&self) -> usize {
        self.modules.iter().flat_map(|m| m.functions.values()).filter(|f| !f.is_hooked).count()
    }

    fn label(&self, key: &Key) -> String {
        match key {
            Key::Nobody => "(nobody)".to_owned(),
            Key::Function(module, name) => format!("{}!{name}", self.modules[*module].file),
        }
    }

    fn key(&self, module: usize, function: u64) -> Key {
        if module == 0 && function == self.entry {
            return Key::Nobody;
        }
        self.modules[module].key(module, function)
    }

    /// Returns the key of a symbol of the view. `near` is the module of the symbol before it, because the symbols are
    /// in the order of the modules.
    fn named(&self, symbol: &str, near: usize) -> Result<Key> {
        if symbol == "[outside]" {
            return Ok(Key::Nobody);
        }
        for (index, module) in self.modules.iter().enumerate() {
            if let Some(address) = symbol.strip_prefix(&module.file).and_then(|rest| rest.strip_prefix("+0x"))
            {
                let address = u64::from_str_radix(address, 16)?;
                // Code that no function contains has no name on callgrind's side either.
                let is_function = module.functions.contains_key(&address);
                return Ok(if is_function { self.key(index, address) } else { Key::Nobody });
            }
            let name = symbol.strip_suffix(&module.file).and_then(|rest| rest.strip_suffix('@'));
            if let Some(&address) = name.and_then(|name| module.by_name.get(name)) {
                return Ok(self.key(index, address));
            }
        }
        let has_it = |&index: &usize| self.modules[index].by_name.contains_key(symbol);
        let indices = || (0..self.modules.len()).filter(has_it);
        let index = indices().find(|&index| index == near).or_else(|| indices().next());
        let index = index.with_context(|| format!("the view has an unknown function {symbol}"))?;
        Ok(self.key(index, self.modules[index].by_name[symbol]))
    }
}

/// Returns the addresses in the table of `.eh_frame_hdr`, if there is one of the usual format.
fn pieces(path: &Path) -> Result<Vec<u64>> {
    let data = std::fs::read(path)?;
    let file = object::File::parse(&*data)?;
    let Some(section) = object::Object::section_by_name(&file, ".eh_frame_hdr") else {
        return Ok(Vec::new());
    };
    let (at, bytes) = (object::ObjectSection::address(&section), object::ObjectSection::data(&section)?);
    // Version 1; a pointer of four bytes, a count of four bytes, and pairs of offsets from the section's start.
    let [1, _, 0x03, 0x3b, rest @ ..] = bytes else { return Ok(Vec::new()) };
    let rest = rest.get(8..).unwrap_or_default();
    let mut pieces: Vec<u64> = rest
        .chunks_exact(8)
        .map(|pair| {
            at.wrapping_add(i64::from(i32::from_le_bytes([pair[0], pair[1], pair[2], pair[3]])) as u64)
        })
        .collect();
    pieces.sort_unstable();
    Ok(pieces)
}

/// Makes a program that needs these libraries, so that one list has them all. It is not run.
fn needs(stub: &Path, libraries: &[&Path]) -> Result<()> {
    let source = stub.with_extension("c");
    std::fs::write(&source, "int main(void) { return 0; }\n")?;
    let mut gcc = Command::new("gcc");
    gcc.args(["-Wl,--no-as-needed", "-Wl,--allow-shlib-undefined", "-o"]).arg(stub).arg(&source);
    for library in libraries {
        gcc.arg(library);
        if let Some(folder) = library.parent() {
            let mut option = std::ffi::OsString::from("-Wl,-rpath,");
            option.push(folder);
            gcc.arg(option);
        }
    }
    compile::compile(gcc)
}

type Lists = Vec<(PathBuf, BTreeMap<u64, Listed>)>;

/// Returns what `--list` prints of a program and its libraries.
fn lists(program: &Path, hooks: Hooks, libs: &str) -> Result<Lists> {
    let mut command = tool::uncached(tool::gprofinject()?);
    command.args(["-q", hooks.option(), "--libs", libs, "--list", "--"]).arg(program);
    let listed = run::run(command, None, Duration::from_secs(300))?;
    ensure!(listed.code() == 0, "--list: {}", listed.stderr_text());
    let mut lists: Lists = Vec::new();
    for line in listed.stdout_text().lines() {
        if let Some((path, _)) = line.split_once(": hooked ") {
            // The heading is above the functions, or below those of a program without libraries.
            lists.push((Path::new(path).canonicalize()?, BTreeMap::new()));
        } else if line.starts_with("0x") {
            let (address, rest) = line.split_once(' ').context("no size")?;
            let (size, rest) = rest.trim_start().split_once(' ').context("no name")?;
            let rest = rest.trim();
            let (name, tactic) = rest.split_once("  ").unwrap_or(("", rest));
            let is_hooked = !tactic.trim_start().starts_with("refused");
            let size = size.parse().with_context(|| line.to_owned())?;
            let address = u64::from_str_radix(&address[2..], 16)?;
            let (_, functions) = lists.last_mut().with_context(|| format!("no module before {line}"))?;
            functions.insert(address, Listed { size, name: name.to_owned(), is_hooked });
        }
    }
    Ok(lists)
}

/// The calls of one function whose callers are known only as a set.
#[derive(Debug, Default)]
struct Loose {
    count: u64,
    callers: BTreeSet<Key>,
}

/// What callgrind has counted, by keys.
#[derive(Default)]
pub struct Expected {
    arcs: BTreeMap<(Key, Key), u64>,
    loose: BTreeMap<Key, Loose>,
    /// How often each function was entered.
    entries: BTreeMap<Key, u64>,
    /// The calls of addresses in hooked modules at which no function starts.
    unknown_targets: BTreeMap<String, u64>,
    /// The entries that callgrind's calls and jumps do not explain.
    unexplained: BTreeMap<Key, u64>,
}

/// A place in a module, or in code that is not hooked.
#[derive(Debug, Clone, Copy)]
struct Place {
    module: usize,
    address: u64,
}

struct Record<'p> {
    from: Option<Place>,
    node: &'p Node,
    to: Option<Place>,
    callee: Option<&'p Node>,
    count: u64,
}

/// Finds places by callgrind's objects and addresses.
struct Places<'m> {
    modules: &'m Modules,
    /// The module of each object.
    of_object: Vec<Option<usize>>,
    /// Where modules were loaded.
    bases: HashMap<usize, u64>,
    unknown: Option<usize>,
    /// The functions from which jumps lead to a piece of code that is in no function: a cold part without a name.
    parents: HashMap<(usize, u64), BTreeSet<u64>>,
}

impl<'m> Places<'m> {
    fn new(modules: &'m Modules, profile: &Profile) -> Self {
        let of_object: Vec<Option<usize>> = profile
            .objects
            .iter()
            .map(|object| modules.modules.iter().position(|m| m.path == Path::new(object)))
            .collect();
        let unknown = profile.objects.iter().position(|object| object == "???");
        let mut bases = HashMap::new();
        for call in profile.calls.iter().filter(|call| Some(call.callee.object) == unknown) {
            let Some(module) = of_object[call.caller.object] else { continue };
            let code = modules.modules[module].code.code(call.site);
            let Branch::Call { length } = x86::branch(code) else { continue };
            let length = length as usize;
            if length < 5 || code[length - 5] != 0xe8 {
                continue;
            }
            let Some(bytes) = code.get(length - 4..length).and_then(|b| <[u8; 4]>::try_from(b).ok()) else {
                continue;
            };
            let displacement = i64::from(i32::from_le_bytes(bytes)) as u64;
            let target = call.site.wrapping_add(length as u64).wrapping_add(displacement);
            bases.entry(module).or_insert(call.target.wrapping_sub(target));
        }
        Places { modules, of_object, bases, unknown, parents: HashMap::new() }
    }

    fn at(&self, object: usize, address: u64) -> Option<Place> {
        if let Some(module) = self.of_object[object] {
            return Some(Place { module, address });
        }
        if Some(object) != self.unknown {
            return None;
        }
        self.bases.iter().find_map(|(&module, &base)| {
            let address = address.checked_sub(base)?;
            let code = &self.modules.modules[module].code;
            (!code.code(address).is_empty()).then_some(Place { module, address })
        })
    }

    fn is_plt(&self, place: Option<Place>) -> bool {
        place.is_some_and(|at| self.modules.modules[at.module].code.is_plt(at.address))
    }

    /// Returns the start of the function that contains a place, or of the only one to which it belongs as a cold part.
    fn owner(&self, place: Place) -> Option<u64> {
        self.modules.modules[place.module].owner(place.address).or_else(|| {
            let mut parents = self.parents.get(&self.piece(place)?)?.iter();
            parents.next().copied().filter(|_| parents.next().is_none())
        })
    }

    /// Returns all functions to which a place may belong, if it is in a cold part of more than one.
    fn possible_owners(&self, place: Place) -> BTreeSet<Key> {
        let parents = self.piece(place).and_then(|piece| self.parents.get(&piece));
        parents.into_iter().flatten().map(|&parent| self.modules.key(place.module, parent)).collect()
    }

    fn piece(&self, place: Place) -> Option<(usize, u64)> {
        let pieces = &self.modules.modules[place.module].pieces;
        let after = pieces.partition_point(|&start| start <= place.address);
        Some((place.module, *pieces.get(after.checked_sub(1)?)?))
    }

    /// Finds the functions to which cold parts without names belong, by the jumps that led to them.
    fn find_parents(&mut self, profile: &Profile) {
        loop {
            let mut grew = false;
            for jump in &profile.jumps {
                let places = (self.at(jump.from.object, jump.site), self.at(jump.from.object, jump.target));
                let (Some(from), Some(to)) = places else { continue };
                let module = &self.modules.modules[to.module];
                let (Some(piece), None) = (self.piece(to), module.owner(to.address)) else { continue };
                let found = match module.owner(from.address) {
                    Some(owner) => BTreeSet::from([owner]),
                    None => self
                        .piece(from)
                        .and_then(|piece| self.parents.get(&piece))
                        .cloned()
                        .unwrap_or_default(),
                };
                if self.piece(from) != Some(piece) && !found.is_empty() {
                    let parents = self.parents.entry(piece).or_default();
                    let before = parents.len();
                    parents.extend(found);
                    grew |= parents.len() > before;
                }
            }
            if !grew {
                return;
            }
        }
    }

    fn is_hooked(&self, place: Place, function: u64) -> bool {
        self.modules.modules[place.module].functions.get(&function).is_some_and(|f| f.is_hooked)
    }
}

/// Returns what the view of the whole process should contain.
pub fn expected(modules: &Modules, profile: &Profile, hooks: Hooks) -> Expected {
    let mut places = Places::new(modules, profile);
    places.find_parents(profile);
    let places = places;
    let records = records(&places, profile);
    let mut by_callee: HashMap<&Node, Vec<&Record>> = HashMap::new();
    for record in &records {
        if let Some(callee) = record.callee {
            by_callee.entry(callee).or_default().push(record);
        }
    }
    let mut ancestors: HashMap<&Node, BTreeSet<Key>> = HashMap::new();
    let mut expected = Expected::default();
    let mut tail_calls: Vec<(Key, Key, u64)> = Vec::new();
    let mut loops: HashMap<(usize, u64), u64> = HashMap::new();
    let mut explained: HashMap<(usize, u64), u64> = HashMap::new();
    for record in &records {
        let Some(to) = record.to else { continue };
        let module = &modules.modules[to.module];
        let branch = match record.from {
            Some(from) => x86::branch(modules.modules[from.module].code.code(from.address)),
            None => Branch::Other,
        };
        let is_call = matches!(branch, Branch::Call { .. });
        if !module.functions.contains_key(&to.address) {
            if is_call && !places.is_plt(record.to) {
                let target = format!("{}+{:#x}", module.file, to.address);
                *expected.unknown_targets.entry(target).or_default() += record.count;
            }
            continue;
        }
        if module.owner(to.address) != Some(to.address) || !places.is_hooked(to, to.address) {
            continue;
        }
        let callee = modules.key(to.module, to.address);
        let owner = record.from.and_then(|from| Some((from, places.owner(from)?)));
        let is_loop = owner.is_some_and(|(from, owner)| from.module == to.module && owner == to.address);
        if is_loop && !is_call {
            *loops.entry((to.module, to.address)).or_default() += record.count;
            continue;
        }
        *explained.entry((to.module, to.address)).or_default() += record.count;
        let caller =
            owner.map(|(from, owner)| (modules.key(from.module, owner), places.is_hooked(from, owner)));
        match caller {
            Some((caller, _)) if is_call && hooks == Hooks::Entry => {
                *expected.arcs.entry((caller, callee)).or_default() += record.count;
            }
            Some((caller, true)) if !is_call && modules.has_no_frame(&caller) => {
                tail_calls.push((caller, callee, record.count));
            }
            Some((caller, true)) if is_call || hooks == Hooks::Both => {
                *expected.arcs.entry((caller, callee)).or_default() += record.count;
            }
            Some((caller, _)) if hooks == Hooks::Entry => tail_calls.push((caller, callee, record.count)),
            other => {
                let loose = expected.loose.entry(callee).or_default();
                loose.count += record.count;
                let possible = record.from.map(|from| places.possible_owners(from)).unwrap_or_default();
                if !possible.is_empty() {
                    loose.callers.extend(possible);
                    continue;
                }
                if hooks == Hooks::Entry {
                    loose.callers.insert(Key::Nobody);
                    continue;
                }
                // A refused function is the caller by its call instruction; otherwise its hooked callers are.
                loose.callers.extend(other.map(|(caller, _)| caller));
                let found = ancestors
                    .entry(record.node)
                    .or_insert_with(|| leading_to(&places, &by_callee, record.node));
                loose.callers.extend(found.iter().cloned());
            }
        }
    }
    let mut entered: HashMap<(usize, u64), u64> = HashMap::new();
    for (&(object, address), &count) in &profile.instructions {
        if let Some(at) = places.at(object, address)
            && modules.modules[at.module].functions.contains_key(&at.address)
        {
            *entered.entry((at.module, at.address)).or_default() += count;
        }
    }
    for (&(module, address), &count) in &entered {
        let at = Place { module, address };
        if !places.is_hooked(at, address) || modules.modules[module].owner(address) != Some(address) {
            continue;
        }
        // Callgrind writes the count of an instruction twice that is a call or a jump, and a function of its own.
        if x86::branch(modules.modules[module].code.code(address)) != Branch::Other {
            continue;
        }
        let count = count.saturating_sub(loops.get(&(module, address)).copied().unwrap_or(0));
        let explained = explained.get(&(module, address)).copied().unwrap_or(0);
        let key = modules.key(module, address);
        if count > explained {
            *expected.unexplained.entry(key).or_default() += count - explained;
        }
    }
    inherit(&mut expected, &tail_calls);
    expected.arcs.retain(|(caller, callee), _| modules.is_same_in_both(caller, callee));
    for ((_, callee), count) in &expected.arcs {
        *expected.entries.entry(callee.clone()).or_default() += count;
    }
    for (callee, loose) in &expected.loose {
        *expected.entries.entry(callee.clone()).or_default() += loose.count;
    }
    expected
}

/// Returns callgrind's calls and jumps without PLT stubs.
fn records<'p>(places: &Places, profile: &'p Profile) -> Vec<Record<'p>> {
    let mut records: Vec<Record> = Vec::new();
    for call in &profile.calls {
        records.push(Record {
            from: places.at(call.caller.object, call.site),
            node: &call.caller,
            to: places.at(call.callee.object, call.target),
            callee: Some(&call.callee),
            count: call.count,
        });
    }
    for jump in &profile.jumps {
        records.push(Record {
            from: places.at(jump.from.object, jump.site),
            node: &jump.from,
            to: places.at(jump.from.object, jump.target),
            callee: None,
            count: jump.count,
        });
    }
    let (stubs, mut others): (Vec<_>, Vec<_>) =
        records.into_iter().partition(|record| places.is_plt(record.from));
    let mut behind: HashMap<(usize, u64), &Record> = HashMap::new();
    for stub in &stubs {
        if let Some(from) = stub.from {
            behind.insert((from.module, from.address & !7), stub);
        }
    }
    for record in others.iter_mut().filter(|record| places.is_plt(record.to)) {
        if let Some(to) = record.to
            && let Some(stub) = behind.get(&(to.module, to.address & !7))
        {
            record.to = stub.to;
            record.callee = stub.callee;
        }
    }
    others
}

/// Walks back from code that is not hooked to all hooked functions that have led to it.
fn leading_to(places: &Places, by_callee: &HashMap<&Node, Vec<&Record>>, node: &Node) -> BTreeSet<Key> {
    let mut found = BTreeSet::new();
    let mut seen: HashSet<&Node> = HashSet::new();
    let mut open = vec![node];
    while let Some(node) = open.pop() {
        let Some(calls) = by_callee.get(node) else {
            found.insert(Key::Nobody);
            continue;
        };
        for call in calls {
            let owner = call.from.and_then(|from| Some((from, places.owner(from)?)));
            match owner.filter(|&(from, owner)| places.is_hooked(from, owner)) {
                Some((from, owner)) => {
                    found.insert(places.modules.key(from.module, owner));
                }
                None if seen.insert(call.node) => open.push(call.node),
                None => {}
            }
        }
    }
    found
}

/// Adds tail calls for entry hooks. A function to which f has jumped finds the return address of f's caller, or of that
/// function's caller, and so on; or f itself, if the jump is what was hooked.
fn inherit(expected: &mut Expected, tail_calls: &[(Key, Key, u64)]) {
    let mut possible: BTreeMap<&Key, BTreeSet<Key>> = BTreeMap::new();
    for (caller, callee) in expected.arcs.keys() {
        possible.entry(callee).or_default().insert(caller.clone());
    }
    for (callee, loose) in &expected.loose {
        possible.entry(callee).or_default().extend(loose.callers.iter().cloned());
    }
    loop {
        let mut grew = false;
        for (caller, callee, _) in tail_calls {
            let inherited = possible.get(caller).cloned().unwrap_or(BTreeSet::from([Key::Nobody]));
            let callers = possible.entry(callee).or_default();
            let before = callers.len();
            callers.extend(inherited);
            grew |= callers.len() > before;
        }
        if !grew {
            break;
        }
    }
    let mut added: Vec<(Key, u64, BTreeSet<Key>)> = Vec::new();
    for (caller, callee, count) in tail_calls {
        let mut callers = possible.get(caller).cloned().unwrap_or_default();
        callers.insert(caller.clone());
        callers.insert(Key::Nobody);
        added.push((callee.clone(), *count, callers));
    }
    for (callee, count, callers) in added {
        let loose = expected.loose.entry(callee).or_default();
        loose.count += count;
        loose.callers.extend(callers);
    }
}

impl Expected {
    /// Returns the functions that are not called as often, or not by the same functions, in two runs under callgrind.
    pub fn changing(&self, other: &Expected) -> BTreeSet<Key> {
        let keys = self.entries.keys().chain(other.entries.keys());
        let counts = keys.filter(|key| self.entries.get(key) != other.entries.get(key));
        let arcs = self.arcs.keys().chain(other.arcs.keys());
        let callees = arcs.filter(|arc| self.arcs.get(arc) != other.arcs.get(arc)).map(|(_, callee)| callee);
        counts.chain(callees).cloned().collect()
    }
}

/// The result of a comparison.
#[derive(Debug, Default)]
pub struct Report {
    pub modules: usize,
    /// The number of functions whose counts were compared.
    pub functions: usize,
    /// The number of pairs of caller and callee that were compared.
    pub arcs: usize,
    /// The number of functions some of whose callers were compared with a set.
    pub loose: usize,
    pub wrong_counts: Vec<String>,
    pub wrong_arcs: Vec<String>,
    /// The functions that were left out, because they are not called as often in each run.
    pub changing: usize,
    pub refused: usize,
    pub their_calls: u64,
    pub our_calls: u64,
    pub notes: Vec<String>,
}

impl Report {
    pub fn is_equal(&self) -> bool {
        self.wrong_counts.is_empty() && self.wrong_arcs.is_empty()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        for (what, differences) in [("count", &self.wrong_counts), ("arc", &self.wrong_arcs)] {
            for difference in differences.iter().take(40) {
                writeln!(f, "- {what}: {difference}")?;
            }
        }
        write!(
            f,
            "{}: {} modules, {} functions, {} arcs ({} functions with a set of callers), {} wrong counts, {} wrong arcs, \
             {} functions left out that change, {} refused; calls: callgrind {}, ours {}",
            if self.is_equal() { "equal" } else { "DIFFERENT" },
            self.modules,
            self.functions,
            self.arcs,
            self.loose,
            self.wrong_counts.len(),
            self.wrong_arcs.len(),
            self.changing,
            self.refused,
            self.their_calls,
            self.our_calls
        )
    }
}

/// Compares the pair of files with what callgrind has counted. Functions in `changing` are left out.
///
/// # Errors
/// The files cannot be read, or have functions that `--list` does not have.
pub fn compare(
    expected: &Expected,
    modules: &Modules,
    changing: &BTreeSet<Key>,
    symbols: &Path,
    whole: &Path,
) -> Result<Report> {
    let view = Program::read(symbols)?;
    let mut keys: BTreeMap<u64, Key> = BTreeMap::new();
    let mut near = 0;
    for function in view.functions().filter(|f| !matches!(f.name(), "[code]" | "[end]" | "[elsewhere]")) {
        // Functions that have only samples may be of modules that are not hooked.
        let Ok(key) = modules.named(function.name(), near) else { continue };
        if let Key::Function(module, _) = key {
            near = module;
        }
        keys.insert(function.address, key);
    }
    let key = |address: u64| -> Result<Key> {
        let function = view.containing(address).with_context(|| format!("nothing at {address:#x}"))?;
        let key = keys.get(&function.address).cloned();
        key.with_context(|| format!("the view has calls of an unknown function {}", function.name()))
    };
    let mut ours: BTreeMap<(Key, Key), u64> = BTreeMap::new();
    let mut our_entries: BTreeMap<Key, u64> = BTreeMap::new();
    let mut by_linker: BTreeMap<Key, u64> = BTreeMap::new();
    for (&(from, to), &count) in &gprofdata::read(whole)?.arcs {
        let (from, to) = (key(from)?, key(to)?);
        if !modules.is_same_in_both(&from, &to) {
            *by_linker.entry(to).or_default() += count;
            continue;
        }
        *our_entries.entry(to.clone()).or_default() += count;
        *ours.entry((from, to)).or_default() += count;
    }
    let mut report = Report {
        modules: modules.len(),
        refused: modules.refused(),
        changing: changing.len(),
        ..Report::default()
    };
    // Code of `.init` and `.fini` runs in an object that valgrind does not identify.
    let is_compared = |key: &Key| match key {
        Key::Nobody => false,
        Key::Function(module, name) => {
            !changing.contains(key)
                && !(crate::elf::START_UP.contains(&name.as_str())
                    && !(expected.entries.contains_key(key) && our_entries.contains_key(key)))
                && !modules.is_outside_text(*module, name)
                && !modules.is_dynamic_linker(*module)
                && modules.is_same_in_both(&Key::Nobody, key)
        }
    };
    let functions: BTreeSet<&Key> =
        expected.entries.keys().chain(our_entries.keys()).filter(|key| is_compared(key)).collect();
    for &function in &functions {
        let (theirs, our) = (expected.entries.get(function), our_entries.get(function));
        let (theirs, our) = (theirs.copied().unwrap_or(0), our.copied().unwrap_or(0));
        report.their_calls += theirs;
        report.our_calls += our;
        // With entry hooks, a tail call of a function that the dynamic linker has called is one of the dynamic linker.
        let is_tail = expected.loose.get(function).is_some_and(|loose| {
            loose.callers.iter().any(|caller| !modules.is_same_in_both(caller, function))
        });
        let by_linker = by_linker.get(function).copied().filter(|_| is_tail).unwrap_or(0);
        let unexplained = expected.unexplained.get(function).copied().unwrap_or(0);
        if theirs + unexplained < our || theirs > our + by_linker {
            report.wrong_counts.push(format!("{}: callgrind {theirs}, ours {our}", modules.label(function)));
        }
    }
    report.functions = functions.len();
    let pairs: BTreeSet<&(Key, Key)> = ours
        .keys()
        .chain(expected.arcs.keys())
        .filter(|(caller, callee)| is_compared(callee) && !changing.contains(caller))
        .collect();
    for pair in &pairs {
        let theirs = expected.arcs.get(pair).copied().unwrap_or(0);
        let our = ours.get(pair).copied().unwrap_or(0);
        let loose = expected.loose.get(&pair.1);
        let may_be = loose.filter(|loose| loose.callers.contains(&pair.0)).map_or(0, |loose| loose.count);
        let unexplained = expected.unexplained.get(&pair.1).copied().unwrap_or(0);
        let is_within = our >= theirs && our - theirs <= may_be + unexplained;
        if our != theirs && !is_within {
            report.wrong_arcs.push(format!(
                "{} -> {}: callgrind {theirs}, ours {our}{}",
                modules.label(&pair.0),
                modules.label(&pair.1),
                loose.map_or(String::new(), |loose| {
                    let callers: Vec<_> = loose.callers.iter().take(6).map(|c| modules.label(c)).collect();
                    format!(" (and {} calls from one of {})", loose.count, callers.join(", "))
                })
            ));
        }
    }
    report.arcs = pairs.len();
    report.loose = expected.loose.keys().filter(|key| is_compared(key)).count();
    for (key, count) in expected.unexplained.iter().filter(|(key, _)| is_compared(key)).take(20) {
        let our = our_entries.get(key).copied().unwrap_or(0);
        let theirs = expected.entries.get(key).copied().unwrap_or(0);
        report.notes.push(format!(
            "{} was entered {count} times more than by callgrind's {theirs} calls; ours {our}",
            modules.label(key)
        ));
    }
    for (target, count) in expected.unknown_targets.iter().take(10) {
        report.notes.push(format!("{count} calls to {target}, where no function starts"));
    }
    Ok(report)
}

impl Modules {
    /// Whether a function is one of those that keep the return address for themselves. They have no frame for exit hooks,
    /// so functions to which they jump find the return address of their callers (docs/hot-path.md, "Cells").
    fn has_no_frame(&self, key: &Key) -> bool {
        let Key::Function(_, name) = key else { return false };
        ["_setjmp", "setjmp", "__sigsetjmp", "vfork", "__vfork"]
            .contains(&name.split('@').next().unwrap_or(name))
    }

    /// Whether calls are compared. These are not:
    ///
    /// - calls of the C library by the dynamic linker, and calls of IFUNC resolvers: it relocates the libraries, and so
    ///   calls their resolvers, before it comes to the agent;
    /// - [`OTHERWISE_UNDER_VALGRIND`].
    fn is_same_in_both(&self, caller: &Key, callee: &Key) -> bool {
        let Key::Function(module, name) = callee else { return false };
        let linkers = match caller {
            Key::Function(caller, name) if self.is_dynamic_linker(*caller) => Some(name.as_str()),
            _ => None,
        };
        if !self.modules[*module].file.starts_with("libc.so") {
            return linkers != Some("_dl_relocate_object");
        }
        linkers.is_none() && !OTHERWISE_UNDER_VALGRIND.contains(&name.as_str())
    }

    /// Whether a module is the dynamic linker. Its calls are not compared, because it has made many of them before
    /// anything could be hooked.
    fn is_dynamic_linker(&self, module: usize) -> bool {
        self.modules[module].file.starts_with("ld-linux")
    }

    /// Whether a function is in `.init`, `.fini` or another section for which valgrind has no object.
    fn is_outside_text(&self, module: usize, name: &str) -> bool {
        let module = &self.modules[module];
        let address = match name.strip_prefix("+0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => module.by_name.get(name).copied(),
        };
        address.is_none_or(|address| !module.code.is_main_text(address))
    }
}

/// How often callgrind runs the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    One,
    /// Three times, with the stack and the libraries at other addresses. Functions that are not called as often, or not by the same
    /// functions, are left out.
    Several,
}

/// The variables that a program has in all runs. glibc and libcrypto choose their functions by the processor's features,
/// and valgrind's processor has fewer of them. The order of a hash table must not depend on chance.
const FIXED: [(&str, &str); 6] = [
    (
        "GLIBC_TUNABLES",
        "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512CD,-AVX512DQ,-ERMS,-FSRM,-RTM,-Fast_Unaligned_Load,\
         -Fast_Unaligned_Copy,-Fast_Copy_Backward,-Fast_Rep_String,-Slow_BSF,-Prefer_No_VZEROUPPER",
    ),
    // Without SHA and AVX-512.
    ("OPENSSL_ia32cap", ":~0xf0230000"),
    ("PERL_HASH_SEED", "0"),
    ("PERL_PERTURB_KEYS", "0"),
    ("PYTHONHASHSEED", "0"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
];

/// The functions of the C library that do not run as often under valgrind: those that it calls once for each object that
/// is unloaded at the end or has registered for fork (valgrind preloads another object than gprofinject), and those that
/// it uses where the kernel has no vDSO, which valgrind hides.
const OTHERWISE_UNDER_VALGRIND: [&str; 6] = [
    "__cxa_finalize",
    "__unregister_atfork",
    "__register_atfork",
    "time_syscall",
    "gettimeofday_syscall",
    "__gettimeofday_syscall",
];

/// Returns the variables that valgrind adds to a program's environment, under other names if they would have an effect.
/// Programs copy their environment, so their calls depend on the number of variables.
fn added_by_valgrind() -> Result<Vec<(String, String)>> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=none", "-q", "env", "-0"]).envs(FIXED).env("LD_BIND_NOW", "1");
    let ran = run::run(command, None, Duration::from_secs(60))?;
    let text = ran.stdout_text();
    let variables = text.split('\0').filter_map(|variable| variable.split_once('='));
    let is_valgrinds = |name: &str| ["LD_", "GLIBC", "VALGRIND"].iter().any(|start| name.starts_with(start));
    let is_there = |name: &str| {
        name == "LD_BIND_NOW"
            || std::env::var_os(name).is_some()
            || FIXED.iter().any(|(fixed, _)| *fixed == name)
    };
    let added = variables.filter(|(name, _)| is_valgrinds(name) && !is_there(name));
    Ok(added.map(|(name, value)| (name.replace("LD_", "LD-"), value.to_owned())).collect())
}

/// Counts the calls of a program under callgrind, without other programs.
pub struct Truth {
    program: PathBuf,
    args: Vec<String>,
    stdin: Option<PathBuf>,
    runs: Vec<Profile>,
    output: Vec<u8>,
}

impl Truth {
    /// Runs a program under callgrind.
    ///
    /// # Errors
    /// It cannot be run, or fails.
    pub fn count(program: &Path, args: &[String], stdin: Option<&Path>, runs: Runs) -> Result<Truth> {
        let mut truth = Truth {
            program: program.to_owned(),
            args: args.to_vec(),
            stdin: stdin.map(Path::to_owned),
            runs: Vec::new(),
            output: Vec::new(),
        };
        for place in 0..if runs == Runs::Several { 3 } else { 1 } {
            let fixed = FIXED.iter().map(|&(name, value)| (name.to_owned(), value.to_owned()));
            let padding = [
                // Other runs have another stack, and the variables in another order.
                (["PADDING", "AA_PADDING", "ZZ_PADDING"][place].to_owned(), "x".repeat(1 + 1000 * place)),
            ];
            let variables: Vec<_> = fixed.chain(padding).collect();
            let (profile, outcome) = crate::callgrind::run_whole(program, args, stdin, &variables, place)?;
            ensure!(outcome.code() == 0, "callgrind: {}", outcome.stderr_text());
            truth.output = outcome.stdout;
            truth.runs.push(profile);
        }
        Ok(truth)
    }

    /// Profiles the same program and compares.
    ///
    /// # Errors
    /// The program fails, or there is no view of the whole process.
    pub fn compare(&self, libs: &str, hooks: Hooks) -> Result<Report> {
        let folder = tempfile::tempdir()?;
        let gmon = folder.path().join("gmon.out");
        let options = ["--rate", "0", "--no-follow", "--libs", libs, hooks.option()];
        let mut command = tool::command(&options, &gmon, &self.program, &self.args)?;
        command.envs(FIXED).env("PADDING", "x").envs(added_by_valgrind()?);
        let ran = run::run(command, self.stdin.as_deref(), Duration::from_secs(600))?;
        ensure!(ran.code() == 0, "status {}: {}", ran.code(), ran.stderr_text());
        ensure!(ran.stdout == self.output, "the program's output differs from that under callgrind");
        let not_hooked: Vec<PathBuf> = ran
            .stderr_text()
            .lines()
            .filter_map(|line| line.strip_prefix("gprofinject: ")?.split_once(" is not hooked"))
            .map(|(path, _)| PathBuf::from(path))
            .collect();
        let [first, others @ ..] = &self.runs[..] else { anyhow::bail!("callgrind has not run") };
        let modules = Modules::read(&self.program, first, hooks, libs, &not_hooked)?;
        let expected_first = expected(&modules, first, hooks);
        let mut changing = BTreeSet::new();
        for other in others {
            changing.extend(expected_first.changing(&expected(&modules, other, hooks)));
        }
        let (symbols, whole) = (folder.path().join("gmon.syms"), folder.path().join("gmon.whole"));
        let mut report = compare(&expected_first, &modules, &changing, &symbols, &whole)?;
        let lost = ran.stderr_text();
        report.notes.extend(lost.lines().filter(|line| !line.contains("is stripped")).map(str::to_owned));
        Ok(report)
    }
}

/// Counts the calls of a program under callgrind and under gprofinject, and compares.
///
/// # Errors
/// Either fails.
pub fn check(
    program: &Path,
    args: &[String],
    stdin: Option<&Path>,
    libs: &str,
    hooks: Hooks,
    runs: Runs,
) -> Result<Report> {
    Truth::count(program, args, stdin, runs)?.compare(libs, hooks)
}
