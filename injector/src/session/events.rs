//! A single wait for everything that can happen while a program is profiled.
#![allow(unsafe_code, reason = "it polls descriptors that it does not own")]

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::{Duration, Instant};

use crate::os::child::has_children;
use crate::os::scheduling::Prompt;
use crate::os::signals::{self, Signals};
use crate::sampling::sampler::Sampling;
use crate::session::family::Family;

/// Waits until all descendants, which have become the injector's children, have ended, or until a signal asks
/// the injector to end. If a signal has done so before, and the program has ended by it, the others get some time only: alone, they would
/// keep nobody waiting who waits for the program.
pub(crate) fn until_alone(signals: &Signals, family: &mut Family, mut sampling: Option<&mut Sampling>) {
    /// After this time, gprofinject reports why it still runs.
    const SOON: Duration = Duration::from_secs(2);
    let start = Instant::now();
    let mut said = false;
    while has_children() {
        if !said && start.elapsed() >= SOON {
            if family.is_over {
                return;
            }
            said = true;
            family.settings.voice.note(
                "the program has ended; waiting for the processes it has left (Ctrl-C: their profiles up to now)",
            );
        }
        wait(signals, family, sampling.as_deref_mut(), &[], if said { None } else { Some(SOON) });
        while let Some(arrived) = signals.next() {
            if signals::END_WANTED.contains(&arrived.signal) {
                return;
            }
        }
    }
}

/// Waits until an event arrives, or for `at_most`, and does what the family and the sampler need. `also` are
/// further descriptors that end the wait.
pub(crate) fn wait(
    signals: &Signals,
    family: &mut Family,
    mut sampling: Option<&mut Sampling>,
    also: &[RawFd],
    at_most: Option<Duration>,
) {
    const BETWEEN: Duration = Duration::from_millis(20);
    let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut polled = vec![entry(signals.as_fd().as_raw_fd())];
    polled.extend(family.descriptors().map(entry));
    polled.extend(also.iter().copied().map(entry));
    let perf_from = polled.len();
    let mut rest = None;
    if let Some(sampling) = sampling.as_deref_mut() {
        // poll knows whole milliseconds.
        rest =
            sampling.rest().map(|rest| if rest.is_zero() { rest } else { rest + Duration::from_millis(1) });
        polled.extend(sampling.descriptors().map(entry));
    }
    let at_most = at_most.into_iter().chain(rest).min();
    let began = Instant::now();
    // What a thread executes is read a moment after its sample. If this thread had to wait for a processor, it would see what comes later.
    let prompt = sampling.as_deref().filter(|sampling| sampling.is_busy()).and_then(|_| Prompt::new());
    let others = loop {
        poll(&mut polled, at_most);
        let (others, perf) = polled.split_at(perf_from);
        let Some(sampling) = sampling.as_deref_mut() else { break others };
        let mut ready = sampling.rest().is_some_and(|left| left.is_zero());
        for entry in perf {
            ready |= entry.revents & libc::POLLIN != 0;
            if entry.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0 {
                sampling.perf().hang_up(entry.fd);
            }
        }
        let has_ended = perf.iter().any(|entry| entry.revents & !libc::POLLIN != 0);
        if ready {
            sampling.drain();
            family.keep_samples(sampling);
            family.trace_switches(sampling);
        }
        // Where there is one sample after the other, the caller looks at the rest only now and then.
        let is_alone = ready && !has_ended && others.iter().all(|entry| entry.revents == 0);
        if !is_alone || !sampling.is_busy() || began.elapsed() >= BETWEEN {
            break others;
        }
    };
    drop(prompt);
    let readable = others.iter().skip(1).filter(|entry| entry.revents != 0).map(|entry| entry.fd);
    let readable: Vec<RawFd> = readable.collect();
    if !readable.is_empty() {
        family.attend(&readable, sampling);
    }
}

fn poll(polled: &mut [libc::pollfd], at_most: Option<Duration>) {
    let milliseconds = at_most.map_or(-1, |time| time.as_millis() as libc::c_int);
    // SAFETY: the array has that many entries. An interruption counts as an event, because the caller checks
    // everything.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, milliseconds) };
}
