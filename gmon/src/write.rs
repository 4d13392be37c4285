//! From a [`Profile`] to bytes, in the form that gprof 2.40 to 2.47 reads without loss.

use std::io::{self, BufWriter, Write};

use byteorder::{BigEndian, LittleEndian, WriteBytesExt};
use thiserror::Error;

use crate::format::{Endian, MAGIC, TAG_ARC, TAG_BLOCKS, TAG_HISTOGRAM, VERSION, Width};
use crate::histogram::empty_chunk;
use crate::profile::{Histogram, Profile, ShapeError, Unit};

/// The rate, per second, of the empty histogram that is written if a profile has none. gprof uses the first
/// file's rate for all; if that matters, the profile should have at least one histogram.
pub const PLACEHOLDER_RATE: u32 = 100;

/// gprof sums a bin in 32 bits (binutils `gprof/hist.h`, `sample`).
const MAX_BIN: u64 = u32::MAX as u64;
/// The largest number of records for one count. An arc needs 21 bytes for each 2^32 of its count; a count
/// that needs more records must be a mistake, since it means 52 days of calls at one per nanosecond.
const MAX_SPLIT: u64 = 1 << 20;
/// The largest difference of scales that gprof accepts (binutils `gprof/hist.c`).
pub(crate) const SCALE_TOLERANCE: f64 = 0.000_001;

/// Why a profile cannot be written so that gprof reads it. Nothing has been written, except with
/// [`WriteError::Io`].
#[derive(Debug, Error)]
pub enum WriteError {
    #[error("cannot write")]
    Io(#[from] io::Error),
    #[error(transparent)]
    Shape(#[from] ShapeError),
    #[error("histograms with rates {first} and {other} per second, expected one rate")]
    Rates { first: u32, other: u32 },
    #[error("histogram at {low:#x} with a rate of 0 per second, expected at least 1")]
    RateZero { low: u64 },
    #[error("histograms in {first} and in {other}, expected one unit")]
    Units { first: Unit, other: Unit },
    #[error("histograms with bins of {first} and {other} bytes, expected one bin width")]
    Scales { first: f64, other: f64 },
    #[error("histogram at {low:#x} with bins of {width} bytes, expected at least 2")]
    NarrowBins { low: u64, width: f64 },
    #[error(
        "histograms {:#x}..{:#x} and {:#x}..{:#x} overlap, expected equal or separate ranges",
        first.0, first.1, other.0, other.1
    )]
    Overlap { first: (u64, u64), other: (u64, u64) },
    #[error("bin at {address:#x} with {count} hits, expected at most {MAX_BIN}")]
    Bin { address: u64, count: u64 },
    #[error("{what} at {address:#x} with a count of {count}, expected at most {}", MAX_SPLIT * u64::from(u32::MAX))]
    Count { what: &'static str, address: u64, count: u64 },
    #[error("{what} {address:#x}, expected an address of at most 32 bits")]
    Address { what: &'static str, address: u64 },
}

/// Writes a gmon.out file: histograms, arcs, block counts, each sorted by address, whatever their
/// order in the profile.
///
/// - Without a histogram that has bins, an empty one is written: gprof refuses a file with none.
/// - A bin over 65535 becomes repeated records of the same range, and an arc's count over 2^32-1
///   (in 32-bit files, a block's too) repeated records: gprof sums both.
/// - Everything is checked before the first byte is written.
///
/// `out` needs no buffering of its own.
///
/// # Errors
/// The profile cannot be represented so that gprof reads it, or `out` cannot be written to.
pub fn write(profile: &Profile, out: impl Write) -> Result<(), WriteError> {
    let placeholder = [empty_chunk(first_address(profile), profile.format.width, PLACEHOLDER_RATE)];
    let mut histograms: Vec<_> =
        profile.histograms.iter().filter(|h| !h.bins.is_empty() || h.low != h.high).collect();
    if histograms.is_empty() {
        histograms.extend(&placeholder);
    }
    histograms.sort_by_key(|h| (h.low, h.high));
    validate(profile, &histograms)?;

    let mut out = Writer { out: BufWriter::new(out), endian: profile.format.endian };
    out.bytes(MAGIC)?;
    out.u32(VERSION)?;
    out.bytes(&profile.build_id.bytes())?;
    for histogram in histograms {
        out.histogram(histogram, profile.format.width)?;
    }
    let mut arcs = profile.arcs.clone();
    arcs.sort_unstable();
    for arc in arcs {
        for count in split(arc.count) {
            out.bytes(&[TAG_ARC])?;
            out.address(arc.from, profile.format.width)?;
            out.address(arc.to, profile.format.width)?;
            out.u32(count)?;
        }
    }
    out.blocks(profile)?;
    Ok(out.out.flush()?)
}

/// Returns an address in the profiled text, in which the placeholder is placed, or 0 if none is known.
fn first_address(profile: &Profile) -> u64 {
    let arcs = profile.arcs.iter().map(|arc| arc.to);
    arcs.chain(profile.blocks.iter().map(|block| block.addr)).min().unwrap_or(0)
}

fn validate(profile: &Profile, histograms: &[&Histogram]) -> Result<(), WriteError> {
    let max_address = profile.format.width.max_address();
    let fits = |what, address| match address <= max_address {
        true => Ok(()),
        false => Err(WriteError::Address { what, address }),
    };
    if let Some(first) = histograms.first() {
        let mut before: Option<&Histogram> = None;
        for &histogram in histograms {
            let &Histogram { low, high, rate, unit, .. } = histogram;
            histogram.validate()?;
            fits("histogram's end", high)?;
            if rate == 0 {
                return Err(WriteError::RateZero { low });
            }
            if rate != first.rate {
                return Err(WriteError::Rates { first: first.rate, other: rate });
            }
            if unit != first.unit {
                return Err(WriteError::Units { first: first.unit, other: unit });
            }
            if histogram.scale() < 1.0 {
                return Err(WriteError::NarrowBins { low, width: histogram.bin_width() });
            }
            if (histogram.scale() - first.scale()).abs() > SCALE_TOLERANCE {
                return Err(WriteError::Scales { first: first.bin_width(), other: histogram.bin_width() });
            }
            if let Some(before) = before.filter(|before| low < before.high)
                && (before.low, before.high, before.bins.len()) != (low, high, histogram.bins.len())
            {
                return Err(WriteError::Overlap { first: (before.low, before.high), other: (low, high) });
            }
            if let Some(bin) = histogram.bins.iter().position(|&count| count > MAX_BIN) {
                let address = histogram.bin_address(bin);
                return Err(WriteError::Bin { address, count: histogram.bins[bin] });
            }
            before = Some(histogram);
        }
    }
    let countable = |what, address, count| match count <= MAX_SPLIT * u64::from(u32::MAX) {
        true => Ok(()),
        false => Err(WriteError::Count { what, address, count }),
    };
    for arc in &profile.arcs {
        fits("arc's caller", arc.from)?;
        fits("arc's function", arc.to)?;
        countable("arc", arc.to, arc.count)?;
    }
    for block in &profile.blocks {
        fits("basic block", block.addr)?;
        if profile.format.width == Width::Bits32 {
            countable("basic block", block.addr, block.count)?;
        }
    }
    Ok(())
}

/// Returns a count as 32-bit parts, with one part for 0.
fn split(count: u64) -> impl Iterator<Item = u32> {
    let mut rest = Some(count);
    std::iter::from_fn(move || {
        let part = u32::try_from(rest?).unwrap_or(u32::MAX);
        rest = rest.map(|rest| rest - u64::from(part)).filter(|&rest| rest > 0);
        Some(part)
    })
}

/// Writes fields in the file's byte order.
struct Writer<W: Write> {
    out: BufWriter<W>,
    endian: Endian,
}

impl<W: Write> Writer<W> {
    fn bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(bytes)
    }

    fn u16(&mut self, value: u16) -> io::Result<()> {
        match self.endian {
            Endian::Little => self.out.write_u16::<LittleEndian>(value),
            Endian::Big => self.out.write_u16::<BigEndian>(value),
        }
    }

    fn u32(&mut self, value: u32) -> io::Result<()> {
        match self.endian {
            Endian::Little => self.out.write_u32::<LittleEndian>(value),
            Endian::Big => self.out.write_u32::<BigEndian>(value),
        }
    }

    /// Writes an address. `value` fits into the width, because [`validate`] has checked it.
    fn address(&mut self, value: u64, width: Width) -> io::Result<()> {
        match (width, self.endian) {
            (Width::Bits32, _) => self.u32(u32::try_from(value).map_err(io::Error::other)?),
            (Width::Bits64, Endian::Little) => self.out.write_u64::<LittleEndian>(value),
            (Width::Bits64, Endian::Big) => self.out.write_u64::<BigEndian>(value),
        }
    }

    /// Writes as many records of the same range as the largest bin needs, and at least one.
    fn histogram(&mut self, histogram: &Histogram, width: Width) -> io::Result<()> {
        let bin_max = u64::from(u16::MAX);
        let largest = histogram.bins.iter().copied().max().unwrap_or(0);
        for pass in 0..largest.div_ceil(bin_max).max(1) {
            self.bytes(&[TAG_HISTOGRAM])?;
            self.address(histogram.low, width)?;
            self.address(histogram.high, width)?;
            self.u32(u32::try_from(histogram.bins.len()).map_err(io::Error::other)?)?;
            self.u32(histogram.rate)?;
            self.bytes(&histogram.unit.dimension)?;
            self.bytes(&[histogram.unit.abbrev])?;
            for &bin in &histogram.bins {
                let part = bin.saturating_sub(pass * bin_max);
                self.u16(u16::try_from(part).unwrap_or(u16::MAX))?;
            }
        }
        Ok(())
    }

    /// Writes the blocks. gprof's `n` is a signed 32-bit number, so more blocks need another record.
    fn blocks(&mut self, profile: &Profile) -> io::Result<()> {
        let width = profile.format.width;
        let mut blocks = profile.blocks.clone();
        blocks.sort_unstable();
        let parts = |count: u64| match width {
            Width::Bits64 => 1,
            Width::Bits32 => count.div_ceil(u64::from(u32::MAX)).max(1),
        };
        // A block of a 32-bit file has at most 2^20 parts, so 2^10 blocks fit into a record.
        let group = if width == Width::Bits32 { 1 << 10 } else { i32::MAX as usize };
        for group in blocks.chunks(group) {
            let number: u64 = group.iter().map(|block| parts(block.count)).sum();
            self.bytes(&[TAG_BLOCKS])?;
            self.u32(u32::try_from(number).map_err(io::Error::other)?)?;
            for block in group {
                let mut rest = block.count;
                for _ in 0..parts(block.count) {
                    let part = rest.min(width.max_address());
                    rest -= part;
                    self.address(block.addr, width)?;
                    self.address(part, width)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Format;
    use crate::profile::{Arc, SECONDS};

    fn written(profile: &Profile) -> Vec<u8> {
        let mut bytes = Vec::new();
        write(profile, &mut bytes).expect("a good profile");
        bytes
    }

    fn histogram(low: u64, high: u64, bins: Vec<u64>) -> Histogram {
        Histogram { low, high, rate: 100, unit: SECONDS, bins }
    }

    #[test]
    fn every_byte_of_a_32_bit_big_endian_file() {
        let mut profile = Profile::new(Format::BIG_32);
        profile.histograms = vec![histogram(0x1000, 0x1004, vec![1, 65_537])];
        profile.arcs = vec![Arc { from: 0x1001, to: 0x1002, count: 3 }];
        profile.blocks = vec![crate::Block { addr: 0x1003, count: 0x1_0000_0000 }];
        let record = |bins: [u8; 4]| {
            let mut record = vec![0, 0, 0, 0x10, 0, 0, 0, 0x10, 4, 0, 0, 0, 2, 0, 0, 0, 100];
            record.extend(*b"seconds\0\0\0\0\0\0\0\0s");
            record.extend(bins);
            record
        };
        let expected = [
            &b"gmon\0\0\0\x01"[..],
            &[0; 12],
            &record([0, 1, 0xff, 0xff]),
            &record([0, 0, 0, 2]),
            &[1, 0, 0, 0x10, 1, 0, 0, 0x10, 2, 0, 0, 0, 3],
            &[2, 0, 0, 0, 2, 0, 0, 0x10, 3, 0xff, 0xff, 0xff, 0xff, 0, 0, 0x10, 3, 0, 0, 0, 1],
        ];
        assert_eq!(written(&profile), expected.concat());
    }

    #[test]
    fn split_counts() {
        let parts = |count| split(count).collect::<Vec<_>>();
        assert_eq!(parts(0), [0]);
        assert_eq!(parts(u64::from(u32::MAX)), [u32::MAX]);
        assert_eq!(parts(1 << 32), [u32::MAX, 1]);
        assert_eq!(parts(2 * u64::from(u32::MAX)), [u32::MAX, u32::MAX]);
    }

    #[test]
    fn the_placeholder_lies_in_the_text() {
        let mut profile = Profile::new(Format::LITTLE_64);
        profile.arcs = vec![Arc { from: 1, to: 0x5123, count: 3 }];
        let read = crate::read(&written(&profile)).expect("our own file");
        assert_eq!((read.histograms[0].low, read.histograms[0].high), (0x5000, 0x6000));
        profile.format = Format::LITTLE_32;
        profile.arcs[0].to = u64::from(u32::MAX);
        let read = crate::read(&written(&profile)).expect("our own file");
        assert_eq!((read.histograms[0].low, read.histograms[0].high), (0xffff_f000, 0xffff_fffe));
    }

    /// Each of them is refused before anything is written.
    #[test]
    fn refusals() {
        let refused = |change: &dyn Fn(&mut Profile)| {
            let mut profile = Profile::new(Format::LITTLE_32);
            profile.histograms =
                vec![histogram(0x1000, 0x1004, vec![1, 2]), histogram(0x2000, 0x2004, vec![1, 2])];
            assert!(written(&profile).len() > 20);
            change(&mut profile);
            let mut bytes = Vec::new();
            let error = write(&profile, &mut bytes).expect_err("refused");
            assert_eq!(bytes, []);
            error.to_string()
        };
        let says = |text: String, words: &str| assert!(text.contains(words), "{text}");
        says(refused(&|p| p.histograms[1].rate = 7), "rates 100 and 7");
        says(refused(&|p| p.histograms[0].rate = 0), "rate of 0");
        says(refused(&|p| p.histograms[1].unit.abbrev = b'x'), "seconds (s) and in seconds (x)");
        says(refused(&|p| p.histograms[1].high += 4), "bins of 2 and 4 bytes");
        says(refused(&|p| p.histograms[0].bins.push(1)), "bins of 1.33");
        says(refused(&|p| p.histograms[1].low = 0x3000), "0x3000..0x2004");
        says(refused(&|p| p.histograms[1].bins.clear()), "at least one bin");
        says(refused(&|p| p.histograms[1] = histogram(0x1002, 0x1006, vec![1, 2])), "overlap");
        says(refused(&|p| p.histograms[1].bins[1] = 1 << 32), "bin at 0x2002 with 4294967296 hits");
        says(refused(&|p| p.histograms[1].low += 1 << 32), "0x100002000..0x2004");
        says(refused(&|p| p.arcs.push(Arc { from: 1 << 32, to: 1, count: 1 })), "caller 0x100000000");
        says(refused(&|p| p.arcs.push(Arc { from: 1, to: 1, count: u64::MAX })), "arc at 0x1 with a count");
    }
}
