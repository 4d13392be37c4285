//! Work in a process that must not be left half done: it is given to a helper process, which finishes it whatever becomes of
//! this one.

use anyhow::Result;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::target::agent::attachment::Attachment;
use crate::target::threads::helper::{self, Client};

impl Attachment {
    /// Has a helper do the work, and takes over what the helper has noted in its copy of this.
    pub(super) fn order<T: Serialize + DeserializeOwned>(
        &mut self,
        work: impl FnOnce(&mut Attachment, &Client) -> Result<T>,
    ) -> Result<T> {
        let home = self.home.clone();
        let (after, result) = helper::carry_out(self.pid, home.as_ref(), |client| {
            let result = work(self, client).map_err(|error| format!("{error:#}"));
            if self.mapped().is_some() && !self.is_inherited {
                // For the gprofinject that leaves the process in our place.
                let _ = self.save();
            }
            (self.clone(), result)
        })?;
        *self = Attachment { is_inherited: self.is_inherited, home, ..after };
        result.map_err(anyhow::Error::msg)
    }
}
