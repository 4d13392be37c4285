//! One step up a stack: by the unwind tables of the file with the code, or by what the kernel has put there for a signal handler.

use std::collections::HashMap;

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64};
use framehop::{FrameAddress, Unwinder};

use crate::os::signal_frame;
use crate::profile::stacks::Tree;
use crate::profile::totals::Seed;
use crate::profile::unwound::code::{Code, Codes, Return};
use crate::sampling::stacks::Stack;

/// A cache of the unwinder has room for a few hundred places of code. Each is used for code of so many bits of addresses.
const CACHED_BITS: u32 = 18;

/// Where a frame leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Above {
    /// It returns to this address.
    Returns(u64),
    /// The stack ends with it.
    End,
    /// Its return address is above the part of the stack that was copied.
    Cut,
    Unknown,
}

/// The code of a process, and how its frames are unwound.
pub(super) struct Frames<'p> {
    pub(super) codes: Codes<'p>,
    /// What was found out about code, by a part of its address.
    caches: HashMap<u64, Box<CacheX86_64>, Seed>,
    /// The number of frames that may still be tried for the stack.
    pub(super) tries: u64,
}

impl<'p> Frames<'p> {
    pub(super) fn new(codes: Codes<'p>) -> Frames<'p> {
        Frames { codes, caches: HashMap::default(), tries: 0 }
    }

    /// Goes on to the caller's frame.
    pub(super) fn step(
        &mut self,
        address: FrameAddress,
        registers: &mut UnwindRegsX86_64,
        stack: &Stack,
        code: Code,
    ) -> Above {
        let sp = registers.sp();
        let (mut reads, mut is_cut) = (0, false);
        let mut read = |address| {
            reads += 1;
            let word = stack.word(address);
            is_cut |= word.is_none() && stack.is_above(address);
            word.ok_or(())
        };
        let cache = self.caches.entry(address.address() >> CACHED_BITS).or_default();
        let unwound = self.codes.unwinder().unwind_frame(address, registers, cache, &mut read);
        match unwound {
            // Without tables, this is a guess by the frame pointer.
            Ok(Some(word)) if code.has_tables || registers.sp() > sp => Above::Returns(word),
            Err(_) if is_cut && code.has_tables => Above::Cut,
            Ok(Some(_)) | Err(_) => Above::Unknown,
            // Where a stack ends, the tables say so, or the frame pointer of files without tables. A return address of 0 is one that was
            // not found.
            Ok(None) => {
                let is_file = code.frame.is_some() && matches!(address, FrameAddress::ReturnAddress(_));
                if reads == 0 && (code.has_tables || is_file) { Above::End } else { Above::Unknown }
            }
        }
    }

    /// Whether a call has left this word.
    pub(super) fn is_returned(&mut self, word: u64, tree: &mut Tree) -> bool {
        match self.codes.returned(word, tree) {
            Return::Code(code) => code.follows_call,
            Return::Label(_) | Return::Interned => true,
            Return::Unknown => false,
        }
    }
}

/// Goes on from a signal handler's frame to what the signal has interrupted, and returns the program counter. Returns `None` if there is
/// no such frame at the stack pointer.
pub(super) fn interrupted(registers: &mut UnwindRegsX86_64, stack: &Stack) -> Option<u64> {
    let at = |word: u64| stack.word(registers.sp().checked_add(signal_frame::offset(word))?);
    let (bp, sp) = (at(signal_frame::RBP)?, at(signal_frame::RSP)?);
    let (pc, state) = (at(signal_frame::RIP)?, at(signal_frame::STATE)?);
    if pc == 0 || state <= registers.sp() || state >= sp {
        return None;
    }
    *registers = UnwindRegsX86_64::new(pc, sp, bp);
    Some(pc)
}
