//! The command `gmon`, as a user runs it: one program, so that it is linked once and its tests can wait side by side.

#[path = "../../../tests/support/entry.rs"]
mod entry;
#[path = "../../../run/tests/support/mod.rs"]
mod example;
mod support;

mod browser;
mod budget;
mod command;
mod counts;
mod gprof;
mod gprof_lines;
mod hostile;
mod html;
mod interpreted;
mod lines;
mod measured;
mod merge;
mod mutated;
mod programs_at_random;
mod push;
mod reports;
mod run_files;
mod sampled;
mod schemas;
mod spread;
mod terminal;
mod trace;
mod trace_exports;
