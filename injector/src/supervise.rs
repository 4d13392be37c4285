//! While the program runs: signals are passed on, samples are taken in, stops are shared.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd};

use crate::failure::OURS;
use crate::sampler::Sampling;
use crate::signals::{self, Arrived, Signals};
use crate::sys::check;
use crate::witness::Witness;

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Exited(u8),
    Killed(i32),
}

/// Waits for the end of `pid`.
pub(crate) fn until_end(
    pid: i32,
    signals: &Signals,
    mut witness: Option<Witness>,
    mut sampling: Option<&mut Sampling>,
) -> Ending {
    loop {
        if let Some(ending) = reap(pid) {
            return ending;
        }
        wait(signals, sampling.as_deref_mut());
        while let Some(arrived) = signals.next() {
            pass_on(pid, arrived, witness.as_mut());
        }
    }
}

/// Waits until there is something to do, and takes in samples.
fn wait(signals: &Signals, sampling: Option<&mut Sampling>) {
    let own = libc::pollfd { fd: signals.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut polled = vec![own];
    let Some(sampling) = sampling else {
        poll(&mut polled);
        return;
    };
    let perf = sampling.perf().descriptors();
    polled.extend(perf.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 }));
    poll(&mut polled);
    let mut ready = false;
    for entry in polled.iter().skip(1) {
        ready |= entry.revents & libc::POLLIN != 0;
        if entry.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0 {
            sampling.perf().hang_up(entry.fd);
        }
    }
    if ready {
        sampling.drain();
    }
}

fn poll(polled: &mut [libc::pollfd]) {
    // SAFETY: an array of that many entries. An interruption is as good as an event: the caller looks.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, -1) };
}

/// Looks for news of the program. When it was stopped, so are we, until someone continues us.
fn reap(pid: i32) -> Option<Ending> {
    loop {
        let mut status = 0;
        let flags = libc::WNOHANG | libc::WUNTRACED;
        // SAFETY: `status` is valid for the call.
        match check(unsafe { libc::waitpid(pid, &mut status, flags) }) {
            Ok(0) => return None,
            Ok(_) if libc::WIFEXITED(status) => return Some(Ending::Exited(libc::WEXITSTATUS(status) as u8)),
            Ok(_) if libc::WIFSIGNALED(status) => return Some(Ending::Killed(libc::WTERMSIG(status))),
            Ok(_) if libc::WIFSTOPPED(status) => signals::stop(libc::WSTOPSIG(status)),
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            // Somebody else has waited for it, which nobody can; there is nothing left to wait for.
            Err(_) => return Some(Ending::Exited(OURS)),
        }
    }
}

/// What came to us alone would have come to the program, if it ran in our place.
fn pass_on(pid: i32, arrived: Arrived, witness: Option<&mut Witness>) {
    // SAFETY: no memory is involved; none of these can fail.
    let (own, parent, session) = unsafe { (libc::getpid(), libc::getppid(), libc::getsid(0)) };
    // For what we wrote ourselves to a file at its limit or a pipe without reader. It looks as if we had
    // sent it.
    if arrived.sender == own && matches!(arrived.signal, libc::SIGXFSZ | libc::SIGPIPE) {
        return;
    }
    let leader = session == own;
    let to_us_alone = match arrived.signal {
        libc::SIGCHLD => false,
        _ if arrived.sent => !witness.is_some_and(|witness| witness.saw(arrived.signal)),
        // An alarm set before our exec.
        libc::SIGALRM => true,
        // When a terminal is hung up, its session leader hears of it, and it is us.
        libc::SIGHUP | libc::SIGCONT => leader,
        // From the terminal, to the whole group.
        _ => false,
    };
    if to_us_alone {
        // The program's word to its parent is not for itself.
        signals::send(if arrived.sender == pid { parent } else { pid }, arrived);
    }
}
