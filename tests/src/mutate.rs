//! Damages ELF files in the places that somebody may believe without need: headers, tables, and what is not loaded.
//!
//! The machine code stays as it is. A damaged file that still runs alone must run in the same way under gprofinject.

use std::ops::Range;

use object::LittleEndian as LE;
use object::elf::{self, Dyn64, FileHeader64, ProgramHeader64, Rela64, SectionHeader64, Sym64};
use object::pod;
use object::read::elf::{FileHeader, SectionHeader};

/// A part of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Header,
    Segments,
    Sections,
    Dynamic,
    Symbols,
    DynamicSymbols,
    Frames,
    FrameIndex,
    ExceptionTables,
    Relocations,
    Notes,
    /// Bytes that no segment loads.
    Unloaded,
    /// Sections whose names begin with `.gnu` and `.dyn`, and other tables of the dynamic linker.
    Linking,
}

impl Part {
    pub const ALL: [Part; 13] = [
        Part::Header,
        Part::Segments,
        Part::Sections,
        Part::Dynamic,
        Part::Symbols,
        Part::DynamicSymbols,
        Part::Frames,
        Part::FrameIndex,
        Part::ExceptionTables,
        Part::Relocations,
        Part::Notes,
        Part::Unloaded,
        Part::Linking,
    ];
}

/// A sound file and the places of its parts.
#[derive(Debug)]
pub struct Sound {
    data: Vec<u8>,
    sections: Vec<(String, elf::SectionType, Range<usize>)>,
    section_headers: Range<usize>,
    segment_headers: Range<usize>,
    /// The bytes that segments load.
    loaded: Vec<Range<usize>>,
}

impl Sound {
    /// Finds the parts of a sound file.
    ///
    /// # Panics
    /// If the file is damaged.
    pub fn new(data: Vec<u8>) -> Sound {
        let header = FileHeader64::<LE>::parse(&*data).expect("an ELF file");
        let table = header.sections(LE, &*data).expect("sections");
        let range = |at: u64, count: usize, size: usize| at as usize..at as usize + count * size;
        let sections = table.iter().filter_map(|section| {
            let (at, len) = section.file_range(LE)?;
            let name = String::from_utf8_lossy(table.section_name(LE, section).ok()?).into_owned();
            Some((name, section.sh_type(LE), range(at, 1, len as usize)))
        });
        let segments = header.program_headers(LE, &*data).expect("segments");
        let loads = segments.iter().filter(|segment| segment.p_type.get(LE) == elf::PT_LOAD);
        let loaded = loads.map(|load| range(load.p_offset.get(LE), 1, load.p_filesz.get(LE) as usize));
        Sound {
            sections: sections.collect(),
            section_headers: range(header.e_shoff.get(LE), table.len(), size_of::<SectionHeader64<LE>>()),
            segment_headers: range(header.e_phoff.get(LE), segments.len(), size_of::<ProgramHeader64<LE>>()),
            loaded: loaded.collect(),
            data,
        }
    }

    /// Returns the file with one to three changes of a part, and what they are, or `None` if the file has no such part.
    pub fn mutated(&self, part: Part, random: &mut impl FnMut() -> u64) -> Option<(Vec<u8>, String)> {
        let places = self.places(part);
        let places: Vec<_> = places.into_iter().filter(|(place, _)| !place.is_empty()).collect();
        if places.is_empty() {
            return None;
        }
        let mut data = self.data.clone();
        let mut said = format!("{part:?}");
        for _ in 0..[1, 1, 1, 2, 3][random() as usize % 5] {
            let (place, fields) = &places[random() as usize % places.len()];
            let record: usize = fields.iter().sum();
            let index = random() as usize % (place.len() / record).max(1);
            let field = random() as usize % fields.len();
            let at = place.start + index * record + fields[..field].iter().sum::<usize>();
            let len = fields[field].min(place.end.saturating_sub(at));
            let Some(word) = data.get_mut(at..at + len) else { continue };
            let before = word.to_vec();
            change(word, random);
            said += &format!(" {at:#x}: {before:02x?} -> {word:02x?}");
        }
        Some((data, said))
    }

    /// Returns the places of a part, each with the sizes of the fields of its records.
    fn places(&self, part: Part) -> Vec<(Range<usize>, Vec<usize>)> {
        let of = |wanted: &dyn Fn(&str, elf::SectionType) -> bool, fields: &[usize]| {
            let found = self.sections.iter().filter(|(name, kind, _)| wanted(name, *kind));
            found.map(|(_, _, range)| (range.clone(), fields.to_vec())).collect::<Vec<_>>()
        };
        const SYMBOL: &[usize] = &[4, 1, 1, 2, 8, 8];
        match part {
            Part::Header => {
                // From EI_CLASS on: the identification, then the fields.
                let fields = [1, 1, 1, 1, 1, 7, 2, 2, 4, 8, 8, 8, 4, 2, 2, 2, 2, 2, 2].to_vec();
                vec![(4..size_of::<FileHeader64<LE>>(), fields)]
            }
            Part::Segments => vec![(self.segment_headers.clone(), vec![4, 4, 8, 8, 8, 8, 8, 8])],
            Part::Sections => vec![(self.section_headers.clone(), vec![4, 4, 8, 8, 8, 8, 4, 4, 8, 8])],
            Part::Dynamic => of(&|_, kind| kind == elf::SHT_DYNAMIC, &[8; size_of::<Dyn64<LE>>() / 8]),
            Part::Symbols => of(&|_, kind| kind == elf::SHT_SYMTAB, SYMBOL),
            Part::DynamicSymbols => of(&|_, kind| kind == elf::SHT_DYNSYM, SYMBOL),
            Part::Frames => of(&|name, _| name == ".eh_frame", &[1, 1, 1, 1, 4]),
            Part::FrameIndex => of(&|name, _| name == ".eh_frame_hdr", &[4]),
            Part::ExceptionTables => of(&|name, _| name == ".gcc_except_table", &[1]),
            Part::Relocations => of(&|_, kind| kind == elf::SHT_RELA, &[8; size_of::<Rela64<LE>>() / 8]),
            Part::Notes => of(&|_, kind| kind == elf::SHT_NOTE, &[4]),
            Part::Linking => {
                let linking = |name: &str, kind| {
                    (name.starts_with(".gnu") || name.starts_with(".dyn")) && kind != elf::SHT_DYNSYM
                };
                of(&linking, &[1, 1, 2, 4])
            }
            Part::Unloaded => self.unloaded().into_iter().map(|range| (range, vec![1])).collect(),
        }
    }

    fn unloaded(&self) -> Vec<Range<usize>> {
        let mut ranges = Vec::new();
        let mut at = 0;
        let mut loaded = self.loaded.clone();
        loaded.sort_by_key(|range| range.start);
        for range in loaded {
            ranges.push(at..range.start);
            at = at.max(range.end);
        }
        ranges.push(at..self.data.len());
        ranges.retain(|range| range.start < range.end);
        ranges
    }

    /// Returns the file with another address in the header of a section.
    ///
    /// # Panics
    /// If the file has no section of this name.
    pub fn moved_section(&self, name: &str, distance: i64) -> Vec<u8> {
        let mut data = self.data.clone();
        let index = self.section_index(name);
        let at = self.section_headers.start + index * size_of::<SectionHeader64<LE>>() + 16;
        let word: &mut [u8; 8] = (&mut data[at..at + 8]).try_into().expect("eight bytes");
        *word = u64::from_le_bytes(*word).wrapping_add_signed(distance).to_le_bytes();
        data
    }

    fn section_index(&self, name: &str) -> usize {
        let header = FileHeader64::<LE>::parse(&*self.data).expect("an ELF file");
        let table = header.sections(LE, &*self.data).expect("sections");
        table.section_by_name(LE, name.as_bytes()).expect("the section").0.0
    }

    /// Returns the address of the symbol of this name.
    ///
    /// # Panics
    /// If the file has none.
    pub fn symbol(&self, name: &str) -> u64 {
        let at = self.symbol_place(name);
        let (symbol, _) = pod::from_bytes::<Sym64<LE>>(&self.data[at..]).expect("a symbol");
        symbol.st_value.get(LE)
    }

    /// Returns the file with the symbol of this name changed.
    ///
    /// # Panics
    /// If the file has none.
    pub fn with_symbol(&self, name: &str, change: impl FnOnce(&mut Sym64<LE>)) -> Vec<u8> {
        let mut data = self.data.clone();
        let at = self.symbol_place(name);
        let (symbol, _) = pod::from_bytes_mut(&mut data[at..]).expect("a symbol");
        change(symbol);
        data
    }

    /// Returns the offset in the file of the symbol of this name.
    fn symbol_place(&self, name: &str) -> usize {
        let header = FileHeader64::<LE>::parse(&*self.data).expect("an ELF file");
        let table = header.sections(LE, &*self.data).expect("sections");
        let symbols = table.symbols(LE, &*self.data, elf::SHT_SYMTAB).expect("symbols");
        let is_it = |symbol: &Sym64<LE>| symbols.strings().get(symbol.st_name.get(LE)) == Ok(name.as_bytes());
        let index = symbols.iter().position(is_it).expect("the symbol");
        let is_table = |kind: elf::SectionType| kind == elf::SHT_SYMTAB;
        let (_, _, place) = self.sections.iter().find(|(_, kind, _)| is_table(*kind)).expect("symbols");
        place.start + index * size_of::<Sym64<LE>>()
    }
}

/// Changes a little-endian number a little, or entirely.
fn change(word: &mut [u8], random: &mut impl FnMut() -> u64) {
    if word.is_empty() {
        return;
    }
    let mut bytes = [0; 8];
    let len = word.len().min(8);
    bytes[..len].copy_from_slice(&word[..len]);
    let before = u64::from_le_bytes(bytes);
    let near = 1 + random() % 24;
    let after = match random() % 10 {
        0 => 0,
        1 => u64::MAX,
        2 => random(),
        3 | 4 => before.wrapping_add(near),
        5 | 6 => before.wrapping_sub(near),
        7 => before ^ 1 << (random() % (8 * len as u64)),
        8 => before.wrapping_add(random() % 0x2000),
        _ => before / 2,
    };
    word[..len].copy_from_slice(&after.to_le_bytes()[..len]);
}
