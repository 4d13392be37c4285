//! The `gprofinject` command: profiles a program that was built without -pg.
//!
//! Folders are layers. Each one imports only from those below it:
//!
//! ```text
//! cli        what was typed, and which of the layers below carries it out
//! session    one run: its processes, the loop that waits for them, the report
//! live       the live view: snapshots of a profile -> a table on the terminal
//! target     the process that is profiled: launched, or attached to; its threads, the agent in it
//! trace      the threads' events -> the file of a trace
//! profile    counters and samples -> a profile, and its gmon.out
//! sampling   the kernel's samples
//! python     the functions that CPython executes, by its own structures
//! generated  what processes say of the code that they have made at run time
//! program    the program's file: what it is, what is hooked in it
//! store      files: the run's folder, region files, profiles
//! os         system calls, signals, the terminal
//! ```

mod cli;
mod generated;
mod live;
mod options;
mod os;
mod profile;
mod program;
mod python;
mod sampling;
mod session;
mod store;
mod target;
mod trace;

#[global_allocator]
static HEAP: os::heap::Heap = os::heap::Heap;

fn main() -> std::process::ExitCode {
    os::heap::watch_threads();
    let limits = os::limits::Limits::raise();
    os::stack::with_enough(|| cli::command::main(limits))
}
