//! The code that makes one system call of a standalone program through the agent.
//!
//! ```text
//! relocated instructions before the syscall
//! the system call: see [`crate::x86::system_call`]
//! relocated instructions after it
//! jmp  rest of the function
//! ```

use crate::decide::system_calls::{Purpose, Redirected};
use crate::x86::jump::JUMP;
use crate::x86::relocate::call::Call;
use crate::x86::relocate::instructions::relocate;
use crate::x86::relocate::relocated::{Relocated, Unmovable};
use crate::x86::system_call;
use gprofinject_image::Image;
use iced_x86::{Code, Encoder, IcedError, Instruction, MemoryOperand, Register};

/// Returns the most bytes that the code for a system call takes.
pub(crate) fn room(call: &Redirected) -> usize {
    // Relocation turns an instruction of two bytes into at most nine (jrcxz).
    system_call::MOST + 5 * (call.window.1 - call.window.0) as usize + 2 * JUMP as usize
}

/// The code for a system call.
pub(crate) struct Piece {
    /// Its bytes.
    pub(crate) bytes: Vec<u8>,
    /// The original address of each relocated instruction, and the offset of the code that replaces it.
    pub(crate) map: Vec<(u64, u32)>,
}

/// Makes the code for a system call, for the address `at`. `word` is the address of the word that holds the agent's.
pub(crate) fn piece(image: &Image, call: &Redirected, at: u64, word: u64) -> Result<Piece, Unmovable> {
    let relocated = |(lo, hi): (u64, u64), to: u64| -> Result<Relocated, Unmovable> {
        let code = image.code_at(lo, hi - lo).ok_or(Unmovable("no code"))?;
        relocate(code, lo, to, lo, Call::Emulated, &|_| None)
    };
    let mut piece = Piece { bytes: Vec::new(), map: Vec::new() };
    if call.window.0 < call.at {
        let before = relocated((call.window.0, call.at), at)?;
        piece.add(call.window.0, before);
        // What follows takes the place of the jump to the rest.
        piece.bytes.truncate(piece.bytes.len() - JUMP as usize);
    }
    piece.map.push((call.at, piece.bytes.len() as u32));
    let to = at.wrapping_add(piece.bytes.len() as u64);
    piece.bytes.extend(match call.purpose {
        Purpose::SystemCall { is_known } => system_call::through_agent(to, word, is_known)?,
        Purpose::Resume => resume(to, word)?,
    });
    piece.map.push((call.end, piece.bytes.len() as u32));
    let to = at.wrapping_add(piece.bytes.len() as u64);
    piece.add(call.end, relocated((call.end, call.window.1), to)?);
    Ok(piece)
}

/// Returns the code that lets the agent replace the address at which a preempted goroutine continues, for the address `at`.
/// The function has saved its caller's rbp and then every register, and restores them after this code.
///
/// ```text
/// lea   rdi, [rbp+8]
/// call  [resume]
/// ```
fn resume(at: u64, word: u64) -> Result<Vec<u8>, IcedError> {
    let return_slot = MemoryOperand::with_base_displ(Register::RBP, 8);
    let gate = MemoryOperand::with_base_displ(Register::RIP, word as i64);
    let lea = Instruction::with2(Code::Lea_r64_m, Register::RDI, return_slot)?;
    let call = Instruction::with1(Code::Call_rm64, gate)?;
    let mut encoder = Encoder::new(64);
    let len = encoder.encode(&lea, at)?;
    encoder.encode(&call, at.wrapping_add(len as u64))?;
    Ok(encoder.take_buffer())
}

impl Piece {
    /// Adds relocated instructions, whose original address was `from`.
    fn add(&mut self, from: u64, relocated: Relocated) {
        let start = self.bytes.len() as u32;
        let later = relocated.map.iter().filter(|&&(original, _)| original > 0);
        self.map.extend(later.map(|&(original, offset)| (from + u64::from(original), start + offset)));
        self.bytes.extend(relocated.bytes);
    }
}
