//! The system tests: one program, so that it is linked once and its tests can wait and compute side by side.
//!
//! `cargo test --release -p gprofinject-tests --test system FILTER` runs the tests whose names
//! (`module::test`, `matrix::program::flags`) contain the filter. A test is an ordinary function that panics
//! if it fails; its module lists it in `trials!`.

// A test fails by a panic.
#![allow(clippy::unwrap_used)]
// A test that no list names would never run.
#![deny(dead_code)]

use std::process::ExitCode;

use gprofinject_tests::trials;

macro_rules! modules {
    ($($module:ident)+) => {
        $(mod $module;)+

        fn main() -> ExitCode {
            let mut all = Vec::new();
            $(all.extend($module::trials());)+
            trials::main(all)
        }
    };
}

// Modules with long tests come first, so that many short trials are left to fill the processors at the end.
modules! {
    assembly
    attach
    attach_signals
    attach_musl
    attach_static
    security
    shadow_stacks
    attach_programs
    blocks
    runtimes
    containers
    control
    crowded
    agent
    arguments
    attach_errors
    attach_go
    cache
    c_library
    callbacks
    checker
    children
    cli
    compilers
    completion
    corrupt
    debug_files
    documents
    ends
    entered
    environment
    executed
    exports
    far
    frames
    generated_names
    frida
    go
    images
    instructions
    interrupted
    jobs
    labels
    layers
    libraries
    library_blocks
    library_control
    library_lists
    many_libraries
    measured
    mutated
    limits
    odd_libraries
    outermost
    outputs
    own_text
    panics
    planner
    plugins
    profilers
    programs
    python
    python_beside
    ranks
    real
    recover
    reference
    refusals
    relocation
    reports
    runners
    shown
    size
    slow
    stack_copies
    stacks
    standalone
    surroundings
    successors
    switched
    tails
    top
    times
    tools
    traced
    traced_crash
    traced_forks
    traced_gdb
    traced_hard
    traced_perfetto
    traced_redis
    traced_rust
    traced_times
    traced_uftrace
    truncated
    unhookable
    unwinding
    usage
    values
    values_paths
    waits
    whole
    matrix
}
