//! Exported symbols of a file that a process has loaded, by what is in the process's memory: the file itself may be gone, or be in another
//! mount namespace.

use crate::python::memory::{Memory, half, word};

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

/// The dynamic symbols of a file that is loaded.
pub(super) struct Symbols<'m, M> {
    memory: &'m M,
    /// What is added to link addresses.
    bias: u64,
    names: u64,
    symbols: u64,
    /// The table by which names are found.
    hash: u64,
}

impl<'m, M: Memory> Symbols<'m, M> {
    /// Finds the symbols of the file whose first byte is at an address.
    pub(super) fn of(memory: &'m M, base: u64) -> Option<Symbols<'m, M>> {
        const HEADER: usize = 64;
        const SEGMENT: usize = 56;
        const SEGMENTS: usize = 64;
        const ENTRIES: u64 = 256;
        let mut header = [0; HEADER];
        if !memory.read(base, &mut header) || !header.starts_with(b"\x7fELF\x02\x01") {
            return None;
        }
        let count = usize::from(u16::from_le_bytes([header[56], header[57]])).min(SEGMENTS);
        let mut segments = vec![0; count * SEGMENT];
        if !memory.read(base.checked_add(word(&header, 32)?)?, &mut segments) {
            return None;
        }
        // { u32 type, flags; u64 offset, vaddr, paddr, filesz, memsz, align }
        let of_kind =
            |kind| segments.chunks_exact(SEGMENT).find(move |segment| half(segment, 0) == Some(kind));
        let first = of_kind(PT_LOAD)?;
        let bias = base.wrapping_add(word(first, 8)?).wrapping_sub(word(first, 16)?);
        let dynamic = word(of_kind(PT_DYNAMIC)?, 16)?.wrapping_add(bias);
        let (mut names, mut symbols, mut hash) = (None, None, None);
        for index in 0..ENTRIES {
            let mut entry = [0; 16];
            if !memory.read(dynamic.wrapping_add(index * 16), &mut entry) {
                return None;
            }
            let (tag, value) = (word(&entry, 0)?, word(&entry, 8)?);
            // Some dynamic linkers replace link addresses by runtime addresses there.
            let address = if value < bias { value.wrapping_add(bias) } else { value };
            match tag {
                0 => break,
                DT_STRTAB => names = Some(address),
                DT_SYMTAB => symbols = Some(address),
                DT_GNU_HASH => hash = Some(address),
                _ => {}
            }
        }
        Some(Symbols { memory, bias, names: names?, symbols: symbols?, hash: hash? })
    }

    /// Returns the runtime address of a symbol.
    pub(super) fn address(&self, name: &str) -> Option<u64> {
        const SYMBOL: u64 = 24;
        const CHAIN: u64 = 1 << 12;
        // { u32 buckets, first symbol, bloom words, shift; u64 bloom[]; u32 bucket[]; u32 chain[] }
        let mut header = [0; 16];
        if !self.memory.read(self.hash, &mut header) {
            return None;
        }
        let field = |index: usize| half(&header, index * 4).map(u64::from);
        let (count, first, bloom) = (field(0)?, field(1)?, field(2)?);
        let buckets = self.hash.checked_add(16)?.checked_add(bloom.checked_mul(8)?)?;
        let hash = hash(name);
        let bucket = u64::from(hash).checked_rem(count)?;
        let start = u64::from(self.half(buckets.checked_add(bucket * 4)?)?);
        let chain = buckets.checked_add(count * 4)?;
        for index in start..start.checked_add(CHAIN)? {
            let found = self.half(chain.checked_add(index.checked_sub(first)?.checked_mul(4)?)?)?;
            if found | 1 == hash | 1 {
                let mut symbol = [0; SYMBOL as usize];
                let at = self.symbols.checked_add(index * SYMBOL)?;
                // { u32 name; u8 info, other; u16 section; u64 value, size }
                if !self.memory.read(at, &mut symbol) {
                    return None;
                }
                let is_defined = symbol[6..8] != [0, 0];
                if is_defined && self.is_named(u64::from(half(&symbol, 0)?), name) {
                    return Some(word(&symbol, 8)?.wrapping_add(self.bias));
                }
            }
            if found & 1 == 1 {
                break;
            }
        }
        None
    }

    fn half(&self, address: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.memory.read(address, &mut bytes).then(|| u32::from_le_bytes(bytes))
    }

    fn is_named(&self, offset: u64, name: &str) -> bool {
        let mut bytes = vec![0; name.len() + 1];
        let is_read = self.names.checked_add(offset).is_some_and(|at| self.memory.read(at, &mut bytes));
        is_read && bytes.strip_suffix(&[0]) == Some(name.as_bytes())
    }
}

/// The hash of a name in DT_GNU_HASH.
fn hash(name: &str) -> u32 {
    name.bytes().fold(5381, |hash: u32, byte| hash.wrapping_mul(33).wrapping_add(byte.into()))
}
