//! Programs whose names are in a separate debug file, which `--list`, filters, line information and the
//! summary use.

use std::fs;
use std::path::Path;
use std::process::Command;

use gprofinject_tests::compile;
use gprofinject_tests::place::{HELLO, Place};

gprofinject_tests::trials! {
    together:
        where_debug_files_are_found,
        a_debug_link_has_a_checksum,
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
    let outcome = place.run(&["-I", "f", "--rate", "0", "bin/hello"]);
    let said = outcome.stderr_text();
    assert!(said.contains("hooked 1 of") && said.contains(" 100 calls"), "{file}: {said}");
    let next = said.trim_end().rsplit_once("next: ").unwrap().1;
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
