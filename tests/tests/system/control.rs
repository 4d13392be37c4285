//! Profiles in progress, of programs that gprofinject has started and of those to which it has attached:
//! dumped, set to zero, paused.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use gprofinject_tests::attached::until;
use gprofinject_tests::elf::Program;
use gprofinject_tests::family::Subject;
use gprofinject_tests::{gprofdata, tool};

gprofinject_tests::trials! {
    together:
        a_program_that_was_started,
        a_program_that_was_attached_to,
        static_programs,
        a_signal_asks_for_profiles,
        what_nobody_profiles_cannot_be_asked,
        at_each_instruction;
    busy:
        under_load,
        again_and_again;
}

/// The program under gprofinject, or alone with a gprofinject attached to it.
struct Session {
    subject: Subject,
    child: Child,
    answers: BufReader<ChildStdout>,
    /// The number of the program's own process.
    pid: u32,
    attached: Option<Child>,
}

impl Drop for Session {
    fn drop(&mut self) {
        // After a failed test, no process may be left.
        let _ = Command::new("kill").args(["-KILL", &self.pid.to_string()]).stderr(Stdio::null()).status();
        for child in [Some(&mut self.child), self.attached.as_mut()].into_iter().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn is_hooked(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains(".region"))
}

impl Session {
    fn started(options: &[&str]) -> Session {
        Session::with("rounds", options)
    }

    fn with(program: &str, options: &[&str]) -> Session {
        Session::of(Subject::new(program), program, options)
    }

    fn of(subject: Subject, program: &str, options: &[&str]) -> Session {
        let mut command = tool::uncached(tool::gprofinject().unwrap());
        command.args(options).arg(format!("./{program}"));
        let (child, answers) = spawn(&subject, command);
        let children = format!("/proc/{0}/task/{0}/children", child.id());
        let name = |pid: &str| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let found = fs::read_to_string(children).unwrap();
        let pid = found.split_whitespace().find(|pid| name(pid).trim() == program).unwrap().parse().unwrap();
        Session { subject, child, answers, pid, attached: None }
    }

    fn attached(options: &[&str]) -> Session {
        Session::attached_to(Subject::new("rounds"), options)
    }

    fn attached_to(subject: Subject, options: &[&str]) -> Session {
        let command = Command::new(&subject.path);
        let (child, answers) = spawn(&subject, command);
        let pid = child.id();
        let mut session = Session { subject, child, answers, pid, attached: None };
        // What ran before is not counted.
        session.tell("go 1000");
        let mut command = tool::uncached(tool::gprofinject().unwrap());
        command.args(options).arg("--pid").arg(pid.to_string());
        session.attached = Some(quiet(&session.subject, command).spawn().unwrap());
        until("attached", || {
            let ended = session.attached.as_mut().unwrap().try_wait().unwrap();
            assert_eq!(ended, None, "{}", session.said());
            is_hooked(pid) && patched(&session) == [true; 2]
        });
        session
    }

    /// Makes the program do something, and waits until it has.
    fn tell(&mut self, what: &str) {
        self.tell_only(what);
        self.hear("done");
    }

    fn tell_only(&self, what: &str) {
        writeln!(self.child.stdin.as_ref().unwrap(), "{what}").unwrap();
    }

    fn hear(&mut self, what: &str) {
        assert_eq!(self.line(), what);
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn ask(&self, verb: &str, more: &[&str]) -> Output {
        let mut command = tool::uncached(tool::gprofinject().unwrap());
        command.arg("--pid").arg(self.pid.to_string()).arg(verb).args(more);
        quiet(&self.subject, command).stderr(Stdio::piped()).output().unwrap()
    }

    fn does(&self, verb: &str) {
        let output = self.ask(verb, &[]);
        assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Checks that the request fails with a message that contains `why`.
    fn refuses(&self, verb: &str, why: &str) {
        let output = self.ask(verb, &[]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(125) && said.contains(why), "{verb}: {said}");
    }

    /// Returns the calls of mid and leaf until now.
    fn counts(&self) -> [u64; 2] {
        let file = self.path("dump");
        let _ = fs::remove_file(&file);
        let output = self.ask("--dump", &["-o", "dump"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        self.calls(&file)
    }

    fn calls(&self, profile: &std::path::Path) -> [u64; 2] {
        let program = Program::read(&self.subject.path).unwrap();
        let arcs = gprofdata::read(profile).unwrap().arcs;
        ["mid", "leaf"].map(|name| {
            let function = program.named(name).unwrap();
            let own = function.address..function.address + function.size;
            arcs.iter().filter(|((_, to), _)| own.contains(to)).map(|(_, count)| count).sum()
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.subject.place().path(name)
    }

    /// Returns the messages of gprofinject.
    fn said(&self) -> String {
        fs::read_to_string(self.path(SAID)).unwrap()
    }

    /// Ends the program's input and waits for its end and for the profile.
    fn end(&mut self) -> [u64; 2] {
        self.finish();
        self.calls(&self.path("gmon.out"))
    }

    fn finish(&mut self) {
        drop(self.child.stdin.take());
        assert_eq!(self.child.wait().unwrap().code(), Some(3), "{}", self.said());
        if let Some(attached) = &mut self.attached {
            assert_eq!(attached.wait().unwrap().code(), Some(0), "{}", self.said());
        }
    }
}

const SAID: &str = "said";

fn quiet(subject: &Subject, mut command: Command) -> Command {
    command.current_dir(subject.path.parent().unwrap()).env_remove("GMON_OUT_PREFIX");
    let said = File::options().create(true).append(true).open(subject.place().path(SAID)).unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
    command
}

/// Starts the program and waits for its first line.
fn spawn(subject: &Subject, command: Command) -> (Child, BufReader<ChildStdout>) {
    let mut child = quiet(subject, command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    answers.read_line(&mut line).unwrap();
    assert_eq!(line.trim(), "ready");
    (child, answers)
}

/// Whether the functions' code in memory differs from the file, in all of them or in none.
fn is_patched(session: &Session) -> bool {
    let patched = patched(session);
    assert!(patched == [patched[0]; 2], "{patched:?}");
    patched[0]
}

/// Whether the code of main and of mid in memory differs from the file. While gprofinject attaches, it writes one patch after the other.
fn patched(session: &Session) -> [bool; 2] {
    use std::os::unix::fs::FileExt;
    let program = Program::read(&session.subject.path).unwrap();
    let maps = fs::read_to_string(format!("/proc/{}/maps", session.pid)).unwrap();
    let own = session.subject.path.to_str().unwrap();
    let line = maps.lines().find(|line| line.ends_with(own)).unwrap();
    let base = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
    let memory = fs::File::open(format!("/proc/{}/mem", session.pid)).unwrap();
    let differs = |name: &str| {
        let function = program.named(name).unwrap();
        let mut bytes = vec![0; function.size as usize];
        // A program that is not position-independent has its addresses in the file.
        let bias = if function.address >= base { 0 } else { base };
        memory.read_exact_at(&mut bytes, bias + function.address).unwrap();
        bytes != program.code(function.address)[..bytes.len()]
    };
    // leaf has a single byte and is hooked at its call sites.
    ["main", "mid"].map(differs)
}

fn all(mut session: Session) {
    session.tell("go 100");
    assert_eq!(session.counts(), [100, 300]);
    session.refuses("--resume", "is not paused");

    assert!(is_patched(&session));
    session.does("--pause");
    assert!(!is_patched(&session));
    session.tell("go 50");
    assert_eq!(session.counts(), [100, 300]);
    session.refuses("--pause", "already paused");

    session.does("--resume");
    assert!(is_patched(&session));
    session.tell("go 10");
    assert_eq!(session.counts(), [110, 330]);

    session.does("--reset");
    assert_eq!(session.counts(), [0, 0]);
    session.tell("go 7");
    assert_eq!(session.counts(), [7, 21]);
    session.does("--reset");
    session.tell("go 2");

    // If no file is named, the dump is written where the profile will be.
    session.does("--dump");
    assert_eq!(session.calls(&session.path("gmon.out")), [2, 6]);
    session.tell("go 1");
    assert_eq!(session.end(), [3, 9]);
}

fn a_program_that_was_started() {
    for hooks in ["--hooks=both", "--hooks=entry"] {
        all(Session::started(&["-q", hooks]));
    }
    all(Session::started(&["-q", "--sampler=timer"]));
    all(Session::started(&["-q", "--no-follow"]));
}

fn a_program_that_was_attached_to() {
    for hooks in ["--hooks=both", "--hooks=entry"] {
        all(Session::attached(&["-q", hooks]));
    }
}

fn static_programs() {
    for flags in [["-static"], ["-static-pie"]] {
        for hooks in ["--hooks=both", "--hooks=entry"] {
            all(Session::of(Subject::with("rounds", &flags), "rounds", &["-q", hooks]));
            all(Session::attached_to(Subject::with("rounds", &flags), &["-q", hooks]));
        }
    }
}

/// The counts of a caller and a callee differ by at most the calls in progress in each thread, paused or not.
fn under_load() {
    const THREADS: u64 = 4;
    let linked = || Subject::with("rounds", &["-static"]);
    for mut session in [
        Session::started(&["-q"]),
        Session::attached(&["-q"]),
        Session::of(linked(), "rounds", &["-q"]),
        Session::attached_to(linked(), &["-q"]),
    ] {
        writeln!(session.child.stdin.as_ref().unwrap(), "load {THREADS} 1.5").unwrap();
        let mut last = 0;
        for round in 0..12 {
            match round % 4 {
                1 => session.does("--pause"),
                2 => session.does("--resume"),
                _ => {}
            }
            let [mid, leaf] = session.counts();
            assert!(mid >= last, "{mid} after {last}");
            let off = leaf.abs_diff(3 * mid);
            // Each thread that was inside when the hooks were written or removed may have missed up to three
            // calls.
            assert!(off <= 3 * THREADS * (round + 1), "round {round}: {mid} {leaf}");
            last = mid;
        }
        session.hear("done");
        assert!(last > 1000);
        session.end();
    }
}

fn a_signal_asks_for_profiles() {
    let options = ["-q", "--dump-signal=USR1", "--reset-signal=SIGUSR2", "--pause-signal=WINCH"];
    let mut session = Session::started(&options);
    session.tell("go 5");
    let file = session.path("gmon.out");
    let signal = |session: &Session, name: &str| {
        let status = Command::new("kill").args([name, &session.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    };
    signal(&session, "-USR1");
    until("a profile", || file.exists());
    assert_eq!(session.calls(&file), [5, 15]);
    // The first signal would have ended the program.
    session.tell("go 5");
    signal(&session, "-USR2");
    until("counts are zero", || session.counts() == [0, 0]);
    session.tell("go 2");
    signal(&session, "-WINCH");
    until("paused", || !is_patched(&session));
    session.tell("go 3");
    signal(&session, "-WINCH");
    until("resumed", || is_patched(&session));
    session.tell("go 4");
    assert_eq!(session.end(), [6, 18]);
}

fn what_nobody_profiles_cannot_be_asked() {
    let subject = Subject::new("rounds");
    let (mut child, _answers) = spawn(&subject, Command::new(&subject.path));
    for verb in ["--dump", "--reset", "--pause", "--resume"] {
        let mut command = tool::uncached(tool::gprofinject().unwrap());
        command.args(["--pid", &child.id().to_string(), verb]);
        let output = quiet(&subject, command).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(125) && said.contains("is not profiled"), "{said}");
    }
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(3));
}

/// Threads are anywhere when the patches are written and removed, also in jumps outside the functions: `mid`
/// begins with a call, so two bytes at its start lead to a cave. The program counts in a register that mid
/// preserves. In the other program, signal handlers interrupt the threads as well.
fn again_and_again() {
    let hooks = ["--hooks=both", "--hooks=entry"];
    for (program, hooks) in hooks.iter().flat_map(|hooks| [("rounds", hooks), ("calls", hooks)]) {
        let mut session = Session::with(program, &["-q", hooks]);
        writeln!(session.child.stdin.as_ref().unwrap(), "load 4 1").unwrap();
        for _ in 0..25 {
            session.does("--pause");
            session.does("--resume");
        }
        // A loop that has lost its counter runs for minutes.
        let (said, heard) = mpsc::channel();
        let pid = session.pid;
        let watch = thread::spawn(move || {
            if heard.recv_timeout(Duration::from_secs(60)).is_err() {
                let _ = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
            }
        });
        session.hear("done");
        said.send(()).unwrap();
        watch.join().unwrap();
        session.finish();
    }
}

/// A signal handler has interrupted a function that begins with `push rbx; call leaf`, at any instruction,
/// when the patches are written or removed. The interrupted function continues as it would alone.
fn at_each_instruction() {
    const CALL: &str = "inside 1";
    const CALL_IN_ITS_PLACE: &str = "inside 3";
    let mut session = Session::with("calls", &["-q"]);
    for (verb, back, refused, why) in [
        ("--pause", "--resume", [CALL_IN_ITS_PLACE, "cave"], "does not leave"),
        // Without the patches.
        ("--resume", "--pause", [CALL, CALL], "among instructions"),
    ] {
        if verb == "--resume" {
            session.does("--pause");
        }
        let mut seen = Vec::new();
        loop {
            session.tell_only(&format!("at {}", seen.len() + 1));
            let place = session.line();
            if place == "done" {
                break;
            }
            let output = session.ask(verb, &[]);
            let (done, said) = (output.status.success(), String::from_utf8_lossy(&output.stderr));
            assert!(done || said.contains(why), "{verb} at {place}: {said}");
            // What an earlier handler has left on the stack may delay a resume.
            let is_refused = refused.contains(&&*place);
            assert!(done != is_refused || !done && verb == "--resume", "{verb} at {place}: {said}");
            session.tell_only("go on");
            session.hear("done");
            if done {
                session.does(back);
            }
            seen.push(place);
        }
        assert!(seen.len() >= 8 && refused.iter().all(|place| seen.iter().any(|s| s == place)), "{seen:?}");
    }
    session.finish();
}
