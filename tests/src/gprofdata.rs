//! A reader of gmon.out files for tests: arcs, basic blocks and histograms.
//!
//! It is independent of the `gmon` crate, because a mistake that writer and reader of that crate share would
//! not show in a test that uses both. It knows only the byte order and word size of x86-64.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

/// One histogram record.
#[derive(Debug, Clone)]
pub struct Histogram {
    pub low: u64,
    pub high: u64,
    pub rate: u32,
    pub bins: Vec<u16>,
}

impl Histogram {
    pub fn samples(&self) -> u64 {
        self.bins.iter().map(|b| u64::from(*b)).sum()
    }
}

/// A profile, with equal arcs summed.
#[derive(Debug, Default)]
pub struct GmonOut {
    pub histograms: Vec<Histogram>,
    /// The counts by (from, self).
    pub arcs: BTreeMap<(u64, u64), u64>,
    /// Address and count of each basic block, in the order of the file.
    pub blocks: Vec<(u64, u64)>,
}

impl GmonOut {
    pub fn samples(&self) -> u64 {
        self.histograms.iter().map(Histogram::samples).sum()
    }

    /// Returns the number of samples in a range of addresses: those of the bins that start there.
    pub fn samples_in(&self, low: u64, size: u64) -> u64 {
        let mut sum = 0;
        for histogram in &self.histograms {
            let (bins, span) = (histogram.bins.len() as u64, histogram.high - histogram.low);
            for (bin, i) in histogram.bins.iter().zip(0u64..) {
                if (low..low + size).contains(&(histogram.low + span * i / bins)) {
                    sum += u64::from(*bin);
                }
            }
        }
        sum
    }

    pub fn calls(&self) -> u64 {
        self.arcs.values().sum()
    }
}

pub fn read(path: &Path) -> Result<GmonOut> {
    let data = std::fs::read(path).with_context(|| format!("no profile {}", path.display()))?;
    parse(&data).with_context(|| path.display().to_string())
}

fn parse(data: &[u8]) -> Result<GmonOut> {
    let mut input = Input { data, offset: 0 };
    ensure!(input.take(4)? == b"gmon", "no gmon magic");
    ensure!(input.u32()? == 1, "not version 1");
    input.take(12)?;
    let mut profile = GmonOut::default();
    while input.offset < data.len() {
        let offset = input.offset;
        match input.take(1)?[0] {
            0 => {
                let (low, high) = (input.u64()?, input.u64()?);
                let (bins, rate) = (input.u32()?, input.u32()?);
                input.take(16)?;
                let bytes = input.take(bins as usize * 2)?;
                let bins = bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
                profile.histograms.push(Histogram { low, high, rate, bins });
            }
            1 => {
                let key = (input.u64()?, input.u64()?);
                *profile.arcs.entry(key).or_default() += u64::from(input.u32()?);
            }
            2 => {
                for _ in 0..input.u32()? {
                    profile.blocks.push((input.u64()?, input.u64()?));
                }
            }
            tag => bail!("offset {offset}: tag {tag}"),
        }
    }
    Ok(profile)
}

struct Input<'d> {
    data: &'d [u8],
    offset: usize,
}

impl<'d> Input<'d> {
    fn take(&mut self, count: usize) -> Result<&'d [u8]> {
        let bytes = self.data[self.offset..].get(..count);
        let bytes = bytes.with_context(|| format!("offset {}: cut off", self.offset))?;
        self.offset += count;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(self.take(4)?);
        Ok(u32::from_le_bytes(bytes))
    }

    fn u64(&mut self) -> Result<u64> {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(self.take(8)?);
        Ok(u64::from_le_bytes(bytes))
    }
}

/// Writes arcs as a profile, for tests of the checks themselves.
///
/// # Errors
/// The file cannot be written.
pub fn write_arcs(path: &Path, arcs: &BTreeMap<(u64, u64), u64>) -> Result<()> {
    let mut data = b"gmon\x01\0\0\0".to_vec();
    data.resize(20, 0);
    for ((from, callee), count) in arcs {
        let count = u32::try_from(*count).context("a count over 32 bits")?;
        data.push(1);
        data.extend(from.to_le_bytes());
        data.extend(callee.to_le_bytes());
        data.extend(count.to_le_bytes());
    }
    std::fs::write(path, data).with_context(|| path.display().to_string())
}
