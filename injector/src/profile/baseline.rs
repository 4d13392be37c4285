//! Counts that the user has set to zero while the process continues to count.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::profile::collect::Account;
use crate::profile::model::{Arc, PROGRAM, Profile};
use crate::program::library::Library;
use crate::program::numbered::Numbered;
use crate::program::planned::Planned;
use crate::sampling::histogram::Histogram;

/// What had been counted when the counts were last set to zero. The counters themselves belong to the process
/// and are not changed.
pub(crate) struct Baseline {
    /// The counts. Of the samples, only those that the agent has taken.
    pub(crate) profile: Profile,
    pub(crate) lost_calls: u64,
    pub(crate) bare_calls: u64,
}

impl Baseline {
    /// Subtracts this baseline, which leaves what was counted since.
    pub(crate) fn subtract(&self, profile: &mut Profile, account: &mut Account) {
        profile.subtract(&self.profile);
        account.lost_calls = account.lost_calls.saturating_sub(self.lost_calls);
        account.bare_calls = account.bare_calls.saturating_sub(self.bare_calls);
    }

    /// Returns the bytes of the file beside the counters that `--recover` reads.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let Profile { modules, arcs, own, .. } = &self.profile;
        let kept = Kept {
            lost_calls: self.lost_calls,
            bare_calls: self.bare_calls,
            modules: modules
                .iter()
                .map(|module| KeptModule {
                    library: module.library.map(|library| library.number),
                    values: Cow::Borrowed(&module.counters.values),
                    samples: Cow::Borrowed(&module.samples),
                })
                .collect(),
            arcs: Cow::Borrowed(arcs),
            own: own.iter().map(|arc| (arc.from, arc.to, arc.count)).collect(),
        };
        // Memory can be written to.
        postcard::to_allocvec(&kept).unwrap_or_default()
    }

    /// Decodes the bytes that [`Baseline::encode`] has returned for a process of this program, which had loaded these
    /// libraries. Returns `None` if they are damaged.
    pub(crate) fn decode(
        bytes: &[u8],
        program: &'static Planned<'static, 'static>,
        libraries: &Numbered<Library>,
    ) -> Option<Baseline> {
        let (kept, []) = postcard::take_from_bytes::<Kept>(bytes).ok()? else { return None };
        let Kept { lost_calls, bare_calls, modules, arcs, own } = kept;
        let mut profile = Profile::of_program(program, 0);
        for KeptModule { library, values, samples } in modules {
            let index = match library {
                Some(number) => profile.module_of(libraries.get(number)?),
                None => PROGRAM,
            };
            let module = profile.modules.get_mut(index as usize)?;
            module.counters.values = values.into_owned();
            module.samples.add_all(&samples);
        }
        profile.arcs = arcs.into_owned();
        profile.own = own.into_iter().map(|(from, to, count)| gmon::Arc { from, to, count }).collect();
        Some(Baseline { profile, lost_calls, bare_calls })
    }
}

/// The parts of a baseline that are in its file.
#[derive(Serialize, Deserialize)]
struct Kept<'b> {
    lost_calls: u64,
    bare_calls: u64,
    modules: Vec<KeptModule<'b>>,
    arcs: Cow<'b, [Arc]>,
    /// The calls as the program's own view has them: from, to, and how many.
    own: Vec<(u64, u64, u64)>,
}

/// The counts of one module.
#[derive(Serialize, Deserialize)]
struct KeptModule<'b> {
    /// The number of the library's plan; `None` for the program.
    library: Option<u32>,
    /// The counters of basic blocks.
    values: Cow<'b, [u64]>,
    samples: Cow<'b, Histogram>,
}
