//! What there is to say of Python programs.

use crate::os::say::Voice;
use crate::sampling::sampler::Sampling;

/// The variable that has CPython 3.12 and later name its functions, and its value.
pub(crate) const NAMES_WANTED: (&str, &str) = ("PYTHONPERFSUPPORT", "1");
/// The second number of the first version that knows it.
const LISTENS: u32 = 12;

/// Returns what the user should know of the Python programs of a run. `wanted`: they were asked to name their functions.
pub(super) fn sentences(sampling: Option<&Sampling>, wanted: bool, voice: Voice) -> Vec<String> {
    let Some(interpreters) = sampling.map(Sampling::interpreters) else { return Vec::new() };
    let tally = interpreters.tally;
    if tally.samples > 0 {
        let known = tally.samples.saturating_sub(tally.too_late).saturating_sub(tally.unread);
        voice.detail(format_args!(
            "Python functions were read for {known} of {} samples of Python programs, {} of them after more than a millisecond; {} \
             samples were noticed too late, and of {} the frames had changed",
            tally.samples, tally.late, tally.too_late, tally.unread
        ));
    }
    let (reasons, oldest) = interpreters.account();
    let mut sentences: Vec<String> = reasons
        .into_iter()
        .map(|why| format!("stacks show no Python functions of some processes: {why}"))
        .collect();
    if let Some(oldest) = oldest.filter(|&oldest| wanted && oldest < LISTENS) {
        sentences.push(format!(
            "Python 3.{oldest} does not name its functions (--python is for 3.{LISTENS} and later): stacks show them, but calls are not \
             counted by Python function"
        ));
    } else if wanted && oldest.is_none() && sentences.is_empty() {
        sentences.push("no program of this run was seen to be CPython: --python had no effect".to_owned());
    }
    sentences
}
