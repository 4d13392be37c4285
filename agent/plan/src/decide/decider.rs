//! The state of the decisions.

use crate::decide::fit::{Fit, fit};
use crate::decide::hook::Hook;
use crate::decide::options::Engine;
use crate::decide::start::Start;
use crate::decide::verdict::{Failed, Reason, Tactic};
use crate::flow::facts::Flow;
use crate::flow::head::hook_point;
use gprofinject_image::Image;
use std::collections::BTreeSet;
use std::ops::{Index, IndexMut, Range};

/// Values of the functions in a part of the image, by the functions' indices in the image.
pub(crate) struct ByFunction<'s, T> {
    first: usize,
    pub(crate) values: &'s mut [T],
}

impl<T> ByFunction<'_, T> {
    pub(crate) fn functions(&self) -> Range<usize> {
        self.first..self.first + self.values.len()
    }
}

impl<T> Index<usize> for ByFunction<'_, T> {
    type Output = T;

    fn index(&self, function: usize) -> &T {
        &self.values[function - self.first]
    }
}

impl<T> IndexMut<usize> for ByFunction<'_, T> {
    fn index_mut(&mut self, function: usize) -> &mut T {
        &mut self.values[function - self.first]
    }
}

/// Decides for the functions of a part of the image, which need not be all.
pub(crate) struct Decider<'s, 'a, 'd> {
    pub(crate) image: &'a Image<'d>,
    pub(crate) flow: &'a Flow,
    pub(crate) failed: &'a Failed,
    pub(crate) engine: Engine,
    pub(crate) verdicts: ByFunction<'s, Result<Tactic, Reason>>,
    pub(crate) hooks: ByFunction<'s, Option<Hook>>,
    /// Bytes handed out of the padding behind each function.
    pub(crate) padding_used: ByFunction<'s, u64>,
    /// Sorted: functions that may have bytes for a cave, as far as is known.
    pub(crate) roomy: Vec<usize>,
    /// It is known.
    pub(crate) searched: bool,
    /// Functions for which no cave was found, and not all of their neighbours were searched at.
    pub(crate) cut: Vec<usize>,
    /// First and last byte of each call that leads to a thunk ([`Tactic::CallSites`]); while sleds are made.
    pub(crate) redirected_calls: BTreeSet<(u64, u64)>,
}

/// A way to hook a function.
pub(crate) type Way = fn(&mut Decider, usize) -> Result<Tactic, Reason>;

impl<'s, 'a, 'd> Decider<'s, 'a, 'd> {
    /// For the functions from `first` on that the slices have values for.
    pub(crate) fn new(
        (image, flow, failed, engine): (&'a Image<'d>, &'a Flow, &'a Failed, Engine),
        first: usize,
        verdicts: &'s mut [Result<Tactic, Reason>],
        hooks: &'s mut [Option<Hook>],
        padding_used: &'s mut [u64],
    ) -> Self {
        Decider {
            image,
            flow,
            failed,
            engine,
            verdicts: ByFunction { first, values: verdicts },
            hooks: ByFunction { first, values: hooks },
            padding_used: ByFunction { first, values: padding_used },
            roomy: Vec::new(),
            searched: false,
            cut: Vec::new(),
            redirected_calls: BTreeSet::new(),
        }
    }

    /// Whether it is neither hooked nor refused for good.
    pub(crate) fn is_open(&self, i: usize) -> bool {
        matches!(self.verdicts[i], Err(Reason::NoRoom | Reason::JumpedInto)) && !self.failed.contains_key(&i)
    }

    /// Whether it ends, and the next one begins, within that many bytes. What cannot be decoded has other troubles.
    pub(crate) fn is_shorter(&self, i: usize, patch: u64) -> bool {
        let f = &self.image.functions[i];
        let end = hook_point(self.image, f) + patch;
        end > f.address + f.size && end > f.limit && !self.flow.functions[i].undecodable
    }

    pub(crate) fn fit(
        &self,
        i: usize,
        start: &Start,
        patch: u64,
        over_call: bool,
    ) -> Result<(Fit, bool), Reason> {
        fit(self.image, self.flow, i, start, patch, over_call, self.padding_used[i])
    }
}
