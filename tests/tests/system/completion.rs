//! Completion in the shells themselves: keys are sent to them in tmux, and the command that results is run.

use std::fs;
use std::io::Write;
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use gprofinject_skip as skip;
use gprofinject_tests::place::Place;
use gprofinject_tests::tmux::Tmux;
use gprofinject_tests::tool;

gprofinject_tests::trials! {
    together:
        in_bash,
        in_zsh,
        in_fish,
        answers,
        hostile_results;
}

/// Names as a shell has to quote them.
const SOURCE: &str = "namespace ns {
    template<class T> struct Box { T t; __attribute__((noinline)) void put(T x) { asm volatile(\"\"); t = x; } };
    __attribute__((noinline)) int work(int a, char b) { asm volatile(\"\"); return a + b; }
    __attribute__((noinline)) int work(Box<int> &box) { box.put(3); return box.t; }
}
extern \"C\" __attribute__((noinline)) void hostile() { asm volatile(\"\"); }
int main() { ns::Box<int> box; box.put(1); hostile(); return ns::work(1, 2) + ns::work(box) == 0; }
";
/// What a shell would execute if it were not quoted.
const HOSTILE: &str = "hostile`echo>executed`;$HOME'\"";

/// What a user types before the tab key; what the command prints then in its table; and what it does not.
const LINES: [(&str, &str, &str); 11] = [
    ("gmon flat -f host", HOSTILE, "main"),
    ("gmon flat -f 'host", HOSTILE, "main"),
    ("gmon flat -f \"host", HOSTILE, "main"),
    ("gmon flat -f ns::B", "ns::Box<...>::put", "main"),
    ("gmon flat --function=ns::B", "ns::Box<...>::put", "main"),
    ("gmon flat -fns::B", "ns::Box<...>::put", "main"),
    ("gmon flat -f pu", "ns::Box<...>::put", "main"),
    ("gmon flat --json -f 'ns::work(in", "\"ns::work(int, char)\"", "\"ns::work(ns::Box<int>&)\""),
    ("gmon flat --json -f ns::work\\(B", "\"ns::work(ns::Box<int>&)\"", "\"ns::work(int, char)\""),
    ("gmon flat --program pro", "main", "no program"),
    ("gmon flat gm", "main", "gmon.out"),
];

/// Makes a run of a program, of which the folder has no other file that begins as the results do.
fn run() -> Place {
    let place = Place::new();
    place.compile("g++", "prog", SOURCE, &["-xc++"]).unwrap();
    let renamed = format!("hostile={HOSTILE}");
    let mut objcopy = Command::new("objcopy");
    objcopy.args(["--redefine-sym", &renamed, "prog"]).current_dir(place.folder.path());
    assert!(objcopy.status().unwrap().success());
    assert_eq!(place.run(&["./prog"]).code(), 0);
    assert!(place.path("gmon.out").exists() && place.path("gmon.pb.gz").exists());
    place
}

fn gmon(place: &Place, args: &[&str]) -> Output {
    Command::new(tool::gmon().unwrap()).args(args).current_dir(place.folder.path()).output().unwrap()
}

/// A shell in a terminal, with completions of both commands.
struct Shell {
    // The terminal ends before its folder goes.
    terminal: Tmux,
    place: Place,
}

impl Shell {
    /// Returns `None`, and says so, if there is no such shell. `setup` are the shell's own commands before the prompt.
    fn new(test: &str, shell: &str, setup: &str, start: &str) -> Option<Shell> {
        for tool in [shell, "g++"] {
            if !skip::have(tool) {
                skip::skipped(test, &format!("no {tool}"));
                return None;
            }
        }
        let place = run();
        fs::write(place.path("other-file"), "").unwrap();
        fs::create_dir(place.path("functions")).unwrap();
        for (name, command) in [("gprofinject", tool::gprofinject().unwrap().to_owned()), ("gmon", tool::gmon().unwrap())] {
            let output = Command::new(command).args(["--generate", &format!("complete-{shell}")]).output().unwrap();
            assert!(output.status.success());
            fs::write(place.path(&format!("functions/_{name}")), output.stdout).unwrap();
        }
        let folder = tool::gmon().unwrap().parent().unwrap().display().to_string();
        fs::write(place.path("setup"), setup.replace("@", &folder)).unwrap();
        let terminal = Tmux::new(&place, test, &format!("env -u ENV {start}"))?;
        terminal.until("a prompt", |screen| screen.contains("ready>"));
        Some(Shell { terminal, place })
    }

    /// Types the beginning of a command, presses the tab key, runs the command, and returns what it prints.
    fn completed(&self, typed: &str) -> String {
        let (printed, done) = (self.place.path("printed"), self.place.path("done"));
        let _ = fs::remove_file(&done);
        self.terminal.keys(&["-l", typed]);
        self.terminal.keys(&["Tab"]);
        self.terminal.keys(&["-l", " >printed 2>&1; echo >done"]);
        self.terminal.keys(&["Enter"]);
        let start = Instant::now();
        while !done.exists() {
            assert!(start.elapsed() < Duration::from_secs(20), "{typed}:\n{}", self.terminal.screen());
            thread::sleep(Duration::from_millis(20));
        }
        fs::read_to_string(printed).unwrap()
    }

    fn check(&self) {
        for (typed, expected, other) in LINES {
            let printed = self.completed(typed);
            assert!(printed.contains(expected) && !printed.contains(other), "{typed}: {printed}");
        }
        // What follows the program is its own: a file, and no option of gprofinject's.
        assert_eq!(self.completed("gprofinject /bin/echo other-f").lines().next(), Some("other-file"));
        assert_eq!(self.completed("gprofinject /bin/echo --ti").lines().next(), Some("--ti"));
        assert!(self.completed("gprofinject --hel").contains("Usage"));
        assert!(!self.place.path("executed").exists());
        let screen = self.terminal.screen();
        assert!(!screen.contains("error") && !screen.contains("gmon: "), "{screen}");
    }
}

fn in_bash() {
    let setup = "PATH=@:$PATH PS1='ready> '; . functions/_gmon; . functions/_gprofinject\n";
    let start = "bash --noprofile --rcfile setup -i";
    if let Some(shell) = Shell::new("completion::in_bash", "bash", setup, start) {
        shell.check();
    }
}

fn in_zsh() {
    // Without its own keys, such as those of vi, that $EDITOR would select.
    let setup = "PATH=@:$PATH PS1='ready> '; bindkey -e; fpath=($PWD/functions $fpath); autoload -U compinit; compinit -u -D\n";
    let start = "sh -c 'cp setup .zshrc; ZDOTDIR=$PWD exec zsh -d -i'";
    if let Some(shell) = Shell::new("completion::in_zsh", "zsh", setup, start) {
        shell.check();
    }
}

fn in_fish() {
    let setup = "set -x PATH @ $PATH; function fish_prompt; echo 'ready> '; end; source functions/_gmon; source functions/_gprofinject\n";
    let start = "sh -c 'HOME=$PWD exec fish --no-config -i -C \"source setup\"'";
    if let Some(shell) = Shell::new("completion::in_fish", "fish", setup, start) {
        shell.check();
    }
}

/// Returns the answers to words, of which the last one is at the cursor.
fn answers_to(place: &Place, words: &[&str]) -> Vec<String> {
    let output = gmon(place, &[&["--complete", "words", "gmon"], words].concat());
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// Each function that is offered is one that the tables show, and the command takes it.
fn answers() {
    if !skip::have("g++") {
        return skip::skipped("completion::answers", "no g++");
    }
    let place = run();
    let names = answers_to(&place, &["flat", "-f", ""]);
    // The call graph has functions without a time and without a call as well.
    let table = [gmon(&place, &["flat", "-n0"]).stdout, gmon(&place, &["graph", "-n0"]).stdout].concat();
    let table = String::from_utf8(table).unwrap();
    for name in ["main", "ns::work(int, char)", "ns::work(Box<...>&)", "ns::Box<...>::put"] {
        assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
    }
    for name in &names {
        assert!(table.contains(name.as_str()), "{name}: {table}");
        assert!(gmon(&place, &["flat", "-f", name]).status.success(), "{name}");
    }
    // Of one program's own view too.
    assert!(answers_to(&place, &["flat", "./prog", "gmon.out", "-f", "ma"]).contains(&"main".to_owned()));
    assert_eq!(answers_to(&place, &["flat", "-f", "no such function"]), [""; 0]);
    assert_eq!(answers_to(&place, &["flat", "--module", "pr"]), ["prog"]);
    assert_eq!(answers_to(&place, &["diff", "gmon"]), ["gmon.pb.gz"]);
    assert_eq!(answers_to(&place, &["flat", "gmon.pb.gz", "gmon"]), [""; 0]);
    let mut both = answers_to(&place, &["flat", "./prog", ""]);
    both.sort();
    assert_eq!(both, ["gmon.out", "gmon.pb.gz"]);
    // A trace has functions too.
    assert_eq!(place.run(&["--trace=run.trace", "./prog"]).code(), 0);
    assert_eq!(answers_to(&place, &["trace", "run"]), ["run.trace"]);
    assert_eq!(answers_to(&place, &["trace", "run.trace", "-f", "ns::B"]), ["ns::Box<int>::put"]);
    assert!(gmon(&place, &["trace", "run.trace", "-f", "ns::Box<int>::put"]).status.success());
    // What is no value is left to the definition.
    for words in [&["fla"][..], &["flat", "--fun"], &["flat", "--by", "f"], &["--generate", ""], &["flat", "-f"], &[""]] {
        assert_eq!(answers_to(&place, words), [""; 0], "{words:?}");
    }
}

/// Files of others answer nothing, whatever they are, and the shell goes on.
fn hostile_results() {
    let place = Place::new();
    let gzip = |bytes: &[u8]| {
        let mut file = GzEncoder::new(Vec::new(), Compression::fast());
        file.write_all(bytes).unwrap();
        file.finish().unwrap()
    };
    let path = place.path("gmon.pb.gz");
    let silent = || {
        for words in [&["flat", "-f", ""][..], &["flat", "--program", ""], &["flat", "-m", ""], &["flat", "gmon.pb.gz", "-f", ""]] {
            assert_eq!(answers_to(&place, words), [""; 0], "{words:?}");
        }
        assert!(!answers_to(&place, &["flat", ""]).iter().any(|name| name == "gmon.pb.gz"));
    };
    silent();
    for bytes in [&b""[..], b"\x1f\x8b", b"no result", &gzip(b""), &gzip(&[0; 1 << 20]), &gzip(&vec![0x0a; 200 << 20])] {
        fs::write(&path, bytes).unwrap();
        silent();
    }
    fs::remove_file(&path).unwrap();
    assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
    silent();
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    silent();
    assert_eq!(answers_to(&place, &["trace", "gmon.pb.gz", "-f", ""]), [""; 0]);
}
