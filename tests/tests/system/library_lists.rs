//! What gprofinject says of libraries: the modules of `--list`, and which libraries are not hooked and why.

use gprofinject_tests::elf::Program;
use gprofinject_tests::place::{Place, finish};

use crate::libraries::{built, same};

gprofinject_tests::trials! {
    together:
        the_list_has_all_modules,
        only_the_systems_dynamic_linker_is_asked,
        what_is_not_hooked_is_named;
}

/// The lines of a module in the output of `--list`, after its own line.
pub(crate) fn listed(list: &str, module: &str) -> Vec<String> {
    let mut lines = list.lines().skip_while(|line| !line.starts_with(module));
    assert!(lines.next().is_some(), "{module} in {list}");
    lines.take_while(|line| line.starts_with("0x")).map(str::to_owned).collect()
}

fn the_list_has_all_modules() {
    let place = built(&["-O2"]);
    let outcome = place.run(&["--list", "-X", "liblow.so!inner", "-X", "prog", "./prog"]);
    let (list, said) = (outcome.stdout_text(), outcome.stderr_text());
    assert_eq!(outcome.code(), 0, "{said}");
    assert!(said.contains("-X 'prog' matches no function") && !said.contains("liblow.so!inner"), "{said}");
    let own = |name: &str| place.path(name).canonicalize().unwrap().display().to_string();
    // In the order in which they are loaded, each with all the functions of its symbol table.
    let modules = ["./prog".to_owned(), own("libhigh.so"), own("liblow.so")];
    let places = modules.clone().map(|module| list.find(&format!("{module}: hooked")).unwrap_or(usize::MAX));
    assert!(places[0] == 0 && places[1..].iter().all(|&at| at != usize::MAX), "{list}");
    for (module, file) in modules.iter().zip(["prog", "libhigh.so", "liblow.so"]) {
        let lines = listed(&list, module);
        for function in Program::read(&place.path(file)).unwrap().functions() {
            let is_it = |line: &&String| u64::from_str_radix(&line[2..line.find(' ').unwrap()], 16) == Ok(function.address);
            let line = lines.iter().find(is_it).unwrap_or_else(|| panic!("{} in {list}", function.name()));
            let is_left_out = file == "liblow.so" && function.name() == "inner";
            assert_eq!(line.contains("refused: not-selected"), is_left_out, "{line}");
            assert!(line.split_whitespace().count() >= 4, "{line}");
        }
    }
    let libc = list.lines().find(|line| line.contains("/libc.so.6")).unwrap();
    assert!(libc.ends_with(": left out by --libs auto"), "{libc}");
    // The same with counters, for one library.
    let counted = place.run(&["--list", "--count", "blocks", "--libs", "liblow*", "./prog"]).stdout_text();
    let low = listed(&counted, &own("liblow.so"));
    assert!(low.iter().all(|line| line.contains(" block") || line.contains("not counted")), "{low:#?}");
    assert!(counted.contains(&format!("{}: left out by --libs liblow*", own("libhigh.so"))), "{counted}");
    // Without libraries, there are only functions.
    let alone = place.run(&["--list", "--libs", "none", "./prog"]).stdout_text();
    assert!(alone.lines().all(|line| line.starts_with("0x")), "{alone}");
    assert_eq!(alone.lines().map(str::to_owned).collect::<Vec<_>>(), {
        let with = place.run(&["--list", "./prog"]).stdout_text();
        listed(&with, "./prog")
    });
    // One that is gone, and one that is not a library.
    std::fs::remove_file(place.path("libhigh.so")).unwrap();
    let gone = place.run(&["--list", "./prog"]).stdout_text();
    assert!(gone.lines().any(|line| line.contains("libhigh.so") && line.ends_with(": not found")), "{gone}");
}

/// A program says itself which dynamic linker it wants, and `--list` runs nothing of what a program brings along.
fn only_the_systems_dynamic_linker_is_asked() {
    const MARKING: &str = r#"
#include <stdio.h>
int main(void) { fclose(fopen("ran", "w")); return 0; }
"#;
    let place = Place::new();
    place.c("fake", MARKING, &["-static"]);
    let option = format!("-Wl,--dynamic-linker={}", place.path("fake").display());
    place.c("prog", "int main(void) { return 0; }", &[&option]);
    let outcome = place.run(&["--list", "./prog"]);
    let said = outcome.stderr_text();
    assert!(said.contains("the libraries of ./prog are not listed") && said.contains("not the system's"), "{said}");
    assert!(outcome.stdout_text().contains("  main"), "{}", outcome.stdout_text());
    // Nor do libraries run, which have constructors, or auditors.
    place.c("libmark.so", "#include <stdio.h>\n__attribute__((constructor)) void made(void) { fclose(fopen(\"ran\", \"w\")); } \
        unsigned la_version(unsigned v) { made(); return v; }", &["-fPIC", "-shared"]);
    let library = place.path("libmark.so");
    place.c("marked", "void made(void); int main(void) { made(); return 0; }", &[library.to_str().unwrap()]);
    let mut command = place.command(&["--list", "./marked"]);
    command.env("LD_AUDIT", &library);
    // The variable is gprofinject's own as well.
    command.env_remove("LD_AUDIT");
    let list = finish(command).stdout_text();
    assert!(list.contains("libmark.so: hooked"), "{list}");
    assert!(!place.path("ran").exists());
}

/// The last line and `--stats` say how many libraries are not hooked and why, and a library that cannot be is named.
fn what_is_not_hooked_is_named() {
    let place = built(&["-O2"]);
    let stats = |options: &[&str]| {
        let outcome = same(&place, &[&["--stats", "stats"], options].concat(), &[]);
        let text = std::fs::read(place.path("stats")).unwrap();
        let stats: serde_json::Value = serde_json::from_slice(&text).unwrap();
        (outcome.stderr_text(), stats["libraries"].clone())
    };
    let of = |stats: &serde_json::Value, name: &str| {
        let all = stats.as_array().unwrap().iter();
        let is_it = |library: &&serde_json::Value| library["path"].as_str().unwrap().ends_with(name);
        { all }.find(is_it).cloned().unwrap_or_default()
    };
    let (said, libraries) = stats(&["--libs", "liblow*", "-v"]);
    assert!(said.contains("of 1 library (3 left out by --libs 'liblow*'), "), "{said}");
    assert!(said.contains("libhigh.so is left out by --libs liblow*"), "{said}");
    let low = of(&libraries, "/liblow.so");
    assert_eq!((low["status"].as_str(), of(&libraries, "/libhigh.so")["status"].as_str()), (Some("hooked"), Some("left-out")));
    // gcc's own functions in the library are hooked as well.
    let found = Program::read(&place.path("liblow.so")).unwrap().functions().count() as u64;
    assert_eq!(low["functions"]["found"].as_u64(), Some(found), "{low}");
    let (_, libraries) = stats(&["--count", "blocks", "-X", "liblow.so!inner"]);
    let low = of(&libraries, "/liblow.so");
    assert_eq!(low["functions"]["refused_by_reason"]["not-selected"], 1, "{low}");
    assert_eq!(low["blocks"]["uncounted_by_reason"]["not-hooked"], 1, "{low}");
    // A library whose file is replaced before the process asks for it is refused; here by one without any function.
    let data = place.c("libdata.so", "const char data[] = \"x\"; __asm__(\".text\\n.byte 6, 6, 6, 6\");", &["-nostdlib", "-fPIC", "-shared"]);
    let mut command = place.command(&["-v", "./prog"]);
    command.env("LD_PRELOAD", &data);
    let outcome = finish(command);
    let said = outcome.stderr_text();
    // A library of data hides nothing, so the summary does not name it.
    assert!(!said.contains("not hooked: libdata.so (-v says why)"), "{said}");
    assert!(said.contains("libdata.so is not hooked: it has no functions"), "{said}");
    assert!(said.contains("of 2 libraries (2 left out by --libs auto, 1 refused), "), "{said}");
}
