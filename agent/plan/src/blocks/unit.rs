//! A counted function.

use crate::blocks::code::COUNTER;
use crate::blocks::entries::Redirect;
use crate::blocks::graph::Graph;
use crate::blocks::layout::Layout;
use crate::blocks::steps::{Steps, Way};
use crate::blocks::uncounted::Uncounted;
use gprofinject_image::Image;

/// A counted function.
#[derive(Debug)]
pub(crate) struct Unit {
    /// Index in the image.
    pub(crate) function: usize,
    pub(crate) steps: Steps,
    pub(crate) graph: Graph,
    pub(crate) layout: Layout,
    pub(crate) redirects: Vec<Redirect>,
    /// Number of its first counter.
    pub(crate) first_counter: u32,
}

impl Unit {
    /// Offset in the copies of the instruction at an address (and of the counter before it).
    pub(crate) fn offset(&self, address: u64) -> Option<u32> {
        self.steps.at(address).map(|n| self.layout.offset(n))
    }

    /// Offset of a call's return address; None: it is the original's.
    pub(crate) fn behind(&self, site: u64) -> Option<u32> {
        let call = self.steps.at(site)?;
        let has_original = matches!(self.steps.list[call].way, Way::CallWithOriginalReturn(_));
        (!has_original).then(|| self.layout.behind(call))
    }

    /// The bytes that lead from the original to the copy: address, what is written there. `base` is the address
    /// of the copies.
    pub(crate) fn redirects(&self, base: u64) -> impl Iterator<Item = (u64, Vec<u8>)> + '_ {
        let target = move |to: u64| self.offset(to).map(|offset| base.wrapping_add(offset.into()));
        self.redirects.iter().filter_map(move |r| Some((r.at, r.bytes(target(r.to)?)?)))
    }

    /// Writes the copy into `bytes`, the copies. `base` is their address, `counters` the offset of the first
    /// counter from what gs points to; `elsewhere` says where a call or jump at a site leads that does not stay
    /// in the unit. Answers with the offsets of words that hold link addresses.
    pub(crate) fn write(
        &self,
        image: &Image,
        bytes: &mut [u8],
        base: u64,
        counters: u64,
        elsewhere: &dyn Fn(u64, u64) -> u64,
    ) -> Result<Vec<u32>, Uncounted> {
        let first = counters + COUNTER * u64::from(self.first_counter);
        self.layout.write(image, &self.steps, &self.graph, bytes, base, first, elsewhere)
    }
}
