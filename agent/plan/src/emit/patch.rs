//! Patches of the program's text.

use crate::image::Image;
use crate::tactic::Hook;
use gprofinject_abi::plan::Patch;

/// None: too long, or the file does not have what stands there.
pub(super) fn patch(image: &Image, address: u64, replacement: &[u8]) -> Option<Patch> {
    // As in the file: of the code, something may be taken out.
    let original = image.data_at(address, replacement.len() as u64)?;
    let mut patch = Patch { address, len: replacement.len() as u32, ..Default::default() };
    patch.original.get_mut(..original.len())?.copy_from_slice(original);
    patch.replacement.get_mut(..replacement.len())?.copy_from_slice(replacement);
    Some(patch)
}

/// The patches of what is taken out of the program's code (see [`Image::removed`]). What a hook overwrites or
/// relocates, it has relocated without.
pub(crate) fn removals(image: &Image, hooks: &[Hook]) -> Vec<Patch> {
    let mut taken: Vec<(u64, u64)> = Vec::new();
    if !image.removed.is_empty() {
        taken.extend(hooks.iter().flat_map(|h| h.spans().chain([(h.at, h.at + h.relocated)])));
        taken.sort_unstable();
    }
    // Those that begin before the end of the removed bytes, and how far they reach.
    let mut reach = 0;
    let mut taken = taken.into_iter().peekable();
    let free = image.removed.iter().filter(|removed| {
        while let Some((_, end)) = taken.next_if(|&(start, _)| start < removed.end()) {
            reach = reach.max(end);
        }
        reach <= removed.address
    });
    free.filter_map(|r| patch(image, r.address, image.code_at(r.address, r.len.into())?)).collect()
}
