//! The machine code of the agent library: what it may do where it runs.
#![allow(clippy::unwrap_used)]

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::process::Command;

/// Builds the library as the injector's build script does, but with its symbols.
fn library() -> PathBuf {
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("agent");
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../agent/Cargo.toml");
    let status = Command::new(env!("CARGO"))
        .args(["build", "-q", "--release", "--lib", "--manifest-path"])
        .arg(manifest)
        .arg("--target-dir")
        .arg(&target)
        .env_remove("RUSTFLAGS")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .status()
        .unwrap();
    assert!(status.success());
    target.join("release/libgprofinject_agent.so")
}

fn output(tool: &str, arguments: &[&str], file: &PathBuf) -> String {
    let output = Command::new(tool).args(arguments).arg(file).output().unwrap();
    assert!(output.status.success(), "{tool}");
    String::from_utf8(output.stdout).unwrap()
}

/// `arcs::known` runs with the program's vector registers unsaved, and so does all that it calls.
#[test]
fn the_frequent_slow_path_touches_no_vector_register() {
    let listing = output("objdump", &["-d", "--no-show-raw-insn"], &library());
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
        // What ends in a panic never comes back.
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

/// It must come up without any other library, and define nothing that the program could mean but what it
/// passes on (the agent's `jumps.rs`, `unwind.rs`, `children.rs`, `execute.rs` and `seccomp.rs`) and what
/// it switches off (`mcount.rs`).
#[test]
fn nothing_is_needed_and_only_what_is_passed_on_is_offered() {
    let library = library();
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
