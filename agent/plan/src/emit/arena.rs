//! Writes the arena and the patches, in order.
//!
//! ```text
//! arena:  ArenaHeader | jump to the exits' slow path | unwind tables | ends of sleds
//!         | thunks, in the functions' order | stubs to the slow paths | thunks of tail calls | system calls
//!         | unwind table of the bodies
//!         | copies of counted functions | their unwind tables
//! ```
//!
//! The thunks of neighbouring functions are next to each other; code that rarely runs is apart from them.

use crate::decide::verdict::Reason;
use crate::emit::code::Writer;
use crate::emit::emitted::Emitted;
use crate::emit::emitter::Emitter;
use crate::emit::layout::{Input, Layout};
use crate::emit::part::PartEmitter;
use crate::emit::place::MOST;
use crate::emit::{copies, shortcuts, system_calls, tail_calls};
use crate::parallel;

/// Writes the arena, and the patches of the program that lead there. The result lists the functions that
/// could not be emitted: all of them, if the arena would be so large that code in it is out of reach.
pub(crate) fn emit(input: Input<'_, '_>) -> Emitted {
    let layout = Layout::new(input);
    if layout.len as u64 >= MOST {
        let failed = input.hooks.iter().map(|hook| (hook.function, Reason::Far)).collect();
        return Emitted { failed, ..Emitted::default() };
    }
    // The kernel zeroes these pages when they are first written to.
    let mut bytes = vec![0; layout.len];
    let areas: Vec<_> =
        layout.parts.iter().map(|(numbers, room)| (room.clone(), layout.stubs_of(numbers))).collect();
    let writers = Writer::apart(&mut bytes, &areas, layout.input.role);
    let parts =
        parallel::each(writers.into_iter().zip(&layout.parts).collect(), |(code, (numbers, room))| {
            PartEmitter::emit(&layout, code, numbers.clone(), room.start)
        });
    let mut e = Emitter::new(&layout, Writer::new(&mut bytes, layout.input.role), parts);
    e.fixed();
    e.gate_jumps();
    tail_calls::write(&mut e);
    shortcuts::write(&mut e);
    system_calls::write(&mut e);
    copies::write(&mut e);
    let (mut out, len) = e.finish();
    // Usually the code is shorter than the room that was reserved for it.
    bytes.truncate(len);
    out.code.bytes = bytes;
    out
}
