//! Traces compared with the entries at which gdb stops: a breakpoint at the first instruction of each function of a program that
//! is optimised and has no hooks, and the depth of its stack there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use gprofinject_skip as skip;
use gprofinject_tests::place::Place;
use gprofinject_tests::traced::{Line, lines, shown};
use gprofinject_tests::{described, generate, place, run, tool};

gprofinject_tests::trials! {
    together:
        bzip2,
        git_status,
        lua;
}

/// An entry: how many calls of the program's functions have frames on the stack, and the function.
type Entry = (usize, String);

/// A run of a program.
struct Run<'a> {
    program: PathBuf,
    args: &'a [&'a str],
    environment: Vec<(&'a str, String)>,
}

impl Run<'_> {
    /// Gives a command that runs the program the program's environment, and nothing of the test's.
    fn surround(&self, command: &mut Command) {
        if !self.environment.is_empty() {
            command.env_clear().envs(self.environment.iter().map(|(name, value)| (name, value)));
        }
    }
}

/// Returns the names of a table of symbols.
fn names(program: &Path, options: &[&str]) -> BTreeMap<u64, String> {
    let output = Command::new("nm").args(options).arg("--").arg(program).output().unwrap();
    assert!(output.status.success(), "nm");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let function = |line: &str| match line.split(' ').collect::<Vec<_>>()[..] {
        [address, "t" | "T", name] => Some((u64::from_str_radix(address, 16).unwrap(), name.to_owned())),
        _ => None,
    };
    text.lines().filter_map(function).collect()
}

/// Returns the program's functions: `ADDRESS NAME`. `nm` lists them; those of a stripped program are the ones that readelf describes,
/// and an address is the name of one that is not exported. `_start` is no call.
fn functions(program: &Path) -> String {
    let mut functions = names(program, &[]);
    if functions.is_empty() {
        let pieces = described::pieces(program).unwrap();
        let starts = pieces.into_iter().filter(|(_, piece)| piece.is_function);
        functions = starts.map(|(address, _)| (address, format!("{address:#x}"))).collect();
        functions.extend(names(program, &["-D"]));
    }
    functions.retain(|_, name| name != "_start");
    functions.iter().map(|(address, name)| format!("{address:x} {name}\n")).collect()
}

/// Returns the entries from main on, if there is a name. What comes before is called by the dynamic linker or the C library.
fn from_main(entries: Vec<Entry>) -> Vec<Entry> {
    let mut entries = entries;
    let main = entries.iter().position(|(_, name)| name == "main").unwrap_or_default();
    entries.drain(..main);
    // What runs after main is not called by it.
    let end = entries.iter().position(|(_, name)| name == "__do_global_dtors_aux").unwrap_or(entries.len());
    entries.truncate(end);
    entries
}

/// Runs the program under gdb, which stops at each entry.
fn theirs(place: &Place, run: &Run) -> Vec<Entry> {
    let [entries, names] = ["entries", "functions"].map(|name| place.path(name));
    std::fs::write(&names, functions(&run.program)).unwrap();
    let mut command = Command::new("gdb");
    command.args(["-nx", "-batch", "-x"]).arg(tool::folder().join("data/entries.py")).arg("--args").arg(&run.program);
    run.surround(&mut command);
    command.args(run.args).current_dir(place.folder.path()).env("ENTRIES", &entries).env("FUNCTIONS", &names);
    // Each entry takes gdb half a millisecond.
    let outcome = run::run(command, None, Duration::from_secs(300)).unwrap();
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    let entry = |line: &str| {
        let mut words = line.split(' ').skip(1);
        (words.next().unwrap().parse().unwrap(), words.next().unwrap().to_owned())
    };
    std::fs::read_to_string(&entries).unwrap().lines().map(entry).collect()
}

/// Traces the program. A tail call has the frame of the call that it is a part of, so it is as deep as that one.
fn ours(place: &Place, run: &Run) -> Vec<Entry> {
    let program = run.program.to_str().unwrap();
    let mut command = place.command(&[&["-q", "--trace", "trace", "--libs", "none", program], run.args].concat());
    run.surround(&mut command);
    let outcome = place::finish(command);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    // How deep each open call is, and whether it has a frame of its own.
    let mut open: Vec<(usize, bool)> = Vec::new();
    let mut entries = Vec::new();
    for Line { depth, text, .. } in lines(&shown(place, "trace", &["--no-demangle", "--fields", "tid"])) {
        if let Some((name, rest)) = text.split_once("()").filter(|_| !text.starts_with('}')) {
            while open.last().is_some_and(|&(other, _)| other >= depth) {
                open.pop();
            }
            let is_tail = rest.contains("tail call");
            let frames = open.iter().filter(|&&(_, has_frame)| has_frame).count();
            open.push((depth, !is_tail));
            entries.push((frames - usize::from(is_tail), name.to_owned()));
        }
    }
    entries
}

/// Compares all entries, and returns their number, which is a part of the result. `prepare` makes the place what it is before each run.
fn compare(name: &str, place: &Place, run: &Run, prepare: impl Fn(&Place)) -> usize {
    let [theirs, ours] = [theirs, ours].map(|by| {
        prepare(place);
        from_main(by(place, run))
    });
    if let Some(at) = (0..theirs.len().max(ours.len())).find(|&at| theirs.get(at) != ours.get(at)) {
        let around = |entries: &[Entry]| {
            format!("{:?}", &entries[at.saturating_sub(3).min(entries.len())..entries.len().min(at + 5)])
        };
        panic!("{name}: entry {at}:\ngdb  {}\nours {}", around(&theirs), around(&ours));
    }
    println!("| {name} | gdb | {} | equal |", ours.len());
    ours.len()
}

/// Compares all entries of the corpus's program.
fn compare_built(name: &str, prepare: impl Fn(&Place), args: &[&str]) {
    if !skip::have_for(&format!("gdb: {name}"), &["gdb", "nm"]) {
        return;
    }
    let corpus = match tool::corpus() {
        Ok(corpus) => corpus,
        Err(error) => return skip::skipped(&format!("gdb: {name}"), &format!("no corpus: {error:#}")),
    };
    let name = format!("{name}-O2");
    let run = Run { program: corpus.join(&name), args, environment: Vec::new() };
    compare(&name, &Place::new(), &run, prepare);
}

fn bzip2() {
    let prepare = |place: &Place| {
        std::fs::write(place.path("data"), generate::compressible(4000)).unwrap();
    };
    compare_built("bzip2", prepare, &["-kf", "data"]);
}

fn lua() {
    // Errors that are caught, and coroutines, which are jumps (longjmp) between calls on one stack.
    const SCRIPT: &str = "print(pcall(error, 'e'), pcall(function() error({}) end))\n\
        local w = coroutine.wrap(function() for i = 1, 9 do coroutine.yield(i) end end) for i = 1, 9 do w() end\n\
        print(#('x'):rep(10), coroutine.close(coroutine.create(print)))";
    compare_built("lua", |place| std::fs::write(place.path("a.lua"), SCRIPT).unwrap(), &["a.lua"]);
}

/// The machine's git, which is stripped, in a small repository.
fn git_status() {
    let test = "gdb: git status";
    if !skip::have_for(test, &["gdb", "git", "nm", "readelf"]) {
        return;
    }
    let Some(program) = tool::installed("git").and_then(|program| program.canonicalize().ok()) else {
        return skip::skipped(test, "git is a script");
    };
    let place = Place::new();
    let folder = place.path("repository");
    std::fs::create_dir(&folder).unwrap();
    let home = place.path("").to_str().unwrap().to_owned();
    let environment = [
        ("HOME", home.as_str()),
        ("PATH", "/usr/bin:/bin"),
        ("LC_ALL", "C"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_AUTHOR_NAME", "a"),
        ("GIT_AUTHOR_EMAIL", "a@b"),
        ("GIT_COMMITTER_NAME", "a"),
        ("GIT_COMMITTER_EMAIL", "a@b"),
    ];
    let environment: Vec<_> = environment.map(|(name, value)| (name, value.to_owned())).into();
    let git = |args: &[&str]| {
        let mut command = Command::new(&program);
        let status = command.args(args).current_dir(&folder).env_clear().envs(environment.clone()).status();
        assert!(status.unwrap().success(), "git {args:?}");
    };
    // What is as old as the index would be read anew by each run.
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        let past = SystemTime::now() - Duration::from_secs(1000);
        std::fs::File::options().append(true).open(path).unwrap().set_modified(past).unwrap();
    };
    git(&["init", "-q", "-b", "main", "."]);
    for at in 0..6 {
        write(&format!("folder{}/file{at}", at % 2), &format!("{at} {}\n", "line\n".repeat(at)));
    }
    write(".gitignore", "*.o\n!kept.o\n/build/\n");
    git(&["add", "."]);
    git(&["commit", "-q", "-m", "first"]);
    git(&["mv", "folder0/file4", "moved"]);
    write("folder1/file1", "changed\n");
    write("folder1/staged", "staged\n");
    git(&["add", "folder1/staged"]);
    write("folder1/file3", "changed as well\n");
    std::fs::remove_file(folder.join("folder0/file2")).unwrap();
    for name in ["new", "other/new", "ignored.o", "kept.o", "build/ignored"] {
        write(name, "new\n");
    }
    // git has an advice for those whose untracked files take it two seconds, as under gdb.
    let settings = ["core.fsmonitor=false", "core.preloadIndex=false", "advice.statusUoption=false"];
    let settings = settings.iter().flat_map(|&setting| ["-c", setting]);
    let args: Vec<&str> =
        ["--no-optional-locks"].into_iter().chain(settings).chain(["-C", "repository", "status"]).collect();
    let run = Run { program: program.clone(), args: &args, environment: environment.clone() };
    let number = compare("git status", &place, &run, |_| {});
    assert!(number > 2000, "{number}");
}
