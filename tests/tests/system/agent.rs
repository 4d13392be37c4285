//! The machine code of the agent library: it contains only what may run in the places where it runs.

use std::collections::HashMap;
use std::path::PathBuf;
use std::process::Command;

use gprofinject_tests::tool;
use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::FileHeader;
use tempfile::TempDir;

gprofinject_tests::trials! {
    together:
        the_frequent_slow_path_touches_no_vector_register,
        only_guarded_code_may_panic,
        nothing_is_needed_and_only_what_is_passed_on_is_offered;
}

/// The libraries in the command.
struct Libraries {
    _folder: TempDir,
    /// The one that the dynamic linker loads.
    loaded: PathBuf,
    /// The one for standalone programs.
    standalone: PathBuf,
}

impl Libraries {
    fn both(&self) -> [&PathBuf; 2] {
        [&self.loaded, &self.standalone]
    }
}

/// Returns the libraries as they are in the command under test, in a folder of their own. They have their symbols, but no
/// line tables.
fn libraries() -> Libraries {
    let command = std::fs::read(tool::gprofinject().unwrap()).unwrap();
    let starts = (1..command.len() - 64).filter(|&at| command[at..].starts_with(b"\x7fELF\x02\x01\x01"));
    let mut libraries: Vec<&[u8]> = starts.filter_map(|at| elf_at(&command[at..])).collect();
    let control = b"gprofinject_control";
    libraries.retain(|library| library.windows(control.len()).any(|window| window == control));
    assert_eq!(libraries.len(), 2, "libraries in the command");
    let begin = b"gprofinject_begin";
    let is_standalone = |library: &&[u8]| library.windows(begin.len()).any(|window| window == begin);
    let folder = tempfile::tempdir().unwrap();
    let written = |name: &str, standalone: bool| {
        let library = libraries.iter().find(|library| is_standalone(library) == standalone).unwrap();
        let file = folder.path().join(name);
        std::fs::write(&file, library).unwrap();
        file
    };
    let (loaded, standalone) = (written("agent.so", false), written("standalone.so", true));
    Libraries { _folder: folder, loaded, standalone }
}

/// Returns the ELF file that begins here and has its section headers at its end, or `None` if the bytes only
/// look like one.
fn elf_at(bytes: &[u8]) -> Option<&[u8]> {
    let header = FileHeader64::<Endianness>::parse(bytes).ok()?;
    let endian = header.endian().ok()?;
    let headers = usize::from(header.e_shnum(endian)) * usize::from(header.e_shentsize(endian));
    bytes.get(..usize::try_from(header.e_shoff(endian)).ok()?.checked_add(headers)?)
}

fn output(tool: &str, arguments: &[&str], file: &PathBuf) -> String {
    let output = Command::new(tool).args(arguments).arg(file).output().unwrap();
    assert!(output.status.success(), "{tool}");
    String::from_utf8(output.stdout).unwrap()
}

/// The machine code of the library, by function.
struct Listing {
    /// The instructions of each function.
    bodies: HashMap<String, Vec<String>>,
    /// The function whose address a word of the loaded library contains, by the word's address. Calls of the
    /// compiler's own library go through such words.
    words: HashMap<u64, String>,
}

impl Listing {
    fn new(library: &PathBuf) -> Listing {
        let listing = output("objdump", &["-d", "--no-show-raw-insn"], library);
        let (mut bodies, mut names) = (HashMap::<String, Vec<String>>::new(), HashMap::new());
        let mut current = String::new();
        for line in listing.lines() {
            if let Some((address, name)) = line.strip_suffix(">:").and_then(|l| l.split_once(" <")) {
                current = name.to_owned();
                names.insert(u64::from_str_radix(address, 16).unwrap(), name.to_owned());
            } else {
                bodies.entry(current.clone()).or_default().push(line.to_owned());
            }
        }
        let relocations = output("readelf", &["-rW"], library);
        let mut words = HashMap::new();
        for line in relocations.lines().filter(|line| line.contains("R_X86_64_RELATIVE")) {
            let number = |word: Option<&str>| u64::from_str_radix(word.unwrap(), 16).unwrap();
            let mut fields = line.split_whitespace();
            let (word, target) = (number(fields.next()), number(fields.next_back()));
            words.extend(names.get(&target).map(|name| (word, name.clone())));
        }
        Listing { bodies, words }
    }

    /// Returns the only function whose name contains `part`.
    fn named(&self, part: &str) -> &str {
        let found: Vec<&String> = self.bodies.keys().filter(|name| name.contains(part)).collect();
        assert_eq!(found.len(), 1, "{part}: {found:?}");
        found[0]
    }

    /// Returns the functions that calls and jumps reach from `from`, including these; each with the path to it.
    fn reached(&self, from: &[&str]) -> HashMap<String, String> {
        let mut reached = HashMap::new();
        let mut work: Vec<(String, String)> =
            from.iter().map(|&name| (name.to_owned(), name.to_owned())).collect();
        while let Some((name, way)) = work.pop() {
            let Some(body) = self.bodies.get(&name).filter(|_| !reached.contains_key(&name)) else {
                continue;
            };
            reached.insert(name.clone(), way.clone());
            for line in body.iter().filter(|line| line.contains("call") || line.contains("jmp")) {
                let direct = line.split_once('<').and_then(|(_, t)| t.split(['>', '+']).next());
                let word = line.split_once("# ").and_then(|(_, t)| t.split(' ').next());
                let word = word.and_then(|word| u64::from_str_radix(word, 16).ok());
                let through = word.and_then(|word| self.words.get(&word));
                let targets = through.map(String::as_str).into_iter().chain(direct);
                work.extend(targets.map(|name| (name.to_owned(), format!("{way} -> {name}"))));
            }
        }
        reached
    }
}

/// `arcs::known` and what handles cells run while the program's vector registers are not saved, and so does everything that they
/// call.
fn the_frequent_slow_path_touches_no_vector_register() {
    for library in libraries().both() {
        let listing = Listing::new(library);
        let gates = ["arcs5known", "cells8occupied", "cells4exit", "cells7returns"];
        for (name, way) in listing.reached(&gates.map(|name| listing.named(name))) {
            for line in &listing.bodies[&name] {
                let touches = ["%xmm", "%ymm", "%zmm", "%mm", "%st"].iter().any(|r| line.contains(r));
                assert!(!touches, "{way}: {line}");
            }
        }
    }
}

/// The guard around code that panics continues after the panic (the agent's `program/failure.rs`). No entry into the
/// agent without a guard, which includes all frequent ones, leads to a panic.
fn only_guarded_code_may_panic() {
    let libraries = libraries();
    may_panic_only_if_guarded(&libraries.loaded, &["early5early", "clone4born"]);
    may_panic_only_if_guarded(&libraries.standalone, &["standalone5begin"]);
}

/// Checks a library, which has these entries besides those that both have.
fn may_panic_only_if_guarded(library: &PathBuf, own: &[&str]) {
    let listing = Listing::new(library);
    let rust = [
        "arcs5known",
        "cells5enter",
        "cells8occupied",
        "cells4exit",
        "cells7returns",
        "timer4tick",
        "jumps12leave_frames",
        "landings4land",
        "backtraces6filter",
        "arena5visit",
        "unwinder13find_unwinder",
        // These guard what they do, but not what they do after a panic.
        "arcs4rare17h",
        "arcs4tail",
        "arcs12library_tail",
        "seccomp5enter",
        "seccomp4stay",
        "children5begin17h",
        "clone13prepare_birth",
        "clone11begin_child",
        "sharing6expect",
        "sharing4born",
        "dispatch8by_prctl",
        "dispatch10by_syscall",
        "dispatch14by_instruction",
        "execute11environment",
        "execute12not_executed",
        "notice7changed",
        "stack_copies8put_back",
        "orphan3end",
        "attach9carry_out",
    ];
    let rust: Vec<&str> = rust.iter().chain(own).map(|part| listing.named(part)).collect();
    let exported = ["_dl_find_object", "dl_iterate_phdr", "backtrace", "gprofinject_frida_orders"];
    let panics = |from: &[&str]| -> Vec<String> {
        listing
            .reached(from)
            .into_iter()
            .filter(|(name, _)| name.contains("panicking"))
            .map(|(_, way)| way)
            .collect()
    };
    assert_eq!(panics(&[&rust[..], &exported].concat()), Vec::<String>::new());
    // The test does find code that leads to a panic.
    assert_ne!(panics(&[listing.named("slots5count")]), Vec::<String>::new());
}

/// The library must load without any other library, and export only the functions that it passes on (the agent's
/// `unwind/`, `process/children.rs`, `process/execute.rs`, `process/seccomp.rs` and `process/syscall.rs`) or
/// switches off (`start/mcount.rs`).
fn nothing_is_needed_and_only_what_is_passed_on_is_offered() {
    let libraries = libraries();
    let limits = ["getrlimit", "getrlimit64", "prlimit", "prlimit64", "setrlimit", "setrlimit64"];
    needs_nothing_and_offers(&libraries.loaded, &limits);
    // For the usher, which finds it in the file.
    needs_nothing_and_offers(&libraries.standalone, &["gprofinject_begin"]);
}

/// Checks a library, which offers these functions besides those that both do.
fn needs_nothing_and_offers(library: &PathBuf, own: &[&str]) {
    let symbols = output("nm", &["-D", "--no-demangle"], library);
    let mut offered = Vec::new();
    for line in symbols.lines() {
        let mut words = line.split_whitespace().rev();
        let (name, kind) = (words.next().unwrap(), words.next().unwrap());
        match kind {
            "T" => offered.push(name),
            "w" => {}
            _ => panic!("{line}"),
        }
    }
    offered.sort_unstable();
    let unwinding = [
        "_ULx86_64_step",
        "_Unwind_Backtrace",
        "_Unwind_ForcedUnwind",
        "_Unwind_GetCFA",
        "_Unwind_SetIP",
        "_Ux86_64_step",
        "_dl_find_object",
        "backtrace",
        "dl_iterate_phdr",
        "unw_backtrace",
        "unw_step",
    ];
    let forking = ["_Fork", "clone", "syscall", "fexecve", "prctl"];
    let jumping = ["__longjmp_chk", "_longjmp", "longjmp", "pthread_exit", "siglongjmp"];
    let profiling =
        ["__fentry__", "__monstartup", "_mcleanup", "_mcount", "mcount", "moncontrol", "monstartup"];
    // For the injector, which finds it in the file, and for Frida's library.
    let ours = ["gprofinject_control", "gprofinject_frida_orders"];
    let mut expected = [&jumping[..], &unwinding, &forking, &profiling, &ours, own].concat();
    expected.sort_unstable();
    assert_eq!(offered, expected);
    let dynamic = output("readelf", &["-d"], library);
    assert!(!dynamic.contains("NEEDED"), "{dynamic}");
}
