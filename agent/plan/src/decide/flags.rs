//! Functions to or from which control passes with a condition in the processor's flags.
//!
//! The ABI gives no meaning to the status flags at an entry or a return, and thunks change them. Hand-written assembly
//! has functions of its own file that take a condition from their caller or return one to it, or that the caller knows
//! to leave the flags alone:
//!
//! ```text
//!     call decide      ; ends with: cmp eax, edx; ret
//!     je   equal
//! ```
//!
//! Such functions are not hooked. What shows them is the code after a direct call, which reads a flag before it writes it,
//! or the function's own beginning. x264's and other encoders' assembly has dozens.

use crate::decide::cells::is_leaf;
use crate::decide::thunk_spec::Exits;
use crate::decide::verdict::{Failed, Reason};
use crate::flow::branch::{Branch, BranchKind};
use crate::flow::facts::{Flow, FunctionFlow};
use crate::parallel;
use gprofinject_image::{FunctionKind, Image};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, OpKind, RflagsBits};
use std::ops::{Range, RangeInclusive};

/// The status flags.
const FLAGS: u32 =
    RflagsBits::OF | RflagsBits::SF | RflagsBits::ZF | RflagsBits::AF | RflagsBits::CF | RflagsBits::PF;
/// The largest number of instructions in which a use of flags is looked for. Compilers and people place it close by.
const STEPS: u32 = 16;
/// How many calls and jumps it is looked for behind.
const DEPTH: u32 = 2;

/// What code does with the flags that it begins with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// A flag is read, by the instruction at this address or by the code to which it leads.
    Read(u64),
    /// The code returns to its caller with a flag unchanged.
    Returned,
    /// Every flag is written before it is read.
    Written,
    /// The scan has come to its bounds.
    Unknown,
}

/// A function whose flags after its return are returned by another function.
struct Passed {
    /// The index of the function.
    from: usize,
    /// The index of the function that returns them.
    by: usize,
}

/// Returns the functions that cannot be hooked because flags are passed to or from them, by index in the image.
///
/// A function that itself writes all flags may return a condition if its exit is not hooked, because all functions are
/// hooked with few `exits` or it is a leaf.
pub(crate) fn passed(image: &Image, flow: &Flow, exits: Exits) -> Failed {
    let count = image.functions.len();
    let part = count.div_ceil(parallel::parts(count)).max(1);
    let ranges: Vec<Range<usize>> = (0..count).step_by(part).map(|lo| lo..count.min(lo + part)).collect();
    let found = parallel::each(ranges, |functions| {
        let (mut failed, mut passed) = (Vec::new(), Vec::new());
        for i in functions {
            look(image, flow, exits, i, &mut failed, &mut passed);
        }
        (failed, passed)
    });
    let mut failed = Failed::new();
    let mut passed = Vec::new();
    for (functions, others) in found {
        failed.extend(functions.into_iter().map(|i| (i, Reason::Flags)));
        passed.extend(others);
    }
    for &(target, after) in &flow.called_unseen {
        let end =
            image.code_ranges.iter().find(|range| range.contains(&after)).map_or(after, |range| range.end);
        let passes = |&i: &usize| {
            let function = &image.functions[i];
            let own = used(image, function.address, function.address + function.size);
            own != Use::Written || has_exit_hook(exits, &flow.functions[i])
        };
        if let (Use::Read(_), Some(i)) = (used(image, after, end), image.function_at(target).filter(passes)) {
            failed.insert(i, Reason::Flags);
        }
    }
    while !failed.is_empty() {
        let known = failed.len();
        for Passed { from, by } in &passed {
            if failed.contains_key(by) {
                failed.insert(*from, Reason::Flags);
            }
        }
        if failed.len() == known {
            break;
        }
    }
    failed
}

/// Looks at the beginning of function `i` and at the code after its calls.
fn look(
    image: &Image,
    flow: &Flow,
    exits: Exits,
    i: usize,
    failed: &mut Vec<usize>,
    passed: &mut Vec<Passed>,
) {
    let function = &image.functions[i];
    if matches!(function.kind, FunctionKind::Cold(_)) {
        return; // It is jumped into, with flags too, but never called.
    }
    match used(image, function.address, function.address + function.size) {
        Use::Read(_) => {
            failed.push(i);
            return;
        }
        Use::Written if !has_exit_hook(exits, &flow.functions[i]) => return,
        _ => {}
    }
    for branch in flow.branches_into(i, function.address + 1) {
        let from = branch.function as usize;
        match branch.kind {
            BranchKind::Call => match after(image, branch) {
                Use::Read(reader)
                    if returns(image, i) && !is_entered(image, flow, from, branch.end()..=reader) =>
                {
                    failed.push(i);
                    return;
                }
                Use::Returned => passed.push(Passed { from: i, by: image.owner(from) }),
                _ => {}
            },
            _ if image.owner(from) != i => passed.push(Passed { from: i, by: image.owner(from) }),
            _ => {}
        }
    }
}

/// Returns whether the function may get an exit hook. Of the functions that need none, only leaves are known yet.
fn has_exit_hook(exits: Exits, function: &FunctionFlow) -> bool {
    match exits {
        Exits::Few => false,
        Exits::Needed => !is_leaf(function),
        Exits::All | Exits::Outer => true,
    }
}

/// Returns what the code after a call does with the flags that the callee returns.
fn after(image: &Image, call: &Branch) -> Use {
    let caller = &image.functions[call.function as usize];
    used(image, call.end(), caller.address + caller.size)
}

/// Returns what the code from `at` on does with the flags that it begins with. The code ends at `end`.
fn used(image: &Image, at: u64, end: u64) -> Use {
    let mut scan = Scan { image, steps: STEPS };
    match scan.run(at, end, FLAGS, DEPTH) {
        Found::Read(last) => Use::Read(last),
        Found::Returned(_) => Use::Returned,
        Found::Written => Use::Written,
        Found::Unknown => Use::Unknown,
    }
}

/// The result of a scan.
enum Found {
    /// A flag is read. Up to this address the code that was scanned is in one piece.
    Read(u64),
    /// The code returns with these flags unchanged, at least one.
    Returned(u32),
    /// Every flag is written.
    Written,
    /// The scan has come to its bounds.
    Unknown,
}

/// Follows the code for a number of instructions.
struct Scan<'a, 'd> {
    image: &'a Image<'d>,
    /// The number of instructions that may still be examined.
    steps: u32,
}

impl Scan<'_, '_> {
    /// Scans the code from `at` on, which ends at `end`. So far the flags `unchanged` have not been written. Calls and
    /// jumps are followed `depth` times.
    fn run(&mut self, at: u64, end: u64, mut unchanged: u32, depth: u32) -> Found {
        let Some(bytes) = end.checked_sub(at).and_then(|len| self.image.code_at(at, len)) else {
            return Found::Unknown;
        };
        let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        while decoder.can_decode() && self.steps > 0 {
            self.steps -= 1;
            decoder.decode_out(&mut instruction);
            // A system call copies the flags into r11, and `pushf` saves them, whatever they are: that is no condition.
            if instruction.is_invalid() || matches!(instruction.code(), Code::Syscall | Code::Pushfq) {
                break;
            }
            if instruction.rflags_read() & unchanged != 0 {
                return Found::Read(instruction.ip());
            }
            unchanged &= !instruction.rflags_modified();
            if unchanged == 0 {
                return Found::Written;
            }
            let control = instruction.flow_control();
            match control {
                FlowControl::Next | FlowControl::ConditionalBranch => {}
                FlowControl::Return => return Found::Returned(unchanged),
                FlowControl::Call | FlowControl::UnconditionalBranch if depth > 0 => {
                    match self.at_target(&instruction, unchanged, depth - 1) {
                        Found::Read(_) => return Found::Read(instruction.ip()),
                        Found::Returned(flags) if control == FlowControl::Call => unchanged = flags,
                        other => return other,
                    }
                }
                _ => break,
            }
        }
        Found::Unknown
    }

    /// Scans the code to which a direct branch leads.
    fn at_target(&mut self, branch: &Instruction, unchanged: u32, depth: u32) -> Found {
        let target = branch.near_branch_target();
        let end = match self.image.function_at(target) {
            Some(i) if branch.op0_kind() == OpKind::NearBranch64 => {
                self.image.functions[i].address + self.image.functions[i].size
            }
            _ => return Found::Unknown,
        };
        self.run(target, end, unchanged, depth)
    }
}

/// Returns whether function `i` may return to its caller: it contains a return, or leads elsewhere.
fn returns(image: &Image, i: usize) -> bool {
    let function = &image.functions[i];
    let bytes = image.code_at(function.address, function.size).unwrap_or_default();
    let own = function.address..function.address + function.size;
    let decoder = Decoder::with_ip(64, bytes, function.address, DecoderOptions::NONE);
    decoder.into_iter().any(|instruction| match instruction.flow_control() {
        FlowControl::Return | FlowControl::IndirectBranch => true,
        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
            !own.contains(&instruction.near_branch_target())
        }
        _ => false,
    })
}

/// Returns whether a branch leads to one of these addresses, which are in the function.
///
/// After a call that never returns, other code follows, and branches lead there. What it reads comes from them.
fn is_entered(image: &Image, flow: &Flow, function: usize, addresses: RangeInclusive<u64>) -> bool {
    let mut from_others = flow.branches_to(*addresses.start(), addresses.end() + 1).iter();
    if from_others.any(|branch| branch.kind != BranchKind::Call) {
        return true;
    }
    let function = &image.functions[function];
    let bytes = image.code_at(function.address, function.size).unwrap_or_default();
    Decoder::with_ip(64, bytes, function.address, DecoderOptions::NONE).into_iter().any(|instruction| {
        instruction.op0_kind() == OpKind::NearBranch64
            && instruction.flow_control() != FlowControl::Call
            && addresses.contains(&instruction.near_branch_target())
    })
}

#[cfg(test)]
mod tests {
    use crate::decide::verdict::Tactic;
    use crate::testing::{TEXT, image, plan_of, tactics};
    use gprofinject_image::ElfType;

    /// mov eax, edi; inc eax; mov edx, esi; ret: it leaves the carry flag alone.
    const COMPARE: [u8; 7] = [0x89, 0xf8, 0xff, 0xc0, 0x89, 0xf2, 0xc3];

    /// Returns whether the first of two functions, with this code, is hooked.
    fn is_hooked(first: &[u8], second: &[u8]) -> bool {
        let code = [first, second].concat();
        let image = image(ElfType::Dyn, TEXT, &code, &[first.len(), second.len()]);
        tactics(&plan_of(&image, None))[0] == Some(Tactic::Jump)
    }

    /// Returns a call of the function at `TEXT` by code `before` bytes after the end of [`COMPARE`].
    fn call(before: usize) -> Vec<u8> {
        let distance = -((COMPARE.len() + before + 5) as i32);
        [&[0xe8][..], &distance.to_le_bytes()].concat()
    }

    #[test]
    fn a_function_that_returns_a_condition_is_not_hooked() {
        // call; mov rcx, rax; je +1; nop; ret
        let caller = [&call(0)[..], &[0x48, 0x89, 0xc1, 0x74, 1, 0x90, 0xc3]].concat();
        assert!(!is_hooked(&COMPARE, &caller));
        // The same with test eax, eax before the jump.
        let caller = [&call(0)[..], &[0x48, 0x89, 0xc1, 0x85, 0xc0, 0x74, 1, 0x90, 0xc3]].concat();
        assert!(is_hooked(&COMPARE, &caller));
    }

    #[test]
    fn a_leaf_may_return_a_condition_of_its_own() {
        // cmp edi, esi; mov eax, edi; mov edx, esi; ret; or jmp to a function that is not there, which is no leaf.
        let caller = [&call(0)[..], &[0x74, 1, 0x90, 0xc3]].concat();
        assert!(is_hooked(&[0x39, 0xf7, 0x89, 0xf8, 0x89, 0xf2, 0xc3], &caller));
        assert!(!is_hooked(&[0x39, 0xf7, 0x89, 0xf8, 0x90, 0xff, 0xe6], &caller));
    }

    #[test]
    fn the_carry_flag_survives_an_increment() {
        // call; inc eax; adc ecx, 0; ret
        for (read, hooked) in [(&[0x83, 0xd1, 0][..], false), (&[0x83, 0xc1, 0], true)] {
            let caller = [&call(0)[..], &[0xff, 0xc0], read, &[0xc3]].concat();
            assert_eq!(is_hooked(&COMPARE, &caller), hooked, "{read:x?}");
        }
    }

    #[test]
    fn after_a_call_that_never_returns_flags_come_from_elsewhere() {
        // cmp edi, esi; jb +5 (behind the call); call; je +1; nop; ret
        let caller = [&[0x39, 0xf7, 0x72, 5][..], &call(4), &[0x74, 1, 0x90, 0xc3]].concat();
        assert!(is_hooked(&COMPARE, &caller));
    }

    #[test]
    fn a_function_that_never_returns_returns_no_condition() {
        // cmp edi, esi; mov eax, edi; mov edx, esi; hlt or ret
        for (last, hooked) in [(0xf4, true), (0xc3, false)] {
            let first = [&COMPARE[..6], &[last]].concat();
            assert_eq!(is_hooked(&first, &[&call(0)[..], &[0x74, 1, 0x90, 0xc3]].concat()), hooked);
        }
    }

    #[test]
    fn a_condition_that_is_returned_further_counts() {
        // A function that only calls the first one, and a caller of it that looks at the flags.
        let between = [&call(0)[..], &[0x48, 0x89, 0xc1, 0xc3]].concat();
        for (read, hooked) in [(&[0x74, 1, 0x90, 0xc3][..], false), (&[0x31, 0xc0, 0x90, 0xc3], true)] {
            let distance = -((between.len() + 5) as i32);
            let caller = [&[0xe8][..], &distance.to_le_bytes(), read].concat();
            let code = [&COMPARE[..], &between, &caller].concat();
            let image = image(ElfType::Dyn, TEXT, &code, &[COMPARE.len(), between.len(), caller.len()]);
            let tactics = tactics(&plan_of(&image, None));
            assert_eq!(
                tactics.iter().map(Option::is_some).collect::<Vec<_>>(),
                [hooked, hooked, true],
                "{read:x?}"
            );
        }
    }

    #[test]
    fn a_function_that_takes_a_condition_is_not_hooked() {
        // mov rax, rdi; adc rax, 0; ret; and with add.
        for (adc, hooked) in [(0xd0, false), (0xc0, true)] {
            let first = [0x48, 0x89, 0xf8, 0x48, 0x83, adc, 0, 0xc3];
            assert_eq!(is_hooked(&first, &[0xc3]), hooked);
        }
    }

    #[test]
    fn a_condition_may_pass_through_other_calls_and_jumps() {
        // The first function leaves the flags alone. The second one calls it, and then the third, which uses the carry
        // flag, or overwrites it.
        let first = [0x89, 0xf8, 0x89, 0xf2, 0x90, 0x90, 0xc3];
        for (adc, hooked) in [(0xd0, false), (0xc0, true)] {
            let third = [0x83, adc, 0, 0x90, 0x90, 0xc3];
            for branch in [0xe8, 0xe9] {
                let second = [&call(0)[..], &[branch, 1, 0, 0, 0, 0xc3]].concat();
                let code = [&first[..], &second, &third].concat();
                let image = image(ElfType::Dyn, TEXT, &code, &[first.len(), second.len(), third.len()]);
                let tactics = tactics(&plan_of(&image, None));
                assert_eq!(tactics[0].is_some(), hooked, "{adc:x} {branch:x}");
            }
        }
    }

    #[test]
    fn code_without_a_symbol_counts_as_a_caller() {
        for (jump, hooked) in [(0x74, false), (0xeb, true)] {
            let gap = [&call(0)[..], &[jump, 1, 0x90, 0xc3]].concat();
            let code = [&COMPARE[..], &gap, &[0xc3]].concat();
            let mut image = image(ElfType::Dyn, TEXT, &code, &[COMPARE.len(), gap.len(), 1]);
            image.functions.remove(1);
            image.functions[0].limit = image.functions[1].address;
            assert_eq!(tactics(&plan_of(&image, None))[0].is_some(), hooked);
        }
    }
}
