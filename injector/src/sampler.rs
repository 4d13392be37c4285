//! Who samples, and the way from the kernel's records to a histogram.

use crate::args::SamplerArg;
use crate::elf;
use crate::histogram::Histogram;
use crate::perf::{self, Perf, Scope};
use crate::records::{Event, Record};
use crate::sys;

/// What was decided before the start.
pub(crate) struct Choice {
    pub(crate) method: Method,
    /// Samples per second.
    pub(crate) rate: u32,
    /// Why this and not what would have been better, or not what was asked for.
    pub(crate) reasons: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Perf,
    /// By the agent inside the program.
    Timer,
    None,
}

impl Method {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Method::Perf => "perf",
            Method::Timer => "timer",
            Method::None => "none",
        }
    }
}

/// Decides by trying. `agent`: there can be one in this program. `changes_ids`: the kernel takes the
/// program's own events away when it is executed.
pub(crate) fn choose(asked: SamplerArg, rate: u32, agent: bool, changes_ids: bool) -> Choice {
    let mut reasons = Vec::new();
    if rate == 0 {
        return Choice { method: Method::None, rate, reasons };
    }
    if asked != SamplerArg::Timer {
        let scope = if changes_ids { Scope::Machine } else { Scope::Process(0) };
        match Perf::open(scope, rate) {
            Ok(trial) => {
                if !trial.samples_kernel() {
                    reasons.push("time in the kernel is not sampled (kernel.perf_event_paranoid)".into());
                }
                let most = perf::most_samples_per_second().unwrap_or(rate).max(1);
                if most < rate {
                    reasons.push(format!("the kernel allows {most} samples a second"));
                }
                return Choice { method: Method::Perf, rate: rate.min(most), reasons };
            }
            Err(error) => reasons.push(perf::refusal(&error, scope)),
        }
    }
    if asked == SamplerArg::Perf || !agent {
        if asked == SamplerArg::Timer {
            reasons.push("timers need the agent, which this program cannot have".into());
        }
        return Choice { method: Method::None, rate: 0, reasons };
    }
    let most = sys::ticks_per_second();
    if most < rate {
        reasons.push(format!("this kernel's timers go to {most} samples a second"));
    }
    Choice { method: Method::Timer, rate: rate.min(most), reasons }
}

/// perf at work on a program.
pub(crate) struct Sampling {
    perf: Perf,
    pid: u32,
    /// Where the program's code is in its file, to know it when it is mapped.
    code: Vec<elf::Segment>,
    state: State,
    pending: Vec<Record>,
    /// When the last round began: older records have all been seen.
    seen_until: u64,
    pub(crate) histogram: Histogram,
    pub(crate) lost: u64,
    pub(crate) throttled: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The program is not mapped yet.
    Before,
    /// Runtime address minus link address.
    Running { bias: u64 },
    /// Another program has taken its place.
    Over,
}

impl Sampling {
    pub(crate) fn new(perf: Perf, pid: i32, code: Vec<elf::Segment>, histogram: Histogram) -> Sampling {
        Sampling {
            perf,
            pid: pid as u32,
            code,
            state: State::Before,
            pending: Vec::new(),
            seen_until: 0,
            histogram,
            lost: 0,
            throttled: false,
        }
    }

    pub(crate) fn perf(&mut self) -> &mut Perf {
        &mut self.perf
    }

    /// Takes what the kernel has.
    ///
    /// Each CPU has its ring, and an exec in one must be seen before later samples in another. So a
    /// record is counted a round later: all that is older than the round before has arrived by then.
    pub(crate) fn drain(&mut self) {
        let now = sys::monotonic_ns();
        self.perf.drain(&mut self.pending);
        let until = std::mem::replace(&mut self.seen_until, now);
        self.count(until);
    }

    /// After the program's end.
    pub(crate) fn finish(&mut self) {
        self.perf.drain(&mut self.pending);
        self.count(u64::MAX);
    }

    fn count(&mut self, until: u64) {
        self.pending.sort_by_key(|record| record.time);
        let ready = self.pending.partition_point(|record| record.time < until);
        let rest = self.pending.split_off(ready);
        for record in std::mem::replace(&mut self.pending, rest) {
            self.count_one(record);
        }
    }

    fn count_one(&mut self, record: Record) {
        match record.event {
            Event::Lost(count) => self.lost += count,
            Event::Throttled => self.throttled = true,
            _ if record.pid != self.pid => {}
            Event::Exec => {
                if let State::Running { .. } = self.state {
                    self.state = State::Over;
                    self.perf.disable();
                }
            }
            Event::Map { address, len, offset } => {
                if self.state == State::Before
                    && let Some(bias) = bias(&self.code, address, len, offset)
                {
                    self.state = State::Running { bias };
                }
            }
            Event::Sample(place) => match self.state {
                State::Before => self.histogram.add(None),
                State::Running { bias } => self.histogram.add(place.map(|pc| pc.wrapping_sub(bias))),
                State::Over => {}
            },
        }
    }
}

/// The load bias, if this mapping is one of the program's code. The kernel maps the program before
/// anything else, so the first that fits is it.
fn bias(code: &[elf::Segment], address: u64, len: u64, offset: u64) -> Option<u64> {
    const IN_PAGE: u64 = 4095;
    let segment = code.iter().find(|segment| {
        let end = segment.offset.saturating_add(segment.len);
        segment.offset & !IN_PAGE == offset && end <= offset.saturating_add(len)
    })?;
    Some(address.wrapping_sub(segment.address & !IN_PAGE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bias_comes_from_the_programs_own_mapping() {
        let code = [elf::Segment { address: 0x3040, offset: 0x1040, len: 0x800 }];
        assert_eq!(bias(&code, 0x55_5000_3000, 0x1000, 0x1000), Some(0x55_5000_0000));
        assert_eq!(bias(&code, 0x55_5000_3000, 0x1000, 0x2000), None);
        assert_eq!(bias(&code, 0x3000, 0x1000, 0x1000), Some(0));
    }

    #[test]
    fn no_rate_means_no_sampler() {
        assert_eq!(choose(SamplerArg::Auto, 0, true, false).method, Method::None);
    }
}
