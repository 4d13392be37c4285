//! The frames of the agent's own code, by the unwind tables that the compiler and the assembler have made for it.
//!
//! Only the CFA and rbp are followed, which is sufficient to get from a function to its caller. All of this is integer
//! code; see [`crate::hot::gate`].
#![allow(unsafe_code, reason = "the agent's own unwind tables and frames are read")]

use crate::os::frame_table;
use crate::os::own_image;

/// The numbers of rbp and rsp in unwind tables.
const RBP: u64 = 6;
const RSP: u64 = 7;

/// The registers of a frame that lead to its caller.
pub(crate) struct Frame {
    /// The next instruction.
    pub(crate) pc: u64,
    pub(crate) sp: u64,
    pub(crate) base: u64,
}

/// Returns whether an address lies in the agent's own library.
pub(crate) fn is_own(address: u64) -> bool {
    address >= own_image::start() && address < own_image::end()
}

/// Returns the CFA of a frame of the agent's code, and makes the frame that of its caller. `is_suspended` is whether the
/// frame is suspended in a call, as all frames except the newest are. Returns `None` if nothing describes the frame.
pub(crate) fn leave(frame: &mut Frame, is_suspended: bool) -> Option<u64> {
    let pc = frame.pc - u64::from(is_suspended);
    let rule = Rule::at(description_of(pc)?, pc)?;
    let register = match rule.register {
        RBP => frame.base,
        RSP => frame.sp,
        _ => return None,
    };
    let cfa = register.wrapping_add(rule.offset);
    // SAFETY: the words are in a frame of the calling thread that has not returned: the tables say so.
    unsafe {
        if rule.base != 0 {
            frame.base = *(cfa.wrapping_add(rule.base) as *const u64);
        }
        frame.pc = *((cfa - 8) as *const u64);
    }
    frame.sp = cfa;
    Some(cfa)
}

/// Returns the address of the description (FDE) that covers an address.
fn description_of(pc: u64) -> Option<u64> {
    let table = own_image::unwind_tables()?;
    // SAFETY: the linker has made the table, which is mapped with the library.
    unsafe { frame_table::find(table, pc) }.map(|(_, description)| description)
}

/// Reads a description.
struct Reader {
    at: u64,
}

impl Reader {
    fn byte(&mut self) -> u64 {
        // SAFETY: the bytes are those of the agent's own unwind tables, which are well-formed.
        let byte = unsafe { *(self.at as *const u8) };
        self.at += 1;
        byte.into()
    }

    fn bytes(&mut self, count: u64) -> u64 {
        let mut value = 0;
        let mut read = 0;
        while read < count {
            value |= self.byte() << ((8 * read) & 63);
            read += 1;
        }
        value
    }

    fn uleb(&mut self) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = self.byte();
            value |= (byte & 0x7f) << (shift & 63);
            shift += 7;
            if byte & 0x80 == 0 {
                return value;
            }
        }
    }
}

/// Where a frame's CFA and its caller's rbp are.
struct Rule {
    /// The register to which `offset` is added.
    register: u64,
    offset: u64,
    /// The offset from the CFA of the caller's rbp, or 0 if rbp still has that value.
    base: u64,
}

impl Rule {
    /// Returns the rule of a description for an address, or `None` if the description does not cover it, or has an
    /// instruction that neither the compiler nor our assembly uses.
    fn at(description: u64, pc: u64) -> Option<Rule> {
        let mut fde = Reader { at: description };
        let end = fde.bytes(4) + description + 4;
        let to_cie = fde.at - fde.bytes(4);
        // The linker's table, and so the compiler's, has addresses relative to their own places, in four bytes.
        let start = fde.at.wrapping_add(fde.bytes(4) as i32 as u64);
        if pc < start || pc - start >= fde.bytes(4) {
            return None;
        }
        fde.at += fde.uleb();
        let mut cie = Reader { at: to_cie };
        let cie_end = cie.bytes(4) + to_cie + 4;
        // The identifier and the version.
        cie.at += 5;
        let has_size = cie.byte() == u64::from(b'z');
        while has_size && cie.byte() != 0 {}
        let (code, data) = (cie.uleb(), cie.uleb());
        // Data is aligned to -8, which one byte represents.
        if !has_size || code != 1 || data != 0x78 {
            return None;
        }
        cie.byte();
        cie.at += cie.uleb();
        let mut rule = Rule { register: RSP, offset: 8, base: 0 };
        rule.run(cie, cie_end, u64::MAX)?;
        rule.run(fde, end, pc - start)?;
        Some(rule)
    }

    /// Executes instructions as far as the code's offset `upto`.
    fn run(&mut self, mut code: Reader, end: u64, upto: u64) -> Option<()> {
        let mut place = 0;
        let (mut register, mut offset, mut base) = (0, 0, 0);
        while code.at < end {
            let operation = code.byte();
            let operand = operation & 0x3f;
            // Numbers by if instead of `match`, whose table of jumps would be data to relocate.
            if operation >> 6 == 1 {
                place += operand;
            } else if operation >> 6 == 2 {
                self.saved(operand, code.uleb());
            } else if operation >> 6 == 3 {
                self.saved(operand, 0);
            } else if operation == 0 {
            } else if (2..=4).contains(&operation) {
                place += code.bytes(1 << (operation - 2));
            } else if operation == 5 {
                let number = code.uleb();
                self.saved(number, code.uleb());
            } else if operation == 6 || operation == 7 || operation == 8 {
                self.saved(code.uleb(), 0);
            } else if operation == 0xa {
                (register, offset, base) = (self.register, self.offset, self.base);
            } else if operation == 0xb {
                (self.register, self.offset, self.base) = (register, offset, base);
            } else if operation == 0xc {
                self.register = code.uleb();
                self.offset = code.uleb();
            } else if operation == 0xd {
                self.register = code.uleb();
            } else if operation == 0xe {
                self.offset = code.uleb();
            } else if operation == 0x2e {
                code.uleb();
            } else {
                return None;
            }
            if place > upto {
                break;
            }
        }
        Some(())
    }

    /// Notes that a register is saved `words` words below the CFA, or that it has its caller's value.
    fn saved(&mut self, register: u64, words: u64) {
        if register == RBP {
            self.base = (8 * words).wrapping_neg();
        }
    }
}
