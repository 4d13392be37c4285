//! The code that finds out which of several functions was called, if they slide into the same jump: see
//! [`crate::decide::sled`].

use crate::decide::hook::Hook;
use crate::x86::jump::near_jump;
use std::collections::HashMap;

/// A function with a jump, and the functions that slide into it, as indices of hooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    /// The function with the jump.
    pub head: usize,
    /// The function that pushes one word, the one that pushes two, and so on.
    pub sleds: Vec<usize>,
}

/// Returns all chains, in the order of their heads.
pub(crate) fn chains(hooks: &[Hook]) -> Vec<Chain> {
    let before: HashMap<usize, usize> =
        hooks.iter().enumerate().filter_map(|(n, h)| Some((h.sled?.next, n))).collect();
    let mut chains = Vec::new();
    for (head, hook) in hooks.iter().enumerate() {
        if hook.sled.is_some() || !before.contains_key(&hook.function) {
            continue;
        }
        let next = |&n: &usize| before.get(&hooks[n].function).copied();
        let sleds = std::iter::successors(next(&head), next).collect();
        chains.push(Chain { head, sleds });
    }
    chains
}

/// Bytes of the code for each function except the last one.
const LEVEL: usize = 22;

/// Bytes of a near jump.
const JUMP: usize = crate::x86::jump::JUMP as usize;

/// Returns the size in bytes of the code after the jump of a function into which `sleds` others slide.
pub(crate) fn code_len(sleds: usize) -> usize {
    sleds * LEVEL + JUMP
}

/// Returns the code after the jump, for the address `at`. `thunks` has the addresses of the thunks,
/// beginning with that of the function with the jump. Returns `None` if a thunk is out of reach.
pub(crate) fn code(at: u64, thunks: &[u64]) -> Option<Vec<u8>> {
    const CHECK: [u8; 17] = [
        0x48, 0x8d, 0x64, 0x24, 0x08, // lea rsp, [rsp+8]
        0x48, 0x39, 0x64, 0x24, 0xf8, // cmp [rsp-8], rsp
        0x74, 0x0a, // je over the next two
        0x48, 0x8d, 0x64, 0x24, 0xf8, // lea rsp, [rsp-8]
    ];
    let mut code = Vec::with_capacity(code_len(thunks.len().saturating_sub(1)));
    for (n, thunk) in thunks.iter().enumerate() {
        if n + 1 < thunks.len() {
            code.extend(CHECK);
        }
        code.extend(near_jump(at.wrapping_add(code.len() as u64), *thunk)?);
    }
    Some(code)
}

#[cfg(test)]
mod tests;
