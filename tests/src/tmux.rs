//! A terminal of tmux's: keys are sent to it, and what it shows is read.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use gprofinject_skip as skip;

use crate::place::Place;

/// A terminal with a command in it, which ends with this value.
pub struct Tmux {
    folder: PathBuf,
}

impl Tmux {
    /// Returns a terminal in which a command runs in the folder of `place`, which contains one terminal only. Returns `None`, and says
    /// so, if there is no tmux.
    ///
    /// # Panics
    /// tmux cannot start the command.
    pub fn new(place: &Place, test: &str, command: &str) -> Option<Tmux> {
        if !skip::have("tmux") {
            skip::skipped(test, "no tmux");
            return None;
        }
        let terminal = Tmux { folder: place.folder.path().to_owned() };
        terminal.tmux(&["-f", "/dev/null", "new-session", "-d", "-x", "130", "-y", "30", command]);
        Some(terminal)
    }

    fn socket(&self) -> PathBuf {
        Path::new(&self.folder).join("tmux")
    }

    /// Runs one of tmux's commands, and returns what it prints.
    ///
    /// # Panics
    /// It fails.
    pub fn tmux(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(self.socket()).args(arguments).current_dir(&self.folder);
        command.env("XDG_RUNTIME_DIR", &self.folder).env("TERM", "xterm-256color").env("LC_ALL", "C.UTF-8");
        let output = command.output().expect("tmux runs");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Sends keys by their names; what is no name is text.
    ///
    /// # Panics
    /// tmux fails.
    pub fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Returns what the terminal shows.
    ///
    /// # Panics
    /// tmux fails.
    pub fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }

    /// Waits until the terminal shows something. Returns the whole screen.
    ///
    /// # Panics
    /// It does not.
    pub fn until(&self, what: &str, is_so: impl Fn(&str) -> bool) -> String {
        let start = Instant::now();
        loop {
            let screen = self.screen();
            if is_so(&screen) {
                return screen;
            }
            assert!(start.elapsed() < Duration::from_secs(20), "{what}:\n{screen}");
            thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _ = Command::new("tmux").arg("-S").arg(self.socket()).arg("kill-server").status();
    }
}
