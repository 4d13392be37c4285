//! Finds what gprof refuses, silently drops, or charges to the wrong function.

use crate::finding::{Finding, Problem};
use crate::format::{BlockForm, Width};
use crate::profile::{Arc, Histogram, Profile};
use crate::program::{Place, Program};
use crate::read::{Detected, ReadOptions, collect};
use crate::records::{ReadError, Record, Records, header_build_id};
use crate::write::SCALE_TOLERANCE;

/// Checks a whole gmon.out file and, with a program, its addresses against the program's functions.
///
/// Returns one finding for each kind of problem, with the number of times it occurs and its first place. A
/// file that cannot be read to its end is checked up to the error.
pub fn check(bytes: &[u8], options: &ReadOptions, program: Option<&Program>) -> Vec<Finding> {
    let mut problems = Vec::new();
    match options.detect_lenient(bytes) {
        Err(error) => problems.push(Problem::Unreadable(error)),
        Ok(detected) => match records(bytes, &detected, &mut problems) {
            Err(error) => problems.push(Problem::Unreadable(error)),
            Ok(profile) => {
                content(&profile, &mut problems);
                if let Some(program) = program {
                    against_program(&profile, program, &mut problems);
                }
            }
        },
    }
    problems.into_iter().map(Finding::from).collect()
}

/// Checks the form of the file, and returns its contents.
fn records(bytes: &[u8], detected: &Detected, problems: &mut Vec<Problem>) -> Result<Profile, ReadError> {
    let layout = detected.layout;
    let mut profile = Profile::new(layout.format);
    profile.build_id = header_build_id(bytes);
    problems.push(Problem::Format(layout.format));
    if profile.build_id.is_known() {
        problems.push(Problem::BuildId(profile.build_id));
    }
    if detected.ambiguous_width {
        problems.push(Problem::AmbiguousWidth);
    }
    let mut histograms = HistogramRules::default();
    for (offset, record) in Records::new(bytes, layout) {
        let record = match record {
            Ok(record) => record,
            Err(error) if detected.records > 0 => {
                let bytes = bytes.len() as u64 - offset;
                problems.push(Problem::Trailing { bytes, error });
                break;
            }
            Err(error) => {
                problems.push(Problem::Unreadable(error));
                break;
            }
        };
        let is_histogram = matches!(record, Record::Histogram(_));
        let glibc = layout.block_form == BlockForm::Glibc && layout.format.width == Width::Bits64;
        if glibc && matches!(record, Record::Blocks(_)) {
            once(problems, Problem::GlibcBlocks { offset });
        }
        if is_histogram && !(profile.arcs.is_empty() && profile.blocks.is_empty()) {
            once(problems, Problem::Order { offset });
        }
        collect(&mut profile, record).map_err(|overflow| ReadError::Overflow { offset, overflow })?;
        if is_histogram && let Some(last) = profile.histograms.last() {
            histograms.check(offset, last, problems);
        }
    }
    histograms.overlaps(problems);
    let offset = bytes.len() as u64;
    profile.normalize().map_err(|overflow| ReadError::Overflow { offset, overflow })?;
    Ok(profile)
}

/// Adds a problem unless there is one of its kind.
fn once(problems: &mut Vec<Problem>, problem: Problem) {
    let kind = std::mem::discriminant(&problem);
    if problems.iter().all(|other| std::mem::discriminant(other) != kind) {
        problems.push(problem);
    }
}

/// gprof's rules for histograms (binutils `gprof/hist.c`, `read_histogram_header`).
#[derive(Default)]
struct HistogramRules {
    /// The first histogram, without its bins.
    first: Option<Histogram>,
    first_scale: f64,
    first_width: f64,
    ranges: Vec<(u64, u64, u64)>,
}

impl HistogramRules {
    fn check(&mut self, offset: u64, histogram: &Histogram, problems: &mut Vec<Problem>) {
        let &Histogram { low, high, rate, unit, .. } = histogram;
        let (width, scale) = (histogram.bin_width(), histogram.scale());
        let (first_width, first_scale) = match &self.first {
            None => (width, scale),
            Some(_) => (self.first_width, self.first_scale),
        };
        if rate == 0 {
            once(problems, Problem::RateZero { offset });
        }
        if low % 2 == 1 {
            once(problems, Problem::OddStart { offset, low });
        }
        if histogram.bins.is_empty() {
            once(problems, Problem::EmptyHistogram { offset, low });
        } else if scale < 1.0 {
            once(problems, Problem::NarrowBins { offset, width });
        }
        if (scale - first_scale).abs() > SCALE_TOLERANCE {
            once(problems, Problem::Scales { offset, first: first_width, other: width });
        }
        if let Some(first) = &self.first {
            if first.unit != unit {
                once(problems, Problem::Units { offset, first: first.unit, other: unit });
            }
            if first.rate != rate {
                once(problems, Problem::Rates { offset, first: first.rate, other: rate });
            }
        } else {
            self.first = Some(Histogram { bins: Vec::new(), ..*histogram });
            (self.first_width, self.first_scale) = (width, scale);
        }
        if high > low {
            self.ranges.push((low, high, offset));
        }
    }

    fn overlaps(mut self, problems: &mut Vec<Problem>) {
        self.ranges.sort_unstable();
        // The next range may overlap the one with the highest end.
        let mut highest: Option<(u64, u64)> = None;
        for (low, high, offset) in self.ranges {
            match highest {
                Some(other) if low < other.1 && other != (low, high) => {
                    once(problems, Problem::Overlap { offset, range: (low, high), other });
                    highest = Some(if high > other.1 { (low, high) } else { other });
                }
                _ => highest = Some((low, high)),
            }
        }
    }
}

/// Checks the contents of the file.
fn content(profile: &Profile, problems: &mut Vec<Problem>) {
    if profile.histograms.is_empty() {
        problems.push(Problem::NoHistogram);
    }
    if profile.arcs.is_empty() {
        problems.push(Problem::NoArcs);
    }
    let zero = Arcs::of(profile, |arc| arc.count == 0);
    if let Some(first) = zero.first {
        problems.push(Problem::ZeroArcs { arcs: zero.number, first });
    }
    let mut zero = profile.blocks.iter().filter(|block| block.count == 0);
    if let Some(first) = zero.next() {
        problems.push(Problem::ZeroBlocks { blocks: 1 + zero.count() as u64, first: first.addr });
    }
    let covered = |address| {
        let after = profile.histograms.partition_point(|histogram| histogram.low <= address);
        // The histograms are sorted by start; ranges that overlap are a finding of their own.
        after > 0 && profile.histograms[after - 1].covers(address)
    };
    let outside = Arcs::of(profile, |arc| !covered(arc.from) || !covered(arc.to));
    if let Some(first) = outside.first
        && !profile.histograms.is_empty()
    {
        problems.push(Problem::ArcsOutsideHistograms { arcs: outside.number, first });
    }
}

/// Checks for addresses that gprof will not find in the program.
fn against_program(profile: &Profile, program: &Program, problems: &mut Vec<Problem>) {
    if program.format != profile.format {
        problems.push(Problem::ProgramFormat { program: program.format, file: profile.format });
    }
    if let Err(mismatch) = program.build_id.agree(profile.build_id) {
        problems.push(Problem::Build { program: mismatch.first, file: mismatch.other });
    }
    if program.functions().is_empty() {
        problems.push(Problem::NoFunctions);
        return;
    }
    let dropped = |address| matches!(program.place(address), Place::Nowhere);
    let between = |address| matches!(program.place(address), Place::Behind(_));
    let is_dropped = |arc: &Arc| dropped(arc.from) || dropped(arc.to);
    let found = Arcs::of(profile, is_dropped);
    if let Some(first) = found.first {
        problems.push(Problem::DroppedArcs { arcs: found.number, calls: found.calls, first });
    }
    let found = Arcs::of(profile, |arc| !is_dropped(arc) && (between(arc.from) || between(arc.to)));
    if let Some(first) = found.first {
        problems.push(Problem::ArcsBetweenFunctions { arcs: found.number, calls: found.calls, first });
    }
    let mut blocks = profile.blocks.iter().filter(|block| dropped(block.addr));
    if let Some(first) = blocks.next() {
        problems.push(Problem::BlocksOutsideProgram { blocks: 1 + blocks.count() as u64, first: first.addr });
    }
    let (mut hits, mut first) = (0u64, None);
    for histogram in &profile.histograms {
        for (index, &bin) in histogram.bins.iter().enumerate().filter(|&(_, &bin)| bin > 0) {
            let low = histogram.bin_address(index);
            // A bin belongs to the program if any byte of it does.
            let last = histogram.bin_address(index + 1).saturating_sub(1).max(low);
            if dropped(low) && dropped(last) {
                hits = hits.saturating_add(bin);
                first.get_or_insert(low);
            }
        }
    }
    if let Some(first) = first {
        problems.push(Problem::DroppedHits { hits, first });
    }
}

/// Some of the profile's arcs, summed up.
struct Arcs {
    number: u64,
    calls: u64,
    first: Option<Arc>,
}

impl Arcs {
    fn of(profile: &Profile, which: impl Fn(&Arc) -> bool) -> Arcs {
        let mut arcs = Arcs { number: 0, calls: 0, first: None };
        for arc in profile.arcs.iter().filter(|arc| which(arc)) {
            arcs.number += 1;
            arcs.calls = arcs.calls.saturating_add(arc.count);
            arcs.first.get_or_insert(*arc);
        }
        arcs
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Severity;
    use crate::format::Format;
    use crate::profile::{Block, SECONDS};
    use crate::program::Function;

    fn histogram(low: u64, bins: Vec<u64>) -> Histogram {
        Histogram { low, high: low + 2 * bins.len() as u64, rate: 100, unit: SECONDS, bins }
    }

    fn bytes(histograms: Vec<Histogram>, arcs: Vec<Arc>) -> Vec<u8> {
        let blocks = arcs.iter().map(|arc| Block { addr: arc.to, count: arc.count }).collect();
        let mut bytes = Vec::new();
        let profile = Profile { histograms, arcs, blocks, ..Profile::new(Format::LITTLE_64) };
        crate::write(&profile, &mut bytes).expect("a good profile");
        bytes
    }

    fn found(bytes: &[u8], program: Option<&Program>) -> Vec<String> {
        let findings = check(bytes, &ReadOptions::default(), program);
        let told = findings.iter().filter(|finding| finding.severity > Severity::Note);
        told.map(ToString::to_string).collect()
    }

    fn good() -> Vec<u8> {
        bytes(vec![histogram(0x1000, vec![1; 8])], vec![Arc { from: 0x1001, to: 0x1008, count: 2 }])
    }

    #[test]
    fn a_good_file() {
        assert_eq!(found(&good(), None), [""; 0]);
    }

    #[test]
    fn histograms_that_gprof_refuses() {
        // Appends the records of a second file to the first.
        let after_good = |change: &dyn Fn(&mut Histogram)| {
            let mut second = histogram(0x2000, vec![0; 4]);
            change(&mut second);
            let second = bytes(vec![second], vec![]);
            found(&[&good(), &second[20..]].concat(), None).join("\n")
        };
        let order = "warning: histogram after other records, at offset 119";
        assert!(after_good(&|_| ()).starts_with(order));
        let says = |text: String, words: &str| assert!(text.contains(words), "{text}");
        says(after_good(&|h| h.rate = 7), "warning: histogram rate 7, at offset 119, expected 100");
        says(after_good(&|h| h.unit.abbrev = b'm'), "error: histogram in seconds (m), at offset 119");
        says(after_good(&|h| h.high += 8), "error: histogram bins of 4 bytes, at offset 119, expected 2");
        says(after_good(&|h| (h.low, h.high) = (0x2001, 0x2009)), "warning: histogram starts at odd 0x2001");
        says(
            after_good(&|h| (h.low, h.high) = (0x1004, 0x100c)),
            "error: histogram 0x1004..0x100c overlaps 0x1000..0x1010",
        );
        says(found(&good()[..20], None).join("\n"), "error: no histogram");
    }

    #[test]
    fn bytes_that_are_no_record() {
        let trailing = [&good()[..], &[0, 0, 0]].concat();
        assert_eq!(
            found(&trailing, None),
            [
                "error: 3 bytes after the last whole record: histogram's start address cut off, at offset 120, \
              expected 8 bytes, found 2"
            ]
        );
        assert_eq!(found(b"gmon", None).len(), 1);
        assert_eq!(found(b"", None).len(), 1);
    }

    #[test]
    fn counts_of_nothing() {
        let arcs = vec![Arc { from: 0x1001, to: 0x1008, count: 0 }];
        let text = found(&bytes(vec![histogram(0x1000, vec![1; 8])], arcs), None).join("\n");
        assert!(text.contains("1 arc counts nothing"), "{text}");
        assert!(!text.contains("basic blocks"), "{text}");
    }

    #[test]
    fn addresses_outside_the_program() {
        let function = |start, size| Function { start, size, name: "f".to_owned() };
        let functions = vec![function(0x1004, 4), function(0x100c, 4)];
        let code = std::iter::once(0x1000..0x1010).collect();
        let program = Program::new(Format::LITTLE_64, functions, code);
        let arc = |from, to, count| Arc { from, to, count };
        let arcs = vec![arc(0x1001, 0x1004, 5), arc(0x1004, 0x100c, 7), arc(0x1009, 0x100c, 11)];
        let text = found(&bytes(vec![histogram(0x1000, vec![1; 8])], arcs), Some(&program)).join("\n");
        assert!(text.contains("error: 1 arc with 5 calls hit no function"), "{text}");
        assert!(text.contains("warning: 1 arc with 11 calls lie behind"), "{text}");
        assert!(text.contains("error: 2 histogram hits lie outside"), "{text}");
        let other = Program::new(Format::BIG_32, vec![], vec![]);
        let text = found(&good(), Some(&other)).join("\n");
        assert!(text.contains("error: the program is 32-bit big-endian"), "{text}");
        assert!(text.contains("error: the program has no function symbols"), "{text}");
    }
}
