//! The patches that gum writes: checks whether gum can write them, and whether it has written them.
#![allow(unsafe_code, reason = "it reads and protects the program's text, and the orders hold a pointer")]

use core::ffi::c_void;
use core::slice;
use frida_gum::NativePointer;
use gprofinject_abi::frida::Orders;
use gprofinject_abi::plan::{Maker, Patch};
use gprofinject_abi::region::PAGE;

/// The length in bytes of `jmp rel32`.
const JUMP: usize = 5;

/// The memory protection of the text. (The agent gives no orders if the program's text is writable.)
const CODE: i32 = libc::PROT_READ | libc::PROT_EXEC;

pub(crate) struct Patches {
    all: &'static [Patch],
    bias: u64,
}

impl Patches {
    /// # Safety
    /// The orders must be the agent's: its plan is mapped for ever, and all patches lie in the program's text.
    pub(crate) unsafe fn new(orders: &Orders) -> Patches {
        // SAFETY: the orders are the agent's, as the caller promises: pointer and count are those of the plan's table, which stays mapped.
        let all = unsafe { slice::from_raw_parts(orders.patches, orders.count as usize) };
        Patches { all, bias: orders.bias }
    }

    /// Returns the first record of each patch together with the records that follow it.
    fn each(&self) -> impl Iterator<Item = (&Patch, &[Patch])> {
        self.all.iter().enumerate().filter(|(_, patch)| patch.by == Maker::Frida.code()).map(|(n, patch)| {
            let behind = self.all.get(n + 1..).unwrap_or_default();
            let count = behind.iter().take_while(|patch| patch.by == Maker::BehindFrida.code()).count();
            (patch, behind.get(..count).unwrap_or_default())
        })
    }

    pub(crate) fn any(&self) -> bool {
        self.each().next().is_some()
    }

    /// Returns whether gum will get the resources that it needs. If gum gets no memory, or cannot make the
    /// text writable and executable, it aborts the process.
    pub(crate) fn may_be_made(&self) -> bool {
        /// The memory in bytes that gum needs at its start, and for each function, both rounded up
        /// generously.
        const HEAP: usize = 16 << 20;
        const EACH: usize = 2048;
        let memory = HEAP + EACH * self.each().count();
        // SAFETY: a new mapping, and its end.
        let got = unsafe {
            let (access, flags) =
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
            let at = libc::mmap(core::ptr::null_mut(), memory, access, flags, -1, 0);
            at != libc::MAP_FAILED && libc::munmap(at, memory) == 0
        };
        got && self.protect(CODE | libc::PROT_WRITE) & self.protect(CODE)
    }

    /// Makes the patched pages read-only again, because gum leaves them writable.
    pub(crate) fn close(&self) {
        self.protect(CODE);
    }

    /// Sets the protection of all pages that will be patched. A resource limit or a security policy may
    /// forbid it.
    fn protect(&self, access: i32) -> bool {
        let page = |address: u64| address.wrapping_add(self.bias) & !(PAGE - 1);
        let set = |from: u64, to: u64| {
            // SAFETY: pages of the program's text, which stays readable and executable.
            unsafe { libc::mprotect(from as *mut c_void, (to - from) as usize, access) == 0 }
        };
        let mut done = true;
        let mut run: Option<(u64, u64)> = None;
        for patch in self.all.iter().filter(|patch| patch.by != Maker::Agent.code()) {
            let (from, to) = (page(patch.address), page(patch.address + u64::from(patch.len) - 1) + PAGE);
            run = match run {
                Some((start, end)) if from <= end => Some((start, end.max(to))),
                Some((start, end)) => {
                    done &= set(start, end);
                    Some((from, to))
                }
                None => Some((from, to)),
            };
        }
        run.is_none_or(|(start, end)| set(start, end)) && done
    }

    /// Functions and their thunks; those only whose bytes are the ones that were planned for.
    pub(crate) fn to_be_made(&self) -> impl Iterator<Item = (NativePointer, NativePointer)> {
        let original = |patch: &Patch| patch.original.get(..patch.len as usize) == self.text(patch);
        let sound =
            move |(first, behind): &(&Patch, &[Patch])| original(first) && behind.iter().all(original);
        self.each().filter(sound).filter_map(|(first, _)| {
            let from = first.address.wrapping_add(self.bias);
            let [0xe9, a, b, c, d] = *first.replacement.first_chunk()? else { return None };
            let distance = i32::from_le_bytes([a, b, c, d]);
            let thunk = from.wrapping_add(JUMP as u64).wrapping_add_signed(distance.into());
            Some((NativePointer(from as *mut c_void), NativePointer(thunk as *mut c_void)))
        })
    }

    /// Returns the number of functions that begin with the planned jump.
    pub(crate) fn made(&self) -> u64 {
        let jumps = |patch: &Patch| {
            self.text(patch).is_some_and(|text| text.get(..JUMP) == patch.replacement.get(..JUMP))
        };
        self.each().filter(|(first, _)| jumps(first)).count() as u64
    }

    /// Returns the bytes that are at the address now.
    fn text(&self, patch: &Patch) -> Option<&[u8]> {
        let len = patch.len as usize;
        // SAFETY: the address is in the program's text, whose bytes no other code changes meanwhile.
        (len <= patch.original.len()).then(|| unsafe {
            slice::from_raw_parts(patch.address.wrapping_add(self.bias) as *const u8, len)
        })
    }
}
