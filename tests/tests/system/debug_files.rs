//! Programs whose names are in a separate debug file, which `--list`, filters, line information and the
//! summary use.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use gprofinject_skip as skip;
use gprofinject_tests::compile;
use gprofinject_tests::elf::Program;
use gprofinject_tests::place::{HELLO, Place, finish};

use crate::libraries::{has, whole};

gprofinject_tests::trials! {
    together:
        where_debug_files_are_found,
        a_debug_link_has_a_checksum,
        the_cache_of_debuginfod,
        names_within_the_stripped_file,
        functions_without_any_name,
        names_that_are_a_trap;
}

fn run(place: &Place, line: &str) {
    let done = Command::new("sh").args(["-ec", line]).current_dir(place.folder.path()).output().unwrap();
    assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Makes a stripped program in `bin`, with its debug file `hello.dbg` beside it.
fn stripped(build_id: &str) -> Place {
    let place = Place::new();
    fs::create_dir(place.path("bin")).unwrap();
    place.c("bin/hello", HELLO, &["-g", build_id]);
    run(&place, "cd bin; objcopy --only-keep-debug hello hello.dbg; strip --strip-all hello");
    place
}

/// Checks that everything uses the names, and that the summary's command names the file.
fn is_used(place: &Place, file: &str) {
    let list = place.run(&["--list", "bin/hello"]);
    assert!(
        list.stdout_text().contains("  f ") && list.stdout_text().contains("  main"),
        "{file}: {}",
        list.stdout_text()
    );
    assert!(!list.stderr_text().contains("stripped"), "{file}: {}", list.stderr_text());
    let outcome = place.run(&["-v", "-I", "f", "--rate", "0", "bin/hello"]);
    let said = outcome.stderr_text();
    assert!(said.contains("hooked 1 of") && said.contains(" 100 calls"), "{file}: {said}");
    let next = said.lines().find_map(|line| line.strip_prefix("gprofinject: gprof ")).unwrap();
    let next = &format!("gprof {next}");
    assert!(next.contains(file), "{file}: {next}");
    let report = Command::new("sh").args(["-c", next]).current_dir(place.folder.path()).output().unwrap();
    let text = String::from_utf8_lossy(&report.stdout).into_owned();
    let shown = text.lines().any(|line| line.ends_with(" f") && line.contains(" 100 "));
    assert!(report.status.success() && shown, "{next}: {text}");
    let counted = place.run(&["-q", "--count", "lines", "bin/hello"]);
    assert_eq!(counted.code(), 0, "{file}: {}", counted.stderr_text());
}

fn is_not_used(place: &Place, why: &str) {
    let list = place.run(&["--list", "bin/hello"]);
    assert!(!list.stdout_text().contains("  f "), "{why}: {}", list.stdout_text());
    assert!(list.stderr_text().contains("is stripped"), "{why}: {}", list.stderr_text());
}

fn where_debug_files_are_found() {
    let place = stripped("-Wl,--build-id=0x0123456789abcdef");
    is_not_used(&place, "a name that nobody knows");
    let id = ".build-id/01/23456789abcdef.debug";
    for file in
        ["bin/hello.debug", "bin/.debug/hello.debug", &format!("bin/{id}"), &format!("bin/.debug/{id}")]
    {
        fs::create_dir_all(place.path(file).parent().unwrap()).unwrap();
        fs::rename(place.path("bin/hello.dbg"), place.path(file)).unwrap();
        is_used(&place, file.strip_prefix("bin/").unwrap());
        fs::rename(place.path(file), place.path("bin/hello.dbg")).unwrap();
    }
    run(&place, "cd bin; objcopy --add-gnu-debuglink=hello.dbg hello");
    is_used(&place, "hello.dbg");
    // The debug file of another build is not used.
    run(&place, "gcc -g -Wl,--build-id=0x0123456789abcdee -o bin/hello.dbg bin/hello.c");
    is_not_used(&place, "another build");
}

/// Without a build-id, the checksum decides.
fn a_debug_link_has_a_checksum() {
    let place = stripped("-Wl,--build-id=none");
    fs::copy(place.path("bin/hello.dbg"), place.path("bin/hello.debug")).unwrap();
    is_not_used(&place, "nothing proves that it is of this build");
    fs::remove_file(place.path("bin/hello.debug")).unwrap();
    run(&place, "cd bin; objcopy --add-gnu-debuglink=hello.dbg hello; mkdir .debug; mv hello.dbg .debug");
    is_used(&place, ".debug/hello.dbg");
    let file = place.path("bin/.debug/hello.dbg");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    is_not_used(&place, "changed since");
}

/// debuginfod keeps what it has downloaded by the build-id. A file there counts only if it belongs to the user or to root.
fn the_cache_of_debuginfod() {
    const ID: &str = "0123456789abcdef";
    let place = stripped(&format!("-Wl,--build-id=0x{ID}"));
    let list = |variable: &str, value: &Path| {
        let mut command = place.command(&["--list", "bin/hello"]);
        for name in ["DEBUGINFOD_CACHE_PATH", "XDG_CACHE_HOME", "HOME"] {
            command.env_remove(name);
        }
        command.env(variable, value);
        finish(command).stdout_text()
    };
    let is_named = |list: &str| list.contains("  f ") && list.contains("  main");
    for (variable, below) in
        [("DEBUGINFOD_CACHE_PATH", ""), ("XDG_CACHE_HOME", "debuginfod_client"), ("HOME", ".cache/debuginfod_client")]
    {
        let home = place.path(variable);
        let folder = home.join(below).join(ID);
        fs::create_dir_all(&folder).unwrap();
        assert!(!is_named(&list(variable, &home)), "{variable}: there is no file yet");
        fs::copy(place.path("bin/hello.dbg"), folder.join("debuginfo")).unwrap();
        assert!(is_named(&list(variable, &home)), "{variable}");
        assert!(!is_named(&list(variable, Path::new(variable))), "{variable}: a relative path");
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(folder.join("debuginfo"), Some(65534), None).unwrap();
            assert!(!is_named(&list(variable, &home)), "{variable}: another user's file");
        }
    }
}

/// A library with one exported function, and a program that calls it.
const LIBRARY: &str = "__attribute__((noinline)) static int inner(int x) { asm volatile(\"\"); return x + 1; }\n\
    int outer(int x) { int s = 0; for (int i = 0; i < 3; i++) s += inner(x + i); return s; }\n";
/// See [`LIBRARY`].
const USER: &str = "int outer(int);\n\
    __attribute__((noinline)) static int own(int x) { return outer(x) + 1; }\n\
    int main(void) { int s = 0; for (int i = 0; i < 10; i++) s += own(i); return s & 1; }\n";

/// Builds the two, strips them, and makes of each what a command says. `$1` is the file, which is also in `names` with its
/// debug information only. Returns the program's exit status, and where its functions are.
fn stripped_both(place: &Place, more: &str) -> (i32, BTreeMap<String, u64>) {
    let library = place.c("libinner.so", LIBRARY, &["-fPIC", "-shared"]);
    place.c("prog", USER, &[library.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"]);
    let status = finish(Command::new(place.path("prog"))).code();
    let mut functions = BTreeMap::new();
    for file in ["prog", "libinner.so"] {
        let program = Program::read(&place.path(file)).unwrap();
        functions.extend(program.functions().map(|function| (function.name().to_owned(), function.address)));
        let strip = "objcopy --only-keep-debug $1 names; strip --strip-debug names; strip --strip-all $1";
        run(place, &format!("set {file}; {strip}; {more}"));
    }
    (status, functions)
}

/// Fedora's programs and libraries have a compressed table of their functions (`.gnu_debugdata`). gprof does not see it, so
/// the names are in the view of the whole process.
fn names_within_the_stripped_file() {
    if !skip::have("xz") {
        skip::skipped("debug_files::names_within_the_stripped_file", "no xz");
        return;
    }
    let place = Place::new();
    // As rpm makes it, but for the exported functions, which are left out there.
    let embed = "xz names; objcopy --add-section .gnu_debugdata=names.xz $1; rm names.xz";
    let (alone, _) = stripped_both(&place, embed);
    let outcome = place.run(&["./prog"]);
    let said = outcome.stderr_text();
    assert_eq!(outcome.code(), alone, "{said}");
    assert!(said.ends_with("next: gmon\n"), "{said}");
    let calls = whole(&place);
    has(&calls, &[("main", "own", 10), ("own", "outer", 10), ("outer", "inner", 30)], &said);
}

/// Without any name, a function is shown by its module and address, where the unwind tables describe it.
fn functions_without_any_name() {
    let place = Place::new();
    let (alone, functions) = stripped_both(&place, "rm names");
    for libs in ["auto", "all", "none"] {
        let outcome = place.run(&["--libs", libs, "./prog"]);
        let said = outcome.stderr_text();
        assert_eq!(outcome.code(), alone, "{said}");
        assert!(said.contains("shown by address; debug symbols name them") && said.ends_with("next: gmon\n"), "{said}");
        let at = |module: &str, name: &str| format!("{module}+{:#x}", functions[name]);
        let (main, own, inner) = (at("prog", "main"), at("prog", "own"), at("libinner.so", "inner"));
        let of_library = [(own.as_str(), "outer", 10), ("outer", &inner, 30)];
        has(&whole(&place), &[(&main, &own, 10)], &said);
        has(&whole(&place), if libs == "none" { &[] } else { &of_library }, &said);
    }
}

/// The name in a debug link comes from the program: it leads to no other folder, and gprofinject does not
/// wait for a pipe.
fn names_that_are_a_trap() {
    let place = stripped("-Wl,--build-id=0x0123456789abcdef");
    run(
        &place,
        "cd bin; objcopy --add-gnu-debuglink=hello.dbg hello; mv hello.dbg ../x.dbg; mkfifo hello.dbg hello.debug",
    );
    is_not_used(&place, "a pipe");
    let program = place.path("bin/hello");
    let mut bytes = fs::read(&program).unwrap();
    let at = bytes.windows(9).position(|window| window == b"hello.dbg").unwrap();
    bytes[at..at + 9].copy_from_slice(b"../x.dbg\0");
    compile::write_program(&program, &bytes).unwrap();
    is_not_used(&place, "a path");
    assert!(Path::new(&place.path("x.dbg")).is_file());
}
