//! The addresses that patches overwrite, where no thread may stand when they are written.

use std::collections::HashSet;
use std::ops::Range;

use gprofinject_abi::plan as abi;
use gprofinject_abi::plan::Stay;
use gprofinject_plan::Plan;
use serde::{Deserialize, Serialize};

/// The addresses inside one patch, at which no thread may stand.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Patch {
    addresses: Range<u64>,
    /// Whether the patch is a jump in a place between functions or in dead code (a cave), a call in its
    /// place, or a jump on which other hooks rely. If so, its first address is one of these. At the first address of another
    /// function a thread may stand, since it has not begun the function.
    cave: bool,
    /// Whether the patch stays while hooks are paused, and a thread at its first address would not be at an instruction
    /// of the program without it.
    stays: bool,
}

impl Patch {
    /// Returns the addresses of all patches of a plan, sorted. Patches without such addresses are left out.
    pub(super) fn all(plan: &Plan, bias: u64) -> Vec<Patch> {
        plan.patches().iter().filter_map(|patch| Patch::of_plan(plan, bias, patch)).collect()
    }

    /// Returns the addresses of one of a plan's patches, or `None` if there are none.
    pub(super) fn of_plan(plan: &Plan, bias: u64, patch: &abi::Patch) -> Option<Patch> {
        let is_start = plan.is_hook_point(patch.address);
        // A thread may have slid into the patch from another function, which has left words on the stack.
        let cave = !is_start || patch.hook.checked_sub(1).is_some_and(|number| plan.is_shared(number));
        let first = patch.address + u64::from(!cave);
        let mut end = patch.address + u64::from(patch.len);
        if is_start {
            // A thread behind the patch may still run a branch that leads back into it.
            end = end.max(plan.relocated_until(patch.address));
        }
        let stays = cave && patch.stays == Stay::Function.code();
        let addresses = first.wrapping_add(bias)..end.wrapping_add(bias);
        (!addresses.is_empty()).then_some(Patch { addresses, cave, stays })
    }

    /// Returns the addresses inside the first `len` bytes of code, at whose first byte a thread may stand.
    pub(super) fn inside(at: u64, len: u64) -> Patch {
        Patch { addresses: at + 1..at + len, cave: false, stays: false }
    }

    /// Returns the addresses of a patch that is in the text of a library with this load bias. It is not known whether its first address is the
    /// start of a function, so that address is among them. Returns `None` if the patch is not inside the text.
    pub(super) fn of_library(patch: &abi::Patch, bias: u64, text: &Range<u64>) -> Option<Patch> {
        let start = patch.address.wrapping_add(bias);
        let end = start.checked_add(patch.len.into())?;
        let is_inside =
            start >= text.start && end <= text.end && (1..=patch.original.len()).contains(&patch.len.into());
        let stays = patch.stays == Stay::Function.code();
        is_inside.then_some(Patch { addresses: start..end, cave: true, stays })
    }

    /// Whether a thread must not be in the patch when the agent is taken out, although hooks are paused.
    pub(super) fn stays(&self) -> bool {
        self.stays
    }

    /// The addresses, from the first to the last one.
    pub(super) fn addresses(&self) -> &Range<u64> {
        &self.addresses
    }
}

/// The addresses inside all patches, in a form for fast look-ups: while the threads stand still, every word
/// on their stacks is looked up.
pub(super) struct Overwritten {
    /// The program's addresses, from the first to the last one.
    extent: Range<u64>,
    /// One bit for each of these addresses.
    bits: Vec<u64>,
    /// The addresses of the first bytes of caves.
    caves: HashSet<u64>,
    /// The addresses in libraries, sorted, without overlaps. They may be far from each other.
    libraries: Vec<Range<u64>>,
}

impl Overwritten {
    /// Makes the table for the program's patches, which are sorted by address, and those of libraries.
    pub(super) fn new(patched: &[Patch], mut libraries: Vec<Patch>) -> Overwritten {
        libraries.sort_unstable_by_key(|patch| patch.addresses.start);
        let starts = patched.first().map_or(0, |patch| patch.addresses.start);
        let extent = starts..patched.iter().map(|patch| patch.addresses.end).max().unwrap_or(starts);
        let mut bits = vec![0; ((extent.end - extent.start) / 64 + 1) as usize];
        for at in patched.iter().flat_map(|patch| patch.addresses.clone()) {
            let n = at - extent.start;
            bits[(n / 64) as usize] |= 1 << (n % 64);
        }
        let caves = patched.iter().chain(&libraries).filter(|patch| patch.cave);
        let caves = caves.map(|patch| patch.addresses.start).collect();
        // A cave may lie among the instructions that the hook of another function has relocated.
        let mut merged: Vec<Range<u64>> = Vec::with_capacity(libraries.len());
        for Patch { addresses, .. } in libraries {
            match merged.last_mut() {
                Some(last) if addresses.start <= last.end => last.end = last.end.max(addresses.end),
                _ => merged.push(addresses),
            }
        }
        Overwritten { extent, bits, caves, libraries: merged }
    }

    /// Whether an address is inside a patch.
    pub(super) fn contains(&self, at: u64) -> bool {
        let n = at.wrapping_sub(self.extent.start);
        if let Some(bits) = self.bits.get((n / 64) as usize)
            && bits >> (n % 64) & 1 != 0
        {
            return true;
        }
        let after = self.libraries.partition_point(|range| range.start <= at);
        let range = after.checked_sub(1).and_then(|n| self.libraries.get(n));
        range.is_some_and(|range| range.contains(&at))
    }

    /// Ranges that contain all addresses, from the first one of each range to the last one.
    pub(super) fn extents(&self) -> [Range<u64>; 2] {
        let ends = self.libraries.first().zip(self.libraries.last());
        let libraries = ends.map_or(0..0, |(first, last)| first.start..last.end);
        [self.extent.clone(), libraries]
    }

    /// Whether a word on a stack may be a return address inside a patch. The first address of a cave is not
    /// one: it follows a call that never returns.
    pub(super) fn is_returned_to(&self, word: u64) -> bool {
        self.contains(word) && !self.caves.contains(&word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_inside_patches() {
        let patch = |addresses, cave| Patch { addresses, cave, stays: false };
        let patches =
            [patch(0x1006..0x100a, false), patch(0x100f..0x1012, false), patch(0x4000..0x4010, true)];
        let library = [patch(0x9001..0x9005, false), patch(0x8001..0x8003, false)];
        let overwritten = Overwritten::new(&patches, library.to_vec());
        assert_eq!(overwritten.extents(), [0x1006..0x4010, 0x8001..0x9005]);
        let found_in_library: Vec<u64> = (0x7000..0xa000).filter(|&at| overwritten.contains(at)).collect();
        assert_eq!(found_in_library, (0x8001..0x8003).chain(0x9001..0x9005).collect::<Vec<u64>>());
        let found: Vec<u64> = (0xff0..0x4100).filter(|&at| overwritten.contains(at)).collect();
        let expected = (0x1006..0x100a).chain(0x100f..0x1012).chain(0x4000..0x4010);
        assert_eq!(found, expected.collect::<Vec<u64>>());
        assert!(![0, 0xfff, u64::MAX].iter().any(|&at| overwritten.contains(at)));
        assert!(!Overwritten::new(&[], Vec::new()).contains(0));
        // One among the instructions that another one's hook has relocated does not end these.
        let nested = Overwritten::new(&[], vec![patch(0x1001..0x1020, false), patch(0x1008..0x100d, true)]);
        assert!(
            [0x1001, 0x100c, 0x100d, 0x101f].iter().all(|&at| nested.contains(at))
                && !nested.contains(0x1020)
        );
        // A call that does not return may precede a cave.
        assert_eq!(
            [0x1006, 0x4000, 0x4001].map(|word| overwritten.is_returned_to(word)),
            [true, false, true]
        );
    }
}
