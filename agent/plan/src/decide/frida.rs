//! The functions that Frida's gum can patch safely.
//!
//! `gum_interceptor_replace_fast` needs [`ROOM`] bytes of instructions before a jump or a return. It
//! overwrites them and the rest of the last one by the jump to the thunk and nops. It checks nothing else, so
//! this is refused here:
//!
//! * branches into those bytes, which would land among nops;
//! * calls among them, which would return there;
//! * branches back to the first instruction, which would count as calls;
//! * a jump as the first instruction, which gum takes for a hook of another tool and follows to its target;
//! * functions that the dynamic linker calls before gum is there.
//!
//! The overwritten instructions run in the thunk's body, where the built-in tactics relocate theirs, and not
//! in gum's trampoline: unwinders and samplers know the body, and a call there leaves the right return
//! address.

use crate::decide::start::Start;
use crate::decide::verdict::Reason;
use crate::flow::facts::Flow;
use gprofinject_image::{FunctionKind, Image};
use iced_x86::{Decoder, DecoderOptions, Mnemonic};

/// `GUM_INTERCEPTOR_FULL_REDIRECT_SIZE` of gum's x86 backend: room for a jump to any address. The jump to
/// a thunk, which is within reach, takes only five bytes.
pub(crate) const ROOM: u64 = 16;

/// The bytes that gum would patch.
pub(super) struct Fit {
    /// Address of the patch.
    pub(super) at: u64,
    /// Bytes that it would overwrite.
    pub(super) overwritten: u64,
    /// Whether the last of the overwritten instructions is a call. It can be relocated, but then the
    /// processor's return predictor does not know its return address, so its return is mispredicted.
    pub(super) call: bool,
}

/// Returns the bytes that gum would overwrite.
/// # Errors
/// Gum must not patch the function; the error is the reason.
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
    // A call at the end of these bytes returns to the first byte after them.
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

/// Returns whether the function begins with a jump.
fn begins_with_jump(image: &Image, at: u64) -> bool {
    const LONGEST: u64 = 15;
    let bytes = (1..=LONGEST).rev().find_map(|len| image.code_at(at, len)).unwrap_or_default();
    Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode().mnemonic() == Mnemonic::Jmp
}
