//! What Frida's gum can patch without harm.
//!
//! `gum_interceptor_replace_fast` asks for [`ROOM`] bytes of instructions before a jump or a return, and
//! overwrites them and the rest of the last one: the jump to the thunk, then nops. It looks at nothing else.
//! So what it does not see is refused here: branches into those bytes, which would land among nops; calls
//! among them, which would return there; branches back to the first instruction, which would be calls from
//! then on; and a jump as the first instruction, which gum takes for somebody else's hook and follows to its
//! target. And so are functions that the dynamic linker calls before gum is there.
//!
//! The instructions run in the thunk's body, where the built-in tactics relocate theirs to, and not in the
//! trampoline that gum makes of them: unwinders and samplers know the body, and a call there leaves
//! the return address that it should.

use crate::decide::start::Start;
use crate::decide::verdict::Reason;
use crate::flow::facts::Flow;
use gprofinject_image::{FunctionKind, Image};
use iced_x86::{Decoder, DecoderOptions, Mnemonic};

/// GUM_INTERCEPTOR_FULL_REDIRECT_SIZE of gum's x86 backend: room for a jump to any address, although ours, to a
/// thunk within reach, takes five.
pub(crate) const ROOM: u64 = 16;

/// Where gum would patch.
pub(super) struct Fit {
    pub(super) at: u64,
    /// How many bytes it would overwrite.
    pub(super) overwritten: u64,
    /// The last instruction there is a call. It can run elsewhere, but its return is then one that no call has announced
    /// to the processor, which goes on in the wrong place first.
    pub(super) call: bool,
}

pub(super) fn fit(image: &Image, flow: &Flow, function: usize) -> Result<Fit, Reason> {
    if image.functions[function].kind == FunctionKind::IfuncResolver {
        return Err(Reason::FridaEarly);
    }
    let start = Start::of(image, flow, function).ok_or(Reason::NoCode)?;
    if start.steps.is_empty() {
        return Err(Reason::NotDecodable);
    }
    if begins_with_jump(image, start.hook) {
        return Err(Reason::FridaJump);
    }
    let (mut overwritten, mut call) = (0, false);
    for step in start.steps.iter().take_while(|step| step.offset < ROOM) {
        (overwritten, call) = (step.end, step.call);
        if step.end < ROOM && step.call {
            return Err(Reason::FridaCall);
        }
        if step.end < ROOM && !step.falls_through {
            return Err(Reason::FridaRoom);
        }
    }
    if overwritten < ROOM {
        return Err(Reason::FridaRoom);
    }
    // A call that ends there returns behind them.
    if start.fixed.iter().any(|&target| target < overwritten) {
        return Err(Reason::FridaEntered);
    }
    for (target, branch) in &start.soft {
        let relocated = branch.site >= start.hook && branch.end() <= start.hook + overwritten;
        match target {
            _ if *target >= overwritten || relocated && start.is_boundary(*target) => {}
            0 => return Err(Reason::FridaLoop),
            _ => return Err(Reason::FridaEntered),
        }
    }
    Ok(Fit { at: start.hook, overwritten, call })
}

fn begins_with_jump(image: &Image, at: u64) -> bool {
    const LONGEST: u64 = 15;
    let bytes = (1..=LONGEST).rev().find_map(|len| image.code_at(at, len)).unwrap_or_default();
    Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode().mnemonic() == Mnemonic::Jmp
}
