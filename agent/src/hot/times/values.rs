//! Selects the functions whose arguments and results are traced, and reads those of a call.
//!
//! A bitmap shows which functions have fetches ([`gprofinject_abi::args`]). The gates take the slow path for calls of these functions,
//! and the slow path finds the call's registers on the stack, where the gates have saved them.
#![allow(unsafe_code, reason = "the bitmap is mapped memory, and gates save registers on the stack")]

use crate::hot::times::arguments::{self, Registers};
use crate::os::memory;
use crate::program::agent::Agent;
use crate::program::libraries;
use crate::program::module::Module;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::args::{CALL_MAX, Fetch, Fetches};
use gprofinject_abi::plan::LIBRARIES;
use gprofinject_abi::times::{HAS_RESULT, TRACED};
use zerocopy::IntoBytes;

/// The address of the bitmap, which has one bit for each function number, or 0 if no arguments are traced.
pub(crate) static HAVE_FETCHES: AtomicU64 = AtomicU64::new(0);

/// The size of the bitmap in bytes: libraries have as many function numbers as the program.
const BYTES: u64 = 2 * LIBRARIES as u64 / 8;

/// Reserves the bitmap.
///
/// # Errors
/// Returns the error number (errno) of the failed system call.
pub(crate) fn prepare() -> Result<(), i32> {
    let at = memory::map_zeros(BYTES, memory::PROT_READ | memory::PROT_WRITE)?;
    HAVE_FETCHES.store(at, Ordering::Relaxed);
    Ok(())
}

/// Sets the bits of a module's functions that have fetches, before the module's first hook is in place.
pub(crate) fn add(module: &Module) {
    let bitmap = HAVE_FETCHES.load(Ordering::Relaxed);
    let Some(fetches) = Fetches::read(module.fetches.as_bytes()).filter(|_| bitmap != 0) else { return };
    for index in 0..module.functions.len() as u32 {
        let number = u64::from(module.first + index);
        let (arguments, results) = fetches.of(index);
        if (arguments.is_empty() && results.is_empty()) || number / 8 >= BYTES {
            continue;
        }
        let word = bitmap + number / 64 * 8;
        // SAFETY: the word lies in the bitmap, which stays mapped and is changed only by atomics.
        let word = unsafe { AtomicU64::from_ptr(word as *mut u64) };
        word.fetch_or(1 << (number % 64), Ordering::Relaxed);
    }
}

/// Returns the fetches for the arguments of a function and those for its result.
pub(crate) fn of(number: u32) -> (&'static [Fetch], &'static [Fetch]) {
    if HAVE_FETCHES.load(Ordering::Relaxed) == 0 {
        return (&[], &[]);
    }
    let agent = Agent::get();
    let module = match number < LIBRARIES {
        true => Some(&agent.program),
        false => libraries::of_function(number),
    };
    let found = module.and_then(|module| {
        let fetches: Fetches<'static> = Fetches::read(module.fetches.as_bytes())?;
        Some(fetches.of(number.wrapping_sub(module.first)))
    });
    found.unwrap_or_default()
}

/// Returns the flags of an open call whose beginning is in the trace: [`TRACED`], and [`HAS_RESULT`] if the function's result is traced.
pub(crate) fn traced_flags(number: u32) -> u32 {
    if of(number).1.is_empty() { TRACED } else { TRACED | HAS_RESULT }
}

/// The addresses of the registers that a gate has saved on the stack.
#[derive(Clone, Copy)]
pub(crate) struct Saved {
    /// rbp, r11, r10, r9, r8, rdi, rsi, rdx, rcx, rax.
    pub(crate) integers: u64,
    /// xmm0 to xmm15.
    pub(crate) vectors: u64,
}

impl Saved {
    /// Returns the registers of a call whose frame has this CFA.
    pub(crate) fn registers(self, cfa: u64) -> Registers {
        // SAFETY: the gate has saved ten words there on this thread's stack, and pops them only after this call.
        let integer = |n: u64| unsafe { ((self.integers + 8 * n) as *const u64).read() };
        // SAFETY: the same holds for the vector registers, of 16 bytes each.
        let vector = |n: u64| unsafe { ((self.vectors + 16 * n) as *const u64).read() };
        Registers {
            integers: [5, 6, 7, 8, 4, 3, 9].map(integer),
            vectors: [0, 1, 2, 3, 4, 5, 6, 7].map(vector),
            cfa,
        }
    }
}

/// Encoded values.
pub(crate) struct Values {
    bytes: [u8; CALL_MAX],
    len: usize,
}

impl Values {
    /// No values.
    pub(crate) const NONE: Values = Values { bytes: [0; CALL_MAX], len: 0 };

    pub(crate) fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }

    fn fetched(fetches: &[Fetch], saved: Saved, cfa: u64) -> Values {
        let mut values = Values::NONE;
        if !fetches.is_empty() {
            values.len = arguments::fetch(fetches, &saved.registers(cfa), &mut values.bytes);
        }
        values
    }

    /// Reads the arguments of a call that has just begun.
    pub(crate) fn of_arguments(number: u32, saved: Saved, cfa: u64) -> Values {
        Values::fetched(of(number).0, saved, cfa)
    }

    /// Reads the result of a call that has just returned.
    pub(crate) fn of_result(number: u32, saved: Saved, cfa: u64) -> Values {
        Values::fetched(of(number).1, saved, cfa)
    }
}
