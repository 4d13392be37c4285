//! Converts the scheduler's decisions about threads to the form of the trace.

use std::collections::HashMap;

use gmon_trace::{Switch, SwitchKind};

use crate::sampling::sampler::Switched;

/// The processor on which each thread ran last.
#[derive(Default)]
pub(crate) struct LastCpus(HashMap<u32, u32>);

impl LastCpus {
    /// Returns the entries for a decision about a thread at this time of the process's clock. They include a migration if the thread ran
    /// on another processor before.
    pub(crate) fn switches(
        &mut self,
        switched: &Switched,
        time: u64,
    ) -> impl Iterator<Item = Switch> + use<> {
        let (cpu, tid) = (switched.cpu, switched.tid);
        let kind = match switched.off {
            Some(preempted) => SwitchKind::Off { preempted },
            None => SwitchKind::On,
        };
        let is_elsewhere = switched.off.is_none() && self.0.insert(tid, cpu).is_some_and(|last| last != cpu);
        let migrated = is_elsewhere.then_some(Switch { time, cpu, kind: SwitchKind::Migrated });
        migrated.into_iter().chain([Switch { time, cpu, kind }])
    }
}
