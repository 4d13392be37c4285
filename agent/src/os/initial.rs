//! What the kernel leaves on the stack of a program that it starts.
#![allow(unsafe_code, reason = "the environment and the auxiliary vector are raw memory")]

use core::slice;
use linux_raw_sys::auxvec;

pub(crate) const AT_BASE: u64 = auxvec::AT_BASE as u64;
pub(crate) const AT_PHDR: u64 = auxvec::AT_PHDR as u64;
pub(crate) const AT_PHENT: u64 = auxvec::AT_PHENT as u64;
pub(crate) const AT_PHNUM: u64 = auxvec::AT_PHNUM as u64;
pub(crate) const AT_ENTRY: u64 = auxvec::AT_ENTRY as u64;
pub(crate) const AT_HWCAP2: u64 = auxvec::AT_HWCAP2 as u64;

/// The environment and the auxiliary vector. The caller of [`Start::of`] or [`Start::running`] has guaranteed
/// that both exist and are terminated.
pub(crate) struct Start {
    /// The environment, ended by null.
    environment: *mut *mut u8,
    /// The auxiliary vector: pairs of type and value, ended by type 0.
    auxiliary: *const [u64; 2],
}

#[cfg_attr(
    feature = "standalone",
    allow(dead_code, reason = "nothing is in a standalone program's environment")
)]
impl Start {
    /// # Safety
    /// `stack` must be what the kernel left: argc, argv, 0, envp, 0, auxiliary vector; and no code of the program may
    /// have run, so that it does not change meanwhile.
    pub(crate) unsafe fn of(stack: *mut u64) -> Start {
        // SAFETY: the layout is the kernel's (x86-64 psABI 3.4.1).
        unsafe {
            let arguments = *stack as usize;
            let environment = stack.add(1 + arguments + 1).cast::<*mut u8>();
            let mut end = environment;
            while !(*end).is_null() {
                end = end.add(1);
            }
            Start { environment, auxiliary: end.add(1).cast() }
        }
    }

    /// Returns the value for a process that is already running, which only has its stack's start and a copy
    /// of its auxiliary vector. Its environment is not accessed.
    ///
    /// # Safety
    /// The vector must be ended by type 0, and live as long as the value.
    pub(crate) unsafe fn running(stack: u64, auxiliary: *const [u64; 2]) -> Start {
        Start { environment: stack as *mut *mut u8, auxiliary }
    }

    /// Returns an address near the oldest end of the main thread's stack.
    pub(crate) fn stack(&self) -> u64 {
        self.environment as u64
    }

    /// Returns a value of the auxiliary vector, or 0 if there is none of that type.
    pub(crate) fn auxiliary(&self, kind: u64) -> u64 {
        let mut at = self.auxiliary;
        // SAFETY: the caller of `of` or `running` has guaranteed that the vector is terminated by type 0.
        unsafe {
            while (*at)[0] != 0 {
                if (*at)[0] == kind {
                    return (*at)[1];
                }
                at = at.add(1);
            }
        }
        0
    }

    /// Returns the value of a variable, without its NUL, if the variable is set.
    #[cfg(feature = "provoke-panic")]
    pub(crate) fn value(&self, name: &str) -> Option<&[u8]> {
        // SAFETY: the string begins with the name.
        self.last(name).map(|variable| unsafe { variable.value(name) })
    }

    /// Returns the last variable of a name.
    pub(crate) fn last(&self, name: &str) -> Option<Variable> {
        self.elements().filter(|variable| variable.is_of(name)).last()
    }

    /// Returns whether a variable is set more than once, or `None` if it is not set.
    pub(crate) fn is_repeated(&self, name: &str) -> Option<bool> {
        let count = self.elements().filter(|variable| variable.is_of(name)).count();
        (count > 0).then_some(count > 1)
    }

    /// Returns the address after the last byte of the strings, or `None` if the environment is empty.
    pub(crate) fn texts_end(&self) -> Option<u64> {
        // SAFETY: the strings end with a NUL.
        self.elements()
            .map(|variable| variable.text() + unsafe { length(variable.text() as *const u8) } as u64 + 1)
            .max()
    }

    /// Removes a variable from the array, and blanks its string, which /proc/self/environ shows.
    ///
    /// # Safety
    /// It must be an element of the array, and no code of the program may run.
    pub(crate) unsafe fn remove(&self, variable: Variable) {
        // SAFETY: the string is the process's own, writable memory, and ends with a NUL.
        unsafe {
            let text = variable.text() as *mut u8;
            slice::from_raw_parts_mut(text, length(text)).fill(0);
        }
        self.remove_pointer(variable.at);
    }

    /// Goes through the array.
    fn elements(&self) -> impl Iterator<Item = Variable> {
        let mut at = self.environment;
        core::iter::from_fn(move || {
            // SAFETY: the array is ended by null, and the iteration ends there.
            unsafe {
                if (*at).is_null() {
                    return None;
                }
                let variable = Variable { at };
                at = at.add(1);
                Some(variable)
            }
        })
    }

    /// Closes the gap that an element leaves in the array.
    fn remove_pointer(&self, mut at: *mut *mut u8) {
        // SAFETY: `at` is an element of the array, which is ended by null and is the process's own, writable memory.
        unsafe {
            while !(*at).is_null() {
                *at = *at.add(1);
                at = at.add(1);
            }
        }
    }
}

/// An element of the environment.
#[derive(Clone, Copy)]
pub(crate) struct Variable {
    at: *mut *mut u8,
}

#[cfg_attr(
    feature = "standalone",
    allow(dead_code, reason = "nothing is in a standalone program's environment")
)]
impl Variable {
    /// Returns the address of the string.
    pub(crate) fn text(self) -> u64 {
        // SAFETY: `Start` has made the value for an element of the array.
        unsafe { *self.at as u64 }
    }

    /// Returns whether the variable has this name.
    fn is_of(self, name: &str) -> bool {
        let text = self.text() as *const u8;
        // SAFETY: the string ends with a NUL, and the comparison ends at the first difference, and so there at the latest.
        unsafe {
            name.bytes().enumerate().all(|(i, byte)| *text.add(i) == byte) && *text.add(name.len()) == b'='
        }
    }

    /// Returns the value, without its NUL.
    ///
    /// # Safety
    /// The variable must have this name, and no code of the program may run while the value is used.
    pub(crate) unsafe fn value<'v>(self, name: &str) -> &'v [u8] {
        let value = (self.text() as *const u8).wrapping_add(name.len() + 1);
        // SAFETY: the string begins with the name and "=", and ends with a NUL.
        unsafe { slice::from_raw_parts(value, length(value)) }
    }

    /// Ends the string after `len` bytes.
    ///
    /// # Safety
    /// It must be as long as that, and no code of the program may run.
    pub(crate) unsafe fn cut(self, len: usize) {
        // SAFETY: the string is the process's own, writable memory, and ends with a NUL.
        unsafe {
            let rest = (self.text() as *mut u8).add(len);
            slice::from_raw_parts_mut(rest, length(rest)).fill(0);
        }
    }
}

/// # Safety
/// `string` must end with a NUL.
#[cfg_attr(feature = "standalone", allow(dead_code))]
unsafe fn length(string: *const u8) -> usize {
    let mut len = 0;
    // SAFETY: no byte before the NUL is left out, so all that is read belongs to the string.
    while unsafe { *string.add(len) } != 0 {
        len += 1;
    }
    len
}
