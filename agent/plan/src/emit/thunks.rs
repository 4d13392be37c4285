//! Writes the thunks of functions, and the stubs that lead from them to the slow paths.

use crate::emit::code::{STUB, Values, Writer};
use crate::emit::homes::Home;
use crate::emit::layout::{Layout, SECOND_LOOK, STUBS};
use crate::x86::template::kind::{Kind, Second};
use gprofinject_abi::plan::{ArenaHeader, CALLBACK_STUB};
use std::mem::offset_of;

/// A function's thunk: where it is, and where it leads. Places are arena offsets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thunk {
    /// The function's number.
    pub(crate) number: u32,
    /// The kind of the thunk, which determines its template.
    pub(crate) kind: Kind,
    /// The function's home slots.
    pub(crate) home: Home,
    /// The first byte of the template's code, which follows the thunk's checks.
    pub(crate) at: usize,
    /// Where the function itself runs: its body, or the code after that if the body is empty.
    pub(crate) body: usize,
    /// Whether `body` is not in the arena but in the module's text.
    pub(crate) is_body_in_text: bool,
    /// Where a call continues that is deeper than calls are measured: in the body.
    pub(crate) inner: usize,
}

impl Thunk {
    /// Writes the thunk, but for its checks, and its stubs.
    pub(crate) fn write(&self, code: &mut Writer<'_>, layout: &Layout<'_, '_>) {
        let Thunk { number, kind, home, at, body, is_body_in_text: body_in_text, inner } = *self;
        let template = &layout.templates[kind.index()];
        let look = layout.stubs + number as usize * STUBS;
        let (miss, outside) = (look + SECOND_LOOK, look + SECOND_LOOK + STUB);
        let first = if kind.hashed { look } else { miss };
        let (site, exit) = (0, layout.exits[kind.exit_way() as usize]);
        let values =
            Values { home, number, site, miss: first, outside, exit, body, body_in_text, inner, resume: 0 };
        code.fill(template, at, &values);
        if kind.hashed {
            // The arc may be counted one slot after its home. If it is not, control runs on into the stub
            // that follows.
            let again = at + template.again as usize;
            let second_look = &layout.second_looks[kind.second as usize];
            code.fill(second_look, look, &Values { home, body: again, ..Values::default() });
        }
        let (word, popped) = match kind.has_exit() {
            true => (offset_of!(ArenaHeader, miss), true),
            false => (offset_of!(ArenaHeader, miss_entry), false),
        };
        let mut stub = miss;
        if kind.callbacks {
            code.put(stub, &POP);
            stub += POP.len();
        }
        code.stub(stub, number, word, kind.second, popped);
        code.stub(outside, number, offset_of!(ArenaHeader, window), kind.second, popped);
        if kind.second == Second::Free {
            code.restore(outside + STUB, at + template.resume as usize, popped);
        }
    }
}

/// `lea rsp, [rsp+8]`.
const POP: [u8; 5] = [0x48, 0x8d, 0x64, 0x24, 8];
const _: () = assert!(SECOND_LOOK + POP.len() == CALLBACK_STUB as usize);
