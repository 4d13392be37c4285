//! The addresses at which control may enter a unit other than at its start, and how they lead to the copy.
//! The copy computes the same addresses as the original, so tables, labels and pointers lead into the
//! original. Each place there that they may refer to becomes a jump to the same place of the copy. Nothing
//! else of the original runs any more. A place with fewer than five bytes before the next one therefore
//! gets a short jump to five bytes nearby. If there are none, and only the unit's own indirect jumps lead
//! to the place, those jumps compare their target with it.

use crate::blocks::steps::{Part, Steps, Way};
use crate::blocks::uncounted::Uncounted;
use crate::flow::facts::Flow;
use crate::flow::padding::is_padding;
use crate::x86::jump::{JUMP, SHORT_JUMP, near_jump, short};
use gprofinject_image::{ElfType, Image};
use std::ops::Range;

/// Addresses inside a unit at which it may be entered, sorted.
#[derive(Debug, Default)]
pub(super) struct Targets {
    /// Those that indirect jumps may lead to.
    pub(super) indirect: Vec<u64>,
    /// Those that code outside of the unit branches to, or to which the kernel or the dynamic linker gives control.
    pub(super) outside: Vec<u64>,
    /// The functions with that code, by their indices in the image.
    pub(super) sources: Vec<usize>,
}

impl Targets {
    /// Returns all of them, sorted.
    pub(super) fn all(&self) -> Vec<u64> {
        let mut all: Vec<u64> = self.indirect.iter().chain(&self.outside).copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

/// Finds the addresses at which a unit may be entered. The function's start is not among them, because its
/// hook leads to the copy.
/// # Errors
/// The function cannot be counted; the error is the reason.
pub(super) fn targets(image: &Image, flow: &Flow, steps: &Steps) -> Result<Targets, Uncounted> {
    let mut targets = Targets::default();
    let start = steps.parts[0].lo;
    for part in &steps.parts {
        let first = part.lo + u64::from(part.lo == start);
        // A number that looks like an address counts only if an instruction begins there.
        let pointers = in_range(&image.details().code_pointers, first, part.hi).iter();
        let found = pointers.chain(in_range(&flow.taken, first, part.hi));
        targets.indirect.extend(found.filter(|&&address| steps.at(address).is_some()));
        for &entry in in_range(&image.details().entries, first, part.hi) {
            steps.at(entry).ok_or(Uncounted::Overlapping)?;
            targets.outside.push(entry);
        }
        for branch in flow.branches_to(first, part.hi) {
            if !steps.holds(branch.site) {
                steps.at(branch.target).ok_or(Uncounted::Overlapping)?;
                targets.outside.push(branch.target);
                targets.sources.push(image.owner(branch.function as usize));
            }
        }
    }
    // A function that was called with the return address of the original returns there. What it throws is caught there, too.
    let with_original = steps.list.iter().filter(|s| matches!(s.way, Way::CallWithOriginalReturn(_)));
    let mut returns: Vec<u64> = with_original.map(|s| s.end()).collect();
    if !returns.is_empty() {
        returns.extend(
            steps.parts.iter().flat_map(|part| in_range(&image.details().landing_pads, part.lo, part.hi)),
        );
    }
    targets.outside.extend(returns.into_iter().filter(|&end| steps.at(end).is_some()));
    // The code may take the address of the function's start as a function pointer. It has no known reason
    // to compute the address of any other place.
    let labels: Vec<u64> = steps.addresses.iter().copied().filter(|&a| steps.holds(a)).collect();
    if !steps.jumps_indirectly && labels.iter().any(|&label| label != start) {
        return Err(Uncounted::DataInCode);
    }
    if steps.jumps_indirectly {
        let before = targets.indirect.len();
        for &table in steps.addresses.iter().filter(|&&a| image.may_be_data(a)) {
            // Entries may be distances from the table itself, or from a label. In a program with a fixed
            // load address, they may be addresses.
            let none = (image.elf_type == ElfType::Exec).then_some(&0);
            for &base in std::iter::once(&table).chain(&labels).chain(none) {
                table_targets(image, steps, table, base, &mut targets.indirect);
            }
        }
        if steps.jumps_by_sum && targets.indirect.len() == before {
            for &address in &steps.addresses {
                for &base in &labels {
                    tables_around(image, steps, address, base, &mut targets.indirect);
                }
            }
            if targets.indirect.len() == before {
                return Err(Uncounted::UnknownJump);
            }
        }
    }
    targets.indirect.retain(|&t| t != start);
    targets.indirect.sort_unstable();
    targets.indirect.dedup();
    targets.outside.sort_unstable();
    targets.outside.dedup();
    Ok(targets)
}

/// Returns the elements in `lo..hi`.
fn in_range(sorted: &[u64], lo: u64, hi: u64) -> &[u64] {
    let from = sorted.partition_point(|&t| t < lo);
    &sorted[from..from + sorted[from..].partition_point(|&t| t < hi)]
}

/// Adds the targets of a table of distances from `base`, for as long as they look like targets. Additional
/// targets do no harm.
fn table_targets(image: &Image, steps: &Steps, table: u64, base: u64, targets: &mut Vec<u64>) {
    const MOST: u64 = 1 << 16;
    // In a program without symbols, a cold part may not be known as one, and any number of cases may be in it.
    const MOST_ELSEWHERE: usize = 256;
    let mut elsewhere = 0;
    for i in 0..MOST {
        let Some(&[a, b, c, d]) = image.data_at(table + 4 * i, 4) else { return };
        let target = base.wrapping_add(i32::from_le_bytes([a, b, c, d]) as u64);
        if steps.at(target).is_some() {
            targets.push(target);
            elsewhere = 0;
        } else if !steps.holds(target) && image.function_at(target).is_some() && elsewhere < MOST_ELSEWHERE {
            elsewhere += 1;
        } else if !steps.parts.iter().any(|p| p.hi == target) {
            // An entry may lead to the end of the function, for a case that the compiler considers
            // impossible.
            return;
        }
    }
}

/// Adds the targets of tables of distances from `base` around an address. If the lowest index is not 0,
/// the compiler subtracts it from the table's address.
fn tables_around(image: &Image, steps: &Steps, address: u64, base: u64, targets: &mut Vec<u64>) {
    const MOST: u64 = 1 << 10;
    // A single distance is probably an unrelated number.
    const LEAST: usize = 2;
    let mut run = Vec::new();
    for i in 0..=2 * MOST {
        let word = image.data_at(address.wrapping_sub(4 * MOST).wrapping_add(4 * i), 4);
        let distance = word.and_then(|word| Some(i32::from_le_bytes(word.try_into().ok()?)));
        let target = distance.map(|distance| base.wrapping_add(distance as u64));
        match target.filter(|&t| steps.at(t).is_some()) {
            Some(target) => run.push(target),
            None if run.len() >= LEAST => targets.append(&mut run),
            None => run.clear(),
        }
    }
    if run.len() >= LEAST {
        targets.append(&mut run);
    }
}

/// A place of the original that becomes a jump to the copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Redirect {
    /// Address of the place.
    pub(super) at: u64,
    /// The address in the original to whose copy the near jump leads.
    pub(super) to: u64,
    /// The address of the near jump, if this place has room only for a short one.
    short: Option<u64>,
}

impl Redirect {
    /// Returns the bytes of the jump. `target` is the address in the copy. Returns `None` if it is out of
    /// the near jump's reach.
    pub(super) fn bytes(&self, target: u64) -> Option<Vec<u8>> {
        match self.short {
            None => near_jump(self.at, target).map(|jump| jump.to_vec()),
            Some(cave) => Some(vec![0xeb, short(self.at + SHORT_JUMP, cave)?]),
        }
    }
}

/// The ways by which control gets from the original's places to the copy.
#[derive(Debug, Default)]
pub(super) struct Ways {
    /// The places that become jumps.
    pub(super) redirects: Vec<Redirect>,
    /// Targets of the unit's own indirect jumps that have no room for a jump.
    pub(super) compared: Vec<u64>,
}

/// The most targets that an indirect jump is compared with.
const MOST_COMPARED: usize = 4;

/// Finds room for the jumps of these targets. `taken` has the bytes that hooks overwrite.
/// # Errors
/// Returns [`Uncounted::NoRoom`] if there is not enough room.
pub(super) fn redirect(
    image: &Image,
    flow: &Flow,
    steps: &Steps,
    targets: &Targets,
    taken: &[Range<u64>],
) -> Result<Ways, Uncounted> {
    let mut room = Room { spans: spans(image, flow, steps), taken, used: Vec::new() };
    let mut compared = Vec::new();
    let mut crowded = Vec::new();
    let outside = |at: u64| targets.outside.binary_search(&at).is_ok();
    let targets = targets.all();
    let mut redirects = Vec::new();
    for (n, &at) in targets.iter().enumerate() {
        let next = targets.get(n + 1).copied().unwrap_or(u64::MAX);
        if at + JUMP <= next && room.is_free(at, JUMP) {
            room.take(at, JUMP);
            redirects.push(Redirect { at, to: at, short: None });
        } else if at + SHORT_JUMP <= next && room.is_free(at, SHORT_JUMP) {
            room.take(at, SHORT_JUMP);
            crowded.push(at);
        } else if !outside(at) {
            compared.push(at);
        } else {
            return Err(Uncounted::NoRoom);
        }
    }
    for at in crowded {
        match room.near(at) {
            Some(cave) => {
                room.take(cave, JUMP);
                redirects.push(Redirect { at, to: at, short: Some(cave) });
                redirects.push(Redirect { at: cave, to: at, short: None });
            }
            None if !outside(at) => compared.push(at),
            None => return Err(Uncounted::NoRoom),
        }
    }
    if compared.len() > MOST_COMPARED || !compared.is_empty() && !steps.jumps_indirectly {
        return Err(Uncounted::NoRoom);
    }
    Ok(Ways { redirects, compared })
}

/// Returns the unit's parts, each with the padding after it, if control does not run into that.
fn spans(image: &Image, flow: &Flow, steps: &Steps) -> Vec<Range<u64>> {
    const MOST_PADDING: u64 = 64;
    let span = |part: &Part| {
        let runs_into = steps.list[part.first..part.end].last().is_none_or(|s| s.way.falls_through());
        let limit = image.function_at(part.lo).map_or(part.hi, |i| image.functions[i].limit);
        let end = limit.min(part.hi + MOST_PADDING);
        let padded = !runs_into && is_padding(image, flow, part.hi, end, limit);
        part.lo..if padded { end } else { part.hi }
    };
    steps.parts.iter().map(span).collect()
}

/// The bytes that may be overwritten.
struct Room<'a> {
    /// The ranges of addresses in which they lie.
    spans: Vec<Range<u64>>,
    /// The bytes that hooks overwrite, sorted by start.
    taken: &'a [Range<u64>],
    /// The bytes that are already used for jumps.
    used: Vec<Range<u64>>,
}

impl Room<'_> {
    /// Returns whether `len` bytes at an address are free.
    fn is_free(&self, at: u64, len: u64) -> bool {
        let end = at + len;
        let span = self.spans.iter().find(|s| s.contains(&at));
        if span.is_none_or(|s| end > s.end) || self.used.iter().any(|r| r.start < end && at < r.end) {
            return false;
        }
        // Ranges are sorted by start, and none is longer than this.
        const LONGEST: u64 = 256;
        let from = self.taken.partition_point(|r| r.start + LONGEST < at);
        self.taken[from..].iter().take_while(|r| r.start < end).all(|r| r.end <= at)
    }

    /// Reserves `len` bytes at an address.
    fn take(&mut self, at: u64, len: u64) {
        self.used.push(at..at + len);
    }

    /// Returns the address of five free bytes that a short jump at an address can reach, or `None` if
    /// there are none.
    fn near(&self, at: u64) -> Option<u64> {
        const REACH: u64 = 127;
        let end = at + SHORT_JUMP;
        let below = (end.saturating_sub(REACH)..at).rev();
        (end..=end + REACH - 1).chain(below).find(|&cave| self.is_free(cave, JUMP))
    }
}
