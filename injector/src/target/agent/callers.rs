//! The callers of a stopped thread, found by the unwind tables of what the process has mapped. They are
//! looked up only if a word on the thread's stack would otherwise prevent the injector from leaving.

use std::collections::HashMap;

use gprofinject_image::frames::caller::{Mapped, Tables};
use libc::user_regs_struct;

use crate::os::proc::Mapping;
use crate::os::signal_frame;
use crate::target::agent::foreign_file;
use crate::target::agent::stacks;
use crate::target::threads::deadline;
use crate::target::threads::memory::Memory;

/// The number of frames after which the search gives up.
const MOST: usize = 50_000;
/// The registers that calls preserve, by their DWARF numbers, each with its word in a signal handler's frame.
const PRESERVED: [(u16, u64); 6] = [
    (3, signal_frame::RBX),
    (6, signal_frame::RBP),
    (12, signal_frame::R12),
    (13, signal_frame::R13),
    (14, signal_frame::R14),
    (15, signal_frame::R15),
];

/// The registers that calls preserve, by their DWARF numbers.
#[derive(Clone, Copy)]
struct Frame {
    registers: [Option<u64>; 16],
    pc: u64,
    /// Whether `pc` is the next instruction, and not a return address.
    exact: bool,
}

/// The mapped files, by the address of their code. Each is read once; the value is `None` if the file cannot
/// be read.
#[derive(Default)]
pub(crate) struct Files(HashMap<u64, Option<Tables>>);

/// The unwinder of one stopped process.
pub(crate) struct Callers<'a> {
    pub(crate) memory: &'a Memory,
    pub(crate) pid: i32,
    pub(crate) mappings: &'a [Mapping],
    pub(crate) files: &'a mut Files,
}

impl Files {
    /// Reads all files from which executable code is mapped, before the threads are stopped.
    pub(crate) fn load(&mut self, pid: i32, mappings: &[Mapping]) {
        let mapped = mappings.iter().filter(|mapping| mapping.executable && mapping.path.starts_with('/'));
        for mapping in mapped.take_while(|_| !deadline::has_passed()) {
            self.0.entry(mapping.lo).or_insert_with(|| tables(pid, mapping));
        }
    }
}

impl Callers<'_> {
    /// Whether `ours` holds for the instruction at which the thread continues now, or for one to which it
    /// returns later. Returns `None` if the callers cannot be determined. `replaced` returns the true return
    /// address of a frame, given its CFA and the content of its return slot.
    pub(crate) fn any(
        &mut self,
        now: &user_regs_struct,
        ours: impl Fn(u64) -> bool,
        replaced: impl Fn(u64, u64) -> Option<u64>,
    ) -> Option<bool> {
        let mut frame = Frame { registers: [None; 16], pc: now.rip, exact: true };
        let known = [(3, now.rbx), (6, now.rbp), (7, now.rsp), (12, now.r12), (13, now.r13), (14, now.r14)];
        for (register, value) in known.into_iter().chain([(15, now.r15), (0, now.rax), (10, now.r10)]) {
            frame.registers[register] = Some(value);
        }
        for _ in 0..MOST {
            if deadline::has_passed() {
                return None;
            }
            if ours(frame.pc) {
                return Some(true);
            }
            let rsp = frame.registers[7]?;
            if stacks::is_restorer(self.memory, frame.pc) {
                let word = |n: u64| self.memory.word(rsp + signal_frame::offset(n)).ok();
                frame.registers = [None; 16];
                for (register, n) in PRESERVED {
                    frame.registers[usize::from(register)] = word(n);
                }
                frame.registers[7] = word(signal_frame::RSP);
                frame = Frame { pc: word(signal_frame::RIP)?, exact: true, ..frame };
                continue;
            }
            let Some(caller) = self.caller(&frame)? else { return Some(false) };
            let cfa = caller.registers[7]?;
            frame = caller;
            frame.pc = replaced(cfa, frame.pc).unwrap_or(frame.pc);
            if frame.pc == 0 {
                return Some(false);
            }
        }
        None
    }

    /// Returns the frame's caller. `Some(None)` means that the frame has no caller, and `None` that it cannot
    /// be determined.
    fn caller(&mut self, frame: &Frame) -> Option<Option<Frame>> {
        let at = frame.pc - u64::from(!frame.exact);
        let mapping = self.mappings.iter().find(|mapping| (mapping.lo..mapping.hi).contains(&at))?;
        let pid = self.pid;
        let file = self.files.0.entry(mapping.lo).or_insert_with(|| tables(pid, mapping)).as_ref()?;
        let caller = file.caller(&frame.registers, at, |address| self.memory.word(address).ok())?;
        Some(caller.map(|caller| Frame { registers: caller.values, pc: caller.pc, exact: false }))
    }
}

/// Returns the unwind tables of the file that is mapped there, if it can be read.
fn tables(pid: i32, mapping: &Mapping) -> Option<Tables> {
    let bytes = foreign_file::mapped(pid, mapping)?;
    Tables::read(&bytes, Mapped { lo: mapping.lo, hi: mapping.hi, offset: mapping.offset })
}
