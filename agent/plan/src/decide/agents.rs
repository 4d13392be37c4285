//! Functions of a library that the agent needs as they are.
//!
//! The agent uses no functions of the program's libraries, with few exceptions. A slow path asks the C library to which
//! object an address belongs (`_dl_find_object`); if that function, or one that it calls, were hooked, its first call would
//! lead to the slow path that is asking. And the agent writes into some functions itself: it redirects the system calls by
//! which programs are executed, and the empty function that the dynamic linker calls when it has loaded a library.

use crate::decide::verdict::{Failed, Reason};
use crate::flow::facts::Flow;
use gprofinject_image::Image;
use std::collections::BTreeSet;

/// The functions that slow paths call.
const CALLED: [&str; 1] = ["_dl_find_object"];
/// The functions in which the agent redirects a system call, and the one that it redirects as a whole. If the last one had
/// a hook, the agent would not find it empty, and would learn of no library that is loaded later.
const REDIRECTED: [&str; 3] = ["execve", "execveat", "_dl_debug_state"];

/// Returns the functions of a library that cannot be hooked because of the agent, by index in the image.
pub(crate) fn needs(image: &Image, flow: &Flow) -> Failed {
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
    needed.into_iter().map(|function| (function, Reason::Agent)).collect()
}
