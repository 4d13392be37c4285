//! Work in a process that must not be left half done. A helper process does it and finishes it even if this
//! process is killed.

use anyhow::Result;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::target::agent::attachment::Attachment;
use crate::target::threads::helper::{self, Client};

impl Attachment {
    /// Makes a helper do the work, and takes over the changes that the helper has made to its copy of this
    /// record.
    ///
    /// # Errors
    /// The helper cannot be started or does not answer, or `work` fails.
    pub(super) fn order<T: Serialize + DeserializeOwned>(
        &mut self,
        work: impl FnOnce(&mut Attachment, &Client) -> Result<T>,
    ) -> Result<T> {
        let home = self.home.clone();
        let (after, result) = helper::carry_out(self.pid, home.as_ref(), |client| {
            let result = work(self, client).map_err(|error| format!("{error:#}"));
            if self.mapped().is_some() && !self.is_inherited {
                // Another gprofinject needs this if it has to leave the process in our place.
                let _ = self.save();
            }
            (self.clone(), result)
        })?;
        let (is_inherited, filters) = (self.is_inherited, std::mem::take(&mut self.filters));
        *self = Attachment { is_inherited, home, filters, ..after };
        result.map_err(anyhow::Error::msg)
    }
}
