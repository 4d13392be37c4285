//! One counted function with its cold parts, and its copy.

use crate::blocks::code::{COUNTER, Site, Words};
use crate::blocks::entries::Redirect;
use crate::blocks::graph::Graph;
use crate::blocks::layout::Layout;
use crate::blocks::steps::{Steps, Way};
use crate::blocks::uncounted::Uncounted;
use gprofinject_image::Image;

/// One counted function with its cold parts. Offsets count from the start of the copies.
#[derive(Debug)]
pub(crate) struct Unit {
    /// The function's index in the image.
    pub(crate) function: usize,
    /// Its instructions.
    pub(crate) steps: Steps,
    /// Its basic blocks.
    pub(crate) graph: Graph,
    /// The place of each instruction's copy.
    pub(crate) layout: Layout,
    /// The places of the original that lead to the copy.
    pub(crate) redirects: Vec<Redirect>,
    /// The number of its first counter.
    pub(crate) first_counter: u32,
    /// The functions from which control may come into its middle, by their indices in the image.
    pub(crate) sources: Vec<usize>,
}

impl Unit {
    /// Returns the offset of the copy of the instruction at an address. A counter before the instruction is
    /// part of the copy.
    pub(crate) fn offset(&self, address: u64) -> Option<u32> {
        self.steps.at(address).map(|n| self.layout.offset(n))
    }

    /// Returns the offset of the return address of the call at `site`, or `None` if the call pushes the
    /// return address of the original.
    pub(crate) fn behind(&self, site: u64) -> Option<u32> {
        let call = self.steps.at(site)?;
        let has_original = matches!(self.steps.list[call].way, Way::CallWithOriginalReturn(_));
        (!has_original).then(|| self.layout.behind(call))
    }

    /// Returns the patches that lead from the original to the copy: addresses and bytes. `base` is the
    /// address of the copies. A patch is `None` if the copy is out of its reach.
    pub(crate) fn redirects(&self, base: u64) -> impl Iterator<Item = Option<(u64, Vec<u8>)>> + '_ {
        let target = move |to: u64| self.offset(to).map(|offset| base.wrapping_add(offset.into()));
        self.redirects.iter().map(move |r| Some((r.at, r.bytes(target(r.to)?)?)))
    }

    /// Writes the copy into `bytes`, the bytes of all copies, and returns the offsets of what depends on
    /// where the module and its counters are. `elsewhere` takes the address and the target of a call or jump
    /// that leaves the unit, or no address and the place to which control runs on behind the unit, and returns the new target.
    ///
    /// # Errors
    ///
    /// Returns [`Uncounted::NotRelocatable`] if an address is out of reach.
    pub(crate) fn write(
        &self,
        image: &Image,
        bytes: &mut [u8],
        site: Site,
        elsewhere: &dyn Fn(Option<u64>, u64) -> u64,
    ) -> Result<Words, Uncounted> {
        let counters = site.counters + COUNTER * u64::from(self.first_counter);
        let site = Site { counters, ..site };
        self.layout.write(image, &self.steps, &self.graph, bytes, site, elsewhere)
    }
}
