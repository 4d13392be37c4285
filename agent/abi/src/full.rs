//! What a thread does when its ring of events ([`crate::trace`]) is full.

use crate::coded::coded;

coded! {
    /// What a thread does with an event for which its ring has no room.
    pub enum Full as FullCode(u32) {
        /// It waits until the injector has read others.
        Wait = 0,
        /// The event is lost.
        DropNew = 1,
        /// The event takes the place of the oldest one, which is lost.
        DropOld = 2,
    }
}
