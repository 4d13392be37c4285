//! Makes profiles from region files: a member's own counts, and those of children that count in its file.

use gmon::{BILLIONS, SECONDS};
use gmon_run::Process;

use crate::generated::Origin;
use crate::options::Clock;
use crate::os::clock::Moment;
use crate::os::sys;
use crate::profile::baseline::Baseline;
use crate::profile::by_thread;
use crate::profile::clocked;
use crate::profile::collect::{self, Account};
use crate::profile::elsewhere;
use crate::profile::ends::{End, Ends};
use crate::profile::generated::Generated;
use crate::profile::gmon_out;
use crate::profile::model::Profile;
use crate::profile::placement::Placed;
use crate::profile::possible::Possible;
use crate::profile::space::Space;
use crate::profile::unwound;
use crate::program::library::Library;
use crate::program::numbered::Numbered;
use crate::program::profilee::Profilee;
use crate::sampling::histogram::Histogram;
use crate::sampling::maps::Maps;
use crate::sampling::samples::{Samples, Threads};
use crate::sampling::stacks::Stacks;
use crate::store::region::file::RegionFile;
use crate::store::region::layout::AgentState;

/// What one program has counted, in one process or in several.
pub(crate) struct Counted {
    pub(crate) profile: Profile,
    pub(crate) account: Account,
}

/// The same, settled, with what there is to say of its samples.
pub(crate) struct Finished {
    pub(crate) profile: Profile,
    pub(crate) account: Account,
    pub(crate) placed: Placed,
}

impl Counted {
    /// Adds what another process that runs the same program has counted.
    pub(crate) fn add(&mut self, other: Counted) {
        self.profile.add(other.profile);
        self.account.add(other.account);
    }

    /// Adds what was counted to what is known of the process.
    pub(crate) fn process(&self, known: Process) -> Process {
        let samples = self.profile.modules.first().map_or(0, |program| {
            let all = program.samples.inside().saturating_add(program.samples.outside);
            all.saturating_sub(program.samples_in_hooks()).saturating_sub(self.profile.own_samples_outside())
        });
        Process { calls: self.profile.calls(), samples, ..known }
    }

    /// Settles what was counted of a program that gprof is not to read. All of its functions are seen then.
    pub(crate) fn settle(self) -> Finished {
        let Counted { mut profile, account } = self;
        profile.settle();
        let own = profile.own_samples_outside();
        let placed = profile.modules.first().map_or_else(Placed::default, |program| Placed {
            inside: program.samples_inside(),
            outside: program.samples.outside.saturating_sub(own),
            own: own.saturating_add(program.samples_in_hooks()),
            ..Placed::default()
        });
        Finished { profile, account, placed }
    }

    /// Makes the program's own profile. Returns the bytes of its gmon.out as well.
    ///
    /// # Errors
    /// The format cannot represent it.
    pub(crate) fn finish(self) -> anyhow::Result<(Finished, Vec<u8>)> {
        let Counted { mut profile, account } = self;
        profile.settle();
        let (mut bytes, placed) = gmon_out::encode(&profile, SECONDS)?;
        if let Some(times) = &profile.times {
            let unit = if times.overhead.clock == Clock::Instructions { BILLIONS } else { SECONDS };
            (bytes, _) = gmon_out::encode(&clocked::profile(&profile, times), unit)?;
        }
        Ok((Finished { profile, account, placed }, bytes))
    }

    /// Whether the process has executed its program, as far as that is known. If it could not, its counters
    /// are as they were created. If they contain anything else, or are missing, the process had begun.
    pub(crate) fn is_worth_writing(&self, state: AgentState) -> bool {
        state != AgentState::New || self.account.damage.is_some() || self.profile.calls() > 0
    }
}

impl Finished {
    /// Whether the view of the whole process says more than the program's own: libraries were hooked or have samples, or gprof leaves out
    /// much of the program itself, or all of it because the program is stripped.
    pub(crate) fn says_more(&self) -> bool {
        let Some(program) = self.profile.modules.first().map(|module| module.program) else { return false };
        program.wants_libraries()
            || program.subject.stripped()
            // Functions that are not hooked have samples all the same.
            || program.wants_whole && !self.profile.unhooked.is_empty()
            || self.placed.misses_much()
    }
}

/// What has to be known to read the counts of a process.
#[derive(Clone, Copy)]
pub(crate) struct Reading<'r> {
    pub(crate) profilee: &'static Profilee,
    pub(crate) libraries: &'r Numbered<Library>,
    /// The files that the process has mapped, if the agent has sampled it.
    pub(crate) maps: &'r Maps,
    /// What says of its code that was made at run time, if its functions are wanted by name.
    pub(crate) origin: Option<&'r Origin>,
    /// The samples per second of CPU time.
    pub(crate) rate: u32,
    /// Up to when its open calls are measured.
    pub(crate) end: End,
    /// See [`elsewhere::distribute`].
    pub(crate) own_call: Option<&'r elsewhere::InFile>,
    /// Whether the calls are needed only when they were added to those of other processes. They may be unsorted then.
    pub(crate) is_part: bool,
    /// Whether a gmon.out is made of them, which has the program's own view of its calls.
    pub(crate) has_own: bool,
}

/// Returns the profile of a member, the state of its agent, and its address space if that is known. `crash` is as for
/// [`collect::collect`]. If counters cannot be read, they are missing from the profile and `troubles` says why. `names` keeps what
/// was read of files for the next time.
pub(crate) fn counted(
    region: Option<&RegionFile>,
    reading: &Reading,
    samples: Option<Samples>,
    crash: Option<u64>,
    baseline: Option<&Baseline>,
    troubles: &mut Vec<String>,
    names: &mut elsewhere::Names,
) -> (Counted, AgentState, Option<Space>) {
    let Reading { profilee, libraries, maps, origin, rate, end, own_call, is_part, has_own } = *reading;
    let mut profile = Profile::of_program(profilee.planned, rate);
    (profile.name, profile.path) = (profilee.name(), profilee.binary.display().to_string());
    (profile.is_part, profile.has_own) = (is_part && baseline.is_none(), has_own);
    let (mut kernel, mut stacks) = (Threads::default(), Stacks::default());
    let (mut files, mut mapped) = (Vec::new(), Maps::default());
    if let (Some(module), Some(samples)) = (profile.modules.first_mut(), samples) {
        (module.samples, kernel, stacks) = (samples.histogram, samples.threads, samples.stacks);
        (files, mapped) = (samples.dumps, samples.maps);
    }
    let mut state = AgentState::Armed;
    let mut account = Account::default();
    let mut space = None;
    if let (Some(region), Some((_, layout))) = (region, &profilee.plan) {
        let read = region.open(layout).and_then(|region| {
            state = region.report()?.0.state;
            let possible = Possible::of(end, rate);
            collect::collect(
                &region,
                &mut profile,
                libraries,
                maps,
                crash,
                &Ends::new(end, &kernel),
                &possible,
            )
        });
        match read {
            Ok(read) => (account, space) = read,
            Err(error) => troubles.push(format!("counters cannot be read: {}", sys::reason(&error))),
        }
    }
    // The kernel's records, or what the agent's samples need.
    let mapped = if mapped.iter().next().is_some() { &mapped } else { maps };
    let generated = Generated::of(origin, &files, mapped, names.voice());
    // By all calls of the process, also those of before the counts were set to zero.
    profile.stacks = unwound::tree(&stacks, &profile, space.as_ref(), names, &generated);
    if let Some(baseline) = baseline {
        baseline.subtract(&mut profile, &mut account);
    }
    if origin.is_some() {
        generated.name_callers(&mut profile);
    }
    elsewhere::distribute(&mut profile, space.as_ref(), names, own_call, &generated);
    by_thread::add(&mut profile, space.as_ref(), &kernel);
    (Counted { profile, account }, state, space)
}

/// Returns the profiles of the children that count in a member's file. `samples` returns the samples of a
/// child, and `names` keeps what was read of files.
pub(crate) fn guests(
    region: &RegionFile,
    profilee: &'static Profilee,
    libraries: &Numbered<Library>,
    samples: impl Fn(u32) -> Option<Histogram>,
    names: &mut elsewhere::Names,
    rate: u32,
    troubles: &mut Vec<String>,
) -> Vec<(u32, Counted)> {
    let Some((_, layout)) = profilee.plan.as_ref().filter(|_| has_guests(region)) else { return Vec::new() };
    let Ok(mut region) = region.open(layout) else { return Vec::new() };
    let mut finished = Vec::new();
    let possible = Possible::of(End::Noticed(Moment::now()), rate);
    let maps = Maps::default();
    for pid in region.guests().unwrap_or_default() {
        let mut profile = Profile::of_program(profilee.planned, rate);
        (profile.name, profile.path) = (profilee.name(), profilee.binary.display().to_string());
        let account =
            match collect::collect_guest(pid, region.of_guest(pid), &mut profile, libraries, &possible) {
                Ok(account) => account,
                Err(error) => {
                    troubles.push(format!("counters cannot be read: {}", sys::reason(&error)));
                    continue;
                }
            };
        if let (Some(module), Some(samples)) = (profile.modules.first_mut(), samples(pid)) {
            module.samples = samples;
        }
        let generated = Generated::of(None, &[], &maps, names.voice());
        generated.name_callers(&mut profile);
        elsewhere::distribute(&mut profile, None, names, None, &generated);
        finished.push((pid, Counted { profile, account }));
    }
    finished
}

/// Whether children count in a member's file. If so, the file is needed to the end of the run.
pub(crate) fn has_guests(region: &RegionFile) -> bool {
    region.report().is_ok_and(|report| report.guests)
}
