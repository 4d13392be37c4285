//! The kind of each hooked function's thunk, and the room that the thunk needs.

use crate::decide::hook::Hook;
use crate::decide::thunk_spec::ThunkSpec;
use crate::decide::uncalled::Uncalled;
use crate::emit::homes::Home;
use crate::x86::jump::JUMP;
use crate::x86::scratch::{R10, R11};
use crate::x86::template::kind::{Kind, Second};
use crate::x86::template::{LINE, Template};

/// Bytes of `cmp dword [rsp], label; je body`.
pub(crate) const CHECK: usize = 13;

/// Returns the kind of the thunk.
pub(crate) fn kind(spec: ThunkSpec, home: Home) -> Kind {
    Kind {
        both: spec.both,
        callbacks: spec.callbacks,
        skips: spec.skips,
        ends: spec.both && (spec.told.ends || spec.told.results),
        hashed: home.mask != 0,
        masked: home.mask != 0 && home.is_masked(),
        narrow: home.mask != 0 && i8::try_from(home.mask).is_ok(),
        keep_rax: !spec.registers.rax_dead,
        second: match spec.registers.dead_on_entry() {
            0 => Second::Kept,
            R10 => Second::R10,
            R11 => Second::R11,
            _ if spec.registers.rax_dead => Second::R11,
            _ => Second::Free,
        },
        dead_on_exit: if spec.has_exit() { spec.registers.dead_on_exit() } else { 0 },
    }
}

/// The checks for calls from inside of the module ([`Template::inside`]), if calls from outside alone are counted.
pub(crate) struct Inside {
    /// By [`Second`], and that of a function that control may enter from within.
    templates: [Template; Second::ALL.len() + 1],
}

impl Inside {
    /// Makes the templates.
    pub(crate) fn new() -> Inside {
        let [kept, r11, r10, free] = Second::ALL.map(|second| Template::inside(second, false));
        Inside { templates: [kept, r11, r10, free, Template::inside(Second::Kept, true)] }
    }

    /// Returns the check of a function.
    pub(crate) fn of(&self, spec: ThunkSpec, second: Second) -> &Template {
        &self.templates[if spec.entered_within { Second::ALL.len() } else { second as usize }]
    }
}

/// Returns the number of bytes of the checks with which the thunk of the function with a number begins. `inside` is the last of them.
pub(crate) fn checks(uncalled: &Uncalled, number: usize, inside: Option<&Template>) -> usize {
    uncalled.by(number).len() * CHECK + inside.map_or(0, |inside| inside.bytes.len())
}

/// Returns the maximum number of bytes that the function's thunk takes in addition to its checks and its template.
pub(crate) fn room(spec: ThunkSpec, hook: &Hook) -> usize {
    let relocated = hook.relocated as usize;
    // Relocation turns an instruction of two bytes into at most nine (jrcxz), and a call into at most
    // fifty.
    LINE + if spec.movable { relocated + JUMP as usize } else { relocated * 5 + 64 }
}
