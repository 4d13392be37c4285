//! The functions of code objects.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::python::functions::Function;
use crate::python::layout::Layout;
use crate::python::lines::Lines;
use crate::python::memory::{Memory, half, word};

/// The number of functions of a process that are known at a time. A program can make any number of them.
const KNOWN: usize = 1 << 16;
/// The number of characters of a name and of a path that are read at most.
const NAME: usize = 512;
const PATH: usize = 1024;
/// The number of bytes of all names of a process.
const NAMES: usize = 32 << 20;
/// The number of bytes of a table of lines at most, of those that are read for what a thread executes at a time, and the number of ranges with a
/// line of a process.
const TABLE: usize = 64 << 10;
const TABLES: usize = 256 << 10;
const RANGES: usize = 1 << 20;

/// The functions of a process that were met.
#[derive(Clone, Debug, Default)]
pub(super) struct Functions {
    /// By the address of the code object.
    known: HashMap<u64, Known>,
    /// All of them, also those whose code objects are gone.
    all: HashSet<Arc<Function>>,
    /// The number of bytes of their names.
    bytes: usize,
    /// The number of ranges of their lines.
    ranges: usize,
    /// The number of bytes of tables that may be read.
    left: usize,
}

/// The function of a code object, and the lines of its instructions.
#[derive(Clone, Debug)]
pub(super) struct Code {
    pub(super) function: Arc<Function>,
    pub(super) lines: Arc<Lines>,
}

/// What was found at an address.
#[derive(Clone, Debug)]
struct Known {
    /// The addresses of the strings, the line and the address of the table of lines, by which another code object at the same address is
    /// noticed.
    sign: [u64; 5],
    code: Option<Code>,
}

impl Known {
    /// The number of ranges of its lines.
    fn ranges(&self) -> usize {
        self.code.as_ref().map_or(0, |code| code.lines.len())
    }
}

impl Functions {
    /// Returns the function of the code object at an address with these bytes: nothing for what the interpreter executes for itself.
    ///
    /// # Errors
    /// There is no code object.
    pub(super) fn of(
        &mut self,
        address: u64,
        bytes: &[u8],
        code_type: u64,
        layout: &Layout,
        memory: &impl Memory,
    ) -> Result<Option<Code>, NoCode> {
        let at = |offset: usize| word(bytes, offset).ok_or(NoCode);
        if at(layout.type_of)? != code_type {
            return Err(NoCode);
        }
        let code = layout.code;
        let line = half(bytes, code.line).ok_or(NoCode)?;
        let name = at(code.name)?;
        let (qualified, table) = (code.qualified.map_or(Ok(name), at)?, at(code.table)?);
        let sign = [at(code.file)?, name, qualified, u64::from(line), table];
        if let Some(known) = self.known.get(&address).filter(|known| known.sign == sign) {
            return Ok(known.code.clone());
        }
        let file = text(sign[0], PATH, layout, memory).ok_or(NoCode)?;
        let name = text(sign[2], NAME, layout, memory).ok_or(NoCode)?;
        // CPython 3.12 and later have frames of their own for calls of `__init__`.
        let is_own = file == "__init__" && name == file;
        let function = if is_own { None } else { Some(self.only(Function::new(&name, &file, line))?) };
        let Some(function) = function else {
            self.keep(address, Known { sign, code: None });
            return Ok(None);
        };
        let lines = self.lines(table, line, layout, memory);
        let code = Code { function, lines: lines.clone().unwrap_or_default() };
        if lines.is_some() {
            self.keep(address, Known { sign, code: Some(code.clone()) });
        }
        Ok(Some(code))
    }

    /// Says that what a thread executes is going to be read.
    pub(super) fn begin(&mut self) {
        self.left = TABLES;
    }

    fn keep(&mut self, address: u64, known: Known) {
        if self.known.len() >= KNOWN {
            self.known.clear();
            self.ranges = 0;
        }
        self.ranges += known.ranges();
        let before = self.known.insert(address, known);
        self.ranges = self.ranges.saturating_sub(before.map_or(0, |before| before.ranges()));
    }

    /// Returns the lines of the function that begins on a line, by its table. None are known if there is no table, or if there are too many lines of all
    /// functions. Returns `None` if too much was read already.
    fn lines(&mut self, table: u64, first: u32, layout: &Layout, memory: &impl Memory) -> Option<Arc<Lines>> {
        let length =
            table.checked_add(layout.bytes_length as u64).and_then(|at| memory.word(at)).unwrap_or(0);
        let length = usize::try_from(length).ok().filter(|&length| length <= TABLE && self.ranges < RANGES);
        let mut bytes = vec![0; length.unwrap_or(0)];
        self.left = self.left.checked_sub(bytes.len())?;
        let is_read = table.checked_add(layout.bytes as u64).is_some_and(|at| memory.read(at, &mut bytes));
        if !is_read {
            bytes.clear();
        }
        Some(Arc::new(Lines::of(&bytes, first, layout.code.tables)))
    }

    /// Returns the one function that is equal to this.
    fn only(&mut self, function: Function) -> Result<Arc<Function>, NoCode> {
        if let Some(known) = self.all.get(&function) {
            return Ok(Arc::clone(known));
        }
        self.bytes += function.name.len() + function.file.len() + size_of::<Function>();
        if self.bytes > NAMES {
            return Err(NoCode);
        }
        let function = Arc::new(function);
        self.all.insert(Arc::clone(&function));
        Ok(function)
    }
}

/// There is no code object where one was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NoCode;

/// Returns the string at an address, of which control characters are replaced and no more than so many characters are read.
fn text(address: u64, most: usize, layout: &Layout, memory: &impl Memory) -> Option<String> {
    /// The fields of the word of bits (PyASCIIObject.state).
    const KIND: u32 = 2;
    const COMPACT: u32 = 5;
    const ASCII: u32 = 6;
    let mut head = [0; 64];
    let head = head.get_mut(..layout.length.max(layout.state) + 8)?;
    if !memory.read(address, head) {
        return None;
    }
    let (state, length) = (half(head, layout.state)?, word(head, layout.length)?);
    let is_compact = state >> COMPACT & 1 == 1;
    let (kind, is_ascii) = (state >> KIND & 7, state >> ASCII & 1 == 1);
    let width = usize::try_from(kind).ok().filter(|kind| is_compact && [1, 2, 4].contains(kind))?;
    let length = usize::try_from(length).unwrap_or(usize::MAX).min(most);
    let offset = if is_ascii { layout.ascii } else { layout.compact };
    let mut bytes = vec![0; length * width];
    if !memory.read(address.checked_add(offset as u64)?, &mut bytes) {
        return None;
    }
    let character = |unit: &[u8]| {
        let point = unit.iter().rev().fold(0, |point, &byte| point << 8 | u32::from(byte));
        char::from_u32(point).filter(|c| !c.is_control()).unwrap_or(char::REPLACEMENT_CHARACTER)
    };
    Some(bytes.chunks_exact(width).map(character).collect())
}
