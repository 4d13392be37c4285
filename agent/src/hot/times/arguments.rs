//! Reads the arguments and results of traced calls: executes the fetches of [`gprofinject_abi::args`].
//!
//! The input is a call's registers and its fetches; the output is encoded values. A pointer may be invalid, or point to memory
//! that another thread unmaps at the same time. Therefore the agent reads memory by a system call, which fails instead of
//! faulting. It reads directly only registers and the words of the stack on the page of the return address. Once the program
//! has entered seccomp, the agent makes no system calls and follows no pointers.
#![allow(unsafe_code, reason = "words on the stack are read")]

use crate::os::{kernel, memory, task};
use gprofinject_abi::args::{
    CALL_MAX, CUT, FLOAT, Fetch, INTEGERS, ON_STACK, Op, RAW, RAW_MAX, SCALAR, STRING, STRING_MAX,
    UNREADABLE, VECTOR, VECTORS,
};

/// The registers at the beginning or the end of a call.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Registers {
    /// rdi, rsi, rdx, rcx, r8, r9, rax.
    pub(crate) integers: [u64; INTEGERS as usize],
    /// The lower halves of xmm0 to xmm7.
    pub(crate) vectors: [u64; VECTORS as usize],
    /// The CFA of the call's frame. The return address is below it, or was there until the call returned.
    pub(crate) cfa: u64,
}

/// Reads the values of a call, encodes them into `out`, and returns the number of bytes. Encoding stops at the first value for
/// which `out` has no room.
#[inline(never)]
pub(crate) fn fetch(fetches: &[Fetch], registers: &Registers, out: &mut [u8; CALL_MAX]) -> usize {
    let mut values = Values { registers, out, len: 0, pid: 0 };
    for fetch in fetches {
        if values.add(fetch).is_none() {
            break;
        }
    }
    values.len
}

/// An encoder of one call's values.
struct Values<'v> {
    registers: &'v Registers,
    out: &'v mut [u8; CALL_MAX],
    /// The number of bytes in `out`.
    len: usize,
    /// The process ID, or 0 until the first read of memory. It is asked of the kernel, because in a child of vfork it differs from
    /// the one that the agent has stored.
    pid: u32,
}

impl Values<'_> {
    /// Adds the value of one fetch. Returns `None` if there is no room for the value or the fetch is invalid.
    fn add(&mut self, fetch: &Fetch) -> Option<()> {
        let size = (fetch.size as usize).min(RAW_MAX);
        match fetch.op.get()? {
            Op::Scalar => match self.word(fetch, 0)? {
                Ok(word) => self.scalar(fetch, word),
                Err(at) => self.unreadable(at),
            },
            Op::Words => {
                let mut bytes = [0; 16];
                for (i, part) in bytes.chunks_exact_mut(8).enumerate().take(size.div_ceil(8)) {
                    match self.word(fetch, i)? {
                        Ok(word) => part.copy_from_slice(&word.to_le_bytes()),
                        Err(at) => return self.unreadable(at),
                    }
                }
                self.raw(bytes.get(..size)?)
            }
            Op::Stack => {
                let at = self.registers.cfa.wrapping_add(fetch.offsets[0].into());
                self.object(at, size, Values::read_stack)
            }
            op => match self.word(fetch, 0)? {
                Ok(address) => self.follow(op, fetch, address),
                Err(at) => self.unreadable(at),
            },
        }
    }

    /// Adds a value to which a pointer points.
    fn follow(&mut self, op: Op, fetch: &Fetch, address: u64) -> Option<()> {
        match op {
            Op::Load => match self.read_word(address, (fetch.size as usize).min(8)) {
                Some(word) => self.scalar(fetch, word),
                None => self.unreadable(address),
            },
            Op::Bytes => self.object(address, (fetch.size as usize).min(RAW_MAX), Values::read),
            Op::CString => self.c_string(address, address),
            Op::Str => match self.word(fetch, 1)? {
                Ok(len) => self.string(address, len, address),
                Err(at) => self.unreadable(at),
            },
            Op::Text => {
                let word = |index: u32| address.wrapping_add(8 * u64::from(index & 0xff));
                match (self.read_word(word(fetch.size), 8), self.read_word(word(fetch.size >> 8), 8)) {
                    (Some(characters), Some(len)) => self.string(characters, len, address),
                    _ => self.unreadable(address),
                }
            }
            Op::StdString => match self.read_words::<3>(address) {
                Some([characters, len, room]) => {
                    // A short string's characters are in the object itself.
                    let room = if characters == address.wrapping_add(16) { 15 } else { room };
                    self.terminated(characters, len, room, address)
                }
                None => self.unreadable(address),
            },
            Op::LibcxxString => match self.read_words::<3>(address) {
                Some([first, len, characters]) if first & 1 != 0 => {
                    self.terminated(characters, len, (first & !1).wrapping_sub(1), address)
                }
                Some([first, ..]) => self.terminated(address.wrapping_add(1), first >> 1 & 0x7f, 22, address),
                None => self.unreadable(address),
            },
            Op::OldString => match self.read_word(address, 8) {
                Some(characters) => self.c_string(characters, address),
                None => self.unreadable(address),
            },
            Op::Scalar | Op::Words | Op::Stack => None,
        }
    }

    /// Adds an integer: the lower `fetch.size` bytes of `word`, extended to 64 bits.
    fn scalar(&mut self, fetch: &Fetch, word: u64) -> Option<()> {
        let unused = 64 - 8 * fetch.size.clamp(1, 8);
        let number = match fetch.is_signed {
            0 | FLOAT => word << unused >> unused,
            _ => ((word << unused) as i64 >> unused) as u64,
        };
        self.put(&[&[SCALAR], &number.to_le_bytes()])
    }

    fn unreadable(&mut self, address: u64) -> Option<()> {
        self.put(&[&[UNREADABLE], &address.to_le_bytes()])
    }

    fn raw(&mut self, bytes: &[u8]) -> Option<()> {
        self.put(&[&[RAW, bytes.len() as u8], bytes])
    }

    /// Adds an object in memory.
    fn object(
        &mut self,
        address: u64,
        size: usize,
        read: fn(&mut Self, u64, &mut [u8]) -> usize,
    ) -> Option<()> {
        let mut bytes = [0; RAW_MAX];
        let bytes = bytes.get_mut(..size)?;
        if read(self, address, bytes) < size { self.unreadable(address) } else { self.raw(bytes) }
    }

    /// Adds a string that ends with a zero byte. If the string cannot be read, the address `value` is added instead.
    fn c_string(&mut self, address: u64, value: u64) -> Option<()> {
        let room = self.room_for_string()?;
        // The additional byte shows whether a string of the maximum length ends there or is cut off.
        let mut bytes = [0; STRING_MAX + 1];
        let read = self.read(address, bytes.get_mut(..=room)?);
        let bytes = bytes.get(..read)?;
        match bytes.iter().position(|&byte| byte == 0) {
            Some(end) => self.put_string(bytes.get(..end)?, 0),
            None if read == 0 => self.unreadable(value),
            None => self.put_string(bytes.get(..read.min(room))?, CUT),
        }
    }

    /// Adds a string of known length. If the string cannot be read, the address `value` is added instead.
    fn string(&mut self, address: u64, len: u64, value: u64) -> Option<()> {
        let room = self.room_for_string()?;
        let mut bytes = [0; STRING_MAX];
        let wanted = len.min(room as u64) as usize;
        let read = if wanted == 0 { 0 } else { self.read(address, bytes.get_mut(..wanted)?) };
        if read == 0 && wanted > 0 {
            return self.unreadable(value);
        }
        let flags = if (read as u64) < len { CUT } else { 0 };
        self.put_string(bytes.get(..read)?, flags)
    }

    /// Adds the contents of a C++ string object, whose length and capacity (`room`) are known and whose characters end with a zero
    /// byte. An object that violates this is not constructed yet or is destroyed; then its address `value` is added instead.
    fn terminated(&mut self, address: u64, len: u64, room: u64, value: u64) -> Option<()> {
        if len > room || len > i64::MAX as u64 || address == 0 {
            return self.unreadable(value);
        }
        let kept = self.room_for_string()?;
        if len > kept as u64 {
            // The string is cut off before its terminating zero.
            return self.string(address, len, value);
        }
        let mut bytes = [u8::MAX; STRING_MAX + 1];
        let bytes = bytes.get_mut(..=len as usize)?;
        let read = self.read(address, bytes);
        match bytes.split_last() {
            Some((0, text)) if read > text.len() => self.put_string(text, 0),
            _ => self.unreadable(value),
        }
    }

    fn put_string(&mut self, bytes: &[u8], flags: u8) -> Option<()> {
        self.put(&[&[STRING, flags, bytes.len() as u8], bytes])
    }

    /// Returns the maximum length of a string that can still be added.
    fn room_for_string(&self) -> Option<usize> {
        let room = CALL_MAX.checked_sub(self.len + 3)?;
        (room > 0).then_some(room.min(STRING_MAX))
    }

    /// Appends all parts to `out`, or nothing if there is no room for all of them.
    fn put(&mut self, parts: &[&[u8]]) -> Option<()> {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let mut room = self.out.get_mut(self.len..self.len + len)?;
        for part in parts {
            let (place, rest) = room.split_at_mut_checked(part.len())?;
            place.copy_from_slice(part);
            room = rest;
        }
        self.len += len;
        Some(())
    }

    /// Returns word number `index` of a value, or `Err` with the address if the word cannot be read. Returns `None` if the fetch
    /// names no such source.
    fn word(&mut self, fetch: &Fetch, index: usize) -> Option<Result<u64, u64>> {
        let source = *fetch.sources.get(index)?;
        if source == ON_STACK {
            let at = self.registers.cfa.wrapping_add((*fetch.offsets.get(index)?).into());
            let mut bytes = [0; 8];
            let read = self.read_stack(at, &mut bytes);
            return Some(if read == 8 { Ok(u64::from_le_bytes(bytes)) } else { Err(at) });
        }
        let integer = self.registers.integers.get(usize::from(source));
        let vector = || self.registers.vectors.get(usize::from(source).checked_sub(usize::from(VECTOR))?);
        integer.or_else(vector).map(|&word| Ok(word))
    }

    /// Copies words of the stack and returns the number of bytes that were copied.
    fn read_stack(&mut self, at: u64, to: &mut [u8]) -> usize {
        const PAGE: u64 = 4096;
        let of_return_address = self.registers.cfa.wrapping_sub(8) / PAGE;
        let last = at.wrapping_add(to.len().next_multiple_of(8) as u64).wrapping_sub(1);
        if !at.is_multiple_of(8) || at / PAGE != of_return_address || last / PAGE != of_return_address {
            return self.read(at, to);
        }
        for (n, part) in to.chunks_mut(8).enumerate() {
            // SAFETY: the word is aligned, and readable because it is on the same page as the return address, which the call has
            // written.
            let word = unsafe { ((at + 8 * n as u64) as *const u64).read_volatile() };
            for (to, from) in part.iter_mut().zip(word.to_le_bytes()) {
                *to = from;
            }
        }
        to.len()
    }

    /// Copies memory that may be unreadable, and returns the number of bytes that were copied.
    fn read(&mut self, address: u64, to: &mut [u8]) -> usize {
        if address == 0 || kernel::is_frozen() {
            return 0;
        }
        if self.pid == 0 {
            self.pid = task::getpid();
        }
        memory::read(self.pid, address, to)
    }

    /// Returns the first `len` bytes of a word in memory, zero-extended, or `None` if they cannot be read.
    fn read_word(&mut self, address: u64, len: usize) -> Option<u64> {
        let mut bytes = [0; 8];
        let read = self.read(address, bytes.get_mut(..len)?);
        (read == len).then_some(u64::from_le_bytes(bytes))
    }

    /// Returns `N` consecutive words in memory, or `None` if they cannot all be read.
    fn read_words<const N: usize>(&mut self, address: u64) -> Option<[u64; N]> {
        let mut bytes = [0; 24];
        let bytes = bytes.get_mut(..8 * N)?;
        let read = self.read(address, bytes);
        let mut words = [0; N];
        for (word, part) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(part.try_into().ok()?);
        }
        (read == 8 * N).then_some(words)
    }
}

#[cfg(test)]
mod tests;
