//! The calls that are open at the end of a crashed program's trace, compared with the backtrace that gdb makes of the core of a run without
//! hooks, frame by frame.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use gprofinject_skip as skip;
use gprofinject_tests::described::{self, Piece};
use gprofinject_tests::place::{self, LIMIT, Place};
use gprofinject_tests::traced::shown;
use gprofinject_tests::{run, tool};
use object::{Object, ObjectSegment};

gprofinject_tests::trials! {
    together:
        a_c_program,
        python_in_ctypes,
        redis_in_its_signal_handler;
}

/// A program that crashes.
struct Crash<'a> {
    name: &'a str,
    program: PathBuf,
    args: &'a [&'a str],
    /// The number of the signal that ends it.
    signal: i32,
    /// How often it gets the signal.
    times: usize,
    /// What makes it crash while it runs.
    provoke: fn(&Place),
}

/// A function: the file that it is in, and its link-time address.
type Function = (PathBuf, u64);

/// The descriptions and segments of the files of a process.
#[derive(Default)]
struct Files {
    files: BTreeMap<PathBuf, Described>,
}

struct Described {
    pieces: BTreeMap<u64, Piece>,
    /// Ranges in the file, and the link-time addresses of their first bytes.
    segments: Vec<(Range<u64>, u64)>,
}

impl Files {
    /// Returns the function that contains a byte of a file. Nobody calls an entry point.
    fn function(&mut self, path: &Path, offset: u64) -> Option<u64> {
        let file = self.files.entry(path.to_owned()).or_insert_with(|| {
            let data = std::fs::read(path).unwrap();
            let object = object::File::parse(&*data).unwrap();
            let segment = |segment: object::Segment<'_, '_>| {
                let (start, len) = segment.file_range();
                (start..start + len, segment.address())
            };
            Described { pieces: described::pieces(path).unwrap(), segments: object.segments().map(segment).collect() }
        });
        let (range, address) = file.segments.iter().find(|(range, _)| range.contains(&offset)).unwrap();
        let address = address + offset - range.start;
        let (&start, piece) = file.pieces.range(..=address).next_back().filter(|(_, piece)| address < piece.end)?;
        Some(if piece.is_function { start } else { parent(path, &file.pieces, start..piece.end) })
    }
}

/// Returns the function that a part belongs to: the only one that jumps there, as objdump has it.
fn parent(path: &Path, pieces: &BTreeMap<u64, Piece>, part: Range<u64>) -> u64 {
    let output = Command::new("objdump").args(["-d", "--no-show-raw-insn"]).arg(path).output().unwrap();
    let jump = |line: &str| {
        //     9600:	jne    1f630 <...>
        let (from, code) = line.trim_start().split_once(":\t")?;
        let (name, to) = code.split_once(' ')?;
        let to = u64::from_str_radix(to.trim_start().split(' ').next()?, 16).ok()?;
        let from = u64::from_str_radix(from, 16).ok()?;
        (name.starts_with('j') && part.contains(&to) && !part.contains(&from)).then_some(from)
    };
    let jumps = String::from_utf8_lossy(&output.stdout).lines().filter_map(jump).collect::<Vec<_>>();
    let function = |at: u64| pieces.range(..=at).next_back().map(|(&start, _)| start);
    let from: BTreeSet<u64> = jumps.into_iter().filter_map(function).collect();
    assert_eq!(from.len(), 1, "{}: what jumps to {part:x?}: {from:x?}", path.display());
    from.into_iter().next().unwrap()
}

/// Returns the functions of gdb's backtrace from the outermost one, as far as they are in these files.
fn backtrace(text: &str, hooked: &BTreeSet<PathBuf>) -> Vec<Function> {
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16);
    let mut frames = Vec::new();
    let mut mappings = Vec::new();
    // The innermost frame is at an instruction that has not been executed, as one is that a signal has interrupted.
    let mut is_interrupted = true;
    for line in text.lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["frame", kind, pc] => {
                frames.push(hex(pc).unwrap() - u64::from(!is_interrupted));
                is_interrupted = kind == "signal";
            }
            // A process's mappings also have permissions.
            [start, end, _, offset, .., file] if start.starts_with("0x") => {
                mappings.push((hex(start).unwrap()..hex(end).unwrap(), hex(offset).unwrap(), PathBuf::from(file)));
            }
            _ => {}
        }
    }
    assert!(frames.len() > 4, "{text}");
    let mut files = Files::default();
    let function = |pc: &u64| {
        let (range, offset, path) = mappings.iter().find(|(range, ..)| range.contains(pc))?;
        let path = path.canonicalize().ok().filter(|path| hooked.contains(path))?;
        Some((path.clone(), files.function(&path, pc - range.start + offset)?))
    };
    frames.iter().rev().filter_map(function).collect()
}

/// Returns the core that the kernel has written in a folder, which is an ELF file of the type 4.
fn core(folder: &Path) -> Option<PathBuf> {
    let is_core = |path: &PathBuf| {
        let mut head = [0; 17];
        let read = File::open(path).and_then(|mut file| file.read_exact(&mut head));
        read.is_ok() && head.starts_with(b"\x7fELF") && head[16] == 4
    };
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).find(is_core)
}

/// Has the program crash without hooks, and returns what gdb says of its core. Where the kernel writes none, or gives it to somebody else,
/// gdb looks at the process where it would have been made.
fn theirs(place: &Place, crash: &Crash) -> String {
    let ran = |mut command: Command| {
        command.current_dir(place.path(""));
        let outcome = std::thread::scope(|scope| {
            scope.spawn(|| (crash.provoke)(place));
            run::run(command, None, LIMIT).unwrap()
        });
        assert!(!outcome.timed_out, "{}: {}", crash.name, outcome.stderr_text());
        outcome
    };
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -c unlimited; exec \"$@\"", "sh"]).arg(&crash.program).args(crash.args);
    let outcome = ran(command);
    assert_eq!(outcome.code(), 128 + crash.signal, "{}: {}", crash.name, outcome.stderr_text());

    let script = tool::folder().join("data/backtrace.py");
    let said = || std::fs::read_to_string(place.path("backtrace")).unwrap();
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch"]).env("DEBUGINFOD_URLS", "").env("BACKTRACE", place.path("backtrace"));
    if let Some(core) = core(&place.path("")) {
        gdb.arg("-x").arg(script).arg(&crash.program).arg(core);
        place::finish(gdb);
        return said();
    }
    gdb.env("SHELL", "/bin/sh").args(["-ex", "run"]);
    for _ in 1..crash.times {
        gdb.args(["-ex", "continue"]);
    }
    gdb.arg("-x").arg(script).arg("--args").arg(&crash.program).args(crash.args);
    println!("{}: the kernel has written no core here", crash.name);
    ran(gdb);
    said()
}

/// Has the program crash under gprofinject. Returns the open calls that have frames, from the outermost one, the functions whose ends are
/// not seen, and the files with hooks.
fn ours(place: &Place, crash: &Crash) -> (Vec<Function>, BTreeSet<Function>, BTreeSet<PathBuf>) {
    let program = crash.program.to_str().unwrap();
    let options = ["-q", "--rate=0", "--stats=stats", "--trace=trace", "--trace-size=64", program];
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| (crash.provoke)(place));
        place.run(&[&options[..], crash.args].concat())
    });
    assert_eq!(outcome.code(), 128 + crash.signal, "{}: {}", crash.name, outcome.stderr_text());
    let stats: serde_json::Value = serde_json::from_slice(&std::fs::read(place.path("stats")).unwrap()).unwrap();
    let libraries = stats["libraries"].as_array().unwrap().iter();
    let libraries = libraries.filter(|library| library["status"] == "hooked").map(|library| library["path"].as_str().unwrap());
    let hooked = libraries.chain([program]).map(|path| Path::new(path).canonicalize().unwrap()).collect();

    let text = shown(place, "trace", &["--json"]);
    let function = |step: &serde_json::Value| {
        let module = Path::new(step["module"].as_str().unwrap()).canonicalize().unwrap();
        (module, step["address"].as_u64().unwrap())
    };
    // The open calls of the main thread by their depths, with whether each began by a tail call.
    let mut open: BTreeMap<u64, (bool, Function)> = BTreeMap::new();
    let mut endless = BTreeSet::new();
    // A step is a line.
    for line in text.lines() {
        let is_mark = line.contains("\"event\":\"mark\"");
        if !is_mark && !line.contains("\"how\":\"open\"") {
            continue;
        }
        let step = serde_json::Deserializer::from_str(line).into_iter::<serde_json::Value>().next().unwrap().unwrap();
        if is_mark {
            endless.insert(function(&step));
        } else if step["tid"] == step["pid"] {
            let other = open.insert(step["depth"].as_u64().unwrap(), (step["kind"] == "jump", function(&step)));
            assert!(other.is_none(), "{step} and {other:?}");
        }
    }
    // What has left by a tail call has no frame any more.
    let open: Vec<(bool, Function)> = open.into_values().collect();
    let has_frame = |at: usize| open.get(at + 1).is_none_or(|&(is_tail_call, _)| !is_tail_call);
    let framed = (0..open.len()).filter(|&at| has_frame(at)).map(|at| open[at].1.clone()).collect();
    (framed, endless, hooked)
}

/// Compares all frames of hooked functions. There must be so many, in so many files.
fn compare(crash: &Crash, frames: usize, files: usize) {
    let [plain, traced] = [Place::new(), Place::new()];
    let theirs = theirs(&plain, crash);
    let (ours, endless, hooked) = ours(&traced, crash);
    let mut theirs = backtrace(&theirs, &hooked);
    theirs.retain(|function| !endless.contains(function));
    assert_eq!(ours, theirs, "{}: the open calls of the trace, and gdb's frames", crash.name);
    let known: BTreeSet<&PathBuf> = ours.iter().map(|(file, _)| file).collect();
    assert!(ours.len() >= frames && known.len() == files, "{}: {ours:?}", crash.name);
    println!("| {} | gdb | {} frames in {files} files | equal |", crash.name, ours.len());
}

fn a_c_program() {
    if !skip::have_for("crash: C", &["gdb", "objdump", "readelf"]) {
        return;
    }
    let place = Place::new();
    let program = place.c("prog", include_str!("../../data/crashing.c"), &["-O1", "-fno-optimize-sibling-calls"]);
    for (how, signal) in [("0", libc::SIGSEGV), ("1", libc::SIGABRT)] {
        let (name, program) = (format!("C {how}"), program.clone());
        compare(&Crash { name: &name, program, args: &["1000", how], signal, times: 1, provoke: |_| {} }, 4, 1);
    }
}

/// Python's code calls C by libffi, which reads a string at NULL.
fn python_in_ctypes() {
    let test = "crash: python";
    let Some(program) = tool::installed("python3").filter(|_| skip::have_for(test, &["gdb", "objdump", "readelf"])) else {
        return skip::skipped(test, "no python3");
    };
    let args = ["-S", "-c", "def f(n): return f(n - 1) if n else ctypes.string_at(0)\nimport ctypes; f(5)"];
    compare(&Crash { name: "python3", program, args: &args, signal: libc::SIGSEGV, times: 1, provoke: |_| {} }, 12, 3);
}

/// The server crashes, its handler writes a report, and crashes again.
fn redis_in_its_signal_handler() {
    let test = "crash: redis";
    if !skip::have_for(test, &["gdb", "objdump", "readelf", "redis-server", "redis-cli"]) {
        return;
    }
    let args = [
        "--port", "0", "--unixsocket", "socket", "--save", "", "--enable-debug-command", "yes", "--crash-memcheck-enabled", "no",
    ];
    let provoke = |place: &Place| {
        let ask = |args: &[&str]| {
            let mut client = Command::new("redis-cli");
            client.arg("-s").arg(place.path("socket")).args(args);
            place::finish(client).stdout_text()
        };
        let deadline = Instant::now() + LIMIT;
        while ask(&["ping"]) != "PONG\n" && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(20));
        }
        ask(&["debug", "segfault"]);
    };
    let program = skip::path_of("redis-server").unwrap();
    compare(&Crash { name: "redis-server", program, args: &args, signal: libc::SIGSEGV, times: 2, provoke }, 10, 1);
}
