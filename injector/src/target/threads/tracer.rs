//! The injector's thread that stops another process's threads.

use std::fs;
use std::time::{Duration, Instant};

use rustix::thread::gettid;

use crate::os::proc;

/// For how long the injector waits for the end of a tracer.
const PATIENCE: Duration = Duration::from_secs(2);

/// Proof that the code runs in a thread that was made to stop other threads. When that thread ends, the
/// kernel releases all stopped threads at the same time. If they were released one by one, signals that the
/// process ignores could wake the first ones: such signals are queued as long as the thread to which they are
/// sent is traced.
pub(crate) struct Tracer(());

/// Runs `work`, which stops threads of the process, in a thread of its own, and returns its result.
pub(crate) fn apart<T: Send>(pid: i32, work: impl FnOnce(&Tracer) -> T + Send) -> T {
    let (result, tracer) = std::thread::scope(|scope| {
        let tracer = scope.spawn(|| (work(&Tracer(())), gettid().as_raw_nonzero()));
        tracer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    // The thread is known to have ended before the kernel has released the others.
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
