//! The live view: keys are sent to it in tmux, and what the terminal shows is read.

use std::fs;
use std::io::Write;
use std::ops::Deref;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use gprofinject_skip as skip;
use gprofinject_tests::place::{Place, complains, finish};
use gprofinject_tests::switched::{self, Subject, counts};
use gprofinject_tests::tmux::Tmux;
use gprofinject_tests::tool;

gprofinject_tests::trials! {
    together:
        keys,
        ended_by_signals,
        killed,
        the_terminal_is_closed,
        a_narrow_terminal,
        of_another_gprofinject,
        text,
        without_a_terminal,
        a_program_with_hostile_names;
}

/// A terminal of tmux's, with a shell in it.
struct Terminal<'p> {
    place: &'p Place,
    tmux: Tmux,
}

impl Deref for Terminal<'_> {
    type Target = Tmux;

    fn deref(&self) -> &Tmux {
        &self.tmux
    }
}

impl<'p> Terminal<'p> {
    /// Returns `None`, and says so, if there is no tmux.
    fn new(place: &'p Place, test: &str) -> Option<Terminal<'p>> {
        let tmux = Tmux::new(place, test, "env PS1='$ ' sh")?;
        tmux.until("a shell", |screen| screen.contains('$'));
        Some(Terminal { place, tmux })
    }

    /// Types a command.
    fn run(&self, command: &str) {
        self.keys(&["stty -a >before; clear", "Enter"]);
        // What is typed while a command runs would stand before the prompt.
        let is_done = |screen: &str| screen.trim() == "$" && self.place.path("before").exists();
        self.until("a prompt", is_done);
        self.keys(&[command, "Enter"]);
    }

    /// Waits for the shell, and checks that the terminal is as it was.
    fn is_restored(&self) -> String {
        let screen = self.until("the end", |screen| screen.trim_end().ends_with("\n$"));
        self.keys(&["stty -a >after; echo status=$?", "Enter"]);
        self.until("the end", |screen| screen.lines().any(|line| line.starts_with("status=")));
        // The first line has the size, which the test may have changed.
        let modes = |name: &str| {
            let all = fs::read_to_string(self.place.path(name)).unwrap();
            all.split_once('\n').unwrap().1.to_owned()
        };
        assert_eq!(modes("before"), modes("after"));
        let flags = self.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag} #{wrap_flag}"]);
        assert_eq!(flags.trim(), "0 1 1", "{screen}");
        screen
    }
}

fn gprofinject() -> String {
    format!("{} --no-cache", tool::gprofinject().unwrap().display())
}

/// Returns the names of the functions that a screen shows, in their order, with their calls.
fn rows(screen: &str) -> Vec<(String, u64)> {
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().filter(|word| *word != "x").collect();
        let (calls, name) = (words.first()?.parse().ok()?, words.get(3)?);
        line.trim_end().ends_with(']').then(|| ((*name).to_owned(), calls))
    };
    screen.lines().filter_map(row).collect()
}

fn calls(screen: &str, name: &str) -> Option<u64> {
    rows(screen).into_iter().find(|(found, _)| found == name).map(|(_, calls)| calls)
}

/// The counts that the program prints are those that are shown, and those of the profile.
fn keys() {
    let place = switched::compiled(&["-O2"]);
    let Some(terminal) = Terminal::new(&place, "keys") else { return };
    assert!(Command::new("mkfifo").arg(place.path("orders")).status().unwrap().success());
    terminal.run(&format!("{} --top=0.2 --rate 0 ./switched <orders", gprofinject()));
    let mut orders = fs::OpenOptions::new().write(true).open(place.path("orders")).unwrap();
    writeln!(orders, "run 1000").unwrap();
    // The program's output is in a file, which can be looked at.
    terminal.until("functions", |screen| calls(screen, "hop") == Some(4000));
    terminal.keys(&["o"]);
    let screen = terminal.until("output", |screen| screen.contains("zeroes 4000"));
    let line = screen.lines().find(|line| line.starts_with("leaf ")).unwrap();
    let own = counts(line);
    terminal.keys(&["o", "c"]);
    let screen = terminal.until("by calls", |screen| screen.contains("functions by calls,") && calls(screen, "leaf").is_some());
    let shown = rows(&screen);
    assert!(shown.is_sorted_by_key(|(_, calls)| std::cmp::Reverse(*calls)), "{screen}");
    for name in ["leaf", "small", "empty", "tail", "hop", "recursive", "compare", "first", "zeroes"] {
        assert_eq!(calls(&screen, name), own.get(name).copied(), "{name}:\n{screen}");
    }
    terminal.keys(&["n"]);
    let screen = terminal.until("by name", |screen| screen.contains("functions by name"));
    assert!(rows(&screen).is_sorted(), "{screen}");
    terminal.keys(&["/", "z", "e", "r", "Enter"]);
    let screen = terminal.until("filtered", |screen| rows(screen).len() == 1);
    assert_eq!(rows(&screen), [("zeroes".to_owned(), own["zeroes"])]);
    // Switched off by its row, the function does not count.
    terminal.keys(&["x"]);
    terminal.until("off", |screen| screen.contains(" x zeroes") && screen.contains("1 off"));
    terminal.keys(&["Escape"]);
    writeln!(orders, "run 500").unwrap();
    let screen = terminal.until("more", |screen| calls(screen, "hop") == Some(6000));
    assert_eq!(calls(&screen, "zeroes"), Some(4000), "{screen}");
    // The display stands still, and the program counts on.
    terminal.keys(&["Space"]);
    terminal.until("still", |screen| screen.contains("STANDS STILL"));
    writeln!(orders, "run 500").unwrap();
    thread::sleep(Duration::from_millis(600));
    assert_eq!(calls(&terminal.screen(), "hop"), Some(6000));
    terminal.keys(&["Space"]);
    terminal.until("goes on", |screen| calls(screen, "hop") == Some(8000));
    terminal.keys(&["E", "z*", "Enter"]);
    terminal.until("on", |screen| screen.contains("1 function of 1 module on"));
    terminal.keys(&["m"]);
    terminal.until("modules", |screen| screen.contains("modules by") && screen.contains("switched"));
    terminal.keys(&["h"]);
    terminal.until("threads", |screen| screen.contains("threads by") && screen.contains("ended)"));
    terminal.keys(&["f", "d"]);
    terminal.until("dump", |screen| screen.contains("up to now"));
    terminal.keys(&["z"]);
    terminal.until("zero", |screen| screen.contains("counts are zero"));
    writeln!(orders, "run 7").unwrap();
    let screen = terminal.until("counted", |screen| calls(screen, "hop") == Some(28));
    terminal.keys(&["C-z"]);
    terminal.until("stopped", |screen| !screen.contains("calls/s") && screen.contains("Stopped"));
    terminal.keys(&["fg", "Enter"]);
    terminal.until("again", |screen| calls(screen, "hop") == Some(28));
    terminal.tmux(&["resize-window", "-x", "100", "-y", "20"]);
    terminal.until("smaller", |screen| screen.lines().count() == 20 && calls(screen, "hop") == Some(28));
    terminal.tmux(&["resize-window", "-x", "130", "-y", "30"]);
    terminal.keys(&["q"]);
    terminal.until("a question", |screen| screen.contains("k ends it"));
    terminal.keys(&["Escape"]);
    drop(orders);
    let shown = rows(&screen);
    let end = terminal.is_restored();
    // What the program has written is shown in the end.
    assert!(end.contains("checksum"), "{end}");
    let subject = gprofinject_tests::gprofdata::read(&place.path("gmon.out")).unwrap();
    let program = gprofinject_tests::elf::Program::read(&place.path("switched")).unwrap();
    for (name, calls) in shown {
        let Some(function) = program.named(&name) else { continue };
        let arcs = subject.arcs.iter().filter(|((_, callee), _)| *callee == function.address);
        assert_eq!(arcs.map(|(_, count)| count).sum::<u64>(), calls, "{name}");
    }
}

/// Returns the process number of the gprofinject that is attached to a process.
fn attached_to(pid: u32) -> u32 {
    let wanted = format!("--pid\0{pid}\0");
    let find = || {
        fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
            let number: u32 = entry.file_name().to_str()?.parse().ok()?;
            let line = String::from_utf8_lossy(&fs::read(entry.path().join("cmdline")).ok()?).into_owned();
            (line.contains(&wanted) && line.contains("--top")).then_some(number)
        })
    };
    let start = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "no gprofinject");
        thread::sleep(Duration::from_millis(20));
    }
}

fn ended_by_signals() {
    for signal in ["-TERM", "-INT", "-HUP", "-QUIT"] {
        let place = switched::compiled(&["-O2"]);
        let Some(terminal) = Terminal::new(&place, "ended_by_signals") else { return };
        let mut program =
            Command::new(place.path("switched")).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let pid = program.id();
        terminal.run(&format!("{} --top --rate 0 --pid {pid}", gprofinject()));
        terminal.until("the view", |screen| screen.contains("calls/s"));
        let injector = attached_to(pid).to_string();
        assert!(Command::new("kill").args([signal, &injector]).status().unwrap().success());
        let screen = terminal.is_restored();
        assert!(screen.contains("next: gmon") || screen.contains("attached to process"), "{screen}");
        assert!(place.path("gmon.out").exists());
        drop(program.stdin.take());
        program.wait().unwrap();
    }
}

/// Starts a program that runs until its input ends, with a view of it.
fn viewed(place: &Place, terminal: &Terminal, options: &str) -> fs::File {
    assert!(Command::new("mkfifo").arg(place.path("orders")).status().unwrap().success());
    terminal.run(&format!("{} --top=0.2 --rate 0 {options} ./switched <orders", gprofinject()));
    let mut orders = fs::OpenOptions::new().write(true).open(place.path("orders")).unwrap();
    writeln!(orders, "run 10").unwrap();
    orders
}

/// Returns the process number of the command that runs in a folder, by a part of its name.
fn running_in(place: &Place, name: &str) -> Option<u32> {
    let folder = fs::canonicalize(place.folder.path()).unwrap();
    fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let number: u32 = entry.file_name().to_str()?.parse().ok()?;
        let is_there = fs::read_link(entry.path().join("cwd")).ok()? == folder;
        (is_there && fs::read_to_string(entry.path().join("comm")).ok()?.contains(name)).then_some(number)
    })
}

/// Even SIGKILL leaves the terminal as it was.
fn killed() {
    let place = switched::compiled(&["-O2"]);
    let Some(terminal) = Terminal::new(&place, "killed") else { return };
    let orders = viewed(&place, &terminal, "");
    terminal.until("the view", |screen| calls(screen, "hop") == Some(40));
    let injector = running_in(&place, "gprofinject").unwrap().to_string();
    assert!(Command::new("kill").args(["-KILL", &injector]).status().unwrap().success());
    terminal.until("the end", |screen| !screen.contains("calls/s"));
    terminal.keys(&["", "Enter"]);
    terminal.is_restored();
    // The program goes on without gprofinject.
    drop(orders);
    let start = Instant::now();
    while running_in(&place, "switched").is_some() || running_in(&place, "gpi-").is_some() {
        assert!(start.elapsed() < Duration::from_secs(20), "something is left");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The connection is lost, and standard error with it. The profile is written.
fn the_terminal_is_closed() {
    let place = switched::compiled(&["-O2"]);
    let Some(terminal) = Terminal::new(&place, "the_terminal_is_closed") else { return };
    let orders = viewed(&place, &terminal, "");
    terminal.until("the view", |screen| calls(screen, "hop") == Some(40));
    terminal.tmux(&["kill-server"]);
    let start = Instant::now();
    while running_in(&place, "gprofinject").is_some() {
        assert!(start.elapsed() < Duration::from_secs(20), "gprofinject is left");
        thread::sleep(Duration::from_millis(20));
    }
    drop(orders);
    let profile = gprofinject_tests::gprofdata::read(&place.path("gmon.out")).unwrap();
    let program = gprofinject_tests::elf::Program::read(&place.path("switched")).unwrap();
    let hop = program.named("hop").unwrap().address;
    let calls = profile.arcs.iter().filter(|((_, callee), _)| *callee == hop).map(|(_, count)| count);
    assert_eq!(calls.sum::<u64>(), 40);
}

/// Names are seen in narrow terminals, too, and nothing breaks in tiny ones.
fn a_narrow_terminal() {
    let place = switched::compiled(&["-O2"]);
    let Some(terminal) = Terminal::new(&place, "a_narrow_terminal") else { return };
    let orders = viewed(&place, &terminal, "");
    terminal.until("the view", |screen| calls(screen, "hop") == Some(40));
    for (width, height) in [("1", "1"), ("3", "2"), ("200", "3")] {
        terminal.tmux(&["resize-window", "-x", width, "-y", height]);
        thread::sleep(Duration::from_millis(400));
    }
    terminal.tmux(&["resize-window", "-x", "20", "-y", "8"]);
    terminal.keys(&["n", "/", "h", "o", "p", "Enter"]);
    terminal.until("the row", |screen| screen.lines().any(|line| line.trim_end() == "     40 hop"));
    terminal.tmux(&["resize-window", "-x", "100", "-y", "20"]);
    terminal.until("the table", |screen| calls(screen, "hop") == Some(40));
    drop(orders);
    terminal.is_restored();
}

fn of_another_gprofinject() {
    let mut subject = Subject::new(&["-O2"], &[], false);
    let first = counts(&subject.tell("run 100"));
    let place = Place::new();
    let Some(terminal) = Terminal::new(&place, "of_another_gprofinject") else { return };
    let runtime = subject.place.folder.path().display().to_string();
    terminal.run(&format!("XDG_RUNTIME_DIR={runtime} {} --top=0.2 --pid {}", gprofinject(), subject.pid));
    let screen = terminal.until("counts", |screen| calls(screen, "hop") == Some(400));
    assert_eq!(calls(&screen, "recursive"), Some(first["recursive"]));
    terminal.keys(&["X", "hop", "Enter"]);
    terminal.until("off", |screen| screen.contains("x hop"));
    subject.tell("run 50");
    terminal.until("rates", |screen| calls(screen, "zeroes") == Some(600) && calls(screen, "hop") == Some(400));
    terminal.keys(&["q"]);
    terminal.is_restored();
    // The other one goes on.
    subject.ask(&["--enable", "hop"]);
    let last = counts(&subject.tell("run 10"));
    let (_, calls) = subject.finish();
    assert_eq!((calls["hop"], calls["zeroes"]), (440, last["zeroes"]));
}

/// Without a terminal, the table is text. The last one has the final counts.
fn text() {
    let place = switched::compiled(&["-O2"]);
    fs::write(place.path("orders"), "run 1000\nrun 1000\n").unwrap();
    let mut command = place.command(&["--plain=0.1", "--rate", "0", "./switched"]);
    command.stdin(fs::File::open(place.path("orders")).unwrap());
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = said.split("(process ").last().unwrap();
    assert_eq!(calls(last, "hop"), Some(8000), "{said}");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(printed.contains("hop 8000") && !printed.contains("calls/s"), "{printed}");
    // For a process that is attached to, on standard output.
    let mut subject = Subject::new(&["-O2"], &[], false);
    subject.tell("run 10");
    let mut command = subject.place.command(&["--plain=0.1", "--pid", &subject.pid.to_string()]);
    command.env("XDG_RUNTIME_DIR", subject.place.folder.path()).stdout(Stdio::piped());
    let mut watcher = command.spawn().unwrap();
    thread::sleep(Duration::from_millis(800));
    assert!(Command::new("kill").arg(watcher.id().to_string()).status().unwrap().success());
    let mut printed = String::new();
    std::io::Read::read_to_string(&mut watcher.stdout.take().unwrap(), &mut printed).unwrap();
    assert!(watcher.wait().unwrap().success() && printed.matches("calls/s, ").count() >= 2, "{printed}");
    // Each table has rates, the first one too.
    let hop = printed.lines().filter(|line| line.contains(" hop "));
    let rates: Vec<&str> = hop.filter_map(|line| line.split_whitespace().nth(1)).collect();
    assert!(rates.len() >= 2 && !rates.contains(&"-"), "{printed}");
    assert_eq!(calls(&printed, "hop"), Some(40), "{printed}");
}

fn without_a_terminal() {
    let place = Place::new();
    place.c("hello", gprofinject_tests::place::HELLO, &[]);
    let mut command = Command::new("setsid");
    command.arg("-w").arg(tool::gprofinject().unwrap()).args(["--top", "./hello"]);
    command.current_dir(place.folder.path());
    complains(&finish(command), 125, "--plain prints a table");
    // A terminal that says that it is dumb is none. There is none in this session, so tmux lends one.
    if let Some(terminal) = Terminal::new(&place, "without_a_terminal") {
        terminal.run(&format!("TERM=dumb {} --top ./hello", gprofinject()));
        let screen = terminal.is_restored();
        assert!(screen.contains("one that is dumb (TERM) is none"), "{screen}");
    }
    for (value, status) in [("0.01", 125), ("x", 125), ("4000", 125)] {
        complains(&place.run(&[&format!("--plain={value}"), "./hello"]), status, "0.1 to 3600");
    }
}

/// Names of functions cannot move the cursor or change colours.
fn a_program_with_hostile_names() {
    let place = Place::new();
    let source = "__attribute__((noinline)) void f(void) __asm__(\"\\\"\\033[31mred\\033[2J\\\"\");\n\
        void f(void) { __asm__ volatile(\"\"); }\nint getchar(void);\n\
        int main(void) { for (int i = 0; i < 99; i++) f(); getchar(); return 0; }\n";
    if place.compile("gcc", "hostile", source, &[]).is_err() {
        skip::skipped("a_program_with_hostile_names", "this assembler has no such names");
        return;
    }
    let Some(terminal) = Terminal::new(&place, "a_program_with_hostile_names") else { return };
    assert!(Command::new("mkfifo").arg(place.path("orders")).status().unwrap().success());
    terminal.run(&format!("{} --top=0.2 --rate 0 ./hostile <orders", gprofinject()));
    let orders = fs::OpenOptions::new().write(true).open(place.path("orders")).unwrap();
    terminal.until("the name", |screen| screen.contains("\\u{1b}[31mred\\u{1b}[2J"));
    drop(orders);
    terminal.is_restored();
    assert!(Path::new(&place.path("gmon.out")).exists());
}
