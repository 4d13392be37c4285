//! The machine code of the agent library: it contains only what may run in the places where it runs.

use std::collections::{HashMap, HashSet};
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
        nothing_is_needed_and_only_what_is_passed_on_is_offered;
}

/// Returns the library as it is in the command under test, in a folder of its own. It has its symbols, but no
/// line tables.
fn library() -> (TempDir, PathBuf) {
    let command = std::fs::read(tool::gprofinject().unwrap()).unwrap();
    let starts = (1..command.len() - 64).filter(|&at| command[at..].starts_with(b"\x7fELF\x02\x01\x01"));
    let mut libraries: Vec<&[u8]> = starts.filter_map(|at| elf_at(&command[at..])).collect();
    let control = b"gprofinject_control";
    libraries.retain(|library| library.windows(control.len()).any(|window| window == control));
    let [library] = libraries[..] else { panic!("{} libraries in the command", libraries.len()) };
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("agent.so");
    std::fs::write(&file, library).unwrap();
    (folder, file)
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

/// `arcs::known` runs while the program's vector registers are not saved, and so does everything that it
/// calls.
fn the_frequent_slow_path_touches_no_vector_register() {
    let (_folder, library) = library();
    let listing = output("objdump", &["-d", "--no-show-raw-insn"], &library);
    let mut bodies: HashMap<&str, Vec<&str>> = HashMap::new();
    let mut current = "";
    for line in listing.lines() {
        if let Some(name) = line.strip_suffix(">:").and_then(|l| l.split_once('<')) {
            current = name.1;
        } else {
            bodies.entry(current).or_default().push(line);
        }
    }
    let known: Vec<&str> = bodies.keys().copied().filter(|name| name.contains("arcs5known")).collect();
    assert_eq!(known.len(), 1, "{known:?}");
    let (mut seen, mut work) = (HashSet::new(), known);
    while let Some(name) = work.pop() {
        if !seen.insert(name) {
            continue;
        }
        // A call that ends in a panic does not return.
        if name.contains("panic") {
            continue;
        }
        for line in &bodies[name] {
            assert!(
                !["%xmm", "%ymm", "%zmm", "%mm", "%st"].iter().any(|r| line.contains(r)),
                "{name}: {line}"
            );
            let target = line.split_once('<').and_then(|(_, t)| t.split(['>', '+']).next());
            work.extend(
                target.filter(|t| bodies.contains_key(t) && (line.contains("call") || line.contains("jmp"))),
            );
        }
    }
}

/// The library must load without any other library, and export only the functions that it passes on (the agent's
/// `unwind/`, `process/children.rs`, `process/execute.rs`, `process/seccomp.rs` and `process/syscall.rs`) or
/// switches off (`start/mcount.rs`).
fn nothing_is_needed_and_only_what_is_passed_on_is_offered() {
    let (_folder, library) = library();
    let symbols = output("nm", &["-D", "--no-demangle"], &library);
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
        "_Unwind_Backtrace",
        "_Unwind_GetCFA",
        "_Unwind_SetIP",
        "_dl_find_object",
        "backtrace",
        "dl_iterate_phdr",
    ];
    let forking = ["_Fork", "clone", "syscall", "fexecve", "prctl"];
    let jumping = ["__longjmp_chk", "_longjmp", "longjmp", "siglongjmp"];
    let profiling =
        ["__fentry__", "__monstartup", "_mcleanup", "_mcount", "mcount", "moncontrol", "monstartup"];
    // For the injector, which finds it in the file, and for Frida's library.
    let ours = ["gprofinject_control", "gprofinject_frida_orders"];
    let mut expected = [&jumping[..], &unwinding, &forking, &profiling, &ours].concat();
    expected.sort_unstable();
    assert_eq!(offered, expected);
    let dynamic = output("readelf", &["-d"], &library);
    assert!(!dynamic.contains("NEEDED"), "{dynamic}");
}
