//! `gmon report` on a real terminal: keys are sent to it in tmux, and what the terminal shows is read.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::example::example;
use crate::support::Folder;

/// A terminal of tmux's, with a shell in it, in a folder with the example as `gmon.pb.gz`.
struct Terminal {
    folder: Folder,
}

impl Terminal {
    /// Returns `None`, and says so, if there is no tmux.
    fn open(test: &str) -> Option<Terminal> {
        if !gprofinject_skip::have("tmux") {
            gprofinject_skip::skipped(test, "no tmux");
            return None;
        }
        let folder = Folder::new(test);
        std::fs::write(folder.0.join("gmon.pb.gz"), example(true).write()).expect("a file");
        let terminal = Terminal { folder };
        terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "env PS1='$ ' sh"]);
        Some(terminal)
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(self.folder.0.join("tmux")).args(arguments).current_dir(&self.folder.0);
        let output = command.stdin(Stdio::null()).output().expect("tmux runs");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Waits until the screen shows a text, and returns the screen.
    fn wait(&self, text: &str) -> String {
        let begin = Instant::now();
        loop {
            let screen = self.tmux(&["capture-pane", "-p"]);
            if screen.contains(text) {
                return screen;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "no {text:?} in:\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Returns whether another screen is shown, whether the cursor is, and whether lines are broken at their ends.
    fn flags(&self) -> String {
        self.tmux(&["display-message", "-p", "#{alternate_on} #{cursor_flag} #{wrap_flag}"]).trim().to_owned()
    }

    /// Waits until the terminal is as it was before, and types a command that prints a number, to which the shell answers.
    fn ready(&self, number: u32) {
        let begin = Instant::now();
        while self.flags() != "0 1 1" {
            assert!(begin.elapsed() < Duration::from_secs(60), "{}", self.flags());
            std::thread::sleep(Duration::from_millis(50));
        }
        self.keys(&[&format!("echo $(({number} + 1))"), "Enter"]);
        self.wait(&format!("\n{}\n", number + 1));
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let socket = self.folder.0.join("tmux");
        let _ = Command::new("tmux").arg("-S").arg(socket).arg("kill-server").status();
    }
}

const GMON: &str = env!("CARGO_BIN_EXE_gmon");

#[test]
fn views_and_every_way_out() {
    let Some(terminal) = Terminal::open("gmon_report_terminal") else { return };
    // Without arguments, it is the newest run here.
    terminal.keys(&[GMON, "Enter"]);
    let screen = terminal.wait("measured, error up to");
    assert!(screen.contains("1 functions") && screen.contains("by self 1/"), "{screen}");
    assert_eq!(terminal.flags(), "1 0 0");
    for (key, text) in [
        ("2", "callers, function, callees"),
        ("3", "|all"),
        ("6", "program or thread"),
        ("?", "Tab, Shift-Tab"),
        ("x", "program or thread"),
        ("1", "by self"),
        ("s", "by inclusive"),
    ] {
        terminal.keys(&[key]);
        terminal.wait(text);
    }
    terminal.tmux(&["resize-window", "-x", "40", "-y", "10"]);
    terminal.wait("2  3  4  5  6");
    terminal.tmux(&["resize-window", "-x", "80", "-y", "24"]);
    terminal.wait("2 graph  3 flame");
    // Stopped, the terminal is the shell's.
    terminal.keys(&["C-z"]);
    terminal.wait("$");
    terminal.ready(1000);
    terminal.keys(&["fg", "Enter"]);
    terminal.wait("by inclusive");
    terminal.keys(&["q"]);
    terminal.ready(2000);
    terminal.keys(&[&format!("{GMON} report gmon.pb.gz"), "Enter"]);
    terminal.wait("by self");
    terminal.keys(&["C-c"]);
    terminal.ready(3000);
    terminal.keys(&[&format!("{GMON} & sleep 1; {GMON}"), "Enter"]);
    terminal.wait("by self");
    terminal.keys(&["q"]);
    terminal.ready(4000);
    terminal.keys(&[&format!("{GMON} report no-such-file"), "Enter"]);
    terminal.wait("gmon: no-such-file: No such file");
    terminal.ready(5000);
    terminal.keys(&[&format!("sh -c '(sleep 1; kill $$) & exec {GMON}'"), "Enter"]);
    terminal.wait("by self");
    terminal.wait("Terminated");
    terminal.ready(6000);
}

/// Where there is no terminal, or one that is dumb, the table of functions is printed.
#[test]
fn without_a_terminal() {
    let folder = Folder::new("gmon_report_no_terminal");
    std::fs::write(folder.0.join("gmon.pb.gz"), example(true).write()).expect("a file");
    let run = |args: &[&str]| {
        let mut command = Command::new(GMON);
        let output = command.args(args).current_dir(&folder.0).output().expect("gmon runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    let flat = run(&["flat"]);
    assert!(!flat.is_empty() && !flat.contains(&0x1b));
    assert_eq!(run(&[]), flat);
    assert_eq!(run(&["report", "gmon.pb.gz"]), flat);
}
