//! Reads the functions of threads of a process.

use std::collections::HashMap;

use crate::os::proc;
use crate::python::code::{Code, Functions};
use crate::python::frames::{Executed, Frames};
use crate::python::interpreter::{self, Interpreter};
use crate::python::layout::{Current, Id, Instruction, Layout, OWNED_BY_STACK, Runs};
use crate::python::memory::{Memory, Part, Process, half, word};
use crate::python::thread;

/// The number of frames of a thread that are read at most.
const FRAMES: usize = 1024;
/// The number of threads of which something is kept.
const THREADS: usize = 4096;
/// A thread that executes no Python is looked for less and less often, in the end after so many times. It may be about to begin: the first samples
/// of a program are of the time before its interpreter is ready.
const SELDOM: u32 = 64;
/// How often in a row a thread is looked for in vain before its next pause is longer.
const STEADY: u32 = 4;
/// How often frames are read that have changed meanwhile.
const TRIES: usize = 3;

/// Reads the Python functions of a process.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    interpreter: Interpreter,
    /// The number that the process has for itself.
    process: i32,
    functions: Functions,
    threads: HashMap<i32, Thread>,
}

/// What is known of a thread.
#[derive(Clone, Debug, Default)]
struct Thread {
    /// The number that the thread has for itself.
    inside: i32,
    /// The address of its state and the word there by which it is known, once it was found.
    state: Option<(u64, u64)>,
    /// The interpreter of this state.
    interpreter: u64,
    /// How often it is not looked for.
    pause: u32,
    /// How often it was looked for in vain.
    misses: u32,
    /// What was read of it last, in this order.
    last: Last,
}

/// The addresses of what was read of a thread.
#[derive(Clone, Debug, Default)]
struct Last {
    frames: Vec<u64>,
    /// Those of `_PyCFrame`.
    on_stack: Vec<u64>,
    /// Those of code objects, sorted.
    codes: Vec<u64>,
    outermost: u64,
}

/// What a thread executes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// These functions, of which there is at least one.
    Frames(Frames),
    /// No Python.
    Nothing,
    /// It cannot be read, or has changed too quickly.
    Unknown,
}

impl Reader {
    /// Finds the interpreter of a process, by one of its threads.
    ///
    /// # Errors
    /// There is none that can be read; the text says why, if one was to be expected.
    pub(crate) fn of(pid: i32, tid: i32) -> Result<Reader, Option<String>> {
        let interpreter = interpreter::find(pid, tid)?;
        Ok(Reader::with(interpreter, proc::number_inside(pid, pid)))
    }

    pub(super) fn with(interpreter: Interpreter, process: i32) -> Reader {
        Reader { interpreter, process, functions: Functions::default(), threads: HashMap::new() }
    }

    /// Returns the second number of the interpreter's version.
    pub(crate) fn minor(&self) -> u32 {
        self.interpreter.layout.minor
    }

    /// Reads what a thread of process `pid` executes now.
    pub(crate) fn read(&mut self, pid: i32, tid: i32) -> Found {
        self.read_from(&Process(tid), tid, || proc::number_inside(pid, tid))
    }

    /// The same from memory. `inside` returns the number that the thread has for itself.
    pub(super) fn read_from(&mut self, memory: &impl Memory, tid: i32, inside: impl Fn() -> i32) -> Found {
        if self.threads.len() >= THREADS && !self.threads.contains_key(&tid) {
            self.threads.clear();
        }
        let known = || Thread { inside: inside(), ..Thread::default() };
        let mut thread = self.threads.remove(&tid).unwrap_or_else(known);
        let found = self.read_thread(&mut thread, memory);
        self.threads.insert(tid, thread);
        found
    }

    fn read_thread(&mut self, thread: &mut Thread, memory: &impl Memory) -> Found {
        if thread.pause > 0 {
            thread.pause -= 1;
            return Found::Nothing;
        }
        let layout = self.interpreter.layout;
        for _ in 0..TRIES {
            if thread.state.is_none() {
                let runtime = self.interpreter.runtime;
                let Some(state) = thread::find(thread.inside, self.process, runtime, &layout, memory) else {
                    thread.misses = thread.misses.saturating_add(1);
                    thread.pause = (thread.misses / STEADY).min(SELDOM);
                    return Found::Nothing;
                };
                let Some(id) = state.checked_add(id_at(&layout) as u64).and_then(|at| memory.word(at)) else {
                    return Found::Unknown;
                };
                let interpreter = state.checked_add(layout.thread.interpreter as u64);
                let Some(interpreter) = interpreter.and_then(|at| memory.word(at)) else {
                    return Found::Unknown;
                };
                (thread.state, thread.interpreter) = (Some((state, id)), interpreter);
            }
            let is_alone = thread::is_alone(thread.interpreter, self.interpreter.runtime, &layout, memory);
            let found =
                if is_alone { self.try_read(thread, memory) } else { self.try_read_all(thread, memory) };
            match found {
                Some(Found::Unknown) | None => {}
                Some(found) => return found,
            }
        }
        Found::Unknown
    }

    /// Reads what a thread executes. Returns `None` if it may be different at once.
    fn try_read(&mut self, thread: &mut Thread, memory: &impl Memory) -> Option<Found> {
        let layout = self.interpreter.layout;
        let (state, id) = thread.state?;
        // Most of what was there last is there again, and is read at once.
        let last = std::mem::take(&mut thread.last);
        let sizes = [layout.frame_bytes(), on_stack_bytes(&layout), layout.code_bytes()];
        let lists = [&last.frames, &last.on_stack, &last.codes];
        let mut parts: Vec<Part> = vec![(state, layout.thread_bytes())];
        for (list, size) in lists.iter().zip(sizes) {
            parts.extend(list.iter().map(|&address| (address, size)));
        }
        let mut bytes = vec![0; parts.iter().map(|&(_, size)| size).sum()];
        let read = memory.gather(&parts, &mut bytes);
        bytes.truncate(read);
        let Some((head, mut rest)) = bytes.split_at_checked(layout.thread_bytes()) else {
            thread.state = None;
            return None;
        };
        if word(head, id_at(&layout)) != Some(id) {
            // The thread has ended, and another one has its number.
            thread.state = None;
            return None;
        }
        let mut batch = |addresses: &'_ [u64], size: usize| {
            let (these, others) = rest.split_at_checked(addresses.len() * size).unwrap_or((rest, &[]));
            rest = others;
            these
        };
        let frames = Batch::new(&last.frames, sizes[0], batch(&last.frames, sizes[0]));
        let on_stack = Batch::new(&last.on_stack, sizes[1], batch(&last.on_stack, sizes[1]));
        let codes = batch(&last.codes, sizes[2]);
        let mut walk = Walk { layout, memory, frames, on_stack, most: FRAMES, found: Chain::default() };
        let (current, current_on_stack) = walk.current(head)?;
        if current == 0 {
            return Some(Found::Nothing);
        }
        walk.follow(current, current_on_stack)?;
        let outermost = walk.found.outermost(&layout);
        let Chain { places, codes: of_frames, runs, stacks, is_whole } = walk.found;
        let distinct = distinct(&of_frames);
        let functions = self.functions_of(&distinct, (&last.codes, codes), memory)?;
        // A frame that has ended meanwhile may have led anywhere, but not to where all of the thread's frames end.
        let is_same =
            outermost == last.outermost || is_current(&layout, state, (current, current_on_stack), memory)?;
        thread.last = Last { frames: places, on_stack: stacks, codes: distinct.clone(), outermost };
        if !is_same {
            return None;
        }
        Some(match frames_of(&of_frames, &distinct, &functions, &runs, outermost, is_whole) {
            Some(frames) => Found::Frames(frames),
            None => Found::Nothing,
        })
    }

    /// Reads what a thread executes in all interpreters of the process, one of which may have called another. Returns `None` if it may be
    /// different at once.
    fn try_read_all(&mut self, thread: &mut Thread, memory: &impl Memory) -> Option<Found> {
        let Interpreter { layout, runtime, .. } = self.interpreter;
        let mut states = thread::all(thread.inside, runtime, &layout, memory)?;
        // The next time, it may be alone again.
        let known = thread.state.take();
        if states.is_empty() {
            states.extend(known.map(|known| known.0));
        }
        let (mut chains, mut left) = (Vec::new(), FRAMES);
        for state in states {
            let mut head = vec![0; layout.thread_bytes()];
            if !memory.read(state, &mut head) {
                return None;
            }
            let frames = Batch::new(&[], layout.frame_bytes(), &[]);
            let on_stack = Batch::new(&[], on_stack_bytes(&layout), &[]);
            let mut walk = Walk { layout, memory, frames, on_stack, most: left, found: Chain::default() };
            let (current, current_on_stack) = walk.current(&head)?;
            if current == 0 {
                continue;
            }
            walk.follow(current, current_on_stack)?;
            if !is_current(&layout, state, (current, current_on_stack), memory)? {
                return None;
            }
            left -= walk.found.places.len().min(left);
            chains.push(walk.found);
        }
        // A newer interpreter was called by an older one, unless the places on the stack say otherwise.
        if layout.frame.runs != Runs::One {
            chains.sort_by_key(|chain| chain.runs.first().map(|run| run.0));
        }
        let mut all = Chain { is_whole: true, ..Chain::default() };
        for chain in chains {
            let before = all.codes.len() as u32;
            all.runs.extend(chain.runs.iter().map(|&(place, end)| (place, before + end)));
            all.codes.extend(chain.codes);
            all.places.extend(chain.places);
            all.is_whole &= chain.is_whole;
        }
        let distinct = distinct(&all.codes);
        let functions = self.functions_of(&distinct, (&[], &[]), memory)?;
        let outermost = all.outermost(&layout);
        let Chain { codes, runs, is_whole, .. } = all;
        Some(match frames_of(&codes, &distinct, &functions, &runs, outermost, is_whole) {
            Some(frames) => Found::Frames(frames),
            None => Found::Nothing,
        })
    }

    /// Returns the functions of code objects, some of which have been read.
    fn functions_of(
        &mut self,
        codes: &[u64],
        (known, bytes): (&[u64], &[u8]),
        memory: &impl Memory,
    ) -> Option<Vec<Option<Code>>> {
        let size = self.interpreter.layout.code_bytes();
        let read = |address: &u64| {
            let index = known.binary_search(address).ok()?;
            bytes.get(index * size..)?.get(..size)
        };
        let missing: Vec<Part> =
            codes.iter().filter(|address| read(address).is_none()).map(|&address| (address, size)).collect();
        let mut others = vec![0; missing.len() * size];
        if memory.gather(&missing, &mut others) != others.len() {
            return None;
        }
        let mut others = others.chunks_exact(size);
        let Interpreter { layout, code_type, .. } = self.interpreter;
        self.functions.begin();
        let mut functions = Vec::with_capacity(codes.len());
        for address in codes {
            let bytes = read(address).or_else(|| others.next())?;
            functions.push(self.functions.of(*address, bytes, code_type, &layout, memory).ok()?);
        }
        Some(functions)
    }
}

/// Whether a frame is still the innermost one of a thread state, by its address and that of its `_PyCFrame`. Returns `None` if it cannot be.
fn is_current(
    layout: &Layout,
    state: u64,
    (current, on_stack): (u64, u64),
    memory: &impl Memory,
) -> Option<bool> {
    let at = match layout.thread.current {
        Current::Frame(at) => state.checked_add(at as u64),
        Current::OnStack { frame, .. } => on_stack.checked_add(frame as u64),
    };
    Some(memory.word(at?) == Some(current))
}

/// Returns the addresses of the code objects, each once, sorted.
fn distinct(codes: &[At]) -> Vec<u64> {
    let mut distinct: Vec<u64> = codes.iter().map(|at| at.code).collect();
    distinct.sort_unstable();
    distinct.dedup();
    distinct
}

fn id_at(layout: &Layout) -> usize {
    let (Id::Native(at) | Id::Pthread(at)) = layout.thread.id;
    at
}

fn on_stack_bytes(layout: &Layout) -> usize {
    match layout.thread.current {
        Current::Frame(_) => 8,
        Current::OnStack { frame, previous, .. } => frame.max(previous) + 8,
    }
}

/// Makes frames of instructions in code objects, of which those that are distinct are sorted and have these functions.
fn frames_of(
    codes: &[At],
    distinct: &[u64],
    functions: &[Option<Code>],
    runs: &[(u64, u32)],
    outermost: u64,
    is_whole: bool,
) -> Option<Frames> {
    let function = |at: &At| {
        let code = functions.get(distinct.binary_search(&at.code).ok()?)?.as_ref()?;
        let line = at.instruction.and_then(|instruction| code.lines.at(instruction));
        Some(Executed { function: code.function.clone(), line })
    };
    let (mut all, mut kept, mut start) = (Vec::with_capacity(codes.len()), Vec::new(), 0);
    for &(place, end) in runs {
        let of_run = codes.get(start..end as usize).unwrap_or_default();
        all.extend(of_run.iter().filter_map(function));
        kept.push((place, all.len() as u32));
        start = end as usize;
    }
    (!all.is_empty()).then(|| Frames::new(all, kept, outermost, is_whole))
}

/// What was read at once, at addresses that follow each other as the thread's frames did last.
struct Batch<'b> {
    addresses: &'b [u64],
    size: usize,
    bytes: &'b [u8],
    next: usize,
}

impl<'b> Batch<'b> {
    fn new(addresses: &'b [u64], size: usize, bytes: &'b [u8]) -> Batch<'b> {
        Batch { addresses, size, bytes, next: 0 }
    }

    /// Copies what is at an address, which is read if it was not.
    fn get(&mut self, address: u64, memory: &impl Memory, to: &mut Vec<u8>) -> Option<()> {
        to.clear();
        let found = self.addresses.iter().skip(self.next).position(|&known| known == address);
        if let Some(index) = found.map(|after| self.next + after)
            && let Some(bytes) = self.bytes.get(index * self.size..).and_then(|bytes| bytes.get(..self.size))
        {
            self.next = index;
            to.extend_from_slice(bytes);
            return Some(());
        }
        to.resize(self.size, 0);
        memory.read(address, to).then_some(())
    }
}

/// Which instruction a frame executes.
struct At {
    /// The address of the code object.
    code: u64,
    /// The number of bytes before it in the code, if it is there.
    instruction: Option<u32>,
}

impl At {
    /// Returns it by the bytes of a frame.
    fn of(code: u64, bytes: &[u8], layout: &Layout) -> At {
        let instruction = match layout.frame.instruction {
            Instruction::Index { at, bytes: width } => half(bytes, at)
                .filter(|&index| index <= i32::MAX as u32)
                .and_then(|index| index.checked_mul(width)),
            Instruction::Address(at) => word(bytes, at).and_then(|address| {
                let first = code.checked_add(layout.code.first as u64)?;
                u32::try_from(address.checked_sub(first)?).ok()
            }),
        };
        At { code, instruction }
    }
}

/// The frames of a thread, the innermost one first.
#[derive(Default)]
struct Chain {
    places: Vec<u64>,
    /// Of those that have one.
    codes: Vec<At>,
    /// The place of each run, and the number of codes up to its end.
    runs: Vec<(u64, u32)>,
    /// The addresses of each `_PyCFrame`.
    stacks: Vec<u64>,
    is_whole: bool,
}

impl Chain {
    /// Returns an address that tells the outermost run from others that the thread has had.
    fn outermost(&self, layout: &Layout) -> u64 {
        match layout.frame.runs {
            Runs::One => self.places.last().copied().unwrap_or(0),
            Runs::UpToEntry(_) | Runs::UpToOwned(_) => self.runs.last().map_or(0, |run| run.0),
        }
    }
}

/// Goes from frame to frame.
struct Walk<'w, M> {
    layout: Layout,
    memory: &'w M,
    frames: Batch<'w>,
    on_stack: Batch<'w>,
    /// The number of frames that are read at most.
    most: usize,
    found: Chain,
}

impl<M: Memory> Walk<'_, M> {
    /// Returns the address of the innermost frame by the bytes of the thread state, 0 if there is none, and that of its `_PyCFrame`.
    fn current(&mut self, state: &[u8]) -> Option<(u64, u64)> {
        match self.layout.thread.current {
            Current::Frame(at) => Some((word(state, at)?, 0)),
            Current::OnStack { at, frame, .. } => {
                let (on_stack, mut bytes) = (word(state, at)?, Vec::new());
                self.on_stack.get(on_stack, self.memory, &mut bytes)?;
                Some((word(&bytes, frame)?, on_stack))
            }
        }
    }

    /// Follows the frames from the innermost one outwards. Returns `None` if they cannot be those of a thread.
    fn follow(&mut self, mut frame: u64, mut on_stack: u64) -> Option<()> {
        let layout = self.layout;
        let (mut bytes, mut of_stack) = (Vec::new(), Vec::new());
        while self.found.places.len() < self.most {
            self.frames.get(frame, self.memory, &mut bytes)?;
            self.found.places.push(frame);
            let code = At::of(word(&bytes, layout.frame.code)?, &bytes, &layout);
            let ends = match layout.frame.runs {
                Runs::One => {
                    self.found.codes.push(code);
                    Some(0)
                }
                Runs::UpToEntry(at) => {
                    self.found.codes.push(code);
                    let is_entry = *bytes.get(at)? != 0;
                    let place = on_stack;
                    if is_entry && let Current::OnStack { previous, .. } = layout.thread.current {
                        self.on_stack.get(on_stack, self.memory, &mut of_stack)?;
                        self.found.stacks.push(on_stack);
                        on_stack = word(&of_stack, previous)?;
                    }
                    is_entry.then_some(place)
                }
                Runs::UpToOwned(at) => {
                    let is_owned = *bytes.get(at)? == OWNED_BY_STACK;
                    if !is_owned {
                        self.found.codes.push(code);
                    }
                    is_owned.then_some(frame)
                }
            };
            if let Some(place) = ends {
                self.found.runs.push((place, self.found.codes.len() as u32));
            }
            frame = word(&bytes, layout.frame.previous)?;
            if frame == 0 {
                self.found.is_whole = true;
                let end = self.found.runs.last().map_or(0, |run| run.1);
                // The outermost frame ends a run.
                return (end as usize == self.found.codes.len()).then_some(());
            }
        }
        // The run goes on where nothing is read.
        self.found.runs.push((u64::MAX, self.found.codes.len() as u32));
        Some(())
    }
}
