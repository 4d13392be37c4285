//! Go's own table of functions, which stripped programs have too: the runtime walks stacks and prints traces by it.
//!
//! Its layout is that of `runtime/symtab.go` and `cmd/link/internal/ld/pcln.go`; all offsets are in bytes.
//!
//! ```text
//! header      magic u32, 0, 0, 1, 8, then words: functions, files, [start of the text from Go 1.18 on],
//!             and the places of the names, of four tables that are of no use here, and of the functions
//! functions   for each one: start, place of its record; then the end of the last one.
//!             u32 from Go 1.18 on, relative to the start of the text; before that u64, addresses
//! record      start (as wide), place of the name i32, ...
//! ```
//!
//! Where a function ends is not in the table: padding (`int3`) follows up to the next one. Anything in the table may be
//! wrong in a damaged file. What does not fit is left out, and the table takes no more time than its length.

use crate::file::dynamic;
use crate::file::elf::{Elf, Load, string};
use crate::file::notes::Notes;
use crate::file::ranges::CodeRanges;
use crate::functions::label::{Label, LabelKind, NAME_MAX};
use crate::names::text;
use iced_x86::{Code, Decoder, DecoderOptions};
use object::LittleEndian as LE;
use object::elf;

/// How the table of one range of Go's releases is laid out.
#[derive(Clone, Copy)]
struct Layout {
    /// The first bytes of the table: the magic number, two zeros, the unit of code addresses and the bytes of a word.
    magic: [u8; 8],
    /// Whether the table is relative to the start of the text, which is then a word of the header.
    relative: bool,
}

const LAYOUTS: [Layout; 3] = [
    Layout { magic: [0xfa, 0xff, 0xff, 0xff, 0, 0, 1, 8], relative: false },
    Layout { magic: [0xf0, 0xff, 0xff, 0xff, 0, 0, 1, 8], relative: true },
    Layout { magic: [0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8], relative: true },
];

/// What Go's linker puts between functions.
const INT3: u8 = 0xcc;

/// Returns Go's functions, sorted by address, or none if the program has no such table or one of another layout.
pub(crate) fn labels<'d>(elf: &Elf<'d>, code: &CodeRanges) -> Vec<Label<'d>> {
    let named = elf.sections.iter().filter(|section| section.name.ends_with(b".gopclntab"));
    let mut tables = named.filter_map(|section| Table::at(elf, section.address, section.bytes?));
    let Some(table) = tables.next().or_else(|| unnamed(elf)) else { return Vec::new() };
    let mut labels = table.labels(code);
    labels.sort_by_key(|label| label.address);
    labels.dedup_by_key(|label| label.address);
    let end = table.end().unwrap_or(u64::MAX);
    for index in 0..labels.len() {
        let next = labels.get(index + 1).map_or(end, |next| next.address);
        labels[index].size = size(elf, code, labels[index].address, next);
    }
    labels
}

/// Finds the table of a Go program in which it is part of another section (as in position-independent programs that the
/// C compiler has linked), or that has no section headers.
fn unnamed<'d>(elf: &Elf<'d>) -> Option<Table<'d>> {
    if !Notes::read(elf).go {
        return None;
    }
    let in_load = |load: &Load<'d>| {
        let (address, bytes) = (load.address, load.bytes);
        let words = bytes.chunks_exact(8).zip((0..).step_by(8));
        let mut places = words.filter(|(word, _)| LAYOUTS.iter().any(|layout| *word == layout.magic));
        places.find_map(|(_, at)| {
            Table::at(elf, address + at as u64, &bytes[at..]).filter(|table| table.count > 0)
        })
    };
    elf.loads.iter().find_map(in_load)
}

/// A table whose header has been read.
struct Table<'d> {
    layout: Layout,
    /// The number of functions.
    count: u64,
    /// The start of the text, or 0 if the table has addresses.
    text: u64,
    names: &'d [u8],
    functions: &'d [u8],
}

impl<'d> Table<'d> {
    fn at(elf: &Elf<'_>, address: u64, bytes: &'d [u8]) -> Option<Self> {
        let layout = LAYOUTS.into_iter().find(|layout| bytes.starts_with(&layout.magic))?;
        let word = |n: usize| Some(u64::from_le_bytes(*bytes.get(8 + 8 * n..)?.first_chunk()?));
        let part = |n: usize| bytes.get(usize::try_from(word(n)?).ok()?..);
        let more = usize::from(layout.relative);
        // The linker may leave the word to the dynamic linker.
        let text = if layout.relative { relocated(elf, address + 24).or(word(2))? } else { 0 };
        let functions = part(6 + more)?;
        let count = word(0)?.min((functions.len() / layout.entry()) as u64);
        Some(Table { layout, count, text, names: part(2 + more)?, functions })
    }

    fn labels(&self, code: &CodeRanges) -> Vec<Label<'d>> {
        let mut labels = Vec::with_capacity(self.count as usize);
        let entry = self.layout.entry();
        for index in 0..self.count as usize {
            let label = self.label(index * entry).filter(|label| code.find_code(label.address).is_some());
            labels.extend(label);
        }
        labels
    }

    /// Returns the function of the entry at this place of the table.
    fn label(&self, at: usize) -> Option<Label<'d>> {
        let half = self.layout.entry() / 2;
        let start = self.number(at)?;
        let record = usize::try_from(self.number(at + half)?).ok()?;
        let name = u32::from_le_bytes(*self.functions.get(record.checked_add(half)?..)?.first_chunk()?);
        let address = self.text.checked_add(start)?;
        let name = text::of(string(self.names, name, NAME_MAX));
        Some(Label { address, size: 0, name, rank: 0, kind: LabelKind::Function, local: false, file: 0 })
    }

    /// Returns the end of the last function.
    fn end(&self) -> Option<u64> {
        self.text.checked_add(self.number(usize::try_from(self.count).ok()? * self.layout.entry())?)
    }

    fn number(&self, at: usize) -> Option<u64> {
        let bytes = self.functions.get(at..)?;
        if self.layout.relative {
            Some(u32::from_le_bytes(*bytes.first_chunk()?).into())
        } else {
            Some(u64::from_le_bytes(*bytes.first_chunk()?))
        }
    }
}

impl Layout {
    /// The number of bytes of an entry of the table of functions.
    fn entry(self) -> usize {
        if self.relative { 8 } else { 16 }
    }
}

/// Returns what the dynamic linker writes to a word, if it does.
fn relocated(elf: &Elf<'_>, place: u64) -> Option<u64> {
    let relocation = dynamic::relocations(elf).find(|relocation| relocation.r_offset.get(LE) == place)?;
    let is_relative = relocation.r_type(LE, false) == elf::R_X86_64_RELATIVE;
    is_relative.then(|| relocation.r_addend.get(LE) as u64)
}

/// Returns the size of a function without the padding after it. `next` is where the next function starts.
fn size(elf: &Elf<'_>, code: &CodeRanges, start: u64, next: u64) -> u64 {
    let end = code.find_code(start).map_or(start, |range| range.end.min(next));
    let bytes = elf.at_address(start, end.saturating_sub(start)).unwrap_or_default();
    if bytes.last() != Some(&INT3) {
        return bytes.len() as u64;
    }
    // The last byte of the function may look like padding, so where that begins is known only from the instructions.
    let mut size = 0;
    for instruction in Decoder::new(64, bytes, DecoderOptions::NONE).iter() {
        if instruction.code() != Code::Int3 {
            size = instruction.next_ip();
        }
    }
    size
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::elf::Elf;

    /// A program with four functions of Go's, one of which has a name beyond the table.
    fn program(relative: bool) -> Vec<u8> {
        const TEXT: u64 = 0x40_1000;
        let word = |bytes: &mut Vec<u8>, value: u64| bytes.extend(value.to_le_bytes());
        let starts: [(u64, u32); 4] = [(0, 0), (16, 5), (32, 99), (48, 10)];
        let names = b"main\0f\0..\0(*T).g\0";
        let half = if relative { 4 } else { 8 };
        let put = |bytes: &mut Vec<u8>, value: u64| bytes.extend(&value.to_le_bytes()[..half]);
        let mut table = if relative { LAYOUTS[1] } else { LAYOUTS[0] }.magic.to_vec();
        word(&mut table, 4);
        word(&mut table, 0);
        let header = 8 * if relative { 9 } else { 8 };
        if relative {
            word(&mut table, TEXT);
        }
        let functions = header + names.len() as u64;
        for place in [header, 0, 0, 0, functions] {
            word(&mut table, place);
        }
        table.extend(names);
        let base = if relative { 0 } else { TEXT };
        let records = (4 * 2 + 1) * half as u64;
        for (index, (start, _)) in (0..).zip(starts) {
            put(&mut table, base + start);
            put(&mut table, records + index * (half as u64 + 4));
        }
        put(&mut table, base + 64);
        for (start, name) in starts {
            put(&mut table, base + start);
            table.extend(name.to_le_bytes());
        }
        let mut code = [INT3; 80];
        code[..3].copy_from_slice(&[0x31, 0xc0, 0xc3]);
        // A jump whose displacement is that of padding.
        code[16..18].copy_from_slice(&[0xeb, INT3]);
        code[32] = 0xc3;
        code[48..64].fill(0x90);
        file(TEXT, &code, &table)
    }

    /// A program without section headers: a note of Go's, code at this address, and data after it.
    fn file(text: u64, code: &[u8], data: &[u8]) -> Vec<u8> {
        let note: &[u8] = b"\x04\0\0\0\x04\0\0\0\x04\0\0\0Go\0\0id\0\0";
        let mut bytes = vec![0; 64 + 3 * 56];
        bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        let (code_at, data_at) = (0x1000, 0x2000);
        let segments: [[u64; 6]; 3] = [
            [5 << 32 | 1, code_at, text, text, code.len() as u64, code.len() as u64],
            [4 << 32 | 1, data_at, text + 0x1000, 0, data.len() as u64, data.len() as u64],
            [4 << 32 | 4, 64 + 3 * 56, 0, 0, note.len() as u64, note.len() as u64],
        ];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(16, &[2, 0, 62, 0, 1]);
        put(24, &text.to_le_bytes());
        put(32, &64_u64.to_le_bytes());
        put(52, &[64, 0, 56, 0, 3]);
        for (index, words) in segments.into_iter().enumerate() {
            for (n, word) in words.into_iter().enumerate() {
                put(64 + 56 * index + 8 * n, &word.to_le_bytes());
            }
        }
        bytes.extend(note);
        bytes.resize(code_at as usize, 0);
        bytes.extend(code);
        bytes.resize(data_at as usize, 0);
        bytes.extend(data);
        bytes
    }

    fn found(bytes: &[u8]) -> Vec<(u64, u64, String)> {
        let elf = Elf::parse(bytes).expect("a program");
        let labels = labels(&elf, &CodeRanges::of(&elf));
        labels.iter().map(|label| (label.address, label.size, label.name.to_owned())).collect()
    }

    #[test]
    fn both_layouts() {
        let all = [(0, 3, "main"), (16, 2, "f"), (32, 1, ""), (48, 16, "(*T).g")];
        let all = all.map(|(at, size, name)| (0x40_1000 + at, size, name.to_owned()));
        assert_eq!(found(&program(true)), all);
        assert_eq!(found(&program(false)), all);
    }

    #[test]
    fn damaged_tables_are_read_within_their_bounds() {
        for relative in [true, false] {
            let whole = program(relative);
            for at in 0x2000..whole.len() {
                for value in [0, 1, 0x7f, 0xff] {
                    let mut bytes = whole.clone();
                    bytes[at] = value;
                    let inside =
                        |(at, size, _): &(u64, u64, String)| (0x40_1000..=0x40_1050).contains(&(at + size));
                    assert!(found(&bytes).iter().all(inside), "{at:x} {value:x}");
                }
            }
        }
    }
}
