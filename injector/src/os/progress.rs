//! Work for which the program waits: a line on the terminal if it takes long, and how long it took in all.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use crate::os::say::{self, Level, Voice, visible};

/// Work that takes less time is not mentioned.
const PATIENCE: Duration = Duration::from_secs(1);
/// See [`taken`].
static TAKEN_NS: AtomicU64 = AtomicU64::new(0);
/// How often the line is written anew.
const OFTEN: Duration = Duration::from_millis(250);

/// Does `work`. If standard error is a terminal and the user wants messages, a line there says after a second what is being
/// done, as `what` describes it at that time, and for how long. The line is erased at the end.
/// The time for which the program has waited meanwhile is added up ([`taken`]).
pub(crate) fn during<T>(voice: Voice, what: impl Fn() -> String + Sync, work: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = if voice.0 < Level::Normal || say::holds() || !std::io::stderr().is_terminal() {
        work()
    } else {
        let write = |text: &str| drop(std::io::stderr().write_all(text.as_bytes()));
        shown(write, PATIENCE, what, work)
    };
    TAKEN_NS.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
    result
}

/// Returns how long all work has taken that [`during`] has done.
pub(crate) fn taken() -> Duration {
    Duration::from_nanos(TAKEN_NS.load(Ordering::Relaxed))
}

/// Does the same after another time, and passes what is to be written to a function.
fn shown<T>(
    write: impl Fn(&str) + Send,
    patience: Duration,
    what: impl Fn() -> String + Sync,
    work: impl FnOnce() -> T,
) -> T {
    thread::scope(|scope| {
        let (done, is_done) = mpsc::channel::<()>();
        let what = &what;
        let show = move || {
            let start = Instant::now();
            let mut columns = 0;
            let mut wait = patience;
            // The other end of the channel is dropped when the work is done.
            while is_done.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                let line = format!("gprofinject: {}, {} s", visible(&what()), start.elapsed().as_secs());
                // A longer line before it has to be overwritten as a whole.
                write(&format!("\r{line:columns$}"));
                columns = columns.max(line.chars().count());
                wait = OFTEN;
            }
            if columns > 0 {
                write(&format!("\r{:columns$}\r", ""));
            }
        };
        // Without a thread there is no line.
        let shower = thread::Builder::new().spawn_scoped(scope, show);
        let result = work();
        drop(done);
        if let Ok(shower) = shower {
            let _ = shower.join();
        }
        result
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A terminal: what it shows of one line.
    #[derive(Default)]
    struct Line(Vec<char>, usize);

    impl Line {
        fn write(&mut self, text: &str) {
            for c in text.chars() {
                if c == '\r' {
                    self.1 = 0;
                    continue;
                }
                self.0.resize(self.0.len().max(self.1 + 1), ' ');
                self.0[self.1] = c;
                self.1 += 1;
            }
        }

        fn text(&self) -> String {
            self.0.iter().collect::<String>().trim_end().to_owned()
        }
    }

    #[test]
    fn long_work_is_shown_and_the_line_is_erased() {
        let names = ["a library with a long name", "b"];
        let (line, lines) = mpsc::channel();
        let screen = Mutex::new(Line::default());
        let shown_names = Mutex::new(names.iter().cycle());
        let write = |text: &str| {
            let mut screen = screen.lock().expect("no thread has panicked");
            screen.write(text);
            // The work may have ended.
            let _ = line.send(screen.text());
        };
        let what = || {
            format!(
                "planning {}",
                shown_names.lock().expect("no thread has panicked").next().expect("a name")
            )
        };
        let result = shown(write, Duration::ZERO, what, || {
            for name in names {
                let begins = format!("gprofinject: planning {name}, ");
                let text = lines.recv().expect("a line");
                assert!(text.starts_with(&begins), "{text:?}");
            }
            5
        });
        assert_eq!(result, 5);
        assert_eq!(screen.lock().expect("no thread has panicked").text(), "");
        assert_eq!(
            screen.lock().expect("no thread has panicked").1,
            0,
            "the cursor is at the start of the line"
        );
    }

    #[test]
    fn short_work_is_not_mentioned() {
        let write = |text: &str| panic!("{text:?}");
        assert_eq!(shown(write, Duration::from_secs(3600), String::new, || 5), 5);
    }
}
