//! Functions that cannot begin where a symbol or a frame description says.
//!
//! Nothing reads symbols when a program runs, or frame descriptions unless something is thrown. So both may be wrong in a program
//! that works. The code cannot be wrong, nor can the addresses that code and relocations have. A function is *certain* if code, the kernel or
//! the dynamic linker calls it. So is one at whose start both a function symbol and a frame description begin: hand-written assembly has
//! functions that are run into, and data in front of functions. Another one may be a function, too: one that is never called, or only
//! reached by jumps. It is believed unless the code contradicts it:
//!
//! - control runs on into it from a place between functions that is called, or to which the kernel or the dynamic linker gives control.
//!
//! If nothing computes its address, and no data contains it, these contradict it as well:
//!
//! - an instruction in front reaches beyond its start, or control runs on into it from a function;
//! - a jump leads there from where the return address is not on top of the stack;
//! - an indirect jump leads there, or may do so because the code directly in front has one.
//!
//! A function that is contradicted is refused, and nothing in it is patched. It is part of the function in front, which gets no
//! exit hook, because what it does with its return address there is not known. The same holds for a function that continues in
//! bytes of which nothing says to which function they belong: its size may be wrong.

use crate::flow::branch::{Branch, BranchKind};
use crate::flow::facts::Flow;
use crate::flow::falls::comes_to_its_end;
use crate::flow::return_slot::examine::has_return_address_on_top;
use gprofinject_image::x86::{falls_through, goes_on, is_call, is_fill, is_padding_instruction, is_stub};
use gprofinject_image::{Function, FunctionKind, Image};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, InstructionInfoFactory};

/// The usual alignment of functions in bytes.
const ALIGNMENT: u64 = 16;

/// Marks the functions whose starts are contradicted, and those whose ends are not known. Returns whether it has marked any.
pub(crate) fn check(image: &Image, flow: &mut Flow) -> bool {
    let mut open_ended = running_on(image, flow);
    open_ended.extend(jumping_out(image, flow));
    let mut factory = InstructionInfoFactory::new();
    for (index, f) in image.functions.iter().enumerate() {
        let is_part = match f.kind {
            FunctionKind::Start => continue,
            FunctionKind::Cold(_) => true,
            FunctionKind::Ordinary | FunctionKind::IfuncResolver => false,
        };
        let is_contradicted = !is_certain(image, flow, index)
            && (is_run_into(image, flow, index)
                || !is_taken(image, flow, index)
                    && (is_continued_into(image, flow, index)
                        || !is_part && is_contradicted(image, flow, index, &mut factory)));
        if is_contradicted {
            flow.functions[index].contradicted = true;
            flow.functions[index].undecodable = true;
        }
        // A symbol in the middle of a frame description cuts a function off.
        if is_contradicted || is_part && f.frame.is_some() && !image.begins_frame(f.address) {
            open_ended.extend(index.checked_sub(1));
        }
    }
    for &index in &open_ended {
        let facts = &mut flow.functions[index];
        facts.odd_return = true;
        facts.leaf = false;
        facts.leaves_directly = false;
    }
    !open_ended.is_empty()
}

/// Returns the functions that run on into bytes that belong to no function.
fn running_on(image: &Image, flow: &Flow) -> Vec<usize> {
    let is_one = |&index: &usize| {
        let (f, facts) = (&image.functions[index], &flow.functions[index]);
        let end = f.address + f.size;
        (facts.runs_on || facts.ends_in_call || facts.straddles) && !is_padding(image, end, f.limit)
    };
    (0..image.functions.len()).filter(is_one).collect()
}

/// Returns the functions that jump to code that belongs to no function, other than a stub of the dynamic linker, or padding: code
/// that never runs may jump to the function's end.
fn jumping_out(image: &Image, flow: &Flow) -> Vec<usize> {
    let mut functions = Vec::new();
    let mut next = 0;
    for branch in flow.branches().iter().filter(|branch| branch.kind != BranchKind::Call) {
        next += image.functions[next..].iter().take_while(|f| f.address + f.size <= branch.target).count();
        let following = image.functions.get(next).map(|f| f.address);
        let is_listed = following.is_some_and(|start| start <= branch.target);
        let is_fill = |code: &[u8]| {
            let len = following.map_or(code.len(), |start| (start - branch.target) as usize);
            code.get(..len).is_some_and(is_fill)
        };
        let is_code = |code: &[u8]| !is_stub(code) && !is_fill(code);
        if !is_listed && image.code_from(branch.target).is_some_and(is_code) {
            functions.push(branch.function as usize);
        }
    }
    functions
}

/// Whether code, the kernel or the dynamic linker calls the function, or both a function symbol and a frame description begin there.
fn is_certain(image: &Image, flow: &Flow, index: usize) -> bool {
    let f = &image.functions[index];
    let is_call = |branch: &Branch| branch.kind == BranchKind::Call;
    flow.branches_into(index, f.address + 1).iter().any(is_call)
        || !f.name.is_empty() && image.begins_frame(f.address)
        || image.details().entries.binary_search(&f.address).is_ok()
}

/// Whether something computes the function's address, or data contains it. What is exported has a symbol, which proves nothing.
fn is_taken(image: &Image, flow: &Flow, index: usize) -> bool {
    let address = image.functions[index].address;
    flow.is_taken(address) && image.details().exported.binary_search(&address).is_err()
}

/// Whether the function directly in front continues in this one.
fn is_continued_into(image: &Image, flow: &Flow, index: usize) -> bool {
    in_front(image, index).is_some_and(|front| {
        let facts = &flow.functions[front];
        // The padding after a function without a size counts as part of it.
        let runs_on = || facts.runs_on && comes_to_its_end(image, &image.functions[front]);
        facts.straddles || facts.contradicted || runs_on()
    })
}

/// Returns the function that ends where this one begins.
fn in_front(image: &Image, index: usize) -> Option<usize> {
    let front = index.checked_sub(1)?;
    let f = &image.functions[front];
    (f.address + f.size == image.functions[index].address).then_some(front)
}

/// Whether code that does not run on into it contradicts that a function begins there.
fn is_contradicted(image: &Image, flow: &Flow, index: usize, factory: &mut InstructionInfoFactory) -> bool {
    let f = &image.functions[index];
    let in_front = in_front(image, index);
    if let Some(front) = in_front {
        // Compilers align functions, and rarely labels.
        let may_be_label = !image.begins_frame(f.address) && !f.address.is_multiple_of(ALIGNMENT);
        if may_be_label && jumps_indirectly(image, &image.functions[front]) {
            return true;
        }
    } else if let Some(front) = index.checked_sub(1).map(|front| &image.functions[front]) {
        let end = front.address + front.size;
        let may_be_code = !is_padding(image, end, f.address) && !ends_before(image, end, f.address);
        if may_be_code && !is_behind_data(image, flow, index, end, factory) {
            return true;
        }
    }
    if !flow.indirect_in(f.address, f.address + 1).is_empty() {
        return true;
    }
    flow.branches_into(index, f.address + 1).iter().any(|jump| {
        let from = jump.function as usize;
        let is_in_front = in_front.is_some_and(|front| front == image.owner(from));
        let Some(function) = image.functions.get(from).filter(|_| from != index) else { return false };
        !has_return_address_on_top(image, function, jump.site, factory).unwrap_or(!is_in_front)
    })
}

/// Whether control comes to a function's start, or to the middle of its first instruction, from the last place between functions in front of
/// it that is called or to which the kernel or the dynamic linker gives control. Jumps in the code between functions prove nothing.
fn is_run_into(image: &Image, flow: &Flow, index: usize) -> bool {
    let start = image.functions[index].address;
    let front = index.checked_sub(1).map(|front| &image.functions[front]);
    let lo = front.map_or(0, |front| front.address + front.size);
    if front.is_some() && is_padding(image, lo, start) {
        return false;
    }
    let entries = &image.details().entries[..image.details().entries.partition_point(|&at| at < start)];
    let mut branches = flow.branches_to(lo, start).iter().rev();
    let called = branches.find(|branch| branch.kind == BranchKind::Call).map(|branch| branch.target);
    let Some(from) = entries.last().copied().max(called).filter(|&from| from >= lo) else { return false };
    let Some(bytes) = image.code_at(from, start - from) else { return false };
    // A call that does not return may be the end of a function, after which there is padding.
    let (mut is_padded, mut was_call) = (false, false);
    for i in Decoder::with_ip(64, bytes, from, DecoderOptions::NONE).into_iter() {
        if i.is_invalid() {
            // The bytes end in the middle of an instruction.
            return true;
        }
        if !falls_through(&i) || i.code() == Code::Hlt {
            return false;
        }
        is_padded = (was_call || is_padded) && is_padding_instruction(&i);
        was_call = is_call(&i);
    }
    !is_padded
}

/// Whether the bytes between `end` and a function's start seem to be data, as hand-written assembly has it: no branch leads there, and a
/// tail call leads to the function, at whose start a frame description begins.
fn is_behind_data(
    image: &Image,
    flow: &Flow,
    index: usize,
    end: u64,
    factory: &mut InstructionInfoFactory,
) -> bool {
    let f = &image.functions[index];
    let mut jumps =
        flow.branches_into(index, f.address + 1).iter().filter(|jump| jump.function as usize != index);
    image.begins_frame(f.address)
        && flow.branches_to(end, f.address).is_empty()
        && jumps.any(|jump| {
            let from = image.functions.get(jump.function as usize);
            from.and_then(|from| has_return_address_on_top(image, from, jump.site, factory)) == Some(true)
        })
}

/// Whether the bytes of a range that is in no function are whole instructions, after which control does not continue.
fn ends_before(image: &Image, from: u64, to: u64) -> bool {
    let Some(bytes) = image.code_from(from) else { return false };
    let mut ends = false;
    for i in Decoder::with_ip(64, bytes, from, DecoderOptions::NONE).into_iter() {
        if i.ip() >= to || i.is_invalid() {
            return ends && i.ip() == to;
        }
        ends = !goes_on(&i) || ends && is_padding_instruction(&i);
    }
    false
}

fn jumps_indirectly(image: &Image, f: &Function) -> bool {
    let bytes = image.code_at(f.address, f.size).unwrap_or_default();
    let mut instructions = Decoder::with_ip(64, bytes, f.address, DecoderOptions::NONE).into_iter();
    instructions.any(|i| i.flow_control() == FlowControl::IndirectBranch)
}

/// Whether there is nothing in a range that code could continue in.
fn is_padding(image: &Image, from: u64, to: u64) -> bool {
    from >= to || image.code_at(from, to - from).is_none_or(is_fill)
}
