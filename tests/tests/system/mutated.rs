//! Programs, libraries and debug files whose headers and tables lie, but which run: under gprofinject they print the same and
//! end in the same way. Whether a file counts as running is decided by a run alone.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use gprofinject_tests::mutate::{Part, Sound};
use gprofinject_tests::place::Place;
use gprofinject_tests::run::{self, Outcome};
use gprofinject_tests::{compile, extent, generate, tool};
use object::LittleEndian as LE;
use object::elf::Sym64;

gprofinject_tests::trials! {
    together:
        moved_frames,
        false_symbols,
        programs,
        libraries,
        debug_files;
}

/// The time after which a run alone is killed. Sound files take milliseconds.
const ALONE: Duration = Duration::from_secs(4);
const LIMIT: Duration = Duration::from_secs(20);
/// The address space of a run alone, in bytes.
const MEMORY: u64 = 4 << 30;

const MODES: [&[&str]; 5] =
    [&[], &["--hooks=entry"], &["--times"], &["--count=blocks"], &["--times", "--count=blocks"]];

/// A way to make a program.
struct Kind {
    name: &'static str,
    source: &'static str,
    flags: &'static [&'static str],
    stripped: bool,
}

const fn kind(
    name: &'static str,
    source: &'static str,
    flags: &'static [&'static str],
    stripped: bool,
) -> Kind {
    Kind { name, source, flags, stripped }
}

const C: &str = "work.c";
const CC: &str = "work.cc";

const KINDS: [Kind; 11] = [
    kind("c", C, &["-O2"], false),
    kind("c-stripped", C, &["-O2"], true),
    kind("c-nopie", C, &["-Os", "-fno-pie", "-no-pie"], false),
    kind("c-nopie-stripped", C, &["-O2", "-fno-pie", "-no-pie"], true),
    kind("c-one-segment", C, &["-O2", "-Wl,-z,noseparate-code"], true),
    kind("c-no-frames", C, &["-O2", "-fno-asynchronous-unwind-tables"], false),
    kind("c-static", C, &["-O2", "-static"], false),
    kind("c-static-stripped", C, &["-O2", "-static-pie"], true),
    kind("cc", CC, &["-O2"], false),
    kind("cc-stripped", CC, &["-O1", "-fcf-protection"], true),
    kind("cc-nopie-stripped", CC, &["-O2", "-fno-pie", "-no-pie"], true),
];

/// Compiles into a folder. Returns the path of the program.
fn build(folder: &Path, kind: &Kind) -> PathBuf {
    let (path, source) = (folder.join(kind.name), tool::folder().join("mutated").join(kind.source));
    let compiler = if kind.source == CC { "g++" } else { "gcc" };
    let mut command = Command::new(compiler);
    command.args(["-w", "-o"]).arg(&path).arg(source).args(kind.flags);
    compile::compile(command).unwrap();
    if kind.stripped {
        assert!(Command::new("strip").arg(&path).status().unwrap().success());
    }
    path
}

/// Runs a program alone, with limits on time and memory. prlimit gives a file that the kernel does not take for a program to a shell, which
/// may write files, so this is in the program's folder.
fn alone(program: &Path, args: &[&str]) -> Outcome {
    let mut command = Command::new("prlimit");
    command.arg(format!("--as={MEMORY}")).arg("--core=0").arg(program).args(args);
    command.current_dir(program.parent().unwrap());
    run::run(command, None, ALONE).unwrap()
}

/// Another library that somebody may preload. For its sake, the dynamic linker looks up more names in the program's tables than
/// without it: a program whose tables lead it astray there does not run with any other library.
const PRELOADED: &str = "
extern int __register_atfork(void *, void *, void *, void *) __attribute__((weak));
extern void *__libc_stack_end __attribute__((weak));
void *const in_use[] = {(void *)__register_atfork, &__libc_stack_end};
";

/// Returns the library, compiled into a folder.
fn preloaded(place: &Place) -> PathBuf {
    place.c("preloaded.so", PRELOADED, &["-shared", "-fPIC", "-nostartfiles"])
}

/// Whether a program does what it should alone, and with another library preloaded.
fn runs_alone(program: &Path, args: &[&str], preloaded: &Path, expected: &End) -> bool {
    let mut command = Command::new(program);
    command.args(args).env("LD_PRELOAD", preloaded);
    end(&alone(program, args)) == *expected
        && run::run(command, None, ALONE).is_ok_and(|outcome| end(&outcome) == *expected)
}

/// Status, output, and whether the run was killed because it took too long.
type End = (i32, String, bool);

fn end(outcome: &Outcome) -> End {
    (outcome.code(), outcome.stdout_text(), outcome.timed_out)
}

/// Runs the program under gprofinject in a mode. Returns how it differs from the run alone.
fn differs(program: &Path, mode: &[&str], args: &[&str], sound: &End) -> Option<String> {
    let mut command = tool::uncached(tool::gprofinject().unwrap());
    command.args(mode).arg("-o").arg(program.with_extension("gmon")).arg("--").arg(program).args(args);
    command.current_dir(program.parent().unwrap()).env_remove("GMON_OUT_PREFIX").env("RUST_BACKTRACE", "0");
    let outcome = run::run(command, None, LIMIT).unwrap();
    let said = outcome.stderr_text();
    let is_same = end(&outcome) == *sound && !said.contains("panicked");
    (!is_same).then(|| {
        let timed_out = if outcome.timed_out { ", hangs" } else { "" };
        format!("{mode:?} {args:?}: status {}{timed_out}: {}{said}", outcome.code(), outcome.stdout_text())
    })
}

/// Returns the modes for a seed: one after the other, or all of them.
fn modes(seed: u64) -> Vec<&'static [&'static str]> {
    if extent::is_full() { MODES.to_vec() } else { vec![MODES[seed as usize % MODES.len()]] }
}

/// What came of mutated files.
#[derive(Default)]
struct Tally {
    ran: u64,
    all: u64,
    failures: Vec<String>,
}

/// Calls `judge` for each seed on several threads, with a folder for each, and for those that were `once_wrong`. It returns whether the file
/// ran alone, and what was wrong.
fn each_seed(count: u64, once_wrong: &[u64], judge: impl Fn(&Path, u64) -> (bool, Vec<String>) + Sync) -> Tally {
    let first = generate::first_seed();
    let seeds = Mutex::new((first..first + count).chain(once_wrong.iter().copied()));
    let tally = Mutex::new(Tally::default());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let folder = tempfile::tempdir().unwrap();
                loop {
                    let Some(seed) = seeds.lock().unwrap().next() else { return };
                    let (ran, failures) = judge(folder.path(), seed);
                    let mut tally = tally.lock().unwrap();
                    tally.all += 1;
                    tally.ran += u64::from(ran);
                    for failure in failures {
                        if extent::is_full() {
                            eprintln!("{failure}");
                        }
                        tally.failures.push(failure);
                    }
                }
            });
        }
    });
    tally.into_inner().unwrap()
}

impl Tally {
    fn check(self, what: &str) {
        let Tally { ran, all, failures } = self;
        println!("{what}: {all} files, {ran} of them ran alone, {} differ", failures.len());
        assert!(failures.is_empty(), "{} of {ran} differ\n{}", failures.len(), failures.join("\n"));
        assert!(3 * ran > all, "only {ran} of {all} ran alone");
    }
}

/// The section header of `.eh_frame` says where a linker has put it. Unwinders find it by PT_GNU_EH_FRAME.
fn moved_frames() {
    let place = Place::new();
    let mut failures = Vec::new();
    for kind in KINDS.iter().filter(|kind| kind.stripped) {
        let sound = build(place.folder.path(), kind);
        let expected = end(&alone(&sound, &[]));
        let sound = Sound::new(fs::read(sound).unwrap());
        for (distance, mode) in [1, 3, -7, 0x20, 0x1000].into_iter().zip(MODES.into_iter().cycle()) {
            let path = place.path("moved");
            let _ = fs::remove_file(&path);
            compile::write_program(&path, &sound.moved_section(".eh_frame", distance)).unwrap();
            failures.extend(differs(&path, mode, &[], &expected).map(|f| format!("{} {distance}: {f}", kind.name)));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// A symbol that names the middle of a function, or of an instruction, with frame descriptions and without.
fn false_symbols() {
    let place = Place::new();
    let mut failures = Vec::new();
    for kind in KINDS.iter().filter(|kind| ["c", "c-nopie", "c-no-frames"].contains(&kind.name)) {
        let sound = build(place.folder.path(), kind);
        let expected = end(&alone(&sound, &[]));
        let sound = Sound::new(fs::read(sound).unwrap());
        let mut run = |data: Vec<u8>, name: &str, distance: u64| {
            let path = place.path("false");
            let _ = fs::remove_file(&path);
            compile::write_program(&path, &data).unwrap();
            let mode = MODES[distance as usize % MODES.len()];
            let failure = differs(&path, mode, &[], &expected);
            failures.extend(failure.map(|f| format!("{} {name}+{distance}: {f}", kind.name)));
        };
        for (name, distance) in ["frame", "fold", "choose", "main", "checked"]
            .into_iter()
            .flat_map(|name| [1, 2, 4, 9, 17, 30].map(|distance| (name, distance)))
        {
            // Another function's symbol moves there; its own code then has none.
            let target = sound.symbol("many").wrapping_sub(sound.symbol(name));
            let data = sound.with_symbol("many", |symbol| {
                let address = symbol.st_value.get(LE).wrapping_sub(target).wrapping_add(distance);
                symbol.st_value.set(LE, address);
            });
            run(data, name, distance);
        }
        // Nothing is known of the code in front of the first function but that the dynamic linker calls it.
        for distance in [1, 3, 4, 11, 18, 22] {
            let moved = |symbol: &mut Sym64<LE>| symbol.st_value.set(LE, symbol.st_value.get(LE) + distance);
            run(sound.with_symbol("_init", moved), "_init", distance);
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn programs() {
    let place = Place::new();
    let preloaded = preloaded(&place);
    let built = KINDS.iter().map(|kind| {
        let path = build(place.folder.path(), kind);
        let sound = Sound::new(fs::read(&path).unwrap());
        (kind, sound, [&[][..], &["quiet"]].map(|args| (args, end(&alone(&path, args)))))
    });
    let built: Vec<_> = built.collect();
    let count = extent::times("GPROFINJECT_MUTATIONS", 110, 3000);
    let tally = each_seed(count, &[1055, 2805, 3427], |folder, seed| {
        let mut random = generate::random_numbers(seed + 1);
        // The first numbers of neighbouring seeds are alike.
        (0..4).for_each(|_| _ = random());
        let (kind, sound, runs) = &built[seed as usize % built.len()];
        let part = Part::ALL[random() as usize % Part::ALL.len()];
        let (args, expected) = &runs[random() as usize % runs.len()];
        let Some((data, what)) = sound.mutated(part, &mut random) else { return (false, Vec::new()) };
        let path = folder.join("mutated");
        let _ = fs::remove_file(&path);
        compile::write_program(&path, &data).unwrap();
        if !runs_alone(&path, args, &preloaded, expected) {
            return (false, Vec::new());
        }
        let failures = modes(seed).into_iter().filter_map(|mode| differs(&path, mode, args, expected));
        let failures: Vec<_> = failures.map(|f| format!("seed {seed}, {}: {what}\n  {f}", kind.name)).collect();
        (true, failures)
    });
    tally.check("programs");
}

fn libraries() {
    let place = Place::new();
    let folder = tool::folder().join("mutated");
    for (name, stripped) in [("libown.so", false), ("libstripped.so", true)] {
        let mut command = Command::new("gcc");
        command.args(["-O2", "-fPIC", "-shared", "-o"]).arg(place.path(name)).arg(folder.join("own.c"));
        compile::compile(command).unwrap();
        if stripped {
            assert!(Command::new("strip").arg(place.path(name)).status().unwrap().success());
        }
    }
    let mut command = Command::new("gcc");
    let program = place.path("prog");
    command.args(["-O2", "-DLIBRARY", "-Wl,-rpath,$ORIGIN", "-o"]).arg(&program).arg(folder.join("work.c"));
    command.arg(place.path("libown.so"));
    compile::compile(command).unwrap();
    let preloaded = preloaded(&place);
    let expected = end(&alone(&program, &[]));
    assert!(!expected.1.is_empty());
    let libraries = ["libown.so", "libstripped.so"].map(|name| Sound::new(fs::read(place.path(name)).unwrap()));
    let count = extent::times("GPROFINJECT_MUTATIONS", 40, 600);
    let tally = each_seed(count, &[], |folder, seed| {
        let mut random = generate::random_numbers(seed + 1);
        (0..4).for_each(|_| _ = random());
        let part = Part::ALL[random() as usize % Part::ALL.len()];
        let Some((data, what)) = libraries[seed as usize % 2].mutated(part, &mut random) else {
            return (false, Vec::new());
        };
        let path = folder.join("prog");
        if !path.exists() {
            compile::copy(&program, &path).unwrap();
        }
        fs::write(folder.join("libown.so"), data).unwrap();
        if !runs_alone(&path, &[], &preloaded, &expected) {
            return (false, Vec::new());
        }
        let failures = modes(seed).into_iter().filter_map(|mode| differs(&path, mode, &[], &expected));
        (true, failures.map(|f| format!("seed {seed}: {what}\n  {f}")).collect())
    });
    tally.check("libraries");
}

fn debug_files() {
    let place = Place::new();
    let plain = build(place.folder.path(), &kind("prog", C, &["-g", "-O2"], false));
    let folder = place.folder.path();
    let objcopy = |args: &[&str]| {
        assert!(Command::new("objcopy").args(args).current_dir(folder).status().unwrap().success());
    };
    objcopy(&["--only-keep-debug", "prog", "prog.debug"]);
    // A build-id is compared, and a checksum would not fit any more.
    objcopy(&["--strip-all", "--add-gnu-debuglink=prog.debug", "prog", "bare"]);
    let sound = Sound::new(fs::read(place.path("prog.debug")).unwrap());
    let expected = end(&alone(&plain, &[]));
    let count = extent::times("GPROFINJECT_MUTATIONS", 30, 400);
    let tally = each_seed(count, &[724], |folder, seed| {
        let mut random = generate::random_numbers(seed + 1);
        (0..4).for_each(|_| _ = random());
        let part = [Part::Header, Part::Segments, Part::Sections, Part::Symbols, Part::Unloaded]
            [random() as usize % 5];
        let Some((data, what)) = sound.mutated(part, &mut random) else { return (false, Vec::new()) };
        let path = folder.join("bare");
        if !path.exists() {
            compile::copy(&place.path("bare"), &path).unwrap();
        }
        fs::write(folder.join("prog.debug"), data).unwrap();
        let failures = modes(seed).into_iter().filter_map(|mode| differs(&path, mode, &[], &expected));
        (true, failures.map(|f| format!("seed {seed}: {what}\n  {f}")).collect())
    });
    tally.check("debug files");
}
