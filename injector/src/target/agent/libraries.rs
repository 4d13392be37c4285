//! Hooks the libraries of a process that already runs: they are prepared one after the other, while only one thread is
//! stopped at a time, and their patches are written with those of the program.

use std::fs::File;
use std::mem::offset_of;

use anyhow::{Context, Result, anyhow, bail};
use gprofinject_abi::ask::Question;
use gprofinject_abi::attach::{Command, LibraryOrder, Order};
use zerocopy::IntoBytes;

use crate::os::sys;
use crate::program::library::{self, Library};
use crate::target::agent::attachment::Attachment;
use crate::target::threads::memory::Memory;
use crate::target::threads::{deadline, tracer};

/// A library that a process has mapped and that is to be hooked there.
pub(crate) struct Wanted {
    pub(crate) library: &'static Library,
    /// What the agent has to know of it, but for the plan.
    pub(crate) order: LibraryOrder,
}

impl Attachment {
    /// Prepares the hooks of libraries, between `prepare` and `arm`. Returns for each the reason if it will not be
    /// hooked.
    ///
    /// # Errors
    /// No helper can be started.
    pub(crate) fn load_libraries(&mut self, wanted: &[Wanted]) -> Result<Vec<Option<String>>> {
        self.order(|attachment, _| {
            let load = |wanted| attachment.load_one(wanted).err().map(|error| format!("{error:#}"));
            Ok(wanted.iter().map(load).collect())
        })
    }

    fn load_one(&self, wanted: &Wanted) -> Result<()> {
        deadline::check()?;
        let memory = Memory::open(self.pid)?;
        let at = self.guest().context("the agent has not prepared")?.image.order;
        let free = memory.record::<Order>(at)?.free;
        if free == Question::default() {
            bail!("the agent cannot hook libraries in this process");
        }
        let start = wanted.order.start;
        let question = Question { bias: start, start, ..free };
        let (file, slot_bytes) = library::placed(wanted.library, &question).map_err(|why| anyhow!(why))?;
        let file = File::from(file);
        let order = LibraryOrder { plan: wanted.library.number, slot_bytes, ..wanted.order };
        tracer::apart(self.pid, |tracer| {
            let mut stopped = self.one(tracer)?;
            let given = self.give(&mut stopped, &memory, &[&file]);
            let given =
                given.map_err(|error| anyhow!("the process cannot get its plan: {}", sys::reason(&error)))?;
            let descriptors = [-1, i64::from(*given.first().context("the process has no descriptor left")?)];
            memory.write(at + offset_of!(Order, descriptors) as u64, descriptors.as_bytes())?;
            memory.write(at + offset_of!(Order, library) as u64, order.as_bytes())?;
            self.command(&mut stopped, &memory, Command::Load)
                .map_err(|error| anyhow!("the agent could not prepare it: {}", sys::reason(&error)))
        })
    }
}
