//! The bytes of the arena, and how code is written into them.

use crate::emit::fixups::Fixups;
use crate::emit::homes::Home;
use crate::x86::template::kind::Role;
use crate::x86::template::kind::Second;
use crate::x86::template::{Hole, Target, Template};
use gprofinject_abi::plan::{ArenaHeader, BEGIN_LEN, NUMBER_BELOW, OUTER_BEGIN_LEN, ThreadWords};
use std::mem::offset_of;
use std::ops::Range;

/// Bytes of [`Writer::stub`], at most, and of an instruction before it.
pub(crate) const STUB: usize = 19 + 5;
/// Bytes of [`Writer::restore`].
pub(crate) const RESTORE: usize = 10;
/// Bytes of [`Writer::jump_through`].
pub(crate) const JUMP_THROUGH: usize = 6;
/// `mov [rsp-24], r11` and `mov [rsp-16], r11`. The slow paths expect r11 there. The first form is for rsp
/// = CFA, the second for rsp at the return slot.
const SAVE_R11: [[u8; 5]; 2] = [[0x4c, 0x89, 0x5c, 0x24, 0xe8], [0x4c, 0x89, 0x5c, 0x24, 0xf0]];
/// `mov [rsp-16], rax` and `mov [rsp-8], rax`, for the same two cases.
const SAVE_RAX: [[u8; 5]; 2] = [[0x48, 0x89, 0x44, 0x24, 0xf0], [0x48, 0x89, 0x44, 0x24, 0xf8]];
/// `mov rax, [rsp-16]` and `mov rax, [rsp-8]`, for the same two cases.
pub(crate) const LOAD_RAX: [[u8; 5]; 2] = [[0x48, 0x8b, 0x44, 0x24, 0xf0], [0x48, 0x8b, 0x44, 0x24, 0xf8]];
/// `mov r11, r10`.
const R11_FROM_R10: [u8; 3] = [0x4d, 0x89, 0xd3];

/// The values for the holes of a template. Targets of branches are arena offsets.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Values {
    /// The function's home slots.
    pub home: Home,
    /// The function's number.
    pub number: u32,
    /// For a tail call: the lower half of its slot's key.
    pub site: u32,
    /// Where the thunk continues if the arc is not in its home slot.
    pub miss: usize,
    /// Where it continues on entry if the stack pointer is outside the thread's window.
    pub outside: usize,
    /// Where it continues on exit if the stack pointer is outside the thread's window.
    pub exit: usize,
    /// For a tail call: where the called function's thunk continues with the call counted and its cell not filled.
    pub resume: usize,
    /// The function's body.
    pub body: usize,
    /// Where a call continues that is deeper than calls are measured: in the body.
    pub inner: usize,
    /// Whether `body` is not in the arena but in the module's text.
    pub body_in_text: bool,
}

/// Returns the offsets of the jumps to the slow path of exits, in the order of
/// [`crate::x86::template::kind::ExitWay`]. The first one is at `at`.
pub(crate) fn exits(at: usize) -> [usize; 3] {
    [at, at + JUMP_THROUGH, at + 2 * JUMP_THROUGH + 5]
}

fn fixups(role: Role) -> Option<Fixups> {
    role.is_library().then(Fixups::default)
}

/// The arena's bytes.
#[derive(Debug, Default)]
pub(crate) struct Code {
    /// Address of the arena. In a PIE it may wrap below zero.
    pub arena: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Arena offsets of displacements by which the agent's thread-local words are reached.
    pub tls_fixups: Vec<u32>,
}

impl Code {
    /// Returns the address at an offset.
    pub(crate) fn address(&self, offset: usize) -> u64 {
        self.arena.wrapping_add(offset as u64)
    }

    /// Adds the offset of the agent's thread-local words to the displacements by which they are reached.
    pub(crate) fn write_words(&mut self, offset: i64) {
        for &at in &self.tls_fixups {
            if let Some(word) = self.bytes.get_mut(at as usize..).and_then(<[u8]>::first_chunk_mut) {
                *word = i32::from_le_bytes(*word).wrapping_add(offset as i32).to_le_bytes();
            }
        }
    }
}

/// Bytes of the arena from an offset on.
#[derive(Debug, Default)]
struct Area<'b> {
    /// The offset.
    start: usize,
    /// The bytes.
    bytes: &'b mut [u8],
}

impl<'b> Area<'b> {
    /// Removes the first bytes, up to the end of `range`, and returns those of the range.
    fn take(&mut self, range: &Range<usize>) -> Area<'b> {
        let (taken, rest) = std::mem::take(&mut self.bytes).split_at_mut(range.end - self.start);
        let bytes = taken.get_mut(range.start - self.start..).unwrap_or_default();
        (self.start, self.bytes) = (range.end, rest);
        Area { start: range.start, bytes }
    }
}

/// Writes into one or two areas of the arena. Places are arena offsets.
#[derive(Debug)]
pub(crate) struct Writer<'b> {
    /// The area at the lower offset.
    low: Area<'b>,
    /// The area at the higher offset.
    high: Area<'b>,
    /// See [`Code::tls_fixups`].
    pub tls_fixups: Vec<u32>,
    /// What depends on the place of a library; `None` for a program.
    pub fixups: Option<Fixups>,
}

impl<'b> Writer<'b> {
    /// Returns a writer for the whole arena.
    pub(crate) fn new(bytes: &'b mut [u8], role: Role) -> Writer<'b> {
        let high = Area { start: bytes.len(), bytes: &mut [] };
        Writer { low: Area { start: 0, bytes }, high, tls_fixups: Vec::new(), fixups: fixups(role) }
    }

    /// Returns one writer for each pair of areas. All the first areas, in order, must come before all the
    /// second ones.
    pub(crate) fn apart(
        bytes: &'b mut [u8],
        areas: &[(Range<usize>, Range<usize>)],
        role: Role,
    ) -> Vec<Writer<'b>> {
        let mut rest = Area { start: 0, bytes };
        let low: Vec<Area> = areas.iter().map(|(low, _)| rest.take(low)).collect();
        let both = low.into_iter().zip(areas);
        let writer = |(low, (_, high)): (Area<'b>, &(_, Range<usize>))| Writer {
            low,
            high: rest.take(high),
            tls_fixups: Vec::new(),
            fixups: fixups(role),
        };
        both.map(writer).collect()
    }

    /// Records places that depend on where a library is loaded.
    pub(crate) fn record(&mut self, record: impl FnOnce(&mut Fixups)) {
        if let Some(fixups) = &mut self.fixups {
            record(fixups);
        }
    }

    /// Returns `len` bytes at a place.
    fn at(&mut self, at: usize, len: usize) -> &mut [u8] {
        let area = if at < self.high.start { &mut self.low } else { &mut self.high };
        let from = at - area.start;
        &mut area.bytes[from..from + len]
    }

    /// Writes bytes.
    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        self.at(at, bytes.len()).copy_from_slice(bytes);
    }

    /// Writes a u32.
    pub(crate) fn word(&mut self, at: usize, value: u32) {
        self.put(at, &value.to_le_bytes());
    }

    /// Writes the displacement at `hole`, the last four bytes of a branch to `target`. The distance always fits: no arena
    /// has [`MOST`](crate::emit::place::MOST) bytes or more, and code that an arena does not reach is not hooked
    /// ([`Layout::reaches`](crate::emit::layout::Layout::reaches)).
    pub(crate) fn branch(&mut self, hole: usize, target: usize) {
        self.word(hole, (target as u32).wrapping_sub(hole as u32 + 4));
    }

    /// Writes a `jmp` to `target`.
    pub(crate) fn jump(&mut self, at: usize, target: usize) {
        self.put(at, &[0xe9]);
        self.branch(at + 1, target);
    }

    /// Writes `jmp [rip+...]` through the word of the arena header at offset `word`.
    pub(crate) fn jump_through(&mut self, at: usize, word: usize) {
        self.put(at, &[0xff, 0x25]);
        self.branch(at + 2, word);
    }

    /// Writes `call [rip+...]` through the word of the arena header at offset `word`.
    pub(crate) fn call_through(&mut self, at: usize, word: usize) {
        self.put(at, &[0xff, 0x15]);
        self.branch(at + 2, word);
    }

    /// Writes the code with which the body of a function begins in a plan with measured calls:
    /// `mov dword [rsp-64], number; call [header]`. `word` is the offset in the arena header. If only outer calls are measured,
    /// `prefix` is that of the segment of the thread words, and the code comes after
    /// `cmp rsp, fs:[deep]; ja outer; cmp rsp, fs:[deep_from]; jae inner`.
    pub(crate) fn begin(&mut self, at: usize, number: u32, word: usize, prefix: Option<u8>) {
        let mut at = at;
        if let Some(prefix) = prefix {
            const JA: u8 = 0x77;
            const JAE: u8 = 0x73;
            let words = [offset_of!(ThreadWords, deep), offset_of!(ThreadWords, deep_from)];
            let compare_len = (OUTER_BEGIN_LEN - BEGIN_LEN) as u8 / 2;
            for (word, branch) in words.into_iter().zip([[JA, compare_len], [JAE, BEGIN_LEN as u8]]) {
                self.put(at, &[prefix, 0x48, 0x3b, 0x24, 0x25]);
                self.word(at + 5, word as u32);
                self.tls_fixups.push(at as u32 + 5);
                self.put(at + 9, &branch);
                at += usize::from(compare_len);
            }
        }
        self.put(at, &[0xc7, 0x44, 0x24, (NUMBER_BELOW as u8).wrapping_neg()]);
        self.word(at + 4, number);
        self.record(|fixups| fixups.numbers.to_mut().push(at as u32 + 4));
        self.call_through(at + 8, word);
    }

    /// Writes `mov eax, number; jmp [header]`, the way to a slow path; `number` is that of a function, or the index of a
    /// tail call if `word` is that of the slow path for tail calls. If the thunk uses r10 in place of
    /// r11, the stub first saves r11 and moves the return address there; if the thunk uses r10 in place of
    /// rax, the stub first saves rax. `popped` is whether rsp is the CFA.
    pub(crate) fn stub(&mut self, at: usize, number: u32, word: usize, second: Second, popped: bool) {
        let mut at = at;
        if second == Second::R10 {
            self.put(at, &SAVE_R11[usize::from(!popped)]);
            self.put(at + 5, &R11_FROM_R10);
            at += 8;
        }
        if second == Second::Free {
            self.put(at, &SAVE_RAX[usize::from(!popped)]);
            at += 5;
        }
        self.put(at, &[0xb8]);
        self.word(at + 1, number);
        let is_tail = word == offset_of!(ArenaHeader, tail);
        self.record(|fixups| match is_tail {
            true => fixups.tails.to_mut().push(at as u32 + 1),
            false => fixups.numbers.to_mut().push(at as u32 + 1),
        });
        self.jump_through(at + 5, word);
    }

    /// Writes the way back from the slow path to `resume`, for a thunk that does not restore rax itself.
    pub(crate) fn restore(&mut self, at: usize, resume: usize, popped: bool) {
        self.put(at, &LOAD_RAX[usize::from(!popped)]);
        self.jump(at + 5, resume);
    }

    /// Writes the jumps to the slow path of exits, at [`exits`]: one alone, one after `mov [rsp-24], rax`,
    /// and one after `mov [rsp-16], r11`.
    pub(crate) fn exits(&mut self, [plain, rax, r11]: [usize; 3]) {
        let word = offset_of!(ArenaHeader, exit);
        self.jump_through(plain, word);
        self.put(rax, &[0x48, 0x89, 0x44, 0x24, 0xe8]);
        self.jump_through(rax + 5, word);
        self.put(r11, &SAVE_R11[1]);
        self.jump_through(r11 + 5, word);
    }

    /// Writes a template, with its holes filled.
    pub(crate) fn fill(&mut self, template: &Template, at: usize, values: &Values) {
        self.put(at, &template.bytes);
        for &(hole, kind) in &template.holes {
            let hole = at + hole as usize;
            let place = hole as u32;
            self.record(|fixups| match kind {
                Hole::Slot | Hole::SlotAndSite => fixups.slots.to_mut().push(place),
                Hole::Number => fixups.numbers.to_mut().push(place),
                Hole::Branch(Target::Body) if values.body_in_text => fixups.text.to_mut().push(place),
                _ => {}
            });
            match kind {
                Hole::Tls => self.tls_fixups.push(hole as u32),
                Hole::Slot => {
                    let word: u32 = self.at(hole, 1)[0].into();
                    self.word(hole, word + values.home.offset);
                }
                Hole::SlotAndSite => {
                    self.word(hole, values.home.offset);
                    self.word(hole + 4, values.site);
                }
                Hole::Number => self.word(hole, values.number),
                Hole::Mask => self.word(hole, values.home.mask),
                Hole::NarrowMask => self.put(hole, &[values.home.mask as u8]),
                Hole::Multiplier => self.word(hole, values.home.multiplier),
                Hole::Shift => self.put(hole, &[values.home.shift as u8]),
                Hole::Branch(Target::Miss) => self.branch(hole, values.miss),
                Hole::Branch(Target::Outside) => self.branch(hole, values.outside),
                Hole::Branch(Target::Exit) => self.branch(hole, values.exit),
                Hole::Branch(Target::Body) => self.branch(hole, values.body),
                Hole::Branch(Target::Inner) => self.branch(hole, values.inner),
                Hole::Branch(Target::Resume) => self.branch(hole, values.resume),
                Hole::Header(word) => self.branch(hole, word as usize),
            }
        }
    }
}
