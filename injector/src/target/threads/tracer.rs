//! The thread of ours that stops another process's threads.

use std::fs;
use std::time::{Duration, Instant};

use rustix::thread::gettid;

use crate::os::proc;

/// How long the end of a tracer is waited for.
const PATIENCE: Duration = Duration::from_secs(2);

/// Who stops threads: a thread of ours, made for that. At its end the kernel lets all of them go at the same time.
/// Otherwise those that go on first would be woken by signals that the process ignores, which are no more ignored
/// as long as the thread that they are sent to is traced.
pub(crate) struct Tracer(());

/// Runs what stops threads of a process.
pub(crate) fn apart<T: Send>(pid: i32, work: impl FnOnce(&Tracer) -> T + Send) -> T {
    let (result, tracer) = std::thread::scope(|scope| {
        let tracer = scope.spawn(|| (work(&Tracer(())), gettid().as_raw_nonzero()));
        tracer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    // It is known to have ended before it lets go.
    let until = Instant::now() + PATIENCE;
    let line = format!("\nTracerPid:\t{tracer}\n");
    while fs::read_to_string(format!("/proc/{}/status", proc::visible_thread(pid)))
        .is_ok_and(|status| status.contains(&line))
        && Instant::now() < until
    {
        std::thread::sleep(Duration::from_micros(50));
    }
    result
}
