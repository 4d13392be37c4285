//! While the program runs: signals are passed on, samples are taken in, stops are shared.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::{Duration, Instant};

use crate::os::failure::OURS;
use crate::os::signals::{self, Arrived, Signals};
use crate::os::sys::check;
use crate::sampling::sampler::Sampling;
use crate::session::family::Family;
use crate::target::launch::witness::Witness;

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Exited(u8),
    Killed(i32),
}

/// Waits for the end of `pid`, the first process.
pub(crate) fn until_end(
    pid: i32,
    signals: &Signals,
    mut witness: Option<Witness>,
    family: &mut Family,
    mut sampling: Option<&mut Sampling>,
) -> Ending {
    loop {
        if let Some(ending) = reap(pid) {
            return ending;
        }
        wait(signals, family, sampling.as_deref_mut(), None, None);
        while let Some(arrived) = signals.next() {
            if !family.is_asked_by(arrived.signal, sampling.as_deref_mut()) {
                pass_on(pid, arrived, witness.as_mut());
            }
        }
    }
}

/// Waits for the end of all descendants, which have become our children, or until we are told not to.
pub(crate) fn until_alone(signals: &Signals, family: &mut Family, mut sampling: Option<&mut Sampling>) {
    /// Until then nobody wonders.
    const SOON: Duration = Duration::from_secs(2);
    let start = Instant::now();
    let mut said = false;
    while has_children() {
        if !said && start.elapsed() >= SOON {
            said = true;
            family.settings.voice.note(
                "the program has ended; waiting for the processes it has left (Ctrl-C: their profiles up to now)",
            );
        }
        wait(signals, family, sampling.as_deref_mut(), None, if said { None } else { Some(SOON) });
        while let Some(arrived) = signals.next() {
            if signals::END_WANTED.contains(&arrived.signal) {
                return;
            }
        }
    }
}

/// Waits until there is something to do, or for some time, and does what the family and the sampler want.
/// `also` is one more descriptor to wait for.
pub(crate) fn wait(
    signals: &Signals,
    family: &mut Family,
    mut sampling: Option<&mut Sampling>,
    also: Option<RawFd>,
    at_most: Option<Duration>,
) {
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut polled = vec![entry(signals.as_fd().as_raw_fd())];
    polled.extend(family.descriptors().map(entry));
    polled.extend(also.map(entry));
    let perf_from = polled.len();
    if let Some(sampling) = sampling.as_deref_mut() {
        polled.extend(sampling.perf().descriptors().map(entry));
    }
    poll(&mut polled, at_most);
    let (others, perf) = polled.split_at(perf_from);
    if let Some(sampling) = sampling.as_deref_mut() {
        let mut ready = false;
        for entry in perf {
            ready |= entry.revents & libc::POLLIN != 0;
            if entry.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0 {
                sampling.perf().hang_up(entry.fd);
            }
        }
        if ready {
            sampling.drain();
            family.keep_samples(sampling);
        }
    }
    if others.iter().skip(1).any(|entry| entry.revents != 0) {
        family.attend(sampling);
    }
}

/// Lets children go that have ended. None left: false.
fn has_children() -> bool {
    loop {
        // SAFETY: no status is asked for.
        match check(unsafe { libc::waitpid(-1, std::ptr::null_mut(), libc::WNOHANG) }) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
}

fn poll(polled: &mut [libc::pollfd], at_most: Option<Duration>) {
    let milliseconds = at_most.map_or(-1, |time| time.as_millis() as libc::c_int);
    // SAFETY: an array of that many entries. An interruption is as good as an event: the caller looks.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, milliseconds) };
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
