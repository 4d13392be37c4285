//! Interpreters of all versions that are known, and memory that only looks like one.

use std::num::NonZeroU32;
use std::os::unix::fs::FileExt;

use crate::os::proc;
use crate::python::frames::{Executed, Frames};
use crate::python::memory::{Memory, Process};
use crate::python::reader::{Found, Reader};
use crate::python::symbols::Symbols;
use crate::python::synthetic::{self, EXECUTED, Fake, FakePython, MINORS, TID, Written};

/// The number of changed memories.
const MUTANTS: u64 = 10_000;

const OUTER: [Written; 2] = [("<module>", "/p/main.py", 1), ("f", "/p/main.py", 10)];
const INNER: [Written; 3] =
    [("C.g", "/p/\u{e9}.py", 3), ("h\u{1f600}", "/p/\u{431}.py", 4), ("\u{1b}[31m", "/p/x.py", 5)];

fn python(minor: u32) -> (FakePython, Reader) {
    let python = FakePython::new(minor, &[&OUTER, &INNER]);
    let reader = Reader::with(python.interpreter, 1);
    (python, reader)
}

fn read(python: &FakePython, reader: &mut Reader) -> Found {
    reader.read_from(&python.memory, TID, || TID)
}

fn names(frames: &Frames) -> Vec<(u64, Vec<&str>)> {
    frames
        .runs()
        .map(|run| (run.place, run.functions.iter().map(|executed| &*executed.function.name).collect()))
        .collect()
}

/// Returns the names of all functions, the innermost first.
fn all_names(frames: &Frames) -> Vec<&str> {
    names(frames).into_iter().flat_map(|(_, names)| names).collect()
}

fn frames(found: Found) -> Frames {
    match found {
        Found::Frames(frames) => frames,
        other => panic!("{other:?}"),
    }
}

#[test]
fn all_versions() {
    for minor in MINORS {
        let (python, mut reader) = python(minor);
        // What was read once is read at once.
        for _ in 0..3 {
            let frames = frames(read(&python, &mut reader));
            let inner = ["\u{fffd}[31m (x.py:5)", "h\u{1f600} (\u{431}.py:4)", "C.g (\u{e9}.py:3)"];
            let outer = ["f (main.py:10)", "<module> (main.py:1)"];
            let of_one = || inner.iter().chain(&outer).map(|&name| (0, vec![name])).collect();
            let expected: Vec<(u64, Vec<&str>)> = match minor {
                ..11 => of_one(),
                _ => vec![(python.places[1], inner.to_vec()), (python.places[0], outer.to_vec())],
            };
            assert_eq!(names(&frames), expected, "3.{minor}");
            assert!(frames.is_whole);
            let executed = frames.runs().flat_map(|run| run.functions);
            for Executed { function, line } in executed {
                assert_eq!(
                    line.map(NonZeroU32::get),
                    Some(function.line + EXECUTED),
                    "3.{minor}: {function:?}"
                );
            }
        }
        let layout = python.interpreter.layout;
        // Another function at the same address.
        let other = synthetic::code(&python.memory, &python.interpreter, "k", "k.py", 6);
        let code = python.memory.bytes.borrow()[(other - 0x10_0000) as usize..][..256].to_vec();
        let innermost = python.frames[4] + layout.frame.code as u64;
        let old = u64::from_le_bytes(
            *python.memory.bytes.borrow()[(innermost - 0x10_0000) as usize..].first_chunk().expect("a word"),
        );
        python.memory.bytes.borrow_mut()[(old - 0x10_0000) as usize..][..256].copy_from_slice(&code);
        let frames = frames(read(&python, &mut reader));
        assert_eq!(names(&frames)[0].1[0], "k (k.py:6)", "3.{minor}");
    }
}

#[test]
fn threads() {
    for minor in MINORS {
        let (python, mut reader) = python(minor);
        assert_eq!(reader.read_from(&python.memory, 99, || 99), Found::Nothing);
        // Between two functions, a thread executes none.
        let found = read(&python, &mut reader);
        assert!(matches!(found, Found::Frames(_)), "3.{minor}: {found:?}");
        python.memory.put(python.current(), 0);
        assert_eq!(read(&python, &mut reader), Found::Nothing);
    }
}

/// A thread executes functions of a newer interpreter, which those of the older one have called.
#[test]
fn several_interpreters() {
    for minor in MINORS {
        let mut python = FakePython::new(minor, &[&INNER]);
        let mut reader = Reader::with(python.interpreter, 1);
        let inner = ["\u{fffd}[31m (x.py:5)", "h\u{1f600} (\u{431}.py:4)", "C.g (\u{e9}.py:3)"];
        let outer = ["f (main.py:10)", "<module> (main.py:1)"];
        assert_eq!(all_names(&frames(read(&python, &mut reader))), inner, "3.{minor}");
        python.is_called_by(&[&OUTER]);
        let found = frames(read(&python, &mut reader));
        assert_eq!(all_names(&found), [&inner[..], &outer].concat(), "3.{minor}");
        assert!(found.is_whole);
        // The newer one executes nothing any more.
        python.memory.put(python.current(), 0);
        assert_eq!(all_names(&frames(read(&python, &mut reader))), outer, "3.{minor}");
    }
}

/// A process can say of any number of functions that they have large tables, also of the same ones again and again.
#[test]
fn large_tables() {
    let run: Vec<Written> = (1..=40).map(|line| ("f", "f.py", line)).collect();
    for minor in MINORS {
        let python = FakePython::new(minor, &[&run]);
        let layout = python.interpreter.layout;
        let (memory, mut reader) = (&python.memory, Reader::with(python.interpreter, 1));
        let large = |length: u64| {
            let at = memory.alloc(layout.bytes + length as usize);
            memory.put(at + layout.bytes_length as u64, length);
            // In each format, the first instructions are of the first line.
            memory.put(at + layout.bytes as u64, 0x87);
            at
        };
        let tables = [large(60_000), large(65_536), large(70_000)];
        for (frame, table) in python.frames.iter().zip(tables.iter().cycle()) {
            let code = memory.word(frame + layout.frame.code as u64).expect("memory");
            memory.put(code + layout.code.table as u64, *table);
        }
        for _ in 0..10 {
            let frames = frames(read(&python, &mut reader));
            let executed: Vec<_> = frames.runs().flat_map(|run| run.functions).collect();
            assert_eq!(executed.len(), 40);
            let of_largest = executed.iter().filter(|executed| executed.function.line % 3 == 0);
            assert!(
                of_largest.clone().count() > 10 && of_largest.clone().all(|executed| executed.line.is_none())
            );
        }
        // After some samples, those of the others are known.
        let frames = frames(read(&python, &mut reader));
        let executed = frames.runs().flat_map(|run| run.functions);
        for Executed { function, line } in executed.filter(|executed| executed.function.line % 3 > 0) {
            assert_eq!(line.map(NonZeroU32::get), Some(function.line), "3.{minor}");
        }
    }
}

/// A function returns while its frames are read, so that they seem to end there.
#[test]
fn frames_that_change() {
    for minor in MINORS {
        let (python, mut reader) = python(minor);
        frames(read(&python, &mut reader));
        let previous = python.interpreter.layout.frame.previous as u64;
        let (caller, innermost) = (python.frames[3], python.frames[4] + previous);
        // It is cut off before the first read, and the thread goes on before the second one.
        *python.memory.later.borrow_mut() = vec![(1, innermost, 0), (2, python.current(), caller)];
        python.memory.restart();
        let frames = frames(read(&python, &mut reader));
        let names = names(&frames);
        let all: Vec<&str> = names.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        assert_eq!(all[0], "h\u{1f600} (\u{431}.py:4)", "3.{minor}");
        assert_eq!(all.len(), 4);
    }
}

#[test]
fn deep_and_endless_stacks() {
    let run: Vec<Written> = vec![("f", "f.py", 1); 3000];
    for minor in MINORS {
        let python = FakePython::new(minor, &[&run]);
        let mut reader = Reader::with(python.interpreter, 1);
        let found = frames(read(&python, &mut reader));
        assert!(!found.is_whole);
        let sum: usize = found.runs().map(|run| run.functions.len()).sum();
        assert_eq!(sum, 1024, "3.{minor}");
        // A frame that is its own caller.
        let previous = python.interpreter.layout.frame.previous as u64;
        python.memory.put(python.frames[2900] + previous, python.frames[2900]);
        let found = frames(read(&python, &mut reader));
        assert!(!found.is_whole);
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most.max(1) as u64) as usize
    }

    /// Changes a few words: to numbers, or to those of other places.
    fn change(&mut self, bytes: &mut [u8]) {
        const NUMBERS: [u64; 8] = [0, 1, 7, 0xff, 0x10_0000, u32::MAX as u64, 1 << 63, u64::MAX];
        for _ in 0..=self.below(6) {
            let at = self.below(bytes.len() / 8 - 1) * 8;
            let new = match self.below(3) {
                0 => NUMBERS[self.below(NUMBERS.len())].to_le_bytes(),
                1 => (0x10_0000 + self.below(bytes.len()) as u64).to_le_bytes(),
                _ => {
                    let from = self.below(bytes.len() / 8 - 1) * 8;
                    bytes[from..from + 8].try_into().expect("a word")
                }
            };
            bytes[at..at + 8].copy_from_slice(&new);
        }
    }
}

#[test]
fn hostile_memory() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for (minor, several) in MINORS.flat_map(|minor| [(minor, false), (minor, true)]) {
        let (mut python, _) = python(minor);
        if several {
            python.is_called_by(&[&OUTER]);
        }
        let original = python.memory.bytes.borrow().clone();
        // Most of it is room.
        let used: Vec<usize> = original
            .chunks(8)
            .enumerate()
            .filter(|(_, word)| word.iter().any(|&byte| byte != 0))
            .map(|(at, _)| at * 8)
            .collect();
        for _ in 0..MUTANTS / 6 + 1 {
            let mut bytes = original.clone();
            random.change(&mut bytes);
            for _ in 0..=random.below(3) {
                let at = used[random.below(used.len())];
                let value = 0x10_0000 + (used[random.below(used.len())] + random.below(8)) as u64;
                bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
            }
            *python.memory.bytes.borrow_mut() = bytes;
            let Some(layout) =
                crate::python::layout::Layout::of(minor, python.interpreter.runtime, &python.memory)
            else {
                continue;
            };
            let interpreter = crate::python::interpreter::Interpreter { layout, ..python.interpreter };
            let mut reader = Reader::with(interpreter, TID);
            for _ in 0..2 {
                if let Found::Frames(frames) = read(&python, &mut reader) {
                    let runs: Vec<_> = frames.runs().collect();
                    assert!(runs.iter().map(|run| run.functions.len()).sum::<usize>() <= 1024);
                    let functions = runs.iter().flat_map(|run| run.functions);
                    for Executed { function, .. } in functions {
                        assert!(
                            function.name.chars().count() < 2000
                                && !function.name.chars().any(char::is_control)
                        );
                        assert!(!function.file.chars().any(char::is_control));
                    }
                }
            }
        }
    }
}

#[test]
fn symbols_of_the_own_c_library() {
    let own = std::process::id() as i32;
    let mappings = proc::mappings(own).expect("maps");
    let libc = |mapping: &&proc::Mapping| mapping.offset == 0 && mapping.path.ends_with("/libc.so.6");
    let base = mappings.iter().find(libc).expect("a C library").lo;
    let symbols = Symbols::of(&Process(own), base).map(|symbols| symbols.address("getpid"));
    assert_eq!(symbols, Some(Some(libc::getpid as *const () as u64)));
    let memory = Process(own);
    let symbols = Symbols::of(&memory, base).expect("symbols");
    assert_eq!((symbols.address("no_such_symbol"), symbols.address("")), (None, None));
    assert!(Symbols::of(&Process(own), base + 8).is_none());

    // The same file at the beginning of other memory, which nobody has relocated.
    let mut bytes = vec![0; 1 << 20];
    let path = mappings.iter().find(libc).expect("a C library").path.clone();
    let len = std::fs::File::open(path).expect("the file").read_at(&mut bytes, 0).expect("bytes");
    bytes.truncate(len);
    let memory = Fake::default();
    let mut random = Random(0x1234_5678_9abc_def1);
    for _ in 0..MUTANTS / 10 {
        let mut changed = bytes.clone();
        let head = random.below(2) == 0;
        let end = if head { 0x400 } else { changed.len() };
        random.change(&mut changed[..end]);
        *memory.bytes.borrow_mut() = changed;
        if let Some(symbols) = Symbols::of(&memory, 0x10_0000) {
            let _ = (symbols.address("getpid"), symbols.address("_PyRuntime"));
        }
    }
}
