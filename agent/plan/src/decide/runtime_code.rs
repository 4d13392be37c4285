//! Recognises code that a runtime has compiled for itself ahead of time, and that it reads and unwinds by tables of its own.
//!
//! Such a runtime looks at the code in two ways in which no other program does. It decodes the instructions before a return address, and
//! those to which they lead, to find out which function was called; and it walks the stack, to collect garbage and to handle exceptions,
//! with a description of each frame that only it can read. It ends the process when it finds a jump that it has not written itself, or
//! a return address in code that it has not compiled. Mono's images are an example:
//!
//! ```text
//! method:   sub   rsp, 0x78
//!           call  plt_1
//!           ..
//! plt_1:    jmp   [rip + slot]
//!           .long 0x29815           ; data: the number of what is called
//! plt_2:    jmp   [rip + slot]
//!           .long 0x29818
//! ```
//!
//! A library is such an image if nothing but a runtime can enter its code: it exports no function, and has no constructor; and if either no
//! unwinder knows a frame of it, or its code is exported as if it were data. (A library with one exported table of functions, such as a
//! web server's module, has frame descriptions.)
//!
//! In other files, which such an image may be linked into, the stubs show it: a jump that is followed by data, and that code calls whose
//! frames are not described.

use crate::decide::verdict::{Failed, Reason};
use crate::flow::branch::BranchKind;
use crate::flow::facts::Flow;
use crate::x86::template::kind::Role;
use gprofinject_image::x86::{is_padding_instruction, is_stub};
use gprofinject_image::{Function, Image, NET};
use iced_x86::{Decoder, DecoderOptions, Mnemonic};

/// Returns why the file's code cannot be hooked, as text for the user, or `None` if it can.
///
/// .NET's runtime copies functions of its own to other addresses, and writes to their code (the garbage collector's write barriers). When an
/// instruction faults, it compares the address with the ends of such functions, and of methods, to make an exception of it. It unwinds its
/// frames by an unwinder that is part of it. In a program that was compiled ahead of time (Native AOT), the methods are beside the runtime.
pub(crate) fn reader(image: &Image, role: Role) -> Option<&'static str> {
    if image.facts.runtime.as_deref() == Some(NET) {
        return Some(
            ".NET's runtime copies its own code, and finds exceptions and callers by addresses in it: it is only sampled",
        );
    }
    let is_described = image.functions.iter().any(|f| f.frame.is_some());
    let is_image = role.is_library()
        && !image.functions.is_empty()
        && !image.facts.exports_functions
        && !image.facts.has_constructors
        && (!is_described || image.facts.exports_code_as_data);
    is_image.then_some(
        "only a runtime that has compiled it itself can enter its code, and that decodes and unwinds this code in its own way: it is only sampled",
    )
}

/// Returns the functions of such code in another file.
pub(crate) fn parts(image: &Image, flow: &Flow) -> Failed {
    let stubs: Vec<usize> =
        (0..image.functions.len()).filter(|&i| is_stub_with_data(image, flow, &image.functions[i])).collect();
    let is_called = |&i: &usize| {
        let branches = flow.branches_into(i, image.functions[i].address + 1);
        let is_undescribed = |function: u32| image.functions[function as usize].frame.is_none();
        branches.iter().any(|b| b.kind == BranchKind::Call && is_undescribed(b.function))
    };
    if !stubs.iter().any(is_called) {
        return Failed::new();
    }
    let undescribed = (0..image.functions.len()).filter(|&i| image.functions[i].frame.is_none());
    undescribed.chain(stubs.iter().copied()).map(|i| (i, Reason::RuntimeCode)).collect()
}

/// The functions of which runtimes copy the machine code to other addresses, where a patch would lead astray. CPython makes a copy for each
/// Python function with `-X perf`.
const COPIED: [&str; 1] = ["_Py_trampoline_func_start"];

/// Returns the functions whose machine code is copied.
pub(crate) fn copied(image: &Image) -> Failed {
    let is_copied = |&i: &usize| image.functions[i].names().any(|name| COPIED.contains(&name));
    (0..image.functions.len()).filter(is_copied).map(|i| (i, Reason::Copied)).collect()
}

/// Returns whether the function is a jump through a pointer, and data follows it to which no control leads.
fn is_stub_with_data(image: &Image, flow: &Flow, f: &Function) -> bool {
    /// A stub, the data after it and padding have fewer bytes than this.
    const MOST: u64 = 64;
    let room = f.limit - f.address;
    if f.frame.is_some() || room >= MOST {
        return false;
    }
    let Some(code) = image.code_at(f.address, room).filter(|code| is_stub(code)) else { return false };
    let mut decoder = Decoder::with_ip(64, code, f.address, DecoderOptions::NONE);
    let jump = decoder.iter().find(|i| i.op_count() > 0);
    let Some(behind) = jump.map(|jump| jump.next_ip()).filter(|&behind| behind < f.limit) else {
        return false;
    };
    let is_entered = !flow.branches_to(behind, f.limit).is_empty()
        || !flow.indirect_in(behind, f.limit).is_empty()
        || flow.is_taken_in(behind, f.limit);
    let rest = &code[(behind - f.address) as usize..];
    !is_entered && rest.iter().any(|&b| b != 0) && !is_only_padding(rest)
}

/// Returns whether bytes are instructions that only align code, or that end the program if control should reach them.
fn is_only_padding(bytes: &[u8]) -> bool {
    let mut decoder = Decoder::new(64, bytes, DecoderOptions::NONE);
    decoder.iter().all(|i| is_padding_instruction(&i) || i.mnemonic() == Mnemonic::Ud2)
}

#[cfg(test)]
mod tests;
