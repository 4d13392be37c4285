//! Makes profiles from region files: a member's own counts, and those of children that count in its file.

use crate::os::sys;
use crate::profile::baseline::Baseline;
use crate::profile::collect::{self, Account};
use crate::profile::gmon_out;
use crate::profile::model::Profile;
use crate::profile::placement::Placed;
use crate::program::profilee::Profilee;
use crate::sampling::histogram::Histogram;
use crate::store::region::file::RegionFile;
use crate::store::region::layout::AgentState;

/// The profile of one program in one process.
pub(crate) struct Finished {
    pub(crate) profile: Profile,
    pub(crate) account: Account,
    pub(crate) placed: Placed,
    pub(crate) bytes: Vec<u8>,
}

impl Finished {
    /// Whether the process has executed its program, as far as that is known. If it could not, its counters
    /// are as they were created. If they contain anything else, or are missing, the process had begun.
    pub(crate) fn is_worth_writing(&self, state: AgentState) -> bool {
        state != AgentState::New || self.account.damage.is_some() || self.profile.calls() > 0
    }
}

/// Returns the profile of a member, and the state of its agent. `crash` is as for [`collect::collect`]. The
/// profile is `None` if there is none; `troubles` then says why.
pub(crate) fn counted(
    region: Option<&RegionFile>,
    profilee: &'static Profilee,
    samples: Option<Histogram>,
    crash: Option<u64>,
    rate: u32,
    baseline: Option<&Baseline>,
    troubles: &mut Vec<String>,
) -> Option<(Finished, AgentState)> {
    let mut profile = Profile::of_program(profilee.planned, rate);
    if let (Some(module), Some(samples)) = (profile.modules.first_mut(), samples) {
        module.samples = samples;
    }
    let mut state = AgentState::Armed;
    let mut account = Account::default();
    if let (Some(region), Some((_, layout))) = (region, &profilee.plan) {
        let read = region.open(layout).and_then(|region| {
            state = region.report()?.0.state;
            collect::collect(&region, &mut profile, crash)
        });
        match read {
            Ok(read) => account = read,
            Err(error) => troubles.push(format!("counters cannot be read: {}", sys::reason(&error))),
        }
    }
    if let Some(baseline) = baseline {
        baseline.subtract(&mut profile, &mut account);
    }
    match gmon_out::encode(&profile) {
        Ok((bytes, placed)) => Some((Finished { profile, account, placed, bytes }, state)),
        Err(error) => {
            troubles.push(format!("{error:#}"));
            None
        }
    }
}

/// Returns the profiles of the children that count in a member's file. `samples` returns the samples of a
/// child.
pub(crate) fn guests<S: Iterator<Item = Option<u64>>>(
    region: &RegionFile,
    profilee: &'static Profilee,
    samples: impl Fn(u32) -> S,
    rate: u32,
    troubles: &mut Vec<String>,
) -> Vec<(u32, Finished)> {
    let Some((_, layout)) = profilee.plan.as_ref().filter(|_| has_guests(region)) else { return Vec::new() };
    let Ok(mut region) = region.open(layout) else { return Vec::new() };
    let mut finished = Vec::new();
    for pid in region.guests().unwrap_or_default() {
        let mut profile = Profile::of_program(profilee.planned, rate);
        let account = match collect::collect_guest(region.of_guest(pid), &mut profile) {
            Ok(account) => account,
            Err(error) => {
                troubles.push(format!("counters cannot be read: {}", sys::reason(&error)));
                continue;
            }
        };
        if let Some(module) = profile.modules.first_mut() {
            samples(pid).for_each(|place| module.samples.add(place));
        }
        match gmon_out::encode(&profile) {
            Ok((bytes, placed)) => finished.push((pid, Finished { profile, account, placed, bytes })),
            Err(error) => troubles.push(format!("{error:#}")),
        }
    }
    finished
}

/// Whether children count in a member's file. If so, the file is needed to the end of the run.
pub(crate) fn has_guests(region: &RegionFile) -> bool {
    region.report().is_ok_and(|report| report.guests)
}
