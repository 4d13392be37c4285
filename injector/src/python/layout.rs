//! Where the fields of the interpreter's structures are, in each version of CPython on x86-64.

use crate::python::memory::{Memory, word};

/// The versions of which the structures are known: 3.8 to 3.13.
pub(super) const OLDEST: u32 = 8;
pub(super) const NEWEST: u32 = 13;
/// The first version that says itself where its fields are.
const TELLS: u32 = 13;

/// The offsets of fields in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The second number of the version.
    pub(super) minor: u32,
    /// `_PyRuntimeState.interpreters.head`.
    pub(super) interpreters: usize,
    /// `PyInterpreterState`: the next one, and its first thread.
    pub(super) next_interpreter: usize,
    pub(super) threads: usize,
    pub(super) thread: ThreadState,
    pub(super) frame: Frame,
    pub(super) code: Code,
    /// `PyObject.ob_type`.
    pub(super) type_of: usize,
    /// The number of bytes of `PyASCIIObject`, behind which are the characters, and of `PyCompactUnicodeObject`, behind which are others.
    pub(super) ascii: usize,
    pub(super) compact: usize,
    /// `PyASCIIObject`: the number of characters, and what they are.
    pub(super) length: usize,
    pub(super) state: usize,
    /// `PyBytesObject`: the number of bytes, and the first of them.
    pub(super) bytes_length: usize,
    pub(super) bytes: usize,
}

/// `PyThreadState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ThreadState {
    pub(super) next: usize,
    pub(super) interpreter: usize,
    pub(super) id: Id,
    pub(super) current: Current,
}

/// What tells which thread it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Id {
    /// Its number for the kernel.
    Native(usize),
    /// Its pthread_t.
    Pthread(usize),
}

/// What leads to the innermost frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Current {
    /// The address of the frame.
    Frame(usize),
    /// The address of a `_PyCFrame` on the stack, which has the address of the frame and that of the previous `_PyCFrame`.
    OnStack { at: usize, frame: usize, previous: usize },
}

/// `PyFrameObject`, and `_PyInterpreterFrame` since 3.11.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub(super) previous: usize,
    pub(super) code: usize,
    pub(super) instruction: Instruction,
    pub(super) runs: Runs,
}

/// What tells which instruction a frame executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Instruction {
    /// `f_lasti`: its number of so many bytes each, negative before the first one.
    Index { at: usize, bytes: u32 },
    /// `prev_instr` and `instr_ptr`: its address.
    Address(usize),
}

/// How many frames one call of `_PyEval_EvalFrameDefault` executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Runs {
    /// One.
    One,
    /// Those up to one for which the byte here is set. A `_PyCFrame` belongs to them.
    UpToEntry(usize),
    /// Those up to one on its own stack, for which the byte here is `FRAME_OWNED_BY_CSTACK`.
    UpToOwned(usize),
}

/// `PyCodeObject`. Before 3.11, there are no qualified names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code {
    pub(super) file: usize,
    pub(super) name: usize,
    pub(super) qualified: Option<usize>,
    pub(super) line: usize,
    /// The table of its lines, an object of type `bytes`, and what it contains.
    pub(super) table: usize,
    pub(super) tables: Tables,
    /// Its first instruction, if that is in the structure itself.
    pub(super) first: usize,
}

/// The formats of the tables of lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tables {
    /// `co_lnotab`: pairs of the bytes after which the line changes and the difference (`Objects/lnotab_notes.txt` of CPython 3.9).
    Lnotab,
    /// `co_linetable` of PEP 626: pairs of the bytes of a range and the difference from the line before (the same file of CPython 3.10).
    Ranges,
    /// `co_linetable` of PEP 657: entries of several forms (`Objects/locations.md` of CPython 3.11).
    Locations,
}

/// `FRAME_OWNED_BY_CSTACK`.
pub(super) const OWNED_BY_STACK: u8 = 3;

impl Layout {
    /// Returns the layout of a version, which may be told at the address of `_PyRuntime`.
    pub(super) fn of(minor: u32, runtime: u64, memory: &impl Memory) -> Option<Layout> {
        match minor {
            OLDEST..=10 => Some(up_to_10(minor)),
            11 | 12 => Some(since_11(minor)),
            TELLS..=NEWEST => told(minor, runtime, memory),
            _ => None,
        }
    }

    /// The number of bytes of each structure in which all of these fields are.
    pub(super) fn thread_bytes(&self) -> usize {
        let ThreadState { next, interpreter, id, current } = self.thread;
        let (Id::Native(id) | Id::Pthread(id)) = id;
        let (Current::Frame(current) | Current::OnStack { at: current, .. }) = current;
        next.max(interpreter).max(id).max(current) + 8
    }

    pub(super) fn frame_bytes(&self) -> usize {
        let runs = match self.frame.runs {
            Runs::One => 0,
            Runs::UpToEntry(at) | Runs::UpToOwned(at) => at + 1,
        };
        let (Instruction::Index { at, .. } | Instruction::Address(at)) = self.frame.instruction;
        (self.frame.previous.max(self.frame.code).max(at) + 8).max(runs)
    }

    pub(super) fn code_bytes(&self) -> usize {
        let Code { file, name, qualified, line, table, .. } = self.code;
        file.max(name).max(qualified.unwrap_or(0)).max(line).max(table).max(self.type_of) + 8
    }
}

fn up_to_10(minor: u32) -> Layout {
    Layout {
        minor,
        interpreters: 32,
        next_interpreter: 0,
        threads: 8,
        thread: ThreadState { next: 8, interpreter: 16, id: Id::Pthread(176), current: Current::Frame(24) },
        frame: Frame {
            previous: 24,
            code: 32,
            instruction: match minor {
                10 => Instruction::Index { at: 96, bytes: 2 },
                _ => Instruction::Index { at: 104, bytes: 1 },
            },
            runs: Runs::One,
        },
        code: Code {
            file: 104,
            name: 112,
            qualified: None,
            line: 40,
            table: 120,
            tables: if minor == 10 { Tables::Ranges } else { Tables::Lnotab },
            first: 0,
        },
        type_of: 8,
        ascii: 48,
        compact: 72,
        length: 16,
        state: 32,
        bytes_length: 16,
        bytes: 32,
    }
}

fn since_11(minor: u32) -> Layout {
    let is_11 = minor == 11;
    let of = |in_11, in_12| if is_11 { in_11 } else { in_12 };
    let instruction = Instruction::Address(56);
    let frame = if is_11 {
        Frame { previous: 48, code: 32, instruction, runs: Runs::UpToEntry(68) }
    } else {
        Frame { previous: 8, code: 0, instruction, runs: Runs::UpToOwned(70) }
    };
    Layout {
        minor,
        interpreters: 40,
        next_interpreter: 0,
        threads: of(16, 72),
        thread: ThreadState {
            next: 8,
            interpreter: 16,
            id: Id::Native(of(160, 144)),
            current: Current::OnStack { at: 56, frame: of(8, 0), previous: of(16, 8) },
        },
        frame,
        code: Code {
            file: 112,
            name: 120,
            qualified: Some(128),
            line: of(72, 68),
            table: 136,
            tables: Tables::Locations,
            first: of(184, 192),
        },
        type_of: 8,
        ascii: of(48, 40),
        compact: of(72, 56),
        length: 16,
        state: 32,
        bytes_length: 16,
        bytes: 32,
    }
}

/// Reads `_Py_DebugOffsets`, of which all fields are words.
fn told(minor: u32, runtime: u64, memory: &impl Memory) -> Option<Layout> {
    const COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");
    const FIELDS: usize = 71;
    /// No structure of these has as many bytes.
    const MOST: usize = 1 << 20;
    let mut bytes = [0; FIELDS * 8];
    if !memory.read(runtime, &mut bytes) {
        return None;
    }
    let field = |index: usize| word(&bytes, index * 8);
    // The last one says whether threads run without a global lock, for which other fields differ too.
    let is_it =
        field(0) == Some(COOKIE) && field(1)? >> 16 == u64::from(3 << 8 | minor) && field(2) == Some(0);
    let at = |index: usize| field(index).and_then(|at| usize::try_from(at).ok()).filter(|&at| at < MOST);
    // The size of `PyASCIIObject`; other strings have the length and the address of their bytes in UTF-8 behind it.
    let ascii = at(70)?;
    is_it.then_some(Layout {
        minor,
        interpreters: at(5)?,
        next_interpreter: at(8)?,
        threads: at(9)?,
        thread: ThreadState {
            next: at(21)?,
            interpreter: at(22)?,
            id: Id::Native(at(25)?),
            current: Current::Frame(at(23)?),
        },
        frame: Frame {
            previous: at(29)?,
            code: at(30)?,
            instruction: Instruction::Address(at(31)?),
            runs: Runs::UpToOwned(at(33)?),
        },
        code: Code {
            file: at(35)?,
            name: at(36)?,
            qualified: Some(at(37)?),
            line: at(39)?,
            table: at(38)?,
            tables: Tables::Locations,
            first: at(43)?,
        },
        type_of: at(45)?,
        ascii,
        compact: ascii + 16,
        length: at(69)?,
        state: at(68)?,
        bytes_length: at(65)?,
        bytes: at(66)?,
    })
}
