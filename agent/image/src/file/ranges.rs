//! The ranges of code: executable sections, or executable segments if no sections are believed.

use crate::file::elf::Elf;

/// A range of code whose bytes are all in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CodeRange {
    pub(crate) start: u64,
    pub(crate) end: u64,
    /// Whether it contains stubs of the dynamic linker, and no functions.
    pub(crate) plt: bool,
}

/// The ranges of code, sorted and disjoint.
#[derive(Debug)]
pub(crate) struct CodeRanges(Vec<CodeRange>);

impl CodeRanges {
    /// Returns the ranges of a file.
    pub(crate) fn of(elf: &Elf<'_>) -> Self {
        let mut ranges = Vec::new();
        let executable = elf.loads.iter().filter(|load| load.executable);
        let segments: Vec<(u64, u64)> =
            executable.map(|load| (load.address, load.address + load.bytes.len() as u64)).collect();
        for section in elf.sections.iter().filter(|section| section.executable()) {
            let end = section.address.saturating_add(section.size);
            for &(segment_start, segment_end) in &segments {
                let (start, end) = (section.address.max(segment_start), end.min(segment_end));
                if start < end {
                    ranges.push(CodeRange { start, end, plt: section.is_plt() });
                }
            }
        }
        if !elf.has_code_sections() {
            ranges.extend(segments.iter().map(|&(start, end)| CodeRange { start, end, plt: false }));
        }
        ranges.sort_unstable_by_key(|range| (range.start, range.end));
        // Only in a damaged file do sections overlap; each one then ends where the next begins.
        for index in 1..ranges.len() {
            ranges[index - 1].end = ranges[index - 1].end.min(ranges[index].start);
        }
        ranges.retain(|range| range.start < range.end);
        CodeRanges(ranges)
    }

    /// Returns the range that contains this address.
    pub(crate) fn find(&self, address: u64) -> Option<CodeRange> {
        let after = self.0.partition_point(|range| range.start <= address);
        self.0[..after].last().copied().filter(|range| address < range.end)
    }

    /// Returns the range that contains this address, unless it has stubs of the dynamic linker.
    pub(crate) fn find_code(&self, address: u64) -> Option<CodeRange> {
        self.find(address).filter(|range| !range.plt)
    }

    /// Returns all ranges.
    pub(crate) fn iter(&self) -> impl Iterator<Item = CodeRange> + '_ {
        self.0.iter().copied()
    }

    /// Returns the first address of all code and the one after the last, for a fast rejection.
    pub(crate) fn hull(&self) -> std::ops::Range<u64> {
        match (self.0.first(), self.0.last()) {
            (Some(first), Some(last)) => first.start..last.end,
            _ => 0..0,
        }
    }
}
