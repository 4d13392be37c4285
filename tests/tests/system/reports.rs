//! What reports say of names and files that somebody has made to deceive, and of code that no symbol names.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use gprofinject_skip as skip;
use gprofinject_tests::place::Place;
use gprofinject_tests::run::{self, Outcome};
use gprofinject_tests::tool;

gprofinject_tests::trials! {
    together:
        names_that_are_too_long,
        names_that_are_not_seen,
        sources_of_other_users,
        many_parts_of_large_functions;
    alone:
        samples_outside_of_an_unhooked_program,
        stubs_of_the_plt_are_no_functions;
}

/// How long a report of a small file may take on a busy machine; what is quadratic takes longer.
const LIMIT: Duration = Duration::from_secs(20);

fn gmon(place: &Place, args: &[&str]) -> Outcome {
    let mut command = Command::new(tool::gmon().unwrap());
    command.args(args).current_dir(place.folder.path());
    let outcome = run::run(command, None, LIMIT).unwrap();
    assert!(!outcome.timed_out, "hangs: gmon {args:?}");
    let said = outcome.stderr_text();
    assert!(outcome.code() < 100 && !said.contains("panicked"), "gmon {args:?}: {said}");
    outcome
}

/// A program that works in a library's functions, through its PLT, as long as it has not used this CPU time.
const IN_LIBRARY: &str = "#include <stdlib.h>\n#include <time.h>\n\
    static int compare(const void *a, const void *b) { return *(int *)a - *(int *)b; }\n\
    int main(void) { static int v[4096]; while (clock() < CLOCKS_PER_SEC * 3 / 10) {\n\
    for (int i = 0; i < 4096; i++) v[i] = rand(); qsort(v, 4096, sizeof *v, compare); } return 0; }\n";

/// Where all of the work is in libraries, the view of the whole process has it, whether functions are hooked or not.
fn samples_outside_of_an_unhooked_program() {
    let place = Place::new();
    place.c("p", IN_LIBRARY, &[]);
    let outcome = place.run(&["--hooks", "none", "-o", "none.out", "./p"]);
    let said = outcome.stderr_text();
    assert_eq!(outcome.code(), 0, "{said}");
    assert!(said.contains("none.pb.gz"), "the view that says most is named: {said}");
    let flat = gmon(&place, &["flat", "none.pb.gz"]).stdout_text();
    assert!(flat.contains("libc.so.6") && flat.contains("rand"), "{flat}");
    let outcome = place.run(&["--hooks", "none", "--libs", "none", "-o", "left.out", "./p"]);
    assert_eq!(outcome.code(), 0);
    let said = outcome.stderr_text();
    assert!(!said.contains("not hooked"), "the user wants nothing of libraries: {said}");
}

/// Objdump and perf call the stub of `f` `f@plt`. No symbol covers it, and `_init` before it has no size.
fn stubs_of_the_plt_are_no_functions() {
    let place = Place::new();
    // A call of such a function is short, so that a good part of the samples is in stubs.
    let callee = place.c("callee.so", "int callee(int x) { return x + 1; }\n", &["-shared", "-fPIC"]);
    let source = "#include <time.h>\nint callee(int);\n\
        int main(void) { int x = 0; while (clock() < CLOCKS_PER_SEC / 2)\n\
        for (int i = 0; i < 1000000; i++) {\n\
        x = callee(x); for (int j = 0; j < 40; j++) __asm__ volatile(\"\"); } return x == 7; }\n";
    place.c("p", source, &[callee.to_str().unwrap(), "-Wl,-z,lazy", "-fcf-protection=none"]);
    // A call that is measured takes so long that no sample need be in the stub.
    for hooks in [&["--hooks", "none"][..], &["--times", "--exclude", "callee"]] {
        let outcome = place.run(&[hooks, &["--rate", "4000", "-o", "p.out", "./p"]].concat());
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
        if hooks.contains(&"--times") {
            let text = gmon(&place, &["flat", "--json", "p.pb.gz"]).stdout_text();
            let times: serde_json::Value = serde_json::from_str(&text).unwrap();
            let functions = times["rows"].as_array().unwrap();
            let samples = |name: &str| -> u64 {
                functions.iter().filter(|f| f["name"] == name).map(|f| f["samples"].as_u64().unwrap()).sum()
            };
            assert!(samples("main") > 0 && samples("_init") == 0, "{text}");
        } else {
            let text = gmon(&place, &["flat", "p.pb.gz"]).stdout_text();
            // Libraries have functions with such names, `__init_misc` for one, that a sample may meet.
            let is_init = |line: &str| line.split_whitespace().rev().take(2).eq(["p", "_init"]);
            assert!(!text.lines().any(is_init), "{hooks:?}: {text}");
            assert!(text.contains("callee@plt"), "{hooks:?}: {text}");
        }
    }
}

/// Returns a program with functions of these names, as an assembler writes them, each of which runs once, for some ten microseconds: formats
/// that leave out what takes no time have all of them.
fn with_names(place: &Place, names: &[&str]) {
    let calls: String = names.iter().map(|name| format!("call \"{name}\"\n")).collect();
    let bodies: String = names
        .iter()
        .map(|name| {
            format!(".globl \"{name}\"\n.type \"{name}\", @function\n\"{name}\": mov $30000, %ecx\n\
                 1: dec %ecx\njnz 1b\nret\n.size \"{name}\", .-\"{name}\"\n")
        })
        .collect();
    let source = format!(
        ".globl main\n.type main, @function\nmain: sub $8, %rsp\n{calls}xor %eax, %eax\nadd $8, %rsp\nret\n\
         .size main, .-main\n{bodies}.section .note.GNU-stack,\"\",@progbits\n"
    );
    fs::write(place.path("p.s"), source).unwrap();
    let status = Command::new("gcc").args(["-o", "p", "p.s"]).current_dir(place.folder.path()).status();
    assert!(status.unwrap().success());
}

/// A mangled name of a hundred bytes may be longer than what any column can hold.
fn names_that_are_too_long() {
    let place = Place::new();
    // Each is a pair of two of the one before.
    let parts = ["S0_", "S2_", "S4_", "S6_", "S8_", "SA_", "SC_", "SE_", "SG_", "SI_", "SK_", "SM_", "SO_"];
    let nested: String = parts.iter().map(|part| format!("St4pairI{part}{part}E")).collect();
    let mangled = format!("_Z1fSt4pairIiiE{nested}");
    let other = format!("{mangled}i");
    let plain = "x".repeat(70_000);
    with_names(&place, &[&mangled, &other, &plain, "short"]);
    let outcome = place.run(&["--times", "-o", "p.out", "./p"]);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    for args in [&["flat", "p.pb.gz"][..], &["flat", "p", "p.out"], &["graph", "p", "p.out"], &["graph", "p.pb.gz"]] {
        let outcome = gmon(&place, args);
        let text = outcome.stdout_text();
        assert_eq!(outcome.code(), 0, "{args:?}: {}", outcome.stderr_text());
        assert!(text.len() < 1 << 16 && text.contains("short"), "{args:?}: {} bytes", text.len());
        // What is shortened stays unambiguous.
        for name in [&mangled, &other] {
            assert!(text.contains(&format!("[{name}]")), "{args:?}: {text}");
        }
    }
    gmon(&place, &["html", "-o", "p.html", "p.pb.gz"]);
}

/// A name that turns the direction of writing, or that is not UTF-8, is shown as what it is.
fn names_that_are_not_seen() {
    let place = Place::new();
    with_names(&place, &["turned_\u{202e}_name", "wide_\u{200b}_name", "bytes_XX_name"]);
    let mut program = fs::read(place.path("p")).unwrap();
    while let Some(at) = program.windows(8).position(|window| window == b"bytes_XX") {
        program[at + 6..at + 8].copy_from_slice(&[0xff, 0x9b]);
    }
    fs::write(place.path("p"), program).unwrap();
    let outcome = place.run(&["--times", "--trace", "p.trace", "-o", "p.out", "./p"]);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    // A graph leaves out functions with next to no time, and who has how much is chance if the program loses the processor. The
    // numbers of calls do not depend on that.
    let outcome = place.run(&["--rate", "0", "-o", "calls.out", "./p"]);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    let hidden = |c: char| c.is_control() && !"\n\t".contains(c) || "\u{202e}\u{200b}\u{fffd}".contains(c);
    let shows = |args: &[&str]| {
        let outcome = gmon(&place, args);
        let text = outcome.stdout_text();
        assert!(outcome.code() == 0 && !text.contains(hidden), "{args:?}: {text:?} {}", outcome.stderr_text());
        text
    };
    for args in [
        &["flat", "p.pb.gz"][..],
        &["graph", "p.pb.gz"],
        &["graph", "-f", "*_name", "p", "p.pb.gz"],
        &["trace", "p.trace"],
        &["export", "--to", "callgrind", "p.pb.gz"],
        &["export", "--to", "folded", "p.pb.gz"],
        &["export", "--to", "dot", "calls.pb.gz"],
    ] {
        let text = shows(args).replace("\\\\", "\\");
        for name in ["turned_\\u{202e}_name", "wide_\\u{200b}_name", "bytes_\\xff\\x9b_name"] {
            assert!(text.contains(name), "{args:?}: no {name} in {text}");
        }
    }
    // Programs that read JSON get the same names.
    for args in [&["flat", "--json", "p.pb.gz"][..], &["trace", "--json", "p.trace"], &["graph", "--json", "p.pb.gz"]] {
        let text = shows(args);
        let parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert!(parsed.to_string().contains("turned_\u{202e}_name"), "{args:?}: {text}");
    }
    for format in ["json", "speedscope", "firefox"] {
        let text = shows(&["export", "--to", format, "p.pb.gz"]);
        assert!(text.contains("turned_\\u202e_name"), "{format}: {text}");
    }
    let listed = place.run(&["--list", "./p"]).stdout_text();
    assert!(listed.contains("bytes_\\xff\\x9b_name") && !listed.contains(hidden), "{listed}");
}

/// Whoever has made a program chose what its line information names. Root shows no more of that than they could read.
fn sources_of_other_users() {
    /// The user nobody.
    const USER: u32 = 65534;
    let test = "sources_of_other_users";
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        return skip::skipped(test, "only root can read other users' files");
    }
    let place = Place::new();
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(place.folder.path(), 0o755);
    fs::write(place.path("secret"), "the secret\n").unwrap();
    mode(&place.path("secret"), 0o600);
    fs::write(place.path("open.h"), "/* for everybody */\n").unwrap();
    mode(&place.path("open.h"), 0o644);
    let folder = place.folder.path().display();
    let source = format!(
        "int main(int c, char **v) {{\n# 1 \"{folder}/secret\"\nc++;\n# 1 \"{folder}/open.h\"\nc += v[0][0];\nreturn c == 0;\n}}\n"
    );
    // Without optimisation, each line has code of its own.
    place.c("p", &source, &["-g", "-O0"]);
    let outcome = place.run(&["--count", "lines", "-o", "p.out", "./p"]);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    let page = || {
        let _ = fs::remove_file(place.path("p.html"));
        gmon(&place, &["html", "-o", "p.html", "p", "p.out"]);
        fs::metadata(place.path("p.html")).unwrap().permissions().mode() & 0o777
    };
    let lines = |more: &[&str]| gmon(&place, &[&["lines"], more, &["p", "p.out"]].concat());
    assert!(lines(&[]).stdout_text().contains("the secret"), "root's own program");
    assert_ne!(page() & 0o044, 0);
    chown(place.path("p"), Some(USER), Some(USER)).unwrap();
    let (shown, said) = (lines(&[]).stdout_text(), lines(&[]).stderr_text());
    assert!(!shown.contains("the secret") && shown.contains("for everybody"), "{shown}");
    assert!(said.contains("secret") && said.contains("--source-dir"), "{said}");
    assert_eq!(page(), 0o600);
    // A folder on the way, and a link of the program's owner.
    fs::create_dir(place.path("own")).unwrap();
    chown(place.path("own"), Some(USER), Some(USER)).unwrap();
    fs::rename(place.path("open.h"), place.path("own/target")).unwrap();
    std::os::unix::fs::symlink(place.path("secret"), place.path("open.h")).unwrap();
    let shown = lines(&[]).stdout_text();
    assert!(!shown.contains("the secret"), "{shown}");
    assert!(lines(&["--source-dir", "."]).stdout_text().contains("the secret"), "the user has named the folder");
}

/// Files that are small and have many parts of functions that overlap, or many long names.
fn many_parts_of_large_functions() {
    let place = Place::new();
    let code = 300_000_u64;
    let parts = |part: &dyn Fn(u64) -> String, whole: &dyn Fn(u64) -> String| {
        let mut symbols = Vec::new();
        for index in 0..10_000 {
            symbols.push((part(index), index, 1, 0x02));
            symbols.push((whole(index), 20_000 + index, code - 30_000, 0x12));
        }
        symbols
    };
    let long = |index: u64| format!("f{}{index}", ".1".repeat(1000));
    let files = [
        ("parts", parts(&|index| format!("f{index}.part.0"), &|index| format!("f{index}"))),
        ("same", parts(&|_| "f.part.0".to_owned(), &|_| "f".to_owned())),
        ("dots", (0..500).map(|index| (long(index), index, 1, 0x02)).collect()),
        ("suffixes", (0..500).map(|index| (format!("f{}.{index}", ".isra.0".repeat(300)), index, 1, 0x02)).collect()),
    ];
    // gmon.out: the header, and one arc.
    let mut profile = b"gmon\x01\0\0\0".to_vec();
    profile.extend([0; 12]);
    profile.extend([&[1][..], &0x1000_u64.to_le_bytes(), &0x1010_u64.to_le_bytes(), &7_u32.to_le_bytes()].concat());
    fs::write(place.path("gmon.out"), profile).unwrap();
    for (name, symbols) in files {
        fs::write(place.path(name), elf(code, &symbols)).unwrap();
        assert_eq!(gmon(&place, &["check", "--records", "--program", name, "gmon.out"]).code(), 0, "{name}");
        assert_eq!(gmon(&place, &["flat", name, "gmon.out"]).code(), 0, "{name}");
    }
}

/// Returns an ELF file with code of zeros at 0x1000, and symbols there: names, offsets, sizes, types and bindings.
fn elf(code: u64, symbols: &[(String, u64, u64, u8)]) -> Vec<u8> {
    const NAMES: &[u8] = b"\0.text\0.symtab\0.strtab\0";
    let mut sorted: Vec<_> = symbols.iter().collect();
    sorted.sort_by_key(|symbol| symbol.3 >> 4);
    let (mut table, mut strings) = (vec![0; 24], vec![0]);
    for (name, at, size, info) in &sorted {
        table.extend(u32::try_from(strings.len()).unwrap().to_le_bytes());
        table.extend([*info, 0, 1, 0]);
        table.extend((0x1000 + at).to_le_bytes());
        table.extend(size.to_le_bytes());
        strings.extend(name.as_bytes());
        strings.push(0);
    }
    let locals = 1 + sorted.iter().filter(|symbol| symbol.3 >> 4 == 0).count() as u64;
    let mut file = vec![0; 64];
    let mut headers = vec![0; 64];
    let mut section = |name: u32, kind: u32, flags: u64, address: u64, bytes: &[u8], link: u32, info: u64, entry: u64| {
        headers.extend([name.to_le_bytes(), kind.to_le_bytes()].concat());
        headers.extend([flags, address, file.len() as u64, bytes.len() as u64].map(u64::to_le_bytes).concat());
        headers.extend([link.to_le_bytes(), u32::try_from(info).unwrap().to_le_bytes()].concat());
        headers.extend([1, entry].map(u64::to_le_bytes).concat());
        file.extend(bytes);
    };
    section(1, 1, 6, 0x1000, &vec![0; usize::try_from(code).unwrap()], 0, 0, 0);
    section(7, 2, 0, 0, &table, 3, locals, 24);
    section(15, 3, 0, 0, &[&strings[..], NAMES].concat(), 0, 0, 0);
    section(1, 3, 0, 0, NAMES, 0, 0, 0);
    let start = file.len() as u64;
    file.extend(headers);
    file[..16].copy_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    let head = [&2_u16.to_le_bytes()[..], &62_u16.to_le_bytes(), &1_u32.to_le_bytes(), &0x1000_u64.to_le_bytes()].concat();
    file[16..32].copy_from_slice(&head);
    file[40..48].copy_from_slice(&start.to_le_bytes());
    let tail = [64_u16, 56, 0, 64, 5, 4].map(u16::to_le_bytes).concat();
    file[52..64].copy_from_slice(&tail);
    file
}
