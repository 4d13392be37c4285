//! The plan file, mapped as long as the process lives: its tables are slices of the mapping.
#![allow(unsafe_code, reason = "the plan file is mapped")]

use crate::os::files::{self, Descriptor};
use crate::os::kernel;
use crate::os::memory;
use crate::program::module::Module;
use crate::start::refusal::Refusal;
use core::ops::Deref;
use core::slice;
use gprofinject_abi::plan::{FileVersion, MAGIC, PlanEnd, PlanHeader, Table, TextRange};
use gprofinject_abi::region::{PAGE, Trouble};
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Text with the patches, which can be mapped in place of a module's.
pub(crate) struct PatchedText {
    pub(crate) file: Descriptor,
    pub(crate) ranges: TextRanges,
}

/// Where such text is in an image.
pub(crate) struct TextRanges {
    ranges: [TextRange; TextRanges::MOST],
    count: usize,
}

impl TextRanges {
    /// A module has hardly more executable segments.
    const MOST: usize = 8;

    /// Returns where the text is in the image to which a descriptor refers. There is none, if the file of which the image has a copy has
    /// another version.
    pub(crate) fn of(fd: i32, version: FileVersion) -> Option<TextRanges> {
        let (start, _) = extent(fd).ok()?;
        let mut plan = PlanHeader::default();
        read(fd, plan.as_mut_bytes(), start)?;
        let count = usize::try_from(plan.text.count).ok().filter(|count| (1..=Self::MOST).contains(count))?;
        let mut ranges = [TextRange::default(); Self::MOST];
        read(fd, ranges.get_mut(..count)?.as_mut_bytes(), start + plan.text.offset)?;
        (plan.version_of_text == version).then_some(TextRanges { ranges, count })
    }
}

impl Deref for TextRanges {
    type Target = [TextRange];

    fn deref(&self) -> &[TextRange] {
        self.ranges.get(..self.count).unwrap_or_default()
    }
}

/// Reads bytes at an offset. Returns `None` if the file does not hold all of them.
fn read(fd: i32, bytes: &mut [u8], at: u64) -> Option<()> {
    let len = bytes.len();
    (files::read_at(fd, bytes, at).ok()? == len).then_some(())
}

/// Returns the extent of the plan in the file to which a descriptor refers: the byte offsets of the header and of the file's last record.
///
/// # Errors
/// Returns the error number (errno) of the failed system call, or EINVAL if it is no plan file.
fn extent(fd: i32) -> Result<(u64, u64), i32> {
    let last = files::file_size(fd)?.checked_sub(size_of::<PlanEnd>() as u64).ok_or(kernel::EINVAL)?;
    let mut end = PlanEnd::default();
    let is_whole = read(fd, end.as_mut_bytes(), last).is_some();
    let is_sound = is_whole && end.magic == MAGIC && end.plan.is_multiple_of(PAGE) && end.plan < last;
    if is_sound { Ok((end.plan, last)) } else { Err(kernel::EINVAL) }
}

pub(crate) struct PlanFile {
    /// The mapping, from the header on.
    bytes: &'static [u8],
    /// The file's descriptor, which is open as long as this is used.
    fd: i32,
    /// Where the header is in the file.
    start: u64,
}

impl PlanFile {
    /// Maps the plan file to which a descriptor refers.
    ///
    /// # Errors
    /// Returns the error number (errno) of the failed system call.
    pub(crate) fn open(fd: i32) -> Result<PlanFile, i32> {
        let (start, last) = extent(fd)?;
        let len = last - start;
        // SAFETY: the kernel chooses the address, so the mapping replaces nothing.
        let at = unsafe { memory::mmap(0, len, memory::PROT_READ, memory::MAP_PRIVATE, fd, start) }?;
        // SAFETY: the mapping is `len` bytes long and never unmapped. The injector has finished writing the file.
        Ok(PlanFile { bytes: unsafe { slice::from_raw_parts(at as *const u8, len as usize) }, fd, start })
    }

    /// Notes the mapping among those that the agent has made, if no file in the run folder has this content.
    pub(crate) fn note(&self) {
        memory::note(self.bytes.as_ptr() as u64, self.bytes.len() as u64);
    }

    /// Maps `len` bytes from an offset from the header on over what is at an address, or where nothing is, as `place` says. They are
    /// readable and writable, and changes do not come into the file. Returns the address.
    ///
    /// # Errors
    /// Returns the error number (errno) of the failed system call, or EINVAL if the file does not hold the bytes.
    ///
    /// # Safety
    /// With MAP_FIXED, the caller must own what lies at `address..address + len`.
    pub(crate) unsafe fn map_at(&self, offset: u64, len: u64, address: u64, place: u64) -> Result<u64, i32> {
        if self.bytes(offset, len).is_none() {
            return Err(kernel::EINVAL);
        }
        let access = memory::PROT_READ | memory::PROT_WRITE;
        let flags = memory::MAP_PRIVATE | memory::MAP_NORESERVE | place;
        // SAFETY: the caller owns what is replaced.
        unsafe { memory::mmap(address, len, access, flags, self.fd, self.start + offset) }
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
            base: arena,
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
            outermost: plan.outermost != 0,
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
        PlanHeader::ref_from_prefix(self.bytes)
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
        self.bytes.get(usize::try_from(offset).ok()?..)?.get(..usize::try_from(len).ok()?)
    }
}
