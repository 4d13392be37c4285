//! Hooks the libraries of a process that already runs: they are prepared one after the other, while only one thread is
//! stopped at a time, and their patches are written with those of the program.

use std::collections::BTreeSet;
use std::io;
use std::mem::offset_of;

use anyhow::{Context, Result, anyhow, bail};
use gprofinject_abi::ask::Question;
use gprofinject_abi::attach::{Command, LibraryOrder, Order};
use zerocopy::IntoBytes;

use crate::os::{proc, sys};
use crate::program::library::{self, Library, Placed};
use crate::target::agent::attachment::Attachment;
use crate::target::agent::unwinder::{get_gr, unwinder};
use crate::target::threads::memory::Memory;
use crate::target::threads::{deadline, tracer};

/// A library that a process has mapped and that is to be hooked there.
pub(crate) struct Wanted {
    pub(crate) library: &'static Library,
    /// What the agent has to know of it, but for the plan.
    pub(crate) order: LibraryOrder,
    /// Whether nothing in the process may be hooked if this is not: it is musl's dynamic linker, which makes the threads.
    pub(crate) is_needed: bool,
}

/// Returns the error if musl's dynamic linker cannot be hooked, for this reason.
pub(crate) fn unhookable(why: &str) -> anyhow::Error {
    anyhow!("musl's dynamic linker, which makes the program's threads, could not be hooked: {why}")
}

impl Attachment {
    /// Prepares the hooks of libraries, between `prepare` and `arm`. Returns for each the reason if it will not be
    /// hooked.
    ///
    /// # Errors
    /// No helper can be started, or a library that is needed cannot be hooked.
    pub(crate) fn load_libraries(&mut self, wanted: &[Wanted]) -> Result<Vec<Option<String>>> {
        self.order(|attachment, _| {
            let mut reasons = Vec::with_capacity(wanted.len());
            for wanted in wanted {
                let reason = attachment.load_one(wanted).err().map(|error| format!("{error:#}"));
                if let Some(why) = reason.as_ref().filter(|_| wanted.is_needed) {
                    return Err(unhookable(why));
                }
                reasons.push(reason);
            }
            Ok(reasons)
        })
    }

    /// Prepares the hooks of a library. If something else is where its arena would be, another place is found; another thread may take
    /// that meanwhile.
    fn load_one(&mut self, wanted: &Wanted) -> Result<()> {
        const TRIES: usize = 10;
        let is_taken = |error: &anyhow::Error| {
            let error = error.root_cause().downcast_ref::<io::Error>();
            error.and_then(io::Error::raw_os_error) == Some(libc::EEXIST)
        };
        for number in 1..TRIES {
            match self.load_there(wanted, number > 1) {
                Err(error) if is_taken(&error) => {}
                done => return done,
            }
        }
        self.load_there(wanted, true)
    }

    fn load_there(&mut self, wanted: &Wanted, is_taken: bool) -> Result<()> {
        deadline::check()?;
        let memory = Memory::open(self.pid)?;
        let at = self.guest().context("the agent has not prepared")?.image.order;
        let free = memory.record::<Order>(at)?.free;
        if free == Question::default() {
            bail!(
                "the dynamic linker cannot be made to tell of libraries, so that one that is unloaded would go unnoticed"
            );
        }
        let start = wanted.order.start;
        let question = Question { bias: start, start, is_taken: is_taken.into(), ..free };
        let mappings = || proc::mappings(self.pid).unwrap_or_default();
        let Placed { file, slot_bytes, arena, .. } =
            library::placed(wanted.library, &question, &BTreeSet::new(), mappings, None)
                .map_err(|why| anyhow!(why))?;
        let order = LibraryOrder { plan: wanted.library.number, slot_bytes, ..wanted.order };
        tracer::apart(self.pid, |tracer| {
            let mut stopped = self.one(tracer)?;
            let given = self.give(&mut stopped, &memory, &[&file]);
            let given =
                given.map_err(|error| anyhow!("the process cannot get its plan: {}", sys::reason(&error)))?;
            let descriptors = [-1, i64::from(*given.first().context("the process has no descriptor left")?)];
            memory.write(at + offset_of!(Order, descriptors) as u64, descriptors.as_bytes())?;
            memory.write(at + offset_of!(Order, library) as u64, order.as_bytes())?;
            let get_gr = self.own_get_gr(wanted.library, start, arena);
            memory.write(at + offset_of!(Order, get_gr) as u64, get_gr.as_bytes())?;
            self.command(&mut stopped, &memory, Command::Load).map_err(|error| match error.raw_os_error() {
                Some(libc::EEXIST) => error.into(),
                _ => anyhow!("the agent could not prepare it: {}", sys::reason(&error)),
            })
        })?;
        self.note_library(wanted.library, start, arena);
        Ok(())
    }

    /// Returns the address at which a library's `_Unwind_GetGR` can be called, or 0 if the agent finds it by itself. `start` is its
    /// load bias.
    fn own_get_gr(&self, library: &Library, start: u64, arena: u64) -> u64 {
        let planned = library.planned;
        let plan = planned.plan.as_ref().filter(|_| self.is_standalone);
        plan.map_or(0, |plan| get_gr(planned, plan, start, arena))
    }

    /// Notes where threads may wait in system calls of a library of a process of musl's, and what its unwinder is. `start` is its
    /// load bias.
    pub(crate) fn note_library(&mut self, library: &Library, start: u64, arena: u64) {
        let planned = library.planned;
        let (Some(plan), Some(image)) = (&planned.plan, planned.subject.image()) else { return };
        if self.is_standalone {
            self.note_arena(arena, plan.arena_len);
            let of = |(from, to): (u32, u64)| (arena + u64::from(from), start.wrapping_add(to));
            let calls = plan.after_system_calls(image).into_iter().map(of);
            self.calls.extend(calls.filter(|&(from, _)| self.arenas.contains(from)));
            self.unwinder.extend(unwinder(planned, start));
        }
    }
}
