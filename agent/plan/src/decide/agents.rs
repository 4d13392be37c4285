//! Functions of a library, or of the C library in a standalone program or as a program, that the agent needs as they are.
//!
//! The agent uses no functions of the program's libraries, with few exceptions. A slow path asks the C library to which
//! object an address belongs (`_dl_find_object`); if that function, or one that it calls, were hooked, its first call would
//! lead to the slow path that is asking. And the agent redirects the system calls by which programs are executed, in the
//! first instructions of two functions, and the empty function that the dynamic linker calls when it has changed its lists.
//! It recognises the code to which the first function of a context of makecontext returns; a hook there would also take
//! what makecontext has put on the top of the stack for a return address.
//!
//! The C library's `_dl_find_object` only jumps to the dynamic linker's, which is not exported: it is found by its name in
//! the symbol table or the debug file. If there is neither, none of the dynamic linker's functions is hooked.

use crate::decide::verdict::{Failed, Reason};
use crate::flow::facts::Flow;
use gprofinject_abi::plan::START_OF_CONTEXT;
use gprofinject_image::Image;
use std::collections::BTreeSet;

/// The functions that slow paths call.
const CALLED: [&str; 1] = ["_dl_find_object"];
/// The dynamic linker's function that the agent redirects to itself.
const NOTICE: &str = "_dl_debug_state";
/// The functions that the agent redirects in a system call, or as a whole.
const REDIRECTED: [&str; 3] = ["execve", "execveat", NOTICE];

/// Returns whether a library is the dynamic linker: it exports the function that debuggers stop at, and needs no other one.
pub(crate) fn is_dynamic_linker(image: &Image) -> bool {
    let is_notice = |i: usize| image.functions[i].names().any(|name| name == NOTICE);
    let mut exported = image.details().exported.iter().filter_map(|&address| image.function_at(address));
    image.facts.interpreter.is_none() && exported.any(is_notice)
}

/// Returns the functions of a library that cannot be hooked because of the agent, by index in the image.
pub(crate) fn needs(image: &Image, flow: &Flow) -> Failed {
    if is_dynamic_linker(image) && !image.facts.has_symtab {
        return (0..image.functions.len()).map(|function| (function, Reason::NoNames)).collect();
    }
    let named = |wanted: &[&str]| -> Vec<usize> {
        let is_named = |&i: &usize| image.functions[i].names().any(|name| wanted.contains(&name));
        (0..image.functions.len()).filter(is_named).collect()
    };
    let called = named(&CALLED);
    let mut needed: BTreeSet<usize> = called.iter().copied().collect();
    // What they call directly or jump to, and so on.
    let mut new = called;
    while !new.is_empty() {
        let from: BTreeSet<usize> = new.into_iter().collect();
        let leads =
            |branch: &&crate::flow::branch::Branch| from.contains(&image.owner(branch.function as usize));
        let targets =
            flow.branches().iter().filter(leads).filter_map(|branch| image.function_at(branch.target));
        new = targets.collect::<BTreeSet<_>>().into_iter().filter(|&target| needed.insert(target)).collect();
    }
    needed.extend(named(&REDIRECTED));
    needed.into_iter().map(|function| (function, Reason::Agent)).chain(starts_of_contexts(image)).collect()
}

/// Returns the same for a program that exports such a function, because the agent looks for them in the program first: the
/// C library can be run as a program.
pub(crate) fn needed_of_program(image: &Image, flow: &Flow) -> Failed {
    let mut exported = image.details().exported.iter().filter_map(|&address| image.function_at(address));
    let is_needed = |name: &str| CALLED.contains(&name) || REDIRECTED.contains(&name);
    match exported.any(|i| image.functions[i].names().any(is_needed)) {
        true => needs(image, flow),
        false => Failed::new(),
    }
}

/// Returns the same for a library of a standalone program, whose C library is musl. The agent calls none of its functions,
/// and the plan redirects system calls.
pub(crate) fn needed_of_musl(image: &Image) -> Failed {
    let is_notice = |&i: &usize| image.functions[i].names().any(|name| name == NOTICE);
    let notice = (0..image.functions.len()).filter(is_notice).map(|function| (function, Reason::Agent));
    notice.chain(starts_of_contexts(image)).collect()
}

/// Returns the code to which the first function of a context of makecontext returns, which the agent recognises by its
/// bytes.
pub(crate) fn starts_of_contexts(image: &Image) -> Failed {
    let starts_context = |&i: &usize| {
        let code = image.code_from(image.functions[i].address);
        code.is_some_and(|code| code.starts_with(&START_OF_CONTEXT))
    };
    (0..image.functions.len()).filter(starts_context).map(|function| (function, Reason::Agent)).collect()
}

#[cfg(test)]
mod tests {
    use crate::decide::options::{Engine, Hooks, Options};
    use crate::decide::verdict::{Reason, Verdict};
    use crate::plan::Plan;
    use crate::testing::{TEXT, image};
    use crate::x86::template::kind::{Measured, Role};
    use gprofinject_abi::plan::START_OF_CONTEXT;
    use gprofinject_image::ElfType;

    /// Returns the reasons for which the functions of a library are refused: xor eax, eax; ret; and after it an exported
    /// function with this name, which is empty and has fifteen bytes of padding.
    fn refused(name: &'static str, has_symtab: bool) -> [Option<Reason>; 2] {
        refused_with(name, has_symtab, &[0xc3])
    }

    /// The same if that function has this code.
    fn refused_with(name: &'static str, has_symtab: bool, second: &[u8]) -> [Option<Reason>; 2] {
        refused_in(Role::Library, name, has_symtab, second)
    }

    /// The same in a file of this role.
    fn refused_in(role: Role, name: &'static str, has_symtab: bool, second: &[u8]) -> [Option<Reason>; 2] {
        let code = [&[0x31, 0xc0, 0xc3], second, &[0x90; 15]].concat();
        let mut image = image(ElfType::Dyn, TEXT, &code, &[3, second.len()]);
        image.functions[1].name = name;
        let address = image.functions[1].address;
        image.details_mut().exported.push(address);
        image.facts.has_symtab = has_symtab;
        let options = Options {
            hooks: Hooks::Both,
            engine: Engine::Builtin,
            selected: &|_| true,
            min_size: 0,
            insist: true,
            shadow_stack: false,
            counted: None,
            clock: false,
            outermost: false,
            role,
            measured: Measured::None,
            told: None,
            arena: None,
            words: 0,
        };
        let verdicts = Plan::new(&image, &options).verdicts;
        [0, 1].map(|i| match verdicts[i] {
            Verdict::Refused(reason) => Some(reason),
            Verdict::Hooked(_) => None,
        })
    }

    #[test]
    fn the_padding_after_the_notice_is_the_agents() {
        assert_eq!(refused("empty", true), [None, None]);
        assert_eq!(refused("_dl_debug_state", true), [Some(Reason::NoRoom), Some(Reason::Agent)]);
    }

    #[test]
    fn the_start_of_a_context_is_not_called() {
        let code = [&START_OF_CONTEXT[..], &[0xc3]].concat();
        assert_eq!(refused_with("f", true, &code), [Some(Reason::NoRoom), Some(Reason::Agent)]);
        let other = [&START_OF_CONTEXT[3..], &[0xc3]].concat();
        assert_eq!(refused_with("f", true, &other), [None, None]);
    }

    #[test]
    fn the_same_holds_if_the_c_library_is_the_program() {
        let second = [0x53, 0x48, 0x89, 0xfb, 0x5b, 0xc3];
        assert_eq!(refused_in(Role::Program, "f", true, &second)[1], None);
        for name in ["_dl_find_object", "execve"] {
            assert_eq!(refused_in(Role::Program, name, true, &second)[1], Some(Reason::Agent), "{name}");
        }
    }

    #[test]
    fn a_dynamic_linker_without_names_is_not_hooked() {
        assert_eq!(refused("empty", false), [None, None]);
        assert_eq!(refused("_dl_debug_state", false), [Some(Reason::NoNames); 2]);
    }
}
