//! The state of the decisions about a range of functions, which the tactics share.

use crate::decide::fit::{Fit, fit};
use crate::decide::hook::Hook;
use crate::decide::options::Means;
use crate::decide::start::Start;
use crate::decide::verdict::{Earlier, Reason, Tactic};
use crate::flow::facts::Flow;
use crate::flow::head::hook_point;
use gprofinject_image::Image;
use std::collections::BTreeSet;
use std::ops::{Index, IndexMut, Range};

/// Values for consecutive functions, indexed by the functions' indices in the image.
pub(crate) struct ByFunction<'s, T> {
    /// Index in the image of the first function.
    first: usize,
    /// The values.
    pub(crate) values: &'s mut [T],
}

impl<T> ByFunction<'_, T> {
    /// Returns the indices of the functions.
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

/// Decides about consecutive functions of the image, which need not be all of them.
pub(crate) struct Decider<'s, 'a, 'd> {
    /// The program.
    pub(crate) image: &'a Image<'d>,
    /// Its control flow.
    pub(crate) flow: &'a Flow,
    /// What earlier attempts have shown.
    pub(crate) earlier: &'a Earlier,
    /// The engine that writes the patches, and what it may do.
    pub(crate) means: Means,
    /// The current decision for each function. `NoRoom`, `JumpedInto` and `ShadowStack` may still change.
    pub(crate) verdicts: ByFunction<'s, Result<Tactic, Reason>>,
    /// The hook of each function that has one.
    pub(crate) hooks: ByFunction<'s, Option<Hook>>,
    /// The number of bytes of the padding after each function that are in use.
    pub(crate) padding_used: ByFunction<'s, u64>,
    /// The functions that may have bytes for a cave, sorted, as of the last search.
    pub(crate) roomy: Vec<usize>,
    /// Whether `roomy` has been computed.
    pub(crate) searched: bool,
    /// Functions for which no cave was found, although functions outside this part may have one.
    pub(crate) cut_short: Vec<usize>,
    /// The first and last byte of each call that is redirected to a thunk ([`Tactic::CallSites`]). The set
    /// is filled only while sleds are decided.
    pub(crate) redirected_calls: BTreeSet<(u64, u64)>,
}

/// A method that tries one way to hook a function.
pub(crate) type Way = fn(&mut Decider, usize) -> Result<Tactic, Reason>;

impl<'s, 'a, 'd> Decider<'s, 'a, 'd> {
    /// Returns the state for as many functions, from `first` on, as the slices have values for.
    pub(crate) fn new(
        (image, flow, earlier, means): (&'a Image<'d>, &'a Flow, &'a Earlier, Means),
        first: usize,
        verdicts: &'s mut [Result<Tactic, Reason>],
        hooks: &'s mut [Option<Hook>],
        padding_used: &'s mut [u64],
    ) -> Self {
        Decider {
            image,
            flow,
            earlier,
            means,
            verdicts: ByFunction { first, values: verdicts },
            hooks: ByFunction { first, values: hooks },
            padding_used: ByFunction { first, values: padding_used },
            roomy: Vec::new(),
            searched: false,
            cut_short: Vec::new(),
            redirected_calls: BTreeSet::new(),
        }
    }

    /// Returns whether the function is neither hooked nor finally refused.
    pub(crate) fn is_open(&self, i: usize) -> bool {
        matches!(self.verdicts[i], Err(Reason::NoRoom | Reason::JumpedInto | Reason::ShadowStack))
            && !self.earlier.failed.contains_key(&i)
    }

    /// Returns whether the function and the padding after it are shorter than a patch. For a function that
    /// cannot be decoded, the answer is no, because that is then the reason to report.
    pub(crate) fn is_shorter(&self, i: usize, patch: u64) -> bool {
        let f = &self.image.functions[i];
        let end = hook_point(self.image, f) + patch;
        end > f.address + f.size && end > f.limit && !self.flow.functions[i].undecodable
    }

    /// Returns which bytes have to be relocated for a patch of `patch` bytes, and whether the patch
    /// reaches into the padding. See [`fit()`].
    /// # Errors
    /// The patch does not fit; the error is the reason.
    pub(crate) fn fit(
        &self,
        i: usize,
        start: &Start,
        patch: u64,
        over_call: bool,
    ) -> Result<(Fit, bool), Reason> {
        let (fit, padded) = fit(self.image, self.flow, i, start, patch, over_call, self.padding_used[i])?;
        match fit.over_call && self.means.shadow_stack {
            true => Err(Reason::ShadowStack),
            false => Ok((fit, padded)),
        }
    }
}
