//! Properties that every profile has.

use gmon::{
    Arc, Block, BlockForm, BuildId, BuildMismatch, Format, Histogram, HistogramBuilder, MergeError, Merger,
    Profile, ReadOptions, SECONDS, merge,
};
use proptest::collection::vec;
use proptest::prelude::*;

const RATE: u32 = 250;
const TEXT: std::ops::Range<u64> = 0x10_000..0x20_000;

fn format() -> impl Strategy<Value = Format> {
    prop::sample::select(Format::ALL.to_vec())
}

/// Returns numbers that are often small, and sometimes larger than one field can represent.
fn count(most: u64) -> impl Strategy<Value = u64> {
    prop_oneof![0..10u64, 0..=most, Just(65_535), Just(65_536)]
}

fn histograms() -> impl Strategy<Value = Vec<Histogram>> {
    // There are only a few different ranges, so that they meet. They are aligned to the bin width of 4 bytes.
    vec((0..60u64, vec(count(200_000), 1..12)), 0..5).prop_map(|all| {
        let make = |(slot, bins): (u64, Vec<u64>)| {
            let low = TEXT.start + 4 * slot;
            Histogram { low, high: low + 4 * bins.len() as u64, rate: RATE, unit: SECONDS, bins }
        };
        all.into_iter().map(make).collect()
    })
}

fn arcs() -> impl Strategy<Value = Vec<Arc>> {
    let address = || prop_oneof![TEXT.start..TEXT.start + 8, 0..=u64::from(u32::MAX)];
    vec((address(), address(), count(1 << 36)), 0..20)
        .prop_map(|all| all.into_iter().map(|(from, to, count)| Arc { from, to, count }).collect())
}

fn blocks() -> impl Strategy<Value = Vec<Block>> {
    vec((TEXT.start..TEXT.start + 9, count(1 << 36)), 0..20)
        .prop_map(|all| all.into_iter().map(|(addr, count)| Block { addr, count }).collect())
}

/// Returns profiles that can be summed, with overlapping histograms and repeated arcs.
fn parts(format: Format) -> impl Strategy<Value = Profile> {
    (histograms(), arcs(), blocks(), any::<bool>()).prop_map(move |(histograms, arcs, blocks, known)| {
        Profile {
            format,
            build_id: if known { BuildId::new(b"one build") } else { BuildId::UNKNOWN },
            histograms,
            arcs,
            blocks,
        }
    })
}

/// Returns profiles that can be written and have histograms.
fn writable() -> impl Strategy<Value = Profile> {
    format().prop_flat_map(parts).prop_map(|parts| {
        let mut profile = merge([parts]).expect("parts fit");
        if profile.histograms.is_empty() {
            profile.histograms = HistogramBuilder::new(TEXT, RATE).build().histograms;
        }
        profile
    })
}

/// Returns the hits by bin address, the arcs and the blocks, added up without the crate's own merge.
fn sums(profiles: &[Profile]) -> [std::collections::BTreeMap<(u64, u64), u64>; 3] {
    let mut sums = [const { std::collections::BTreeMap::new() }; 3];
    for profile in profiles {
        for histogram in &profile.histograms {
            for (index, &hits) in histogram.bins.iter().enumerate().filter(|&(_, &hits)| hits > 0) {
                *sums[0].entry((histogram.bin_address(index), 0)).or_default() += hits;
            }
        }
        for arc in &profile.arcs {
            *sums[1].entry((arc.from, arc.to)).or_default() += arc.count;
        }
        for block in &profile.blocks {
            *sums[2].entry((block.addr, 0)).or_default() += block.count;
        }
    }
    sums
}

fn written(profile: &Profile) -> Vec<u8> {
    let mut bytes = Vec::new();
    gmon::write(profile, &mut bytes).expect("a profile that can be written");
    bytes
}

fn forced(format: Format) -> ReadOptions {
    ReadOptions { endian: Some(format.endian), width: Some(format.width), block_form: None }
}

/// Returns the number of cases of each property: `$PROPTEST_CASES`, which the library itself reads only in its usual build.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(256)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: cases(), ..ProptestConfig::default() })]

    #[test]
    fn written_and_read_again(profile in writable()) {
        let bytes = written(&profile);
        let reading = forced(profile.format).read(&bytes).expect("our own file");
        prop_assert_eq!(&reading.profile, &profile);
        // The format is determined from the file as well.
        let reading = ReadOptions::default().read(&bytes).expect("our own file");
        prop_assert!(!reading.ambiguous_width);
        prop_assert_eq!(reading.block_form, BlockForm::Gprof);
        prop_assert_eq!(reading.profile, profile);
    }

    #[test]
    fn the_order_in_memory_does_not_matter(profile in writable()) {
        let mut reversed = profile.clone();
        reversed.histograms.reverse();
        reversed.arcs.reverse();
        reversed.blocks.reverse();
        prop_assert_eq!(written(&profile), written(&reversed));
    }

    #[test]
    fn merge_is_exact(profiles in format().prop_flat_map(|format| vec(parts(format), 0..4))) {
        let sum = merge(profiles.clone()).expect("parts fit");
        prop_assert_eq!(sums(std::slice::from_ref(&sum)), sums(&profiles));
        let separate = sum.histograms.windows(2).all(|pair| pair[0].high <= pair[1].low);
        prop_assert!(separate);
    }

    #[test]
    fn merge_in_any_order_and_grouping(
        [a, b, c] in format().prop_flat_map(|format| [parts(format), parts(format), parts(format)])
    ) {
        let all = merge([a.clone(), b.clone(), c.clone()]).expect("parts fit");
        let pair = |a: &Profile, b: &Profile| merge([a.clone(), b.clone()]).expect("parts fit");
        prop_assert_eq!(&all, &pair(&pair(&a, &b), &c));
        prop_assert_eq!(&all, &pair(&a, &pair(&b, &c)));
        prop_assert_eq!(&all, &pair(&c, &pair(&b, &a)));
        prop_assert_eq!(&all, &merge([b.clone(), c.clone(), a.clone()]).expect("parts fit"));
        let merger = |profiles: &[&Profile]| {
            let mut merger = Merger::default();
            profiles.iter().for_each(|&profile| merger.add(profile.clone()).expect("parts fit"));
            merger
        };
        for (first, rest) in [(vec![], vec![&a, &b, &c]), (vec![&a], vec![&b, &c]), (vec![&a, &b], vec![&c])] {
            let mut first = merger(&first);
            first.join(merger(&rest)).expect("parts fit");
            prop_assert_eq!(&all, &first.finish());
        }
    }

    #[test]
    fn rates_differ(mut a in writable(), rate in RATE + 1..) {
        a.histograms[0].bins[0] = 1;
        let mut b = a.clone();
        b.histograms.iter_mut().for_each(|histogram| histogram.rate = rate);
        let error = merge([a, b]).expect_err("rates differ");
        prop_assert_eq!(error, MergeError::Rates { first: RATE, other: rate });
    }

    #[test]
    fn builds_differ(a in writable(), b in writable(), other in 1u8..) {
        let [first, other] = [BuildId::new(b"one build"), BuildId::new(&[other])];
        let [a, b] = [Profile { build_id: first, ..a }, Profile { build_id: other, format: a.format, ..b }];
        let error = merge([a, b]).expect_err("builds differ");
        prop_assert_eq!(error, MergeError::Builds(BuildMismatch { first, other }));
    }

    #[test]
    fn no_sample_is_lost(samples in vec((TEXT.start - 50..TEXT.end + 50, 0..100_000u64), 0..50),
                         functions in vec(TEXT, 0..50)) {
        let mut builder = HistogramBuilder::new(TEXT, RATE).functions(functions);
        for &(pc, hits) in &samples {
            builder.add(pc, hits);
        }
        let built = builder.build();
        let placed: u64 = built.histograms.iter().map(Histogram::hits).sum();
        let all: u64 = samples.iter().map(|(_, hits)| hits).sum();
        prop_assert_eq!(placed + built.outside, all);
        let outside: u64 = samples.iter().filter(|(pc, _)| !TEXT.contains(pc)).map(|(_, hits)| hits).sum();
        prop_assert_eq!(built.outside, outside);
        for histogram in &built.histograms {
            prop_assert_eq!(histogram.low % gmon::CHUNK, 0);
            prop_assert_eq!(histogram.high - histogram.low, gmon::CHUNK);
        }
    }

    #[test]
    fn any_bytes(bytes in vec(any::<u8>(), 0..300)) {
        let _ = gmon::read(&bytes);
        let file = [&b"gmon\x01\0\0\0"[..], &[0; 12], &bytes].concat();
        let _ = gmon::read(&file);
        let _ = gmon::check(&file, &ReadOptions::default(), None);
    }
}
