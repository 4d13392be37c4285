//! What a process executes, by the kernel's records: which member of the family it is, and which of its samples are that member's.

use std::sync::Arc;

use gprofinject_image::headers::ExecutableSegment;

use crate::sampling::maps::{Mapped, Maps};
use crate::sampling::records::{Dump, Event};
use crate::sampling::samples::Samples;
use crate::sampling::unfollowed::Unfollowed;

/// A member's samples, and the place of its code in its file, by which its mapping is recognised.
pub(super) struct Sampled {
    /// The process that it is, or was.
    pub(super) pid: u32,
    pub(super) code: &'static [ExecutableSegment],
    pub(super) samples: Samples,
    /// Whether samples are ignored for now.
    pub(super) paused: bool,
}

/// What a process executes now.
#[derive(Clone, Debug)]
pub(super) struct Track {
    pub(super) member: Option<usize>,
    /// The member that the process becomes at its next exec.
    pub(super) next: Option<usize>,
    pub(super) state: State,
    /// The file of the program, if that is not followed and is known.
    pub(super) unfollowed: Option<Arc<str>>,
    /// The samples of a forked child that has not announced itself yet.
    pub(super) early: Vec<Early>,
    /// The code that is mapped.
    pub(super) maps: Maps,
}

/// A sample: its thread, if threads are told apart, its time, the link address in the program, the program counter, and its stack.
#[derive(Clone, Debug)]
pub(super) struct Early {
    pub(super) tid: Option<u32>,
    pub(super) time: u64,
    pub(super) place: Option<u64>,
    pub(super) pc: Option<u64>,
    pub(super) dump: Option<Box<Dump>>,
}

impl Early {
    pub(super) fn add_to(&self, samples: &mut Samples, maps: &Maps, processes: usize) {
        samples.add((self.tid, self.time), (self.place, self.pc), self.dump.as_deref(), maps, processes);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// The program is not mapped yet.
    Before,
    /// The program runs. `bias` is the difference between runtime and link addresses.
    Running { bias: u64 },
    /// The process executes a program that is not followed.
    Over,
}

impl Track {
    pub(super) fn new(member: Option<usize>) -> Track {
        Track {
            member,
            next: None,
            state: State::Before,
            unfollowed: None,
            early: Vec::new(),
            maps: Maps::default(),
        }
    }
}

/// The number of samples that are kept at most for a child that never announces itself.
pub(super) const MOST_EARLY: usize = 1000;

impl Track {
    /// Leaves what was mapped with the samples of the member that the process was.
    pub(super) fn leave_maps(&mut self, members: &mut [Sampled]) {
        if let Some(sampled) = self.member.and_then(|member| members.get_mut(member)) {
            sampled.samples.maps = std::mem::take(&mut self.maps);
        }
    }

    /// Notes what a program does that is not followed.
    pub(super) fn pass(&mut self, event: &Event, unfollowed: &mut Unfollowed) {
        match event {
            Event::Sample(..) => unfollowed.add(self.unfollowed.as_ref()),
            // The kernel maps the program before its dynamic linker.
            Event::Map { file, .. } if self.unfollowed.is_none() => {
                unfollowed.begin(file);
                self.unfollowed = Some(file.clone());
            }
            _ => {}
        }
    }

    /// `tid` is the thread, if threads are told apart, and `processes` how many there are.
    pub(super) fn see(
        &mut self,
        event: Event,
        (tid, time): (Option<u32>, u64),
        members: &mut [Sampled],
        processes: usize,
    ) {
        match event {
            Event::Exec => match self.next.take() {
                Some(next) => {
                    self.leave_maps(members);
                    *self = Track::new(Some(next));
                }
                // This is the first program's own exec.
                None if self.state == State::Before && self.member.is_some() => {}
                None => {
                    self.leave_maps(members);
                    (self.member, self.state, self.unfollowed) = (None, State::Over, None);
                }
            },
            Event::Map { address, len, offset, file } => {
                if self.state == State::Before
                    && let Some(sampled) = self.member.and_then(|member| members.get(member))
                    && let Some(bias) = bias(sampled.code, address, len, offset)
                {
                    self.state = State::Running { bias };
                }
                if let Some(sampled) = self.member.and_then(|member| members.get_mut(member)) {
                    sampled.samples.note_file(&file);
                }
                self.maps.add(Mapped { start: address, end: address.saturating_add(len), offset, file });
            }
            Event::Sample(pc, dump) => {
                let place = match self.state {
                    State::Before => None,
                    State::Running { bias } => pc.map(|pc| pc.wrapping_sub(bias)),
                    State::Over => return,
                };
                let sample = Early { tid, time, place, pc, dump };
                match self.member.and_then(|member| members.get_mut(member)) {
                    Some(sampled) if sampled.paused => {}
                    Some(sampled) => sample.add_to(&mut sampled.samples, &self.maps, processes),
                    None if self.early.len() < MOST_EARLY => self.early.push(sample),
                    None => {}
                }
            }
            Event::Fork { .. }
            | Event::Began { .. }
            | Event::Named(_)
            | Event::End
            | Event::On { .. }
            | Event::Off { .. }
            | Event::Lost(_)
            | Event::Throttled => {}
        }
    }
}

/// Returns the load bias if this mapping is one of the program's code. The kernel maps the program before
/// anything else, so the first mapping that fits belongs to the program.
fn bias(code: &[ExecutableSegment], address: u64, len: u64, offset: u64) -> Option<u64> {
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
        let code = [ExecutableSegment { address: 0x3040, offset: 0x1040, len: 0x800 }];
        assert_eq!(bias(&code, 0x55_5000_3000, 0x1000, 0x1000), Some(0x55_5000_0000));
        assert_eq!(bias(&code, 0x55_5000_3000, 0x1000, 0x2000), None);
        assert_eq!(bias(&code, 0x3000, 0x1000, 0x1000), Some(0));
    }
}
