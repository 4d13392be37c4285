//! Which of the interpreter's thread states is a thread's.

use crate::python::layout::{Id, Layout};
use crate::python::memory::{Memory, half, word};

/// The numbers of interpreters and of threads that are looked at.
const INTERPRETERS: usize = 64;
const THREADS: usize = 4096;
/// Where glibc and musl have the number of a thread behind its pthread_t.
const NUMBERS: [u64; 2] = [720, 48];

/// Whether a process has no other interpreter than this one.
pub(super) fn is_alone(interpreter: u64, runtime: u64, layout: &Layout, memory: &impl Memory) -> bool {
    let word = |at: u64, offset: usize| at.checked_add(offset as u64).and_then(|at| memory.word(at));
    word(runtime, layout.interpreters) == Some(interpreter)
        && word(interpreter, layout.next_interpreter) == Some(0)
}

/// With which thread state a visit goes on.
enum Next {
    Thread,
    /// The first one of the next interpreter.
    Interpreter,
    /// None: all is known.
    End,
}

/// Visits the states of all threads, each with its address and its first bytes, those of the newest interpreter first. Returns `None` if the
/// memory cannot be read.
fn visit(
    runtime: u64,
    layout: &Layout,
    memory: &impl Memory,
    mut each: impl FnMut(u64, &[u8]) -> Next,
) -> Option<()> {
    let mut interpreter = memory.word(runtime.checked_add(layout.interpreters as u64)?)?;
    let mut bytes = vec![0; layout.thread_bytes()];
    let mut count = 0;
    for _ in 0..INTERPRETERS {
        if interpreter == 0 {
            break;
        }
        let mut state = memory.word(interpreter.checked_add(layout.threads as u64)?)?;
        while state != 0 && count < THREADS {
            if !memory.read(state, &mut bytes) {
                return None;
            }
            match each(state, &bytes) {
                Next::Thread => count += 1,
                Next::Interpreter => break,
                Next::End => return Some(()),
            }
            state = word(&bytes, layout.thread.next)?;
        }
        interpreter = memory.word(interpreter.checked_add(layout.next_interpreter as u64)?)?;
    }
    Some(())
}

/// Returns the addresses of the states of the thread that has this number for itself: one of each interpreter, the newest interpreter first.
pub(super) fn all(tid: i32, runtime: u64, layout: &Layout, memory: &impl Memory) -> Option<Vec<u64>> {
    let mut found = Vec::new();
    visit(runtime, layout, memory, |state, bytes| {
        if !is_of(tid, bytes, layout, memory) {
            return Next::Thread;
        }
        found.push(state);
        Next::Interpreter
    })?;
    Some(found)
}

/// Returns the address of the state of the thread that has this number for itself. `None`: the thread executes no Python.
pub(super) fn find(
    tid: i32,
    process: i32,
    runtime: u64,
    layout: &Layout,
    memory: &impl Memory,
) -> Option<u64> {
    let (mut found, mut others, mut count) = (None, None, 0);
    visit(runtime, layout, memory, |state, bytes| {
        if is_of(tid, bytes, layout, memory) {
            found = Some(state);
            return Next::End;
        }
        (others, count) = (Some(state), count + 1);
        Next::Thread
    })?;
    // The number in a forked process may be that of its parent's thread.
    found.or_else(|| others.filter(|_| count == 1 && tid == process))
}

/// Whether a thread state with these bytes is that of the thread with this number.
pub(super) fn is_of(tid: i32, bytes: &[u8], layout: &Layout, memory: &impl Memory) -> bool {
    match layout.thread.id {
        Id::Native(at) => word(bytes, at) == Some(i64::from(tid).cast_unsigned()),
        Id::Pthread(at) => {
            let Some(pthread) = word(bytes, at) else { return false };
            NUMBERS.iter().any(|offset| {
                let mut number = [0; 4];
                pthread.checked_add(*offset).is_some_and(|at| memory.read(at, &mut number))
                    && half(&number, 0) == Some(tid.cast_unsigned())
            })
        }
    }
}
