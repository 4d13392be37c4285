//! Home slots: the counters of a function's arcs, in the counters of each thread.
//! A function has as many slots as it has call sites in the file, directly or through a stub of the dynamic linker, or half as many if
//! these are many, rounded up to a power of two, and a multiplier under which as few call sites as possible share a slot. The hash uses only the low twelve
//! bits of a return address, so the load bias, a multiple of the page size, does not change it.

use crate::blocks::copies::Copies;
use crate::decide::hook::Hook;
use crate::decide::tails::Tail;
use crate::flow::branch::{Branch, BranchKind};
use crate::flow::facts::Flow;
use crate::x86::template::kind::Role;
use gprofinject_abi::plan::SPARE_SLOTS;
use gprofinject_abi::region::{SLOTS, Slot};
use gprofinject_image::Image;

/// The home slots of one function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Home {
    /// Offset of the first slot in the counters of a thread, in bytes.
    pub offset: u32,
    /// `(slots - 1) * 16`. With one slot this is 0, and there is no hash.
    pub mask: u32,
    /// The hash multiplies the low half of the return address by this.
    pub multiplier: u32,
    /// The hash shifts the product right by this many bits, so that the slot's number is the top of the
    /// product's low twelve bits.
    pub shift: u32,
    /// The number of all slots: home slots, spare ones, and one for each tail call.
    pub count: u32,
}

impl Home {
    /// Returns whether the hash is only the masked return address.
    pub(crate) fn is_masked(&self) -> bool {
        (self.multiplier, self.shift) == (1, 0)
    }

    /// Returns the offset of the function's slots for tail calls in the counters of a thread.
    pub(crate) fn tails(&self) -> u32 {
        self.offset + self.mask + SLOT + if self.mask == 0 { 0 } else { SPARE_SLOTS * SLOT }
    }

    /// Returns the offset of a key's slot among the function's own.
    fn slot(&self, key: u32) -> u32 {
        key.wrapping_mul(self.multiplier) >> self.shift & self.mask
    }
}

/// The home slots of all functions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Homes {
    /// By function number.
    homes: Vec<Home>,
    /// Bytes of all slots.
    pub bytes: u64,
}

/// The number of unknown callers for which a function has slots that may be called through a pointer or from
/// outside. With eight, interpreters would be another tenth faster, and short compilations slower by a twentieth,
/// because more pages of slots are made.
const UNKNOWN_CALLERS: usize = 5;
/// Of the call sites of a function with more than these, a run uses few. Room for all would be mostly empty, and each page of it
/// that a process uses takes longer to make than hundreds of calls.
const MANY: usize = 64;
/// The largest number of home slots of a function. Further arcs are counted in the overflow tables.
const MOST: usize = 4096;
/// The largest number of slots of a function whose hash only masks the return address.
const MASKED: usize = 64;
/// Bytes of a slot.
const SLOT: u32 = size_of::<Slot>() as u32;

/// The multipliers to try. They are odd, so that no low bit is lost. The first one keeps all bits as they
/// are.
const MULTIPLIERS: [u32; 24] = [
    1,
    0x9e37_79b1,
    0x85eb_ca6b,
    0xc2b2_ae35,
    0x27d4_eb2f,
    0x1656_67b1,
    0x5bd1_e995,
    0x0100_0193,
    0x2c1b_3c6d,
    0x297a_2d39,
    0x7feb_352d,
    0x846c_a68b,
    3,
    5,
    7,
    11,
    13,
    17,
    19,
    23,
    29,
    31,
    37,
    41,
];

impl Homes {
    /// Returns the home slots of the function with this number.
    pub(crate) fn of(&self, number: usize) -> Home {
        self.homes.get(number).copied().unwrap_or_default()
    }

    /// Gives each hooked function its slots. `tails` must be sorted by callee.
    pub(crate) fn new(
        image: &Image,
        flow: &Flow,
        role: Role,
        hooks: &[Hook],
        tails: &[Tail],
        copies: &Copies,
    ) -> Homes {
        let mut homes = Homes { homes: Vec::with_capacity(hooks.len()), bytes: 0 };
        let mut returns = Vec::new();
        let mut rest = tails;
        for (number, hook) in hooks.iter().enumerate() {
            let own = rest.iter().take_while(|t| t.callee as usize == number).count();
            rest = &rest[own..];
            returns.clear();
            let address = image.functions[hook.function].address;
            let mut tails = 0;
            // The copies begin at a page boundary, so the low twelve bits of an offset are those of the address.
            let behind = |call: &Branch| {
                let copied = copies.unit_with(image, call.function as usize);
                copied.and_then(|unit| unit.behind(call.site)).unwrap_or(call.end() as u32)
            };
            for b in flow.branches_into(hook.function, hook.at.max(address) + 1) {
                match b.kind {
                    BranchKind::Call => returns.push(behind(b)),
                    _ if image.owner(b.function as usize) != hook.function => tails += 1,
                    _ => {}
                }
            }
            let by_stubs = stubs_of(image, address).flat_map(|stub| flow.branches_to(stub, stub + 1));
            returns.extend(by_stubs.filter(|branch| branch.kind == BranchKind::Call).map(behind));
            let taken = flow.is_taken(address) || flow.is_taken(hook.at);
            // A program that is linked with -rdynamic exports all of its functions. Other files call few of them, and hardly those that
            // the program itself calls.
            let is_inner = !role.is_library()
                && returns.len() + tails > 0
                && flow.only_exported.binary_search(&address).is_ok();
            let unknown = if taken && !is_inner { UNKNOWN_CALLERS } else { 0 };
            let by_thunk = own.min(tails);
            homes.add(&returns, (returns.len() + tails - by_thunk + unknown).max(1), own as u32);
        }
        homes
    }

    /// Gives the next function its slots. `returns` has the low halves of its known return addresses,
    /// `expected` is the number of callers, and `tails` the number of its tail calls with a thunk.
    fn add(&mut self, returns: &[u32], expected: usize, tails: u32) {
        let roomy = match expected {
            0..=4 => expected,
            5..=MANY => expected * 3 / 2,
            _ => (expected / 2).max(MANY),
        };
        let mut slots = roomy.next_power_of_two().min(MOST);
        // A few more slots are worthwhile if they save the multiplication.
        let more = [slots, 2 * slots, 4 * slots]
            .into_iter()
            .find(|&n| slots > 1 && n <= MASKED && tells_apart(returns, n));
        let masked = more.is_some();
        slots = more.unwrap_or(slots);
        let mut home = Home {
            offset: (SLOTS + self.bytes) as u32,
            mask: (slots as u32 - 1) * SLOT,
            multiplier: 1,
            shift: if masked { 0 } else { 8_u32.saturating_sub(slots.trailing_zeros()) },
            count: 0,
        };
        home.count = (home.tails() - home.offset) / SLOT + tails;
        if slots > 1 && !masked {
            home.multiplier = best_multiplier(returns, home, slots);
        }
        self.homes.push(home);
        self.bytes += u64::from(home.count) * u64::from(SLOT);
    }
}

/// Returns the stubs of the dynamic linker through which the file calls a function of its own.
fn stubs_of(image: &Image, function: u64) -> impl Iterator<Item = u64> {
    let stubs = &image.details().own_stubs;
    let first = stubs.partition_point(|&(to, _)| to < function);
    stubs[first..].iter().take_while(move |&&(to, _)| to == function).map(|&(_, stub)| stub)
}

/// Returns whether each return address gets a slot of its own if the bits above the lowest four select the
/// slot. The load bias, a multiple of the page size, does not change these bits.
fn tells_apart(returns: &[u32], slots: usize) -> bool {
    let mut seen = [false; MASKED];
    returns.iter().all(|r| !std::mem::replace(&mut seen[(r / SLOT) as usize & (slots - 1)], true))
}

/// Returns the multiplier under which the fewest return addresses share a slot.
fn best_multiplier(returns: &[u32], home: Home, slots: usize) -> u32 {
    let tries = if returns.len() > 64 { 4 } else { MULTIPLIERS.len() };
    let mut seen = vec![u32::MAX; slots];
    let mut best = (usize::MAX, MULTIPLIERS[1]);
    for (round, &multiplier) in MULTIPLIERS.iter().enumerate().take(tries) {
        let mut collisions = 0;
        let home = Home { multiplier, ..home };
        for &r in returns {
            let slot = home.slot(r) / SLOT;
            collisions += usize::from(seen[slot as usize] == round as u32);
            seen[slot as usize] = round as u32;
        }
        if collisions < best.0 {
            best = (collisions, multiplier);
        }
        if collisions == 0 {
            break;
        }
    }
    best.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_call_sites_get_slots_of_their_own() {
        let mut homes = Homes::default();
        homes.add(&[0x1005], 1, 2);
        homes.add(&[0x1005, 0x1105, 0x2205], 3, 0);
        homes.add(&[], UNKNOWN_CALLERS, 0);
        assert_eq!(homes.of(0), Home { offset: SLOTS as u32, mask: 0, multiplier: 1, shift: 8, count: 3 });
        assert_eq!(homes.of(0).tails(), SLOTS as u32 + 16);
        let home = homes.of(1);
        assert_eq!((home.offset, home.mask), (SLOTS as u32 + 48, 48));
        let mut slots: Vec<u32> = [0x1005_u32, 0x1105, 0x2205].iter().map(|&r| home.slot(r)).collect();
        slots.dedup();
        assert_eq!(slots.len(), 3);
        homes.add(&[0x1005, 0x1105, 0x2215], 3, 0);
        assert_eq!((homes.of(3).mask, homes.of(3).is_masked()), (48, false));
        homes.add(&[0x1005, 0x1115, 0x2225], 3, 0);
        assert_eq!((homes.of(4).mask, homes.of(4).is_masked()), (48, true));
        // The load bias does not change which slots collide.
        let moved = [0x1005_u32, 0x1105, 0x2205].map(|r| home.slot(r.wrapping_add(0x5555_4000)));
        assert_eq!(slots, moved);
        assert_eq!(homes.bytes, 16 * (3 + 7 + 11 + 7 + 7));
    }
}
