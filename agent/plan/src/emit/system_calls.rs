//! Writes the code that makes a standalone program's system calls through the agent, and the patches that lead there.
//!
//! ```text
//! relocated instructions before the syscall
//! the system call: see [`crate::x86::system_call`]
//! relocated instructions after it
//! jmp  rest of the function
//! ```

use crate::decide::system_calls::Redirected;
use crate::emit::emitter::Emitter;
use crate::x86::jump::JUMP;
use crate::x86::relocate::call::Call;
use crate::x86::relocate::instructions::relocate;
use crate::x86::relocate::relocated::{Relocated, Unmovable};
use crate::x86::system_call;
use gprofinject_abi::plan::ArenaHeader;
use gprofinject_image::Image;
use std::mem::offset_of;

/// Returns the most bytes that the code for a system call takes.
pub(crate) fn room(call: &Redirected) -> usize {
    // Relocation turns an instruction of two bytes into at most nine (jrcxz).
    system_call::MOST + 5 * (call.window.1 - call.window.0) as usize + 2 * JUMP as usize
}

/// The code for a system call.
struct Piece {
    /// Its bytes.
    bytes: Vec<u8>,
    /// The original address of each relocated instruction, and the offset of the code that replaces it.
    map: Vec<(u64, u32)>,
}

/// Writes the code for all system calls, and adds their patches.
pub(crate) fn write(e: &mut Emitter<'_, '_>) {
    let layout = e.layout;
    let word = e.address(offset_of!(ArenaHeader, system_call));
    let mut at = layout.system_calls;
    for call in layout.input.system_calls {
        let piece = piece(layout.input.image, call, e.address(at), word);
        let patch = layout.jump_patch(call.window.0, e.address(at));
        let (Ok(piece), Some(patch)) = (piece, patch) else {
            e.out.unredirected.push(call.at);
            continue;
        };
        e.code.put(at, &piece.bytes);
        e.out.patches.push(patch);
        let later = piece.map.iter().filter(|&&(from, _)| from > call.window.0 && from < call.window.1);
        e.out.moved.extend(later.map(|&(from, to)| (from, 1, at as u32 + to)));
        let hooks = layout.input.hooks;
        let number = call.function.and_then(|i| hooks.binary_search_by_key(&i, |hook| hook.function).ok());
        e.out.owners.push((at as u32, number.map_or(u32::MAX, |number| number as u32)));
        at += room(call);
    }
    if !layout.input.system_calls.is_empty() {
        e.out.owners.push((at as u32, u32::MAX));
        e.out.moved.sort_unstable();
    }
}

/// Makes the code for a system call, for the address `at`. `word` is the address of the word that holds the agent's.
fn piece(image: &Image, call: &Redirected, at: u64, word: u64) -> Result<Piece, Unmovable> {
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
    piece.bytes.extend(system_call::through_agent(to, word, call.is_known)?);
    piece.map.push((call.end, piece.bytes.len() as u32));
    let to = at.wrapping_add(piece.bytes.len() as u64);
    piece.add(call.end, relocated((call.end, call.window.1), to)?);
    Ok(piece)
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
