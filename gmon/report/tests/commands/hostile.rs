//! Damaged and malicious bytes cause errors with offsets, no panic, and no use of memory beyond the file's
//! size. This is the deterministic part of what `fuzz/` does.

use std::process::Command;

use gmon::{Arc, Block, BuildId, Format, Histogram, Profile, ReadOptions, SECONDS};

use crate::entry;

fn sample(format: Format) -> Vec<u8> {
    let histogram = |low| {
        let bins = vec![0, 70_000, 3, 0, 1, 65_535, 0, 9];
        Histogram { low, high: low + 16, rate: 250, unit: SECONDS, bins }
    };
    let profile = Profile {
        format,
        build_id: BuildId::new(b"some build-id"),
        histograms: vec![histogram(0x1000), histogram(0x2000)],
        arcs: (1..5).map(|n| Arc { from: 0x1000 + n, to: 0x2000, count: n << 31 }).collect(),
        blocks: (1..5).map(|n| Block { addr: 0x1000 + n, count: n << 31 }).collect(),
    };
    let mut bytes = Vec::new();
    gmon::write(&profile, &mut bytes).expect("a good profile");
    bytes
}

/// xorshift64*, which yields the same bytes in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() >> 33) as usize % limit
    }
}

#[test]
fn bytes_without_sense() {
    let mut random = Random(1);
    for round in 0..3000 {
        let mut bytes: Vec<u8> = (0..random.below(200)).map(|_| random.next() as u8).collect();
        if round % 3 > 0 {
            // After the header, small numbers lead deeper into the records.
            let body = bytes.iter().map(|byte| byte & if round % 3 == 1 { 3 } else { 0xff });
            let header = [&b"gmon\x01\0\0\0"[..], &[0; 12]].concat();
            bytes = header.into_iter().chain(body).collect();
        }
        entry::exercise(&bytes);
    }
}

#[test]
fn a_good_file_with_some_bytes_changed() {
    let mut random = Random(2);
    for format in Format::ALL {
        let good = sample(format);
        for _ in 0..1000 {
            let mut bytes = good.clone();
            for _ in 0..1 + random.below(4) {
                let at = random.below(bytes.len());
                bytes[at] = match random.below(3) {
                    0 => 0xff,
                    1 => bytes[at] ^ (1 << random.below(8)),
                    _ => random.next() as u8,
                };
            }
            entry::exercise(&bytes);
        }
    }
}

/// Every truncation is an error with an offset, or ends between two records.
#[test]
fn every_truncation() {
    for format in Format::ALL {
        let good = sample(format);
        let address = format.width.bytes();
        let arc = 1 + 2 * address + 4;
        let histogram = 1 + 2 * address + 24 + 2 * 8;
        let mut ends = vec![20];
        ends.extend((1..=4).map(|n| 20 + n * histogram));
        // Counts of 1, 2, 3 and 4 times 2^31 take 1, 2, 2 and 3 records.
        ends.extend((1..=8).map(|n| 20 + 4 * histogram + n * arc));
        let options =
            ReadOptions { endian: Some(format.endian), width: Some(format.width), block_form: None };
        for len in 0..good.len() {
            let cut = &good[..len];
            entry::exercise(cut);
            match options.read(cut) {
                Ok(_) => assert!(ends.contains(&len), "{format}: {len} bytes are no file"),
                Err(error) => {
                    assert!(!ends.contains(&len), "{format}: {len}: {error}");
                    assert!(error.offset() <= len as u64, "{format}: {len}: {error}");
                    assert!(error.to_string().contains("offset"), "{error}");
                }
            }
        }
    }
}

/// Length fields that claim gigabytes: the command answers within 300 MB of address space.
#[test]
fn lengths_that_lie() {
    let header = |record: &[u8]| [&b"gmon\x01\0\0\0"[..], &[0; 12], record].concat();
    let histogram = |bins: u32, low: u64, high: u64| {
        let mut record = vec![0];
        record.extend(low.to_le_bytes());
        record.extend(high.to_le_bytes());
        record.extend(bins.to_le_bytes());
        record.extend([100, 0, 0, 0]);
        record.extend(*b"seconds\0\0\0\0\0\0\0\0s");
        record
    };
    let files = [
        header(&histogram(u32::MAX, 0, u64::MAX)),
        header(&histogram(0x7fff_ffff, 0x1000, 0x2000)),
        header(&[2, 0xff, 0xff, 0xff, 0xff]),
        header(&[2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        header(&[2, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f]),
    ];
    for (index, bytes) in files.iter().enumerate() {
        entry::exercise(bytes);
        let path = format!("{}/lies{index}.out", env!("CARGO_TARGET_TMPDIR"));
        std::fs::write(&path, bytes).expect("a file");
        for (command, code) in [("check --records", 2), ("check", 1)] {
            let script = format!("ulimit -v 300000; exec {} {command} {path}", env!("CARGO_BIN_EXE_gmon"));
            let output = Command::new("sh").args(["-c", &script]).output().expect("sh");
            assert_eq!(output.status.code(), Some(code), "{path}: {output:?}");
            let text = [output.stdout, output.stderr].concat();
            assert!(String::from_utf8_lossy(&text).contains("cut off, at offset"), "{path}");
        }
    }
}
