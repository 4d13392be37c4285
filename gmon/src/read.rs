//! From bytes to a [`Profile`]. The layout of the file is determined by trying: a wrong one leads beyond the
//! file's end or to an impossible record.

use crate::format::{BlockForm, Endian, Format, Width};
use crate::profile::{Histogram, Profile};
use crate::records::{Layout, ReadError, Record, Records, header_build_id, read_header};

/// What the caller knows about the file. A `None` is determined from the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadOptions {
    /// The byte order. The default is determined by the header's version number.
    pub endian: Option<Endian>,
    /// The address width. The default is the one with which the records end where the file ends, or 64 bits
    /// if both do.
    pub width: Option<Width>,
    /// The form of tag 2. The default is determined in the same way, or gprof's form if both are possible.
    pub block_form: Option<BlockForm>,
}

/// A profile, and what was found out about its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The profile, normalized: sorted and summed, see [`Profile::normalize`].
    pub profile: Profile,
    /// Whether the bytes make sense as a 32-bit file, too, although they were read as 64-bit.
    pub ambiguous_width: bool,
    /// How tag 2 records were read; [`BlockForm::Gprof`] if there is none.
    pub block_form: BlockForm,
    /// The number of records in the file, before summing.
    pub records: u64,
}

/// Reads a whole gmon.out file, with everything determined from the file: see [`ReadOptions::read`].
///
/// # Errors
/// The bytes are not a gmon.out file, or are damaged.
pub fn read(bytes: &[u8]) -> Result<Profile, ReadError> {
    Ok(ReadOptions::default().read(bytes)?.profile)
}

impl ReadOptions {
    /// Reads a whole gmon.out file.
    ///
    /// Equal arcs, equal blocks and histograms of equal range are summed. The use of memory is bounded by a
    /// small multiple of `bytes.len()`, whatever the length fields say.
    ///
    /// # Errors
    /// The bytes are not a gmon.out file, or are damaged.
    pub fn read(&self, bytes: &[u8]) -> Result<Reading, ReadError> {
        let detected = self.detect(bytes)?;
        let mut profile = Profile::new(detected.layout.format);
        profile.build_id = header_build_id(bytes);
        for (offset, record) in Records::new(bytes, detected.layout) {
            collect(&mut profile, record?).map_err(|overflow| ReadError::Overflow { offset, overflow })?;
        }
        let offset = bytes.len() as u64;
        profile.normalize().map_err(|overflow| ReadError::Overflow { offset, overflow })?;
        Ok(Reading {
            profile,
            ambiguous_width: detected.ambiguous_width,
            block_form: detected.layout.block_form,
            records: detected.records,
        })
    }

    /// Finds the layout in which all of the file makes sense.
    ///
    /// # Errors
    /// There is none. The error is that of the layout in which the longest part makes sense.
    pub(crate) fn detect(&self, bytes: &[u8]) -> Result<Detected, ReadError> {
        self.detect_lenient(bytes).and_then(|detected| match detected.error {
            None => Ok(detected),
            Some(error) => Err(error),
        })
    }

    /// Finds the layout as [`detect`](Self::detect) does, but an error in the records is part of the result.
    ///
    /// # Errors
    /// The header is damaged.
    pub(crate) fn detect_lenient(&self, bytes: &[u8]) -> Result<Detected, ReadError> {
        let endian = read_header(bytes, self.endian)?;
        let attempts: Vec<_> = self.layouts(endian).map(|layout| Detected::skim(bytes, layout)).collect();
        let good = || attempts.iter().filter(|attempt| attempt.error.is_none());
        let ambiguous_width = good()
            .any(|attempt| attempt.records > 0 && attempt.layout.format.width == Width::Bits64)
            && good().any(|attempt| attempt.records > 0 && attempt.layout.format.width == Width::Bits32);
        // The first of the best, because `layouts` returns them in the order of preference.
        let best = attempts.into_iter().reduce(|best, next| {
            let rank = |attempt: &Detected| (attempt.error.is_none(), attempt.good_until);
            if rank(&next) > rank(&best) { next } else { best }
        });
        // There is at least one layout, whatever the options say, so the header's error is never returned.
        let best = best.ok_or(ReadError::Version { found: 1, hint: "" })?;
        Ok(Detected { ambiguous_width, ..best })
    }

    fn layouts(&self, endian: Endian) -> impl Iterator<Item = Layout> + use<> {
        let options = *self;
        let all = [
            (Width::Bits64, BlockForm::Gprof),
            (Width::Bits64, BlockForm::Glibc),
            (Width::Bits32, BlockForm::Gprof),
        ];
        all.into_iter()
            .filter(move |(width, form)| {
                options.width.is_none_or(|forced| forced == *width)
                    // In 32 bits, both forms are the same.
                    && (*width == Width::Bits32 || options.block_form.is_none_or(|forced| forced == *form))
            })
            .map(move |(width, block_form)| Layout { format: Format { endian, width }, block_form })
    }
}

/// The result of walking through the file in one layout.
#[derive(Debug)]
pub(crate) struct Detected {
    pub(crate) layout: Layout,
    pub(crate) ambiguous_width: bool,
    /// The number of whole records.
    pub(crate) records: u64,
    /// The offset of the first record that is wrong, or the file's length.
    pub(crate) good_until: u64,
    pub(crate) error: Option<ReadError>,
}

impl Detected {
    fn skim(bytes: &[u8], layout: Layout) -> Detected {
        let good_until = bytes.len() as u64;
        let mut skimmed = Detected { layout, ambiguous_width: false, records: 0, good_until, error: None };
        for (offset, record) in Records::new(bytes, layout) {
            match record {
                Ok(_) => skimmed.records += 1,
                Err(error) => {
                    skimmed.good_until = offset;
                    skimmed.error = Some(error);
                }
            }
        }
        skimmed
    }
}

/// Adds a record to the profile. Repetitions of the previous histogram are summed at once, so that a file
/// with many repetitions needs little memory.
pub(crate) fn collect(
    profile: &mut Profile,
    record: Record<'_>,
) -> Result<(), crate::profile::CountOverflow> {
    match record {
        Record::Arc(arc) => profile.arcs.push(arc),
        Record::Blocks(blocks) => profile.blocks.extend(blocks.iter()),
        Record::Histogram(raw) => {
            let bins = raw.bins();
            let same = |last: &&mut Histogram| {
                (last.low, last.high, last.bins.len(), last.rate, last.unit)
                    == (raw.low, raw.high, bins.len(), raw.rate, raw.unit)
            };
            match profile.histograms.last_mut().filter(same) {
                Some(last) => {
                    last.bins.iter_mut().zip(bins).try_for_each(|(sum, count)| {
                        crate::profile::add("histogram bin", raw.low, sum, count)
                    })?
                }
                None => profile.histograms.push(Histogram {
                    low: raw.low,
                    high: raw.high,
                    rate: raw.rate,
                    unit: raw.unit,
                    bins: bins.collect(),
                }),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Arc, Block, SECONDS};

    /// Returns a file with a histogram and these records, 64-bit little-endian.
    fn file(rest: &[&[u8]]) -> Vec<u8> {
        let mut bytes = [&b"gmon\x01\0\0\0"[..], &[0; 12], &[0]].concat();
        bytes.extend(0x1000u64.to_le_bytes());
        bytes.extend(0x1004u64.to_le_bytes());
        bytes.extend([2, 0, 0, 0, 100, 0, 0, 0]);
        bytes.extend(*b"seconds\0\0\0\0\0\0\0\0s");
        bytes.extend([1, 0, 0xff, 0xff]);
        bytes.extend(rest.concat());
        bytes
    }

    #[test]
    fn glibcs_number_of_blocks() {
        let entry = [0x1002u64.to_le_bytes(), 7u64.to_le_bytes()].concat();
        for (number, form) in
            [(&1u32.to_le_bytes()[..], BlockForm::Gprof), (&1u64.to_le_bytes()[..], BlockForm::Glibc)]
        {
            // The records come twice: glibc writes one for each compilation unit.
            let bytes = file(&[&[2], number, &entry, &[2], number, &entry]);
            let reading = ReadOptions::default().read(&bytes).expect("a good file");
            assert_eq!(reading.block_form, form);
            assert_eq!(reading.records, 3);
            assert_eq!(reading.profile.blocks, [Block { addr: 0x1002, count: 14 }]);
            let other = if form == BlockForm::Gprof { BlockForm::Glibc } else { BlockForm::Gprof };
            let forced = ReadOptions { block_form: Some(other), ..ReadOptions::default() };
            assert!(forced.read(&bytes).is_err());
        }
    }

    #[test]
    fn equal_records_are_summed() {
        let mut arc = vec![1];
        arc.extend(0x1001u64.to_le_bytes());
        arc.extend(0x1002u64.to_le_bytes());
        arc.extend(u32::MAX.to_le_bytes());
        let histogram = file(&[])[20..].to_vec();
        let profile = read(&file(&[&arc, &histogram, &arc])).expect("a good file");
        assert_eq!(profile.arcs, [Arc { from: 0x1001, to: 0x1002, count: 2 * u64::from(u32::MAX) }]);
        let bins = vec![2, 2 * 65_535];
        assert_eq!(
            profile.histograms,
            [Histogram { low: 0x1000, high: 0x1004, rate: 100, unit: SECONDS, bins }]
        );
    }

    #[test]
    fn blocks_beyond_64_bits() {
        let entry = [0x1002u64.to_le_bytes(), u64::MAX.to_le_bytes()].concat();
        let error = read(&file(&[&[2, 2, 0, 0, 0], &entry, &entry])).expect_err("too much");
        assert!(matches!(error, ReadError::Overflow { .. }), "{error}");
    }

    /// No arc of a 64-bit file looks like this, but both widths reach the end.
    #[test]
    fn both_widths_fit() {
        // In 64 bits these are 13 arcs of 21 bytes, and in 32 bits 21 arcs of 13 bytes.
        let bytes = [&b"gmon\x01\0\0\0"[..], &[0; 12], &[1; 13 * 21]].concat();
        let reading = ReadOptions::default().read(&bytes).expect("a file");
        assert!(reading.ambiguous_width);
        assert_eq!(reading.profile.format, Format::LITTLE_64);
        let forced = ReadOptions { width: Some(Width::Bits32), ..ReadOptions::default() };
        let reading = forced.read(&bytes).expect("a file");
        assert_eq!((reading.records, reading.ambiguous_width), (21, false));
    }

    #[test]
    fn errors_in_the_users_words() {
        let says = |bytes: &[u8], words: &str| {
            assert_eq!(read(bytes).expect_err("no file").to_string(), words);
        };
        says(b"", "header cut off, at offset 0, expected 20 bytes, found 0");
        says(b"gmo", "header cut off, at offset 0, expected 20 bytes, found 3");
        says(b"\x7fELF", "not a gmon.out file: begins with \"\\x7fELF\", at offset 0, expected \"gmon\"");
        says(&[&b"gmon\x02\0\0\0"[..], &[0; 12]].concat(), "version 2, at offset 4, expected 1");
        says(
            &file(&[&[9]]),
            "unknown record tag 9, at offset 65, expected 0 (histogram), 1 (arc) or 2 (blocks)",
        );
        says(&file(&[&[1, 0, 0]]), "arc's caller cut off, at offset 66, expected 8 bytes, found 2");
        let forced = ReadOptions { endian: Some(Endian::Big), ..ReadOptions::default() };
        let error = forced.read(&file(&[])).expect_err("wrong order").to_string();
        assert_eq!(error, "version 16777216, at offset 4, expected 1 (the file is little-endian)");
    }
}
