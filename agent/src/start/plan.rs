//! The plan file, mapped as long as the process lives: its tables are slices of the mapping.
#![allow(unsafe_code, reason = "the plan file is mapped")]

use crate::os::files;
use crate::os::memory;
use crate::program::module::Module;
use crate::start::process_files::Files;
use crate::start::refusal::Refusal;
use core::slice;
use gprofinject_abi::plan::{PlanHeader, Table};
use gprofinject_abi::region::Trouble;
use zerocopy::{FromBytes, Immutable};

pub(crate) struct PlanFile(&'static [u8]);

impl PlanFile {
    /// # Errors
    /// Returns the error number (errno) of the failed system call.
    pub(crate) fn map(files: &Files<'_>) -> Result<PlanFile, i32> {
        files.plan(PlanFile::open)
    }

    /// Maps the plan file to which a descriptor refers.
    ///
    /// # Errors
    /// Returns the error number (errno) of the failed system call.
    pub(crate) fn open(fd: i32) -> Result<PlanFile, i32> {
        let len = files::file_size(fd)?;
        // SAFETY: the kernel chooses the address, so the mapping replaces nothing.
        let at = unsafe { memory::mmap(0, len, memory::PROT_READ, memory::MAP_PRIVATE, fd, 0) }?;
        // SAFETY: the mapping is `len` bytes long and never unmapped. The injector has finished writing the file.
        Ok(PlanFile(unsafe { slice::from_raw_parts(at as *const u8, len as usize) }))
    }

    /// Notes the mapping among those that the agent has made, if no file in the run folder has this content.
    pub(crate) fn note(&self) {
        memory::note(self.0.as_ptr() as u64, self.0.len() as u64);
    }

    /// Returns the module that a plan describes, but for its program headers. `bias` is what is added to the addresses of
    /// its records.
    ///
    /// # Errors
    /// A refusal, if the file is damaged.
    pub(crate) fn module(&self, plan: &PlanHeader, bias: u64) -> Result<Module, Refusal> {
        let arena = plan.arena.wrapping_add(bias);
        let module = Module {
            functions: self.table(plan.functions)?,
            first: plan.first_function,
            tails: self.table(plan.tails)?,
            hooked: self.table(plan.hooked)?,
            originals: self.table(plan.originals)?,
            patches: self.table(plan.patches)?,
            call_jumps: self.table(plan.call_jumps)?,
            counters: self.table(plan.counters)?,
            fetches: self.table(plan.fetches)?,
            counters_end: match plan.first_counter {
                0 => 0,
                first => first + plan.counter_bytes,
            },
            base: plan.records_base.wrapping_add(bias),
            arena_lo: arena,
            arena_hi: arena.wrapping_add(plan.copies),
            copies_hi: arena.wrapping_add(plan.arena_len),
            frame_tables: plan.frame_tables,
            stubs: plan.stubs,
            stub_len: plan.stub_len,
            tail_code: plan.tail_code,
            text_lo: plan.text_lo.wrapping_add(bias),
            text_hi: plan.text_hi.wrapping_add(bias),
            bias,
            outer: plan.measured == 2,
            ..Module::NONE
        };
        if module.call_jumps.iter().any(|jump| u64::from(jump.at) + 4 > plan.arena_len) {
            return Err(Refusal::new(Trouble::Version));
        }
        Ok(module)
    }

    /// # Errors
    /// A refusal, if the file is shorter than a header.
    pub(crate) fn header(&self) -> Result<&'static PlanHeader, Refusal> {
        PlanHeader::ref_from_prefix(self.0)
            .map(|(header, _)| header)
            .map_err(|_| Refusal::new(Trouble::Version))
    }

    /// # Errors
    /// A refusal, if the file does not hold the whole table.
    pub(crate) fn table<T: FromBytes + Immutable>(&self, table: Table) -> Result<&'static [T], Refusal> {
        let bytes = usize::try_from(table.count).ok().and_then(|count| count.checked_mul(size_of::<T>()));
        let table = bytes
            .and_then(|len| self.bytes(table.offset, len as u64))
            .and_then(|bytes| <[T]>::ref_from_bytes(bytes).ok());
        table.ok_or(Refusal::new(Trouble::Version))
    }

    /// Bytes of the file, or `None` if it does not hold them all.
    pub(crate) fn bytes(&self, offset: u64, len: u64) -> Option<&'static [u8]> {
        self.0.get(usize::try_from(offset).ok()?..)?.get(..usize::try_from(len).ok()?)
    }
}
