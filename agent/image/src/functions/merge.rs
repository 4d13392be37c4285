//! Symbols and frame descriptions, merged into the list of functions.
//!
//! An address becomes a function when
//!
//! - a symbol of type FUNC or IFUNC is there, also in the middle of another function (assembly with several
//!   entries), because code that is declared a function is called;
//! - a bare label is there (NOTYPE, hand-written assembly) that is global and not inside a function, or that has
//!   a frame description of its own;
//! - a frame description begins there, outside everything that has a name;
//! - the program starts there.
//!
//! All other symbols are labels inside functions. A function ends where the next one begins, so no two overlap.

use crate::file::elf::Elf;
use crate::file::ranges::{CodeRange, CodeRanges};
use crate::frames::unwind::{Fde, Unwind};
use crate::function::{Function, FunctionKind};
use crate::functions::cold;
use crate::functions::cold::{Makers, Orphan};
use crate::functions::label::{Label, LabelKind};
use crate::functions::symbols::Labels;
use crate::names::suffixes::parent_name;
use crate::x86;

/// The list of functions.
#[derive(Debug, Default)]
pub(crate) struct Functions<'d> {
    pub(crate) list: Vec<Function<'d>>,
    /// The addresses of global labels inside functions, to which other object files may jump.
    pub(crate) inner_labels: Vec<u64>,
}

impl<'d> Functions<'d> {
    /// Merges symbols and frame descriptions into the list of functions.
    pub(crate) fn merge(
        elf: &Elf<'d>,
        code: &CodeRanges,
        labels: &Labels<'d>,
        unwind: &mut Unwind<'d>,
    ) -> Self {
        let mut merger = Merger {
            elf,
            makers: Makers::of(elf),
            out: Functions::default(),
            orphans: Vec::new(),
            covered: 0,
            last_range: None,
        };
        merger.out.list.reserve(labels.labels.len().max(unwind.fdes.len()));
        let mut rest = labels.labels.as_slice();
        let mut next_fde = 0;
        let mut start = Some(elf.entry);
        loop {
            let candidates = [
                rest.first().map(|label| label.address),
                unwind.fdes.get(next_fde).map(|fde| fde.start),
                start,
            ];
            let Some(address) = candidates.into_iter().flatten().min() else { break };
            start = start.filter(|&start| start != address);
            let same = rest.iter().take_while(|label| label.address == address).count();
            let (here, after) = rest.split_at(same);
            rest = after;
            let fde = unwind.fdes.get(next_fde).copied().filter(|fde| fde.start == address);
            next_fde += usize::from(fde.is_some());
            let Some(range) = merger.range(code, address) else { continue };
            merger.address(range, address, here, rest.first(), fde, unwind);
        }
        merger.finish(&labels.labels)
    }
}

struct Merger<'a, 'd> {
    elf: &'a Elf<'d>,
    makers: Makers,
    out: Functions<'d>,
    orphans: Vec<Orphan<'d>>,
    /// The end of the bytes that the functions so far claim.
    covered: u64,
    /// The range of code that contains the last function.
    last_range: Option<CodeRange>,
}

impl<'d> Merger<'_, 'd> {
    fn range(&self, code: &CodeRanges, address: u64) -> Option<CodeRange> {
        let same = self.last_range.filter(|range| (range.start..range.end).contains(&address));
        same.or_else(|| code.find_code(address))
    }

    /// Handles everything that is known about one address.
    fn address(
        &mut self,
        range: CodeRange,
        address: u64,
        labels: &[Label<'d>],
        next: Option<&Label<'d>>,
        fde: Option<Fde>,
        unwind: &mut Unwind<'d>,
    ) {
        let inside = address < self.covered;
        // A bare local label is an ordinary jump target, unless it has a frame description.
        let counts = |label: &&Label<'_>| {
            let bare = label.kind == LabelKind::Bare;
            !is_empty_cold(label) && (!bare || fde.is_some() || !label.local)
        };
        let mut names = labels.iter().filter(counts);
        let Some(best) = names.clone().next() else {
            let begins = fde.is_some_and(|fde| !self.is_early(fde, next)) || address == self.elf.entry;
            if begins && !inside && !self.is_stub(address) {
                self.push(range, address, None, &[], fde, unwind);
            }
            return;
        };
        let function = names.clone().any(|label| label.kind != LabelKind::Bare);
        if !function && inside && fde.is_none() {
            self.out.inner_labels.push(address);
            return;
        }
        names.next();
        let aliases: Vec<Label<'d>> = names.copied().collect();
        self.push(range, address, Some(best), &aliases, fde, unwind);
    }

    /// Whether a frame description begins before its function: with the padding before the function (in
    /// glibc's assembly), or one byte early, as that of a signal frame must for unwinders that look up the
    /// address before the return address.
    fn is_early(&self, fde: Fde, next: Option<&Label<'_>>) -> bool {
        let counts = |label: &&Label<'_>| label.kind != LabelKind::Bare || !label.local;
        let Some(label) = next.filter(counts).filter(|label| label.address < fde.end) else { return false };
        let gap = label.address - fde.start;
        gap == 1 && fde.signal
            || gap < PADDING_MAX && self.elf.at_address(fde.start, gap).is_some_and(x86::is_fill)
    }

    fn push(
        &mut self,
        range: CodeRange,
        address: u64,
        best: Option<&Label<'d>>,
        aliases: &[Label<'d>],
        fde: Option<Fde>,
        unwind: &mut Unwind<'d>,
    ) {
        self.end_last(address);
        let described = fde.map_or(0, |fde| fde.end - fde.start);
        let all = best.into_iter().chain(aliases);
        let size = match all.clone().map(|label| label.size).find(|&size| size != 0) {
            Some(size) => size,
            None => described,
        };
        let frame = match fde {
            Some(fde) => Some(fde.entered_by_call),
            None => unwind.entered_by_call(address),
        };
        let name = best.map_or("", |label| label.name);
        let cold = best.filter(|label| label.has_cold_name() && self.makers.is_part(name, frame));
        let part_of = cold.and_then(|label| parent_name(label.name));
        let kind = if address == self.elf.entry {
            FunctionKind::Start
        } else if part_of.is_some() || frame == Some(false) {
            FunctionKind::Cold(None)
        } else if all.clone().any(|label| label.kind == LabelKind::Ifunc) {
            FunctionKind::IfuncResolver
        } else {
            FunctionKind::Ordinary
        };
        if let (Some(parent), Some(label)) = (part_of, best) {
            self.orphans.push(Orphan { part: self.out.list.len(), parent, file: label.file });
        }
        self.covered = self.covered.max(address.saturating_add(size.max(described))).min(range.end);
        self.last_range = Some(range);
        let mut names: Vec<&'d str> = Vec::new();
        for alias in aliases {
            // Every object file has its own copy of a local name.
            if !alias.name.is_empty() && alias.name != name && names.last() != Some(&alias.name) {
                names.push(alias.name);
            }
        }
        self.out.list.push(Function { address, size, limit: range.end, name, aliases: names, kind, frame });
    }

    /// Makes the last function end where the next one begins, if it has not ended before.
    fn end_last(&mut self, next: u64) {
        if let Some(last) = self.out.list.last_mut() {
            last.limit = last.limit.min(next);
            let room = last.limit - last.address;
            last.size = if last.size == 0 { room } else { last.size.min(room) };
        }
    }

    /// Whether a frame description belongs to the dynamic linker's stubs. The code decides, because sections may have any name
    /// or be missing.
    fn is_stub(&self, address: u64) -> bool {
        x86::is_stub(self.elf.rest_at(address).unwrap_or_default())
    }

    fn finish(mut self, labels: &[Label<'d>]) -> Functions<'d> {
        self.end_last(u64::MAX);
        let parents = cold::parents(&self.orphans, labels);
        let list = &mut self.out.list;
        for (orphan, parent) in self.orphans.iter().zip(parents) {
            let index =
                parent.and_then(|at| list.binary_search_by_key(&at, |function| function.address).ok());
            if let (Some(index), FunctionKind::Cold(_)) = (index, list[orphan.part].kind)
                && index != orphan.part
            {
                list[orphan.part].kind = FunctionKind::Cold(Some(index));
            }
        }
        self.out
    }
}

/// The largest alignment of functions in bytes.
const PADDING_MAX: u64 = 64;

/// Whether a label is that of a cold part that is empty, whose address is that of whatever follows.
fn is_empty_cold(label: &Label<'_>) -> bool {
    label.size == 0 && label.has_cold_name()
}
