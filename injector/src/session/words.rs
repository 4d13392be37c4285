//! Phrases that the messages of a run share: commands to type, counts, and words for a shell.

use std::ffi::OsStr;
use std::path::Path;

use gmon::counted;

use crate::options::Measure;
use crate::os::say::Voice;
use crate::profile::placement::Placed;
use crate::trace::messages::Summary;

/// Says how many calls and samples a process has in its profile.
pub(crate) fn calls_and_samples(calls: u64, samples: u64) -> String {
    format!("{}, {}", counted(calls, "call", "calls"), counted(samples, "sample", "samples"))
}

/// Says which share of the samples is in hooked code. `inside` is their number.
pub(crate) fn in_hooked_code(inside: u64, placed: &Placed) -> String {
    match placed.all() {
        0 => String::new(),
        all => format!(" ({:.0} % in hooked code)", 100.0 * inside as f64 / all as f64),
    }
}

/// Says which part of the samples is gprofinject's own and therefore in no profile, if it is not negligible. `rate` is the
/// number of samples per second.
pub(super) fn left_out(placed: &Placed, rate: u32) -> Option<String> {
    const NEGLIGIBLE: f64 = 0.5;
    /// What would be printed as 0.00 s, in which the percentage is chance.
    const SHORT: f64 = 0.005;
    let percent = placed.own_percent();
    let seconds = placed.own as f64 / f64::from(rate.max(1));
    (percent >= NEGLIGIBLE && seconds >= SHORT).then(|| {
        format!(
            "{percent:.0} % of the samples ({seconds:.2} s) were in gprofinject's own code and are left out"
        )
    })
}

/// Says how many functions Frida has left alone.
pub(super) fn not_patched(functions: u64) -> String {
    format!("Frida did not patch {}", counted(functions, "function", "functions"))
}

/// Returns a word with the quotes that a shell needs.
pub(crate) fn quoted(word: &OsStr) -> String {
    let text = word.to_string_lossy();
    let plain = |c: char| c.is_alphanumeric() || "/._-+,:@%=~".contains(c);
    if !text.is_empty() && !text.starts_with(['~', '=']) && text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

/// Returns the name of a file as an argument that a shell takes, which no command takes for an option.
pub(crate) fn quoted_file(file: &Path) -> String {
    let is_option = file.as_os_str().as_encoded_bytes().starts_with(b"-");
    if is_option { quoted(Path::new(".").join(file).as_os_str()) } else { quoted(file.as_os_str()) }
}

/// Returns a part in percent of all.
pub(super) fn percent(part: u64, all: u64) -> f64 {
    100.0 * part as f64 / all.max(1) as f64
}

/// Returns a number of things in few characters: `1 call`, `12 k calls`.
pub(super) fn number_of(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", scaled(number), if number == 1 { one } else { many })
}

/// Returns a number in at most three digits: `999`, `1.2 k`, `12 k`, `1.2 M`.
pub(crate) fn scaled(number: u64) -> String {
    const UNITS: [&str; 6] = ["k", "M", "G", "T", "P", "E"];
    if number < 1000 {
        return number.to_string();
    }
    let mut scaled = number as f64 / 1000.0;
    let mut units = UNITS.iter();
    let mut unit = units.next();
    while scaled >= 999.5 {
        let Some(next) = units.next() else { break };
        unit = Some(next);
        scaled /= 1000.0;
    }
    let unit = unit.unwrap_or(&"");
    if scaled < 9.95 { format!("{scaled:.1} {unit}") } else { format!("{scaled:.0} {unit}") }
}

/// Says what was traced, and what is missing.
/// `missing` is the number of counted calls that could not be traced, and `measure` what was measured.
pub(crate) fn say_trace(traced: &Summary, missing: u64, measure: Option<Measure>, voice: Voice) {
    for trouble in &traced.troubles {
        voice.warn(trouble);
    }
    if traced.lost > 0 {
        // Measured times and arguments exclude some of the options.
        let is_measured = measure.is_some_and(|measure| measure.is_result);
        let has_args = measure.and_then(|measure| measure.trace).is_some_and(|trace| trace.args);
        let fewer = match (is_measured, has_args) {
            (false, false) => "-X, --trace-depth and --trace-min-time leave calls out",
            (false, true) => "-X and --trace-depth leave calls out",
            (true, false) => "-X and --trace-min-time leave calls out",
            (true, true) => "-X leaves calls out",
        };
        voice.warn(format_args!(
            "the trace lacks {}: threads wrote faster than they were read (--trace-full wait has them wait; {fewer}), or were left by \
             a jump or their end while they wrote one",
            counted(traced.lost, "event", "events")
        ));
    }
    if missing > 0 {
        voice.detail(format_args!(
            "{} not in the trace: their ends are not seen (gprofinject --list shows which functions are hooked only at their \
             entry), there was no room, or a forked child made them before the agent had begun in it",
            counted(missing, "counted call is", "counted calls are")
        ));
    }
    let calls = counted(traced.calls, "call", "calls");
    let size = traced.bytes as f64 / 1e6;
    let kept = if traced.dropped > 0 { ", of which the last ones were kept" } else { "" };
    voice.detail(format_args!("trace: {calls} ({size:.1} MB){kept}"));
    for file in &traced.files {
        voice.detail(format_args!("trace: {}", quoted(file.as_os_str())));
    }
}

/// Says what is missing of the slowest calls.
pub(crate) fn say_slowest(watched: &Summary, voice: Voice) {
    for trouble in &watched.troubles {
        voice.warn(trouble);
    }
    if watched.lost > 0 {
        voice.warn(format_args!(
            "{} of calls are lost: threads wrote faster than they were read (--trace-full wait has them wait; -X leaves calls out), or \
             were left by a jump or their end while they wrote one; the calls that lack them are marked",
            counted(watched.lost, "event", "events")
        ));
    }
    let Some(slowest) = &watched.slowest else { return };
    let calls: u64 =
        slowest.slow.typical.iter().map(|of| of.calls.saturating_add(of.others)).fold(0, u64::saturating_add);
    voice.detail(format_args!(
        "slowest calls: {} kept of {}",
        slowest.slow.calls.len(),
        counted(calls, "call", "calls")
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let numbers = [0, 999, 1000, 9949, 9950, 999_499, 999_500, 1_234_567, u64::MAX].map(scaled);
        assert_eq!(numbers, ["0", "999", "1.0 k", "9.9 k", "10 k", "999 k", "1.0 M", "1.2 M", "18 E"]);
    }

    #[test]
    fn words_for_a_shell() {
        let quote = |text: &str| quoted(OsStr::new(text));
        assert_eq!(quote("./a-b_c"), "./a-b_c");
        assert_eq!(quote("a b"), "'a b'");
        assert_eq!(quote("it's"), "'it'\\''s'");
        assert_eq!(quote(""), "''");
        let files = ["-.pb.gz", "a b", "/a"].map(|name| quoted_file(Path::new(name)));
        assert_eq!(files, ["./-.pb.gz", "'a b'", "/a"]);
    }
}
