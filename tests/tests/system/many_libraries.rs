//! Processes with many hooked library functions: what each thread takes of memory, and that no count is lost.

use std::process::Command;

use gprofinject_tests::elf::Program;
use gprofinject_tests::place::{Place, finish};
use gprofinject_tests::{generate, gprofdata, view};

gprofinject_tests::trials! {
    together:
        memory_grows_with_the_functions_that_a_thread_calls,
        more_threads_and_functions_than_mappings;
}

const MODULES: usize = 4;
const FUNCTIONS: usize = 1500;
/// The program calls this many functions of its libraries.
const CALLED: u64 = 100;

/// Builds the program of [`generate::program_of_many`] with its libraries.
fn built() -> Place {
    let place = Place::new();
    let mut libraries = Vec::new();
    for module in 0..MODULES {
        let name = format!("libmany{module}.so");
        let source = generate::library_of_many(module, FUNCTIONS);
        libraries.push(place.c(&name, &source, &["-fPIC", "-shared"]).display().to_string());
    }
    let mut flags = vec!["-pthread", "-Wl,-rpath,$ORIGIN"];
    flags.extend(libraries.iter().map(String::as_str));
    place.c("prog", &generate::program_of_many(MODULES, FUNCTIONS), &flags);
    place
}

/// The memory in KiB that the program takes with so many threads, each of which calls ten functions: alone, and with all
/// functions of its libraries hooked.
fn memory(place: &Place, threads: u64) -> (u64, u64) {
    let arguments = [threads.to_string(), "10".to_owned()];
    let mut alone = Command::new(place.path("prog"));
    alone.args(&arguments).current_dir(place.folder.path());
    let hooked = place.command(&["-q", "--rate=0", "--libs=libmany*", "./prog", &arguments[0], &arguments[1]]);
    let [alone, hooked] = [alone, hooked].map(|command| {
        let outcome = finish(command);
        let text = outcome.stdout_text();
        let pss = text.split_whitespace().next().and_then(|word| word.parse().ok());
        pss.unwrap_or_else(|| panic!("{text:?}, {}", outcome.stderr_text()))
    });
    (alone, hooked)
}

/// All functions of the libraries together have several MiB of home slots. A thread that calls ten of them takes a few pages
/// for each, besides the shadow of its stack.
fn memory_grows_with_the_functions_that_a_thread_calls() {
    const THREADS: u64 = 200;
    const KIB: u64 = 150;
    let place = built();
    let (few, many) = (memory(&place, 1), memory(&place, 1 + THREADS));
    let (alone, hooked) = (many.0.saturating_sub(few.0), many.1.saturating_sub(few.1));
    assert!(hooked > alone, "nothing is counted: {few:?}, {many:?}");
    let each = (hooked - alone) / THREADS;
    assert!(each < KIB, "{each} KiB for each thread: {few:?}, {many:?}");
    assert_eq!(calls_of_work(&place), (1 + THREADS) * 10);
}

/// Each thread calls functions in more pages of home slots than there can be mappings for all threads together.
fn more_threads_and_functions_than_mappings() {
    const THREADS: u64 = 300;
    let place = built();
    let (threads, calls) = (THREADS.to_string(), CALLED.to_string());
    let outcome = place.run(&["--rate=0", "--libs=libmany*", "./prog", &threads, &calls]);
    let said = outcome.stderr_text();
    assert_eq!(outcome.code(), 0, "{said}");
    assert!(!said.contains("could not be counted"), "{said}");
    assert_eq!(calls_of_work(&place), THREADS * CALLED);
}

/// Returns how often the threads have called functions of the libraries.
fn calls_of_work(place: &Place) -> u64 {
    let [symbols, whole] = view::written(&place.path("gmon.pb.gz")).unwrap();
    let (program, profile) = (Program::read(&symbols).unwrap(), gprofdata::read(&whole).unwrap());
    let is_work = |address| program.containing(address).is_some_and(|function| function.name() == "work");
    let of_work = profile.arcs.iter().filter(|((from, _), _)| is_work(*from));
    of_work.map(|(_, count)| count).sum()
}
