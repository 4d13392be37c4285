//! Writes the code of all system calls that lead to the agent, and the patches that lead there.

use crate::decide::system_calls::Purpose;
use crate::emit::emitted::{Moved, NO_OWNER};
use crate::emit::emitter::Emitter;
use crate::emit::system_call::{self, room};
use crate::emit::to_text::{SHIFT, displacements};
use gprofinject_abi::plan::{ArenaHeader, Patch, Stay};
use std::mem::offset_of;

/// Writes the code for all system calls, and adds their patches.
pub(crate) fn write(e: &mut Emitter<'_, '_>) {
    let layout = e.layout;
    let mut at = layout.system_calls;
    for call in layout.input.system_calls {
        let word = e.address(match call.purpose {
            Purpose::SystemCall { .. } => offset_of!(ArenaHeader, system_call),
            Purpose::Resume => offset_of!(ArenaHeader, resume),
        });
        let piece = system_call::piece(layout.input.image, call, e.address(at), word);
        let patch = layout.jump_patch(call.window.0, e.address(at));
        let (Ok(piece), Some(patch)) = (piece, patch) else {
            if call.purpose != Purpose::Resume {
                e.out.unredirected.push(call.at);
            }
            continue;
        };
        if layout.input.role.is_library() {
            let [there, word] = [e.address(at), word].map(|address| address.wrapping_add(SHIFT));
            let again = system_call::piece(layout.input.image, call, there, word);
            let Some(found) = again.ok().and_then(|again| displacements(&piece.bytes, &again.bytes)) else {
                e.out.unredirected.push(call.at);
                continue;
            };
            e.code
                .record(|fixups| fixups.text.to_mut().extend(found.iter().map(|offset| at as u32 + offset)));
        }
        e.out.resumes |= call.purpose == Purpose::Resume;
        e.code.put(at, &piece.bytes);
        e.out.patches.push(Patch { stays: Stay::SystemCall.code(), ..patch });
        // The instruction after the call has its copy even if it is the first one that stays where it is: a thread that
        // waits in the call continues there, and the kernel may repeat the call that is directly before.
        let is_moved = |from: u64| from > call.window.0 && (from < call.window.1 || from == call.end);
        let later = piece.map.iter().filter(|&&(from, _)| is_moved(from));
        e.out.moved.extend(later.map(|&(from, to)| Moved { from, len: 1, to: at as u32 + to }));
        // The system call itself is the program's, and the kernel's time in it is that of the function.
        e.out.owners.push([at as u32, call.function.map_or(NO_OWNER, |function| function as u32)]);
        at += room(call);
    }
    if !layout.input.system_calls.is_empty() {
        e.out.owners.push([at as u32, NO_OWNER]);
        e.out.moved.sort_unstable();
    }
}
