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
    pub(crate) fn value(&self, name: &str) -> Option<&[u8]> {
        let at = self.variable(name)?;
        // SAFETY: the string begins with the name and "=", and ends with a NUL.
        unsafe {
            let value = (*at).add(name.len() + 1);
            Some(slice::from_raw_parts(value, length(value)))
        }
    }

    /// Removes a variable from the array, and blanks its string, which /proc/self/environ shows.
    pub(crate) fn remove(&self, name: &str) {
        let Some(at) = self.variable(name) else { return };
        // SAFETY: the string is the process's own, writable memory, and ends with a NUL; no code of the program runs.
        unsafe { slice::from_raw_parts_mut(*at, length(*at)).fill(0) };
        self.remove_pointer(at);
    }

    /// Gives the variable `name` the value of the variable `saved`, whose name ends with `name`, and removes `saved`.
    /// If `saved` is not set, removes `name`.
    pub(crate) fn restore(&self, name: &str, saved: &str) {
        let Some(at) = self.variable(saved) else {
            self.remove(name);
            return;
        };
        // "PREFIX_NAME=value" ends with "NAME=value".
        // SAFETY: the string is longer than its name.
        let restored = unsafe { (*at).add(saved.len() - name.len()) };
        self.remove_pointer(at);
        if let Some(at) = self.variable(name) {
            // SAFETY: an element of the array, which is the process's own, writable memory.
            unsafe { *at = restored };
        }
    }

    /// Returns the element of the array that contains the variable, if it is set.
    fn variable(&self, name: &str) -> Option<*mut *mut u8> {
        let mut at = self.environment;
        // SAFETY: the array is ended by null, and its strings are ended by a NUL. The comparison ends at the first
        // difference, and so at the NUL at the latest.
        unsafe {
            while !(*at).is_null() {
                let same = name.bytes().enumerate().all(|(i, b)| *(*at).add(i) == b);
                if same && *(*at).add(name.len()) == b'=' {
                    return Some(at);
                }
                at = at.add(1);
            }
        }
        None
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
