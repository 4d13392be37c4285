//! The memory of an interpreter that executes what a test says.

use std::cell::{Cell, RefCell};

use crate::python::interpreter::Interpreter;
use crate::python::layout::{Current, Id, Instruction, Layout, OWNED_BY_STACK, Runs, Tables};
use crate::python::memory::{Memory, Part};

/// The versions, by their second numbers.
pub(super) const MINORS: std::ops::RangeInclusive<u32> = 8..=13;
/// The number of the thread that executes Python.
pub(super) const TID: i32 = 4711;
const BASE: u64 = 0x10_0000;

/// Memory that is in one piece.
#[derive(Clone, Default)]
pub(super) struct Fake {
    pub(super) bytes: RefCell<Vec<u8>>,
    /// The number of times that something was read.
    reads: Cell<usize>,
    /// Before which of these times which word is written where.
    pub(super) later: RefCell<Vec<(usize, u64, u64)>>,
}

impl Memory for Fake {
    fn gather(&self, parts: &[Part], to: &mut [u8]) -> usize {
        self.reads.set(self.reads.get() + 1);
        for &(_, at, value) in self.later.borrow().iter().filter(|later| later.0 == self.reads.get()) {
            self.put(at, value);
        }
        let bytes = self.bytes.borrow();
        let mut done = 0;
        for &(address, len) in parts {
            let from =
                address.checked_sub(BASE).and_then(|at| bytes.get(usize::try_from(at).ok()?..)?.get(..len));
            let (Some(from), Some(to)) = (from, to.get_mut(done..done + len)) else { break };
            to.copy_from_slice(from);
            done += len;
        }
        done
    }
}

impl Fake {
    pub(super) fn alloc(&self, len: usize) -> u64 {
        let mut bytes = self.bytes.borrow_mut();
        let at = bytes.len();
        bytes.resize(at + len.next_multiple_of(16), 0);
        BASE + at as u64
    }

    pub(super) fn put(&self, at: u64, value: u64) {
        let at = (at - BASE) as usize;
        self.bytes.borrow_mut()[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn put_bytes(&self, at: u64, value: &[u8]) {
        let at = (at - BASE) as usize;
        self.bytes.borrow_mut()[at..at + value.len()].copy_from_slice(value);
    }

    /// What is read next is read for the first time again.
    pub(super) fn restart(&self) {
        self.reads.set(0);
    }

    /// Adds a string as CPython has it.
    fn string(&self, text: &str, layout: &Layout) -> u64 {
        let widest = text.chars().map(u32::from).max().unwrap_or(0);
        let width = [(0x100, 1), (0x1_0000, 2)]
            .into_iter()
            .find(|(end, _)| widest < *end)
            .map_or(4, |(_, width)| width);
        let units: Vec<u8> =
            text.chars().flat_map(|c| u32::from(c).to_le_bytes().into_iter().take(width)).collect();
        let is_ascii = text.is_ascii();
        let at = self.alloc(layout.compact + units.len() + 4);
        self.put(at + layout.length as u64, text.chars().count() as u64);
        self.put(at + layout.state as u64, (width as u64) << 2 | 1 << 5 | u64::from(is_ascii) << 6);
        self.put_bytes(at + if is_ascii { layout.ascii } else { layout.compact } as u64, &units);
        at
    }
}

/// A function: its name, its file and its line. It executes an instruction [`EXECUTED`] lines behind it.
pub(super) type Written = (&'static str, &'static str, u32);

/// How far behind its first line the instruction of each function is, and how many bytes in its code.
pub(super) const EXECUTED: u32 = 2;
const INSTRUCTION: u32 = 4;

/// An interpreter with one thread.
#[derive(Clone)]
pub(super) struct FakePython {
    pub(super) memory: Fake,
    pub(super) interpreter: Interpreter,
    pub(super) state: u64,
    /// The frames of functions, the outermost one first.
    pub(super) frames: Vec<u64>,
    /// What ends each run, the outermost one first.
    pub(super) places: Vec<u64>,
}

/// `_Py_DebugOffsets` of CPython 3.13.0.
const TOLD: [u64; 71] = {
    let mut words = [0; 71];
    words[0] = u64::from_le_bytes(*b"xdebugpy");
    words[1] = 0x030d_00f0;
    let told: [(usize, u64); 26] = [
        (5, 632),
        (8, 7264),
        (9, 7344),
        (21, 8),
        (22, 16),
        (23, 72),
        (24, 152),
        (25, 160),
        (29, 8),
        (30, 0),
        (31, 56),
        (33, 70),
        (35, 112),
        (36, 120),
        (37, 128),
        (38, 136),
        (39, 68),
        (43, 200),
        (45, 8),
        (65, 16),
        (66, 32),
        (68, 32),
        (69, 16),
        (70, 40),
        (19, 304),
        (28, 88),
    ];
    let mut at = 0;
    while at < told.len() {
        words[told[at].0] = told[at].1;
        at += 1;
    }
    words
};

impl FakePython {
    /// Returns an interpreter that executes these runs of functions, the outermost ones first.
    pub(super) fn new(minor: u32, runs: &[&[Written]]) -> FakePython {
        let memory = Fake::default();
        let runtime = memory.alloc(8192);
        if minor == 13 {
            TOLD.iter().zip(0..).for_each(|(&word, index)| memory.put(runtime + index * 8, word));
        }
        let layout = Layout::of(minor, runtime, &memory).expect("a version that is known");
        let interpreter = memory.alloc(8192);
        memory.put(runtime + layout.interpreters as u64, interpreter);
        // Another thread comes first.
        let (other, state) = (memory.alloc(512), memory.alloc(512));
        memory.put(interpreter + layout.threads as u64, other);
        memory.put(other + layout.thread.next as u64, state);
        for (state, tid) in [(other, 1), (state, TID as u64)] {
            memory.put(state + layout.thread.interpreter as u64, interpreter);
            match layout.thread.id {
                Id::Native(at) => memory.put(state + at as u64, tid),
                Id::Pthread(at) => {
                    let pthread = memory.alloc(1024);
                    memory.put(state + at as u64, pthread);
                    memory.put(pthread + 720, tid);
                }
            }
        }
        let interpreter = Interpreter { layout, runtime, code_type: memory.alloc(16) };
        let mut python = FakePython { memory, interpreter, state, frames: Vec::new(), places: Vec::new() };
        python.execute(runs);
        python
    }

    /// Adds an older interpreter, in which the same thread executes these runs.
    pub(super) fn is_called_by(&mut self, runs: &[&[Written]]) {
        let (layout, memory) = (self.interpreter.layout, &self.memory);
        let (interpreter, state) = (memory.alloc(8192), memory.alloc(512));
        let newest = memory.word(self.interpreter.runtime + layout.interpreters as u64).expect("memory");
        memory.put(newest + layout.next_interpreter as u64, interpreter);
        memory.put(interpreter + layout.threads as u64, state);
        memory.put(state + layout.thread.interpreter as u64, interpreter);
        let (Id::Native(at) | Id::Pthread(at)) = layout.thread.id;
        memory.put(state + at as u64, memory.word(self.state + at as u64).expect("memory"));
        let newer = std::mem::replace(&mut self.state, state);
        self.execute(runs);
        self.state = newer;
    }

    fn execute(&mut self, runs: &[&[Written]]) {
        let (layout, memory) = (self.interpreter.layout, &self.memory);
        let (mut newest, mut newest_on_stack) = (0, 0);
        for run in runs {
            let on_stack = memory.alloc(32);
            let mut is_entry = true;
            if let Runs::UpToOwned(at) = layout.frame.runs {
                let entry = memory.alloc(96);
                memory.put(entry + layout.frame.previous as u64, newest);
                memory.put_bytes(entry + at as u64, &[OWNED_BY_STACK]);
                self.places.push(entry);
                newest = entry;
            } else {
                let is_one = layout.frame.runs == Runs::One;
                self.places.extend(
                    run.iter()
                        .take(if is_one { usize::MAX } else { 1 })
                        .map(|_| if is_one { 0 } else { on_stack }),
                );
            }
            for &(name, file, line) in *run {
                let frame = memory.alloc(160);
                memory.put(frame + layout.frame.previous as u64, newest);
                memory
                    .put(frame + layout.frame.code as u64, code(memory, &self.interpreter, name, file, line));
                execute(memory, &layout, frame);
                if let Runs::UpToEntry(at) = layout.frame.runs {
                    memory.put_bytes(frame + at as u64, &[u8::from(is_entry)]);
                }
                is_entry = false;
                self.frames.push(frame);
                newest = frame;
            }
            if let Current::OnStack { frame, previous, .. } = layout.thread.current {
                memory.put(on_stack + frame as u64, newest);
                memory.put(on_stack + previous as u64, newest_on_stack);
                newest_on_stack = on_stack;
            }
        }
        let (at, current) = match layout.thread.current {
            Current::Frame(at) => (at, newest),
            Current::OnStack { at, .. } => (at, newest_on_stack),
        };
        memory.put(self.state + at as u64, current);
    }

    /// Returns where the address of the innermost frame is.
    pub(super) fn current(&self) -> u64 {
        match self.interpreter.layout.thread.current {
            Current::Frame(at) => self.state + at as u64,
            Current::OnStack { at, frame, .. } => {
                self.memory.word(self.state + at as u64).expect("memory") + frame as u64
            }
        }
    }
}

/// Has a frame execute an instruction.
fn execute(memory: &Fake, layout: &Layout, frame: u64) {
    match layout.frame.instruction {
        Instruction::Index { at, bytes } => memory.put(frame + at as u64, (INSTRUCTION / bytes).into()),
        Instruction::Address(at) => {
            let code = memory.word(frame + layout.frame.code as u64).expect("memory");
            memory.put(frame + at as u64, code + layout.code.first as u64 + u64::from(INSTRUCTION));
        }
    }
}

/// Adds a table of three instructions of two bytes on three lines.
fn table(memory: &Fake, layout: &Layout) -> u64 {
    let bytes: &[u8] = match layout.code.tables {
        Tables::Lnotab => &[2, 1, 2, 1],
        Tables::Ranges => &[2, 0, 2, 1, 2, 1],
        Tables::Locations => &[0xd0, 0, 0, 0xd8, 0, 0, 0xe8, 2],
    };
    let at = memory.alloc(layout.bytes + bytes.len() + 1);
    memory.put(at + layout.bytes_length as u64, bytes.len() as u64);
    memory.put_bytes(at + layout.bytes as u64, bytes);
    at
}

/// Adds a code object.
pub(super) fn code(memory: &Fake, interpreter: &Interpreter, name: &str, file: &str, line: u32) -> u64 {
    let layout = &interpreter.layout;
    let at = memory.alloc(256);
    memory.put(at + layout.type_of as u64, interpreter.code_type);
    memory.put(at + layout.code.line as u64, line.into());
    let (file, name) = (memory.string(file, layout), memory.string(name, layout));
    memory.put(at + layout.code.file as u64, file);
    memory.put(at + layout.code.name as u64, name);
    let table = table(memory, layout);
    memory.put(at + layout.code.table as u64, table);
    layout.code.qualified.into_iter().for_each(|qualified| memory.put(at + qualified as u64, name));
    at
}
