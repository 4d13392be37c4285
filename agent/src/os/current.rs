//! A value of the process that is replaced as a whole: readers follow one atomic pointer to a value that never changes.
//!
//! An earlier value stays valid as long as the process lives, because code that was interrupted may still hold a
//! reference to it: a signal handler may fork anywhere, and the child replaces values that its parent has made.
#![allow(
    unsafe_code,
    reason = "values are written to memory that nobody else knows of, and reached through a pointer"
)]

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::mem::MaybeUninit;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::os::memory;

const PAGE: usize = 4096;

/// The current value, with room for `N` values that take no system call. It is for forked children, each of which replaces
/// the value once: only a process that comes after `N` generations of its ancestors maps a page for its value.
pub(crate) struct Current<T: Copy + Sync + 'static, const N: usize> {
    /// Written by [`Reserved::install`] with `Release`, and read with `Acquire`, so that a thread that sees
    /// the pointer also sees the value.
    pointer: AtomicPtr<T>,
    /// The number of elements of `room` that have been handed out; it may exceed the length. Only counted up,
    /// by one read-modify-write operation for each element, so no element is given away twice.
    used: AtomicUsize,
    room: UnsafeCell<[MaybeUninit<T>; N]>,
}

// SAFETY: each element of `room` is written by the one caller to whom `reserve` has given it, and read by others only behind
// the pointer that was stored afterwards. `T` may be shared between threads.
unsafe impl<T: Copy + Sync, const N: usize> Sync for Current<T, N> {}

impl<T: Copy + Sync, const N: usize> Current<T, N> {
    pub(crate) const fn new(first: &'static T) -> Self {
        const { assert!(size_of::<T>() <= PAGE) };
        Current {
            pointer: AtomicPtr::new(core::ptr::from_ref(first).cast_mut()),
            used: AtomicUsize::new(0),
            room: UnsafeCell::new([const { MaybeUninit::uninit() }; N]),
        }
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> &'static T {
        // SAFETY: the pointer leads to the first value, which is a static, or to one that `Reserved::install` has written
        // before it stored the pointer. No value is changed or freed later.
        unsafe { &*self.pointer.load(Ordering::Acquire) }
    }

    /// A place for a new value, or `None` if there is no memory for one.
    pub(crate) fn reserve(&'static self) -> Option<Reserved<T>> {
        let used = self.used.fetch_add(1, Ordering::Relaxed);
        let place = if used < N {
            // SAFETY: the index is less than the length.
            NonNull::new(unsafe { self.room.get().cast::<T>().add(used) })
        } else {
            memory::map_zeros(PAGE as u64, memory::PROT_READ | memory::PROT_WRITE)
                .ok()
                .and_then(|page| NonNull::new(page as *mut T))
        };
        place.map(|place| Reserved { place, pointer: &self.pointer, value: PhantomData })
    }
}

/// A place that one value can be written to.
pub(crate) struct Reserved<T: 'static> {
    place: NonNull<T>,
    pointer: &'static AtomicPtr<T>,
    value: PhantomData<T>,
}

impl<T: Copy> Reserved<T> {
    /// Makes `value` the current one.
    pub(crate) fn install(self, value: T) {
        // SAFETY: the place is long enough and aligned, lives as long as the process, and `reserve` has given it to this
        // caller alone.
        unsafe { self.place.write(value) };
        self.pointer.store(self.place.as_ptr(), Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_values_stay_as_they_were() {
        static CURRENT: Current<[u64; 4], 2> = Current::new(&[1; 4]);
        let mut seen = vec![CURRENT.get()];
        for n in 2..6 {
            CURRENT.reserve().expect("memory").install([n; 4]);
            seen.push(CURRENT.get());
        }
        let values: Vec<u64> = seen.iter().map(|value| value[3]).collect();
        assert_eq!(values, [1, 2, 3, 4, 5]);
    }
}
