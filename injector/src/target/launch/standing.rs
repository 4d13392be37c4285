//! The program's standing among process groups and sessions: the one that it would have without gprofinject.
//!
//! A shell with job control makes each job a process group, whose leader is the program. Programs rely on that: postfix ends its helpers by
//! `kill(-getpid())`. With gprofinject, the shell makes gprofinject the leader. The program then leads a group of its own, and gprofinject does
//! for it what the shell does for gprofinject: it hands over the foreground of the terminal, and passes signals on to the whole group. Where
//! gprofinject is not a leader (in a script, below make), the program would not be one either, and is a member of the same group.
#![allow(unsafe_code, reason = "it changes process groups and sends signals to them through libc")]

use std::fs::{self, File};
use std::io;

use rustix::fs::FileType;
use rustix::process::{Pid, getpgrp, getpid, getppid, getsid};
use rustix::termios;

use crate::os::signals;
use crate::os::terminal;

/// What the program is among the processes of its terminal.
pub(crate) enum Standing {
    /// A member of the group of gprofinject.
    Member,
    /// The leader of a group of its own, of a job with this terminal if there is one.
    Leader(Option<File>),
    /// The leader of a session of its own, which has no terminal.
    Session,
}

impl Standing {
    /// Returns the standing that the program would have in place of gprofinject. Programs that share gprofinject's terminal with a view
    /// stay in gprofinject's group, because the view reads what the user types.
    pub(crate) fn find(has_view: bool) -> Standing {
        if has_view || getpgrp() != getpid() {
            return Standing::Member;
        }
        let terminal = terminal::controlling();
        let is_orphaned = is_orphaned();
        match terminal {
            // The kernel never stops an orphaned group by its terminal. The group of the program would not be orphaned, since
            // gprofinject belongs to another group of the session.
            Ok(_) if is_orphaned => Standing::Member,
            Err(_) if getsid(None).ok() == Some(getpid()) => Standing::Session,
            // The terminal has one foreground group, and the other programs of a pipeline are in gprofinject's.
            terminal if !is_in_pipeline() => Standing::Leader(terminal.ok()),
            _ => Standing::Member,
        }
    }

    /// Gives the program its standing, as far as its parent can do so. To be called before the program is executed.
    pub(super) fn take(&self, program: i32) {
        if let Standing::Leader(_) = self {
            // SAFETY: no memory is involved. The process is a child that has not executed anything, so the kernel permits it.
            unsafe { libc::setpgid(program, program) };
            self.hand_over(program);
        }
    }

    /// The same in the process that will be the program. This makes one system call at most.
    pub(super) fn take_self(&self) {
        if let Standing::Session = self {
            // SAFETY: no memory is involved.
            unsafe { libc::setsid() };
        }
    }

    /// Whether signals to gprofinject's group do not reach the program by themselves.
    pub(super) fn is_apart(&self) -> bool {
        !matches!(self, Standing::Member)
    }

    /// Makes the program's group the foreground of the terminal, if gprofinject's group is that.
    /// Returns whether it was.
    fn hand_over(&self, program: i32) -> bool {
        self.pass_terminal(Pid::from_raw(program), Some(getpgrp()))
    }

    /// Makes gprofinject's group the foreground of the terminal again, if the program's is that. To be called when the program has ended.
    pub(super) fn take_back(&self, program: i32) {
        self.pass_terminal(Some(getpgrp()), Pid::from_raw(program));
    }

    fn pass_terminal(&self, to: Option<Pid>, from: Option<Pid>) -> bool {
        let Standing::Leader(Some(terminal)) = self else { return false };
        let foreground = termios::tcgetpgrp(terminal).ok();
        // SIGTTOU is blocked, so the kernel lets a process in the background do this.
        foreground.is_some()
            && foreground == from
            && to.is_some_and(|to| termios::tcsetpgrp(terminal, to).is_ok())
    }

    /// Does what a stop of the program by this signal means: gprofinject stops as well, and its shell sees a stopped job. Returns when
    /// gprofinject has been continued.
    pub(super) fn stop(&self, program: i32, signal: i32) {
        let by_terminal = matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU);
        let by_background = matches!(signal, libc::SIGTTIN | libc::SIGTTOU);
        // A shell makes a job in the background the foreground without a signal, if it runs. Then the program has the terminal too.
        // Without gprofinject, the kernel ignores these signals for an orphaned group.
        if self.is_apart() && (by_background && self.hand_over(program) || by_terminal && is_orphaned()) {
            self.send(program, libc::SIGCONT);
            return;
        }
        signals::stop(signal);
        self.hand_over(program);
    }

    /// Sends a signal to the program's group.
    pub(super) fn send(&self, program: i32, signal: i32) {
        if program > 1 {
            // SAFETY: no memory is involved.
            unsafe { libc::kill(-program, signal) };
        }
    }
}

/// Whether no parent in another group of the session looks after gprofinject's group, so that nobody would continue it.
fn is_orphaned() -> bool {
    let session = getsid(None).ok();
    getppid().is_none_or(|parent| getsid(Some(parent)).ok() != session)
}

/// Whether a process of gprofinject's group reads from it or writes to it. Only pipes are a reason to look.
fn is_in_pipeline() -> bool {
    let is_pipe = |stream: rustix::io::Result<rustix::fs::Stat>| {
        stream.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo)
    };
    if !is_pipe(rustix::fs::fstat(io::stdin())) && !is_pipe(rustix::fs::fstat(io::stdout())) {
        return false;
    }
    let own = getpid();
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut numbers =
        processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw));
    numbers.any(|pid| pid != own && rustix::process::getpgid(Some(pid)).ok() == Some(own))
}
