//! The whole plan for a program, and the queries that the injector makes on it.

use crate::blocks::code::COUNTER;
use crate::blocks::copies::Copies;
use crate::blocks::uncounted::Uncounted;
use crate::decide::options::{Engine, Hooks};
use crate::decide::verdict::Verdict;
use crate::emit::emitted::{Emitted, Moved, NO_OWNER};
use crate::flow::falls::Fall;
use crate::stored_file::StoredFile;
use crate::x86::template::kind::{Measured, Role};
use gprofinject_abi::plan::{CodeRange, FunctionRecord, Patch};
use gprofinject_image::Image;
use std::borrow::Cow;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The plan for a program: which functions are hooked and how, and everything that the agent needs to carry
/// that out.
///
/// [`Plan::new`] makes one. Unless a field says otherwise, an address is a link address, that is, one as the
/// ELF file has it, and an arena offset counts bytes from [`Plan::arena`].
#[derive(Debug)]
pub struct Plan {
    /// The hooks that the plan makes. They may be fewer than the user asked for; then `downgrade` says why.
    pub hooks: Hooks,
    /// Why the plan makes fewer hooks than the user asked for, as text for the user; `None` if it makes
    /// all of them.
    pub downgrade: Option<String>,
    /// What hooks may change in the program's behaviour, as text for the user, where the user insists on
    /// them; or what they leave out.
    pub caution: Option<String>,
    /// The decision for each function of the image, in the image's order.
    pub verdicts: Cow<'static, [Verdict]>,
    /// One record for each hooked function. The index of a record is the function's *number*.
    pub records: Cow<'static, [FunctionRecord]>,
    /// For each function number, the function's index in the image.
    pub function_of: Cow<'static, [u32]>,
    /// The start of the first function of the image and the end of the last one.
    pub text: (u64, u64),
    /// Address of the arena, the memory in which the agent puts the thunks.
    pub arena: u64,
    /// Bytes of the arena.
    pub arena_len: u64,
    /// The thread pointer offset of the agent's words that the arena contains: see [`Options::words`](crate::Options::words).
    pub(crate) words: i64,
    /// Bytes of home slots in the counters of each thread.
    pub slot_bytes: u64,
    /// The function whose relocated instructions are at each byte of the arena, sorted by offset. An entry applies from its
    /// arena offset up to that of the next entry; it has the index of the function in the image, or [`NO_OWNER`] for
    /// thunks, stubs, and everything else that is not the program's.
    pub arena_owners: Cow<'static, [[u32; 2]]>,
    /// For each pair of functions with a jump from one to the start of the other, that jump. Sorted.
    pub(crate) tail_sites: Cow<'static, [TailSite]>,
    /// Where control may run on from one function into the next, sorted by the address of the second one.
    pub(crate) falls: Vec<Fall>,
    /// See [`gprofinject_image::Image::nameless_parts`].
    pub(crate) nameless_parts: Cow<'static, [[u32; 2]]>,
    /// The machine code, the patches, and the tables of the agent.
    pub(crate) emitted: Emitted,
    /// See [`Emitted::moved`].
    pub(crate) moved: Cow<'static, [Moved]>,
    /// The ranges of addresses in which a return address belongs to hooked code, sorted.
    pub(crate) hooked: Vec<CodeRange>,
    /// The lowest address of executable segments, and the first address after the highest.
    pub(crate) code: (u64, u64),
    /// The ELF entry point.
    pub(crate) entry: u64,
    /// Address of the program headers when loaded.
    pub(crate) phdr: u64,
    /// The addresses at which hooks overwrite something, sorted.
    pub(crate) hook_points: Cow<'static, [u64]>,
    /// Whether some patches remove calls of the functions of another profiler. Such a patch is harmless only
    /// if those functions are the empty ones of the C library.
    pub(crate) hooks_removed: bool,
    /// The engine that writes the patches.
    pub engine: Engine,
    /// What the image is for a process.
    pub role: Role,
    /// Whether functions may be entered with less stack than the agent's slow paths need.
    pub small_stacks: bool,
    /// Which calls are measured: see [`Options::measured`](crate::Options::measured).
    pub measured: Measured,
    /// Whether only calls from outside of the module are counted.
    pub outermost: bool,
    /// Whether preempted goroutines continue through the agent.
    pub resumes: bool,
    /// The addresses of the `syscall` instructions of a standalone program that lead to the agent
    /// ([`ArenaHeader::system_call`](gprofinject_abi::plan::ArenaHeader::system_call)), sorted: those that make threads or
    /// processes or execute programs, and those whose numbers are not constants.
    pub redirected: Vec<u64>,
    /// The addresses of the `syscall` instructions that should lead there and cannot, sorted. If there are any, hooks in
    /// the program are not safe: a thread may begin with the words of another one.
    pub unredirected: Vec<u64>,
    /// The address of an instruction by which the program uses the register gs, if it seems to and the agent needs gs: to reach the words of a
    /// thread of a standalone program, or to count basic blocks. Then no hook is safe.
    pub uses_gs: Option<u64>,
    /// The copies of functions whose basic blocks are counted.
    pub(crate) copies: Copies,
    /// The original instruction for each byte of the copies, sorted by offset. An entry applies from its
    /// arena offset up to that of the next entry; it has the address of the instruction.
    pub(crate) originals: Vec<(u32, u64)>,
    /// The plan file, if the plan was loaded from a cache. In that case, `emitted` has only the fields that
    /// are used after planning.
    pub(crate) file: Option<StoredFile>,
    /// The patches, sorted by address.
    pub(crate) patches: Cow<'static, [Patch]>,
}

impl Plan {
    /// Returns the arena offset of the relocated copy of the instruction at `address`, or `None` if the
    /// instruction was not relocated with the first instructions of its function. For the first instruction
    /// of a function it also returns `None`, because the hook is at its address.
    pub fn moved(&self, address: u64) -> Option<u32> {
        let moved = &self.moved;
        let after = moved.partition_point(|moved| moved.from <= address);
        let &Moved { from, len, to } = moved.get(after.checked_sub(1)?)?;
        let offset = address - from;
        (offset < len.into()).then_some(to + offset as u32)
    }

    /// Returns the end of the instructions that were relocated with the one at `address`, at which a hook overwrites something:
    /// the address after the last one's first byte. A patch may be shorter. If a branch that was relocated leads back into its
    /// bytes, the original branch does too.
    pub fn relocated_until(&self, address: u64) -> u64 {
        /// No instruction is longer. Others of the function may have been relocated elsewhere: around a system call.
        const LONGEST: u64 = 15;
        let moved = &self.moved;
        let after = self.hook_points.partition_point(|&point| point <= address);
        let next = self.hook_points.get(after).copied().unwrap_or(u64::MAX);
        let first = moved.partition_point(|moved| moved.from <= address);
        let mut end = address + 1;
        for &Moved { from, len, .. } in moved[first..].iter().take_while(|moved| moved.from < next) {
            if from >= end + LONGEST {
                break;
            }
            end = from + u64::from(len);
        }
        end
    }

    /// Returns the copies in the arena of the instructions that follow a `syscall`, each with the address of the
    /// original. Directly before each copy is a copy of the `syscall`, so a thread that waits in that can be moved to the
    /// original.
    pub fn after_system_calls(&self, image: &Image) -> Vec<(u32, u64)> {
        const SYSCALL: [u8; 2] = [0x0f, 0x05];
        let moved = self.moved.iter();
        let moved =
            moved.flat_map(|&Moved { from, len, to }| (0..len).map(move |n| (to + n, from + u64::from(n))));
        let follows = |&(_, from): &(u32, u64)| image.code_at(from.wrapping_sub(2), 2) == Some(&SYSCALL);
        moved.filter(follows).collect()
    }

    /// Returns the total size in bytes of the basic-block counters of one thread.
    pub fn counter_bytes(&self) -> u64 {
        u64::from(self.copies.counters) * COUNTER
    }

    /// Computes how often each basic block of the counted functions ran, from the values of the counters.
    ///
    /// Returns pairs of a basic block's address and its count, sorted by address, and the number of basic
    /// blocks that ran at least once. `stopped` is the address of the instruction at which a thread ended, or
    /// `None` if no thread ended inside a counted basic block. If it is given, the rest of that basic block,
    /// after the instruction, is a pair of its own, with a count that is lower by one.
    pub fn block_counts(&self, counters: &[u64], stopped: Option<u64>) -> (Vec<(u64, u64)>, usize) {
        self.copies.counts(counters, stopped)
    }

    /// Returns the number of functions with counted basic blocks, and the number of those basic blocks.
    pub fn counted(&self) -> (usize, usize) {
        (self.copies.units.len(), self.copies.blocks())
    }

    /// Returns the number of basic blocks and the number of counters of the function at an address.
    ///
    /// # Errors
    ///
    /// Returns the reason if the function's basic blocks are not counted.
    pub fn counting(&self, function: u64) -> Result<(usize, u32), Uncounted> {
        self.copies.counting(function)
    }

    /// Returns the address of the instruction whose copy is at an arena offset, or `None` if the offset is
    /// not in the copies.
    pub fn original(&self, offset: u32) -> Option<u64> {
        if offset < self.emitted.copies || u64::from(offset) >= self.arena_len {
            return None;
        }
        let after = self.originals.partition_point(|&(from, _)| from <= offset);
        self.originals.get(after.checked_sub(1)?).map(|&(_, ip)| ip)
    }

    /// Returns the address of the program headers.
    pub fn phdr(&self) -> u64 {
        self.phdr
    }

    /// Returns the bytes of the program that the plan overwrites, sorted by address.
    pub fn patches(&self) -> &[Patch] {
        &self.patches
    }

    /// Returns whether a hook overwrites the instruction at an address. A thread whose next instruction is at
    /// this address has not begun to execute the function.
    pub fn is_hook_point(&self, address: u64) -> bool {
        self.hook_points.binary_search(&address).is_ok()
    }

    /// Returns the address of the instruction of the program for which the code at an arena offset stands, or `None` if
    /// the code stands for none, because it counts or keeps the shadow stack. For the first instruction of a function
    /// it is the function's address.
    pub fn stands_for(&self, image: &Image, offset: u32) -> Option<u64> {
        if let Some(address) = self.original(offset) {
            return Some(address);
        }
        let after = self.arena_owners.partition_point(|&[start, _]| start <= offset);
        let &[start, owner] = self.arena_owners.get(after.checked_sub(1)?)?;
        let function = image.functions.function(owner as usize).filter(|_| owner != NO_OWNER)?;
        let moved = &self.moved;
        let first = moved.partition_point(|moved| moved.from < function.address);
        let inside = moved[first..].iter().take_while(|moved| moved.from - function.address < function.size);
        let before = inside.filter(|moved| (start..=offset).contains(&moved.to)).max_by_key(|moved| moved.to);
        Some(before.map_or(function.address, |&Moved { from, len, to }| {
            from + u64::from((offset - to).min(len.saturating_sub(1)))
        }))
    }

    /// Returns whether the function with number `caller` is known to jump to the start of the function with
    /// number `callee`.
    pub fn jumps_to(&self, caller: u32, callee: u32) -> bool {
        self.find_tail_site(caller, callee).is_some()
    }

    /// Returns how control may run on into the function at an address from the function before it, or `None`
    /// if it cannot.
    pub fn fall_into(&self, address: u64) -> Option<&Fall> {
        let index = self.falls.binary_search_by_key(&address, |fall| fall.into).ok()?;
        self.falls.get(index)
    }

    /// Returns the address of the jump by which the function with number `caller` tail-calls the function
    /// with number `callee`, or `None` unless there is exactly one such jump.
    pub fn tail_site(&self, caller: u32, callee: u32) -> Option<u64> {
        self.find_tail_site(caller, callee).map(|site| site.address).filter(|&address| address != SEVERAL)
    }

    fn find_tail_site(&self, caller: u32, callee: u32) -> Option<&TailSite> {
        let at = self
            .tail_sites
            .binary_search_by_key(&(caller, callee), |site| (site.caller, site.callee))
            .ok()?;
        self.tail_sites.get(at)
    }
}

/// A jump from one function to the start of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct TailSite {
    /// The numbers of the functions.
    pub(crate) caller: u32,
    pub(crate) callee: u32,
    /// The address of the jump, or [`SEVERAL`] if there are several.
    pub(crate) address: u64,
}

/// No jump is there.
pub(crate) const SEVERAL: u64 = u64::MAX;

/// Returns the start of the first function and the end of the last one.
pub(crate) fn extents(image: &Image) -> (u64, u64) {
    image.functions.extent().unwrap_or((image.lo, image.hi))
}

/// Returns the lowest address of executable segments and the first address after the highest.
pub(crate) fn code_extents(image: &Image) -> (u64, u64) {
    let lo = image.code.iter().map(|c| c.address).min().unwrap_or(0);
    let hi = image.code.iter().map(|c| c.address + c.bytes.len() as u64).max().unwrap_or(0);
    (lo, hi)
}

#[cfg(test)]
mod tests {
    use crate::testing::{TEXT, image, plan_of};
    use gprofinject_image::ElfType;

    /// push rbp; mov rbp, rsp; push r12; nop (4 bytes); jmp over the next; pop r12; pop rbp; ret
    const PLAIN: [u8; 16] =
        [0x55, 0x48, 0x89, 0xe5, 0x41, 0x54, 0x0f, 0x1f, 0x40, 0, 0xeb, 0, 0x41, 0x5c, 0x5d, 0xc3];
    /// lea rax, [rip+16]; cmp rdi, rax; ret, and padding
    const RELATIVE: [u8; 16] =
        [0x48, 0x8d, 0x05, 16, 0, 0, 0, 0x48, 0x39, 0xc7, 0xc3, 0x90, 0x90, 0x90, 0x90, 0x90];

    #[test]
    fn only_relocated_instructions_stand_for_some() {
        let code = [PLAIN, RELATIVE].concat();
        let image = image(ElfType::Dyn, TEXT, &code, &[16, 16]);
        let plan = plan_of(&image, None);
        assert_eq!(plan.records.len(), 2);
        for (record, (other, stands_for)) in plan.records.iter().zip([(4, 4), (7, 0)]) {
            let at = |offset: u32| plan.stands_for(&image, offset);
            assert!(record.thunk < record.body);
            assert!((record.thunk..record.body).all(|offset| at(offset).is_none()));
            assert_eq!(at(record.body), Some(record.entry));
            // The third instruction, or the jump to the rest of the function.
            assert_eq!(at(record.body + other), Some(record.entry + stands_for));
        }
        // Before the first thunk, and in the stubs.
        assert_eq!(plan.stands_for(&image, 0), None);
        let stubs = plan.emitted.stubs..plan.emitted.stubs + 2 * plan.emitted.stub_len;
        assert!(stubs.into_iter().all(|offset| plan.stands_for(&image, offset).is_none()));
        assert_eq!(plan.stands_for(&image, u32::MAX), None);
    }
}
