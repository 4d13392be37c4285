//! The reason why the agent does not hook the program.

use core::sync::atomic::Ordering;
use gprofinject_abi::region::{State, Trouble};
use gprofinject_abi::shared::RegionRef;

/// The reason why the agent does not hook the program.
pub(crate) struct Refusal {
    pub(crate) trouble: Trouble,
    pub(crate) errno: i32,
    /// The link address that the reason is about, or 0.
    pub(crate) address: u64,
}

impl Refusal {
    pub(crate) fn new(trouble: Trouble) -> Refusal {
        Refusal { trouble, errno: 0, address: 0 }
    }

    pub(crate) fn errno(trouble: Trouble, errno: i32) -> Refusal {
        Refusal { trouble, errno, address: 0 }
    }

    /// Reports the reason in the region file.
    pub(crate) fn report(self, region: RegionRef) {
        region.errno().store(self.errno, Ordering::Relaxed);
        region.trouble_address().store(self.address, Ordering::Relaxed);
        region.trouble().store(self.trouble.code().0, Ordering::Relaxed);
        region.state().store(State::Refused.code().0, Ordering::Release);
    }
}
