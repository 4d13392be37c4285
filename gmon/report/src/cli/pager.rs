//! The pager that reads standard output when that is a terminal, as git does it.

use std::fs::File;
use std::io::{self, Write};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use crate::cli::terminal;

/// What `less` does unless the user has said otherwise: it ends if everything fits on the screen, shows colours, and leaves the text
/// there.
const LESS: &str = "FRX";

/// The exit status of a shell that does not find a command.
const NOT_FOUND: i32 = 127;

static RUNNING: Mutex<Option<Child>> = Mutex::new(None);

/// Starts the pager that the user wants if standard output is a terminal. What cannot be started is left out: the text goes to the
/// terminal itself.
pub(crate) fn start() {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    // The size of the terminal cannot be asked for later.
    if running.is_some()
        || terminal::size().is_none()
        || std::env::var_os("TERM").is_none_or(|term| term == "dumb")
    {
        return;
    }
    let Some(mut command) = command() else { return };
    command.stdin(Stdio::piped());
    for (name, value) in [("LESS", LESS), ("LV", "-c")] {
        if std::env::var_os(name).is_none() {
            command.env(name, value);
        }
    }
    let Ok(mut pager) = command.spawn() else { return };
    let taken = pager.stdin.take();
    if taken.is_none_or(|pipe| rustix::stdio::dup2_stdout(&pipe).is_err()) {
        let _ = pager.wait();
        return;
    }
    // Ctrl-C is for the pager, which goes on.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::new(AtomicBool::new(false)));
    *running = Some(pager);
}

/// Waits until the user has left the pager.
pub(crate) fn finish() {
    let Some(mut pager) = RUNNING.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    let _ = io::stdout().flush();
    // The pager sees the end of the text when nobody can write to it any more.
    if let Ok(nothing) = File::options().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&nothing);
        let ended = pager.wait();
        // The shell has said so, but not that nothing else was shown.
        if ended.is_ok_and(|ended| ended.code() == Some(NOT_FOUND)) {
            eprintln!("gmon: the pager that PAGER or GMON_PAGER names was not found; PAGER=cat does without");
        }
    }
}

/// Returns the command of the pager: that of GMON_PAGER or PAGER, which the shell reads, or `less`. `None` if the user wants none.
fn command() -> Option<Command> {
    let chosen = ["GMON_PAGER", "PAGER"].into_iter().find_map(std::env::var_os);
    match chosen {
        None => Some(Command::new("less")),
        Some(chosen) if chosen.is_empty() || chosen == "cat" => None,
        Some(chosen) => {
            let mut command = Command::new("sh");
            command.arg("-c").arg(chosen);
            Some(command)
        }
    }
}
