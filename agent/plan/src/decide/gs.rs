//! Whether a program uses the register gs, by which the agent reaches the words of a thread in a standalone program. Then nothing can be
//! hooked in it.
//!
//! It does if an instruction of a function uses gs, or if it seems to have the kernel set the base of gs, by `arch_prctl(ARCH_SET_GS)`. Code
//! that is made at run time may use gs then, as that of emulators does.

use crate::flow::branch::BranchKind;
use crate::flow::facts::Flow;
use crate::flow::system_calls::SystemCall;
use gprofinject_image::Image;

/// The number of the system call arch_prctl.
const ARCH_PRCTL: u32 = 158;
/// mov edi, ARCH_SET_GS
const OPERATION: [u8; 5] = [0xbf, 0x01, 0x10, 0, 0];
/// mov esi, ARCH_SET_GS
const SECOND: [u8; 5] = [0xbe, 0x01, 0x10, 0, 0];
/// mov edi, 158
const NUMBER: [u8; 5] = [0xbf, 0x9e, 0, 0, 0];
/// The arguments of a call are loaded within this many bytes before it.
const BEFORE: u64 = 40;

/// Returns the address of an instruction by which the program uses gs, or `None` if it does not seem to. `calls` are all of its
/// system calls.
pub(crate) fn use_of(image: &Image, flow: &Flow, calls: &[SystemCall]) -> Option<u64> {
    if flow.uses_gs.is_some() {
        return flow.uses_gs;
    }
    let has = |at: u64, wanted: &[u8; 5]| {
        let from = at.saturating_sub(BEFORE);
        let bytes = (from..at).find_map(|from| image.code_at(from, at - from)).unwrap_or_default();
        bytes.windows(wanted.len()).any(|code| code == wanted)
    };
    let sets = |at: u64, number: Option<u32>| match number {
        Some(ARCH_PRCTL) => has(at, &OPERATION),
        Some(_) => false,
        // The C library's syscall(), whose first argument is the number.
        None => has(at, &NUMBER) && has(at, &SECOND),
    };
    calls.iter().filter(|call| matches!(call.number, None | Some(ARCH_PRCTL))).find_map(|call| {
        if sets(call.at, call.number) {
            return Some(call.at);
        }
        let start = image.functions[call.function?].address;
        let callers =
            flow.branches_to(start, start + 1).iter().filter(|branch| branch.kind == BranchKind::Call);
        callers.map(|branch| branch.site).find(|&site| sets(site, call.number))
    })
}
