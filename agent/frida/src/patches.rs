//! The patches that are gum's: what they need, and whether they have been made.
#![allow(unsafe_code)]

use core::ffi::c_void;
use core::slice;
use frida_gum::NativePointer;
use gprofinject_abi::frida::Orders;
use gprofinject_abi::plan::{BEHIND_FRIDA, BY_FRIDA, Patch};
use gprofinject_abi::region::PAGE;

/// Bytes of `jmp rel32`.
const JUMP: usize = 5;

pub(crate) struct Patches {
    all: &'static [Patch],
    bias: u64,
}

impl Patches {
    /// # Safety
    /// The orders must be the agent's: its plan is mapped for ever, and all patches lie in the program's text.
    pub(crate) unsafe fn new(orders: &Orders) -> Patches {
        // SAFETY: passed on.
        let all = unsafe { slice::from_raw_parts(orders.patches, orders.count as usize) };
        Patches { all, bias: orders.bias }
    }

    /// First record of each, with those behind it.
    fn each(&self) -> impl Iterator<Item = (&Patch, &[Patch])> {
        self.all.iter().enumerate().filter(|(_, patch)| patch.by == BY_FRIDA).map(|(n, patch)| {
            let behind = self.all.get(n + 1..).unwrap_or_default();
            let count = behind.iter().take_while(|patch| patch.by == BEHIND_FRIDA).count();
            (patch, behind.get(..count).unwrap_or_default())
        })
    }

    pub(crate) fn any(&self) -> bool {
        self.each().next().is_some()
    }

    /// Whether the text can be made writable the way gum does it: where it cannot, gum ends the process. (A policy
    /// forbids it everywhere or nowhere.)
    pub(crate) fn may_be_made(&self) -> bool {
        let Some((first, _)) = self.each().next() else { return false };
        let page = (first.address.wrapping_add(self.bias) & !(PAGE - 1)) as *mut c_void;
        let code = libc::PROT_READ | libc::PROT_EXEC;
        // SAFETY: a page of the program's text, which stays readable and executable.
        unsafe {
            libc::mprotect(page, PAGE as usize, code | libc::PROT_WRITE) == 0
                && libc::mprotect(page, PAGE as usize, code) == 0
        }
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

    /// How many functions begin with the jump that they should.
    pub(crate) fn made(&self) -> u64 {
        let jumps = |patch: &Patch| {
            self.text(patch).is_some_and(|text| text.get(..JUMP) == patch.replacement.get(..JUMP))
        };
        self.each().filter(|(first, _)| jumps(first)).count() as u64
    }

    /// What stands there now.
    fn text(&self, patch: &Patch) -> Option<&[u8]> {
        let len = patch.len as usize;
        // SAFETY: in the program's text, whose bytes nobody else changes meanwhile.
        (len <= patch.original.len()).then(|| unsafe {
            slice::from_raw_parts(patch.address.wrapping_add(self.bias) as *const u8, len)
        })
    }
}
