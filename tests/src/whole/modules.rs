//! The modules of a process and their functions, as `gprofinject --list` has them, and how the view names them.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::callgrind::Profile;
use crate::elf::Program;
use crate::tool::{self, Hooks};
use crate::{compile, run};

/// A function as `--list` has it.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) size: u64,
    pub(super) name: String,
    pub(super) is_hooked: bool,
}

/// An object file whose functions are hooked.
pub(super) struct Module {
    pub(super) path: PathBuf,
    /// The file name, which is part of some names in the view.
    pub(super) file: String,
    pub(super) functions: BTreeMap<u64, Listed>,
    pub(super) by_name: HashMap<String, u64>,
    pub(super) code: Program,
    /// Where the pieces of code begin that have unwind information of their own: functions and cold parts, whose names
    /// stripped files do not have.
    pub(super) pieces: Vec<u64>,
}

/// A function, or all functions of one name in a module.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Key {
    /// No hooked function: the program's entry point, and `[outside]`.
    Nobody,
    /// The index of the module, and the name or `+0xADDRESS`.
    Function(usize, String),
}

impl Module {
    pub(super) fn key(&self, index: usize, address: u64) -> Key {
        match self.functions.get(&address).filter(|function| !function.name.is_empty()) {
            Some(function) => Key::Function(index, function.name.clone()),
            None => Key::Function(index, format!("+{address:#x}")),
        }
    }

    /// Returns the start of the function that contains an address; for a cold part, that of its parent.
    pub(super) fn owner(&self, address: u64) -> Option<u64> {
        let (&start, function) = self.functions.range(..=address).next_back()?;
        if address - start >= function.size.max(1) {
            return None;
        }
        let parent = function.name.split_once(".cold").and_then(|(parent, _)| self.by_name.get(parent));
        Some(parent.copied().unwrap_or(start))
    }
}

/// The modules of a process, as far as they are hooked.
pub(super) struct Modules {
    pub(super) modules: Vec<Module>,
    /// The program's entry point.
    pub(super) entry: u64,
}

impl Modules {
    /// Reads the lists of a program and of the libraries that callgrind has seen. `not_hooked` are those that a run has
    /// reported as not hooked.
    ///
    /// # Errors
    /// A list cannot be made or parsed.
    pub(super) fn read(
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

    pub(super) fn len(&self) -> usize {
        self.modules.len()
    }

    /// Returns the number of functions that are refused.
    pub(super) fn refused(&self) -> usize {
        self.modules.iter().flat_map(|m| m.functions.values()).filter(|f| !f.is_hooked).count()
    }

    pub(super) fn label(&self, key: &Key) -> String {
        match key {
            Key::Nobody => "(nobody)".to_owned(),
            Key::Function(module, name) => format!("{}!{name}", self.modules[*module].file),
        }
    }

    pub(super) fn key(&self, module: usize, function: u64) -> Key {
        if module == 0 && function == self.entry {
            return Key::Nobody;
        }
        self.modules[module].key(module, function)
    }

    /// Returns the key of a symbol of the view. `near` is the module of the symbol before it, because the symbols are
    /// in the order of the modules.
    pub(super) fn named(&self, symbol: &str, near: usize) -> Result<Key> {
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

impl Modules {
    /// Whether a function is one of those that keep the return address for themselves. They have no frame for exit hooks,
    /// so functions to which they jump find the return address of their callers (docs/internals/hot-path.md, "Cells").
    pub(super) fn has_no_frame(&self, key: &Key) -> bool {
        let Key::Function(_, name) = key else { return false };
        ["_setjmp", "setjmp", "__sigsetjmp", "vfork", "__vfork"]
            .contains(&name.split('@').next().unwrap_or(name))
    }

    /// Whether calls are compared. These are not:
    ///
    /// - calls of the C library by the dynamic linker, and calls of IFUNC resolvers: it relocates the libraries, and so
    ///   calls their resolvers, before it comes to the agent;
    /// - [`OTHERWISE_UNDER_VALGRIND`].
    pub(super) fn is_same_in_both(&self, caller: &Key, callee: &Key) -> bool {
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
    pub(super) fn is_dynamic_linker(&self, module: usize) -> bool {
        self.modules[module].file.starts_with("ld-linux")
    }

    /// Whether a function is in `.init`, `.fini` or another section for which valgrind has no object.
    pub(super) fn is_outside_text(&self, module: usize, name: &str) -> bool {
        let module = &self.modules[module];
        let address = match name.strip_prefix("+0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => module.by_name.get(name).copied(),
        };
        address.is_none_or(|address| !module.code.is_main_text(address))
    }
}

/// The functions of the C library that do not run as often under valgrind: those that it calls once for each object that
/// is unloaded at the end or has registered for fork (valgrind preloads another object than gprofinject), and those that
/// it uses where the kernel has no vDSO, which valgrind hides. Valgrind also hides how large the kernel's signal frames are
/// (`AT_MINSIGSTKSZ`); programs that find it call `sysconf` to add it to the size of a signal stack.
const OTHERWISE_UNDER_VALGRIND: [&str; 7] = [
    "__cxa_finalize",
    "__unregister_atfork",
    "__register_atfork",
    "__sysconf",
    "time_syscall",
    "gettimeofday_syscall",
    "__gettimeofday_syscall",
];

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
