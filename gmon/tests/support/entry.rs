//! What the fuzz target and the test do with bytes: nothing may panic, and what was read must survive being
//! written and read again.

use gmon::{BlockForm, Endian, ReadOptions, Width};

/// Processes any bytes.
pub(crate) fn exercise(bytes: &[u8]) {
    for width in [None, Some(Width::Bits32), Some(Width::Bits64)] {
        for endian in [None, Some(Endian::Little), Some(Endian::Big)] {
            for block_form in [None, Some(BlockForm::Glibc)] {
                once(bytes, &ReadOptions { endian, width, block_form });
            }
        }
    }
}

fn once(bytes: &[u8], options: &ReadOptions) {
    let findings = gmon::check(bytes, options, None);
    for finding in &findings {
        assert!(!finding.to_string().is_empty());
    }
    let reading = match options.read(bytes) {
        Ok(reading) => reading,
        Err(error) => {
            assert!(error.offset() <= bytes.len() as u64, "{error}");
            assert!(findings.iter().any(|finding| finding.severity == gmon::Severity::Error), "{error}");
            return;
        }
    };
    let profile = reading.profile;
    // A merge may refuse what no writer would write, but only with an error.
    if let Ok(twice) = gmon::merge([profile.clone(), profile.clone()])
        && let (Some(one), Some(two)) = (profile.arcs.first(), twice.arcs.first())
    {
        assert_eq!(one.count * 2, two.count);
    }
    let mut written = Vec::new();
    if gmon::write(&profile, &mut written).is_ok() {
        let format = ReadOptions {
            endian: Some(profile.format.endian),
            width: Some(profile.format.width),
            block_form: Some(BlockForm::Gprof),
        };
        let again = format.read(&written).expect("our own file").profile;
        assert_eq!((&again.arcs, &again.blocks), (&profile.arcs, &profile.blocks));
        let hits =
            |profile: &gmon::Profile| profile.histograms.iter().map(gmon::Histogram::hits).sum::<u64>();
        assert_eq!(hits(&again), hits(&profile));
    }
}
