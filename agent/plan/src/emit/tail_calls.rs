//! Writes the thunks of tail calls: jumps from one hooked function to the start of another.

use crate::decide::tails::Tail;
use crate::decide::verdict::Reason;
use crate::emit::code::{LOAD_RAX, STUB, Values};
use crate::emit::emitter::Emitter;
use crate::emit::homes::Home;
use crate::emit::layout::Input;
use crate::emit::tails::{RESTORE_R11, STUBS};
use crate::x86::jump::near;
use crate::x86::template::Template;
use crate::x86::template::kind::{Kind, Second};
use gprofinject_abi::plan::{ArenaHeader, TailRecord};
use gprofinject_abi::region::Slot;
use std::mem::offset_of;

/// Writes the thunks and stubs of all tail calls.
pub(crate) fn write(e: &mut Emitter<'_, '_>) {
    let Input { role, tails, homes, .. } = e.layout.input;
    // By `Kind::index`, those that fill a cell apart. The template of a kind that no callee has is empty.
    let mut templates = [false, true].map(|_| vec![Template::empty(role); Kind::COUNT]);
    let mut first = 0;
    for (i, tail) in tails.iter().enumerate() {
        if tails[first].callee != tail.callee {
            first = i;
        }
        let slot = homes.of(tail.callee as usize).tails() + (i - first) as u32 * size_of::<Slot>() as u32;
        let kind = e.layout.kinds[tail.callee as usize];
        // How the callee's own thunk begins makes no difference.
        let kind = Kind { skips: false, ends: false, ..kind };
        let template = &mut templates[usize::from(tail.fills)][kind.index()];
        if template.bytes.is_empty() {
            let make = if tail.fills { Template::filling_tail } else { Template::tail };
            *template = make(kind, role);
        }
        write_one(e, i, tail, kind, template, Home { offset: slot, ..Home::default() });
    }
}

/// Writes the thunk and the stubs of one tail call. `home` has the tail call's own slot.
fn write_one(
    e: &mut Emitter<'_, '_>,
    index: usize,
    tail: &Tail,
    kind: Kind,
    template: &Template,
    home: Home,
) {
    let callee = e.out.records[tail.callee as usize];
    let thunk = e.thunks[tail.callee as usize];
    let layout = e.layout;
    let checks = layout.checks(tail.callee as usize);
    let at = layout.tails.thunk(index);
    let miss = layout.tails.stubs + index * STUBS;
    let outside = miss + STUB;
    let values = Values {
        home,
        number: tail.callee,
        site: tail.branch.site as u32,
        miss,
        outside,
        exit: outside,
        resume: thunk + checks + layout.templates[layout.kinds[tail.callee as usize].index()].resume as usize,
        body: callee.body as usize,
        inner: 0,
        body_in_text: false,
    };
    let code = &mut e.code;
    code.fill(template, at, &values);
    code.stub(miss, index as u32, offset_of!(ArenaHeader, tail), kind.second, false);
    // This path continues as if the jump had not been redirected.
    let mut jump = outside;
    if kind.second != Second::Free {
        code.put(jump, &LOAD_RAX[1]);
        jump += LOAD_RAX[1].len();
    }
    if kind.second == Second::Kept {
        code.put(jump, &RESTORE_R11);
        jump += RESTORE_R11.len();
    }
    code.jump(jump, thunk);
    e.out.tails.push(TailRecord {
        site: tail.branch.site,
        slot: home.offset,
        callee: tail.callee,
        again: at as u32,
        // The callee's thunk would not know the function that jumped.
        thunk: if tail.has_cell { thunk as u32 } else { callee.body },
        stub: miss as u32,
        fills: if tail.fills { at as u32 + template.popped } else { 0 },
        caller: tail.caller,
        reserved: 0,
    });
    if !tail.relocated && !layout.is_copied(tail.branch.function as usize) {
        match near(tail.branch.end(), e.address(at)) {
            Some(bytes) => e.out.patches.extend(layout.arena_patch(tail.branch.end() - 4, &bytes, 0)),
            None => {
                let caller = layout.input.hooks[tail.caller as usize].function;
                e.out.failed.push((caller, Reason::Far));
            }
        }
    }
}
