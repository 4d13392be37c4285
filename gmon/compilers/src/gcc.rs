//! The profile that `gcc -fauto-profile=FILE` reads: AutoFDO's, in the form of gcc's own files with counters.
//!
//! ```text
//! u32 "gcda", u32 version 2, u32 0
//! u32 0xaa000000, u32 words, u32 names, names
//! u32 0xac000000, u32 words, u32 functions, functions: u64 head, body
//! u32 0xae000000, u32 words, u32 0                     modules, of which there are none
//! body: u32 name, u32 places, u32 inlined, places, inlined: u32 place, body
//! place: u32 line << 16, u32 callees, u64 count, callees: u32 1, u64 name, u64 calls
//! name: u32 bytes, text, a zero byte
//! ```
//!
//! The layout is that of `gcc/auto-profile.cc` (gcc 12 to 14), which takes no discriminators: the count of a line is the highest one of
//! its places. Numbers are little-endian; a `u64` has its lower half first.

use std::collections::BTreeMap;
use std::io::{self, Write};

use crate::source::{Count, Function, Place, Source};

const MAGIC: u32 = 0x6763_6461;
/// That of gcc's `AUTO_PROFILE_VERSION`.
const VERSION: u32 = 2;
const TAG_NAMES: u32 = 0xaa00_0000;
const TAG_FUNCTIONS: u32 = 0xac00_0000;
const TAG_MODULES: u32 = 0xae00_0000;
/// `HIST_TYPE_INDIR_CALL`, as AutoFDO writes it.
const INDIRECT_CALL: u32 = 7;

/// Writes a profile.
///
/// # Errors
/// `out` cannot be written to.
pub fn write(source: &Source, out: &mut dyn Write) -> io::Result<()> {
    let mut names = Names::default();
    let mut functions = Vec::new();
    let mut number = 0;
    for (name, function) in &source.functions {
        let mut body = Vec::new();
        add_u64(&mut body, signed(function.head));
        if add_body(&mut body, name, function, &mut names) {
            functions.extend(body);
            number += 1;
        }
    }
    let mut texts = Vec::new();
    add_u32(&mut texts, len(names.list.len()));
    for name in &names.list {
        add_u32(&mut texts, len(name.len() + 1));
        texts.extend_from_slice(name.as_bytes());
        texts.push(0);
    }
    let mut all = Vec::new();
    for word in [MAGIC, VERSION, 0, TAG_NAMES, len(texts.len() / 4)] {
        add_u32(&mut all, word);
    }
    all.extend(texts);
    for word in [TAG_FUNCTIONS, len(functions.len() / 4 + 1), number] {
        add_u32(&mut all, word);
    }
    all.extend(functions);
    for word in [TAG_MODULES, 1, 0] {
        add_u32(&mut all, word);
    }
    out.write_all(&all)
}

/// The names in the file, each once.
#[derive(Default)]
struct Names {
    list: Vec<String>,
    indexes: BTreeMap<String, u32>,
}

impl Names {
    fn index(&mut self, name: &str) -> u32 {
        if let Some(&index) = self.indexes.get(name) {
            return index;
        }
        let index = len(self.list.len());
        self.list.push(name.to_owned());
        self.indexes.insert(name.to_owned(), index);
        index
    }
}

/// Adds a function. Returns whether it can be in the file.
fn add_body(out: &mut Vec<u8>, name: &str, function: &Function, names: &mut Names) -> bool {
    if name.is_empty() || name.contains('\0') {
        return false;
    }
    let mut lines: BTreeMap<u16, Count> = BTreeMap::new();
    for (place, count) in &function.places {
        let line = lines.entry(place.line).or_default();
        line.count = line.count.max(count.count);
        for (name, callee) in count.callees.iter().filter(|(name, _)| !name.contains('\0')) {
            let known = line.callees.entry(name.clone()).or_default();
            known.calls = known.calls.saturating_add(callee.calls);
            known.is_indirect |= callee.is_indirect;
        }
    }
    let mut inlined: BTreeMap<(u16, &str), Function> = BTreeMap::new();
    for ((Place { line, .. }, name), function) in &function.inlined {
        inlined.entry((*line, name)).or_default().add(function);
    }
    let mut bodies = Vec::new();
    let mut number = 0;
    for ((line, name), function) in &inlined {
        let mut body = Vec::new();
        add_u32(&mut body, u32::from(*line) << 16);
        if add_body(&mut body, name, function, names) {
            bodies.extend(body);
            number += 1;
        }
    }
    add_u32(out, names.index(name));
    add_u32(out, len(lines.len()));
    add_u32(out, number);
    for (line, count) in &lines {
        // Only of indirect calls does gcc not know the functions.
        let callees: Vec<_> =
            count.callees.iter().filter(|(_, callee)| callee.is_indirect && callee.calls > 0).collect();
        add_u32(out, u32::from(*line) << 16);
        add_u32(out, len(callees.len()));
        add_u64(out, signed(count.count));
        for (name, callee) in callees {
            add_u32(out, INDIRECT_CALL);
            add_u64(out, u64::from(names.index(name)));
            add_u64(out, signed(callee.calls));
        }
    }
    out.extend(bodies);
    true
}

/// gcc's counters are signed.
fn signed(count: u64) -> u64 {
    count.min(i64::MAX as u64)
}

fn len(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

fn add_u32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn add_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llvm::tests::example;

    #[test]
    fn as_gcc_reads_it() {
        let mut bytes = Vec::new();
        write(&example(), &mut bytes).expect("memory");
        let mut expected = Vec::new();
        let mut words = |words: &[u32]| words.iter().for_each(|word| expected.extend(word.to_le_bytes()));
        words(&[0x6763_6461, 2, 0, 0xaa00_0000, 14, 6, 2]);
        expected.extend(b"b\0");
        for name in ["inner", "outer", "main", "_Z1ai", "no name"] {
            expected.extend((name.len() as u32 + 1).to_le_bytes());
            expected.extend(name.as_bytes());
            expected.push(0);
        }
        let names = expected.len();
        // The numbers of words, which gcc does not read.
        let lengths: Vec<usize> = (16..20).chain(names + 4..names + 8).collect();
        let mut words = |words: &[u32]| words.iter().for_each(|word| expected.extend(word.to_le_bytes()));
        words(&[0xac00_0000, 68, 2]);
        // b: never called, one line that never ran.
        words(&[0, 0, 0, 1, 0, 0xffff_0000, 0, 0, 0]);
        // main: called once; two lines, of which the first has the higher of two counts.
        let high = (7_000_000_000_u64 >> 32) as u32;
        words(&[1, 0, 3, 2, 1, 2 << 16, 0, 7_000_000_000_u64 as u32, high]);
        words(&[5 << 16, 3, 7, 0, 7, 4, 0, 4, 0, 7, 0, 0, 3, 0, 7, 5, 0, 1, 0]);
        // What was inlined: outer, and inner into it.
        words(&[3 << 16, 2, 1, 1, 1 << 16, 0, 10, 0, 2 << 16, 1, 1, 0, 0, 0, 5, 0]);
        words(&[0xae00_0000, 1, 0]);
        assert_eq!(bytes.len(), expected.len());
        for (at, (byte, expected)) in bytes.iter().zip(&expected).enumerate() {
            if !lengths.contains(&at) {
                assert_eq!(byte, expected, "at {at}");
            }
        }
    }
}
