//! The few fields of an ELF header that decide what is possible at all, readable even if
//! [`gprofinject_image`] has refused the file.

/// What a file is, by its header.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Header {
    /// x86-64 with 64-bit addresses.
    Ours(Program),
    /// For the same processor, with 32-bit addresses. The text is the name of its ABI.
    Narrow(Program, &'static str),
    /// ELF for another processor, which the text names.
    Foreign(String),
    /// It begins as an ELF file but is damaged; the text says how.
    Broken(&'static str),
    NotElf,
}

/// The fields of a program's header.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Program {
    /// Whether the program is loaded at its link addresses (ET_EXEC).
    pub(crate) fixed: bool,
    pub(crate) interpreter: Option<String>,
    /// Whether it names libraries that the dynamic linker has to load (DT_NEEDED).
    pub(crate) needs_libraries: bool,
    pub(crate) code: Vec<Segment>,
}

/// An executable PT_LOAD segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

/// The offsets of fields in the headers of one word size.
struct Layout {
    word: usize,
    table: usize,
    count: usize,
    program_header: usize,
    flags: usize,
    offset: usize,
    address: usize,
    file_len: usize,
    memory_len: usize,
}

const WIDE: Layout = Layout {
    word: 8,
    table: 32,
    count: 56,
    program_header: 56,
    flags: 4,
    offset: 8,
    address: 16,
    file_len: 32,
    memory_len: 40,
};

const NARROW: Layout = Layout {
    word: 4,
    table: 28,
    count: 44,
    program_header: 32,
    flags: 24,
    offset: 4,
    address: 8,
    file_len: 16,
    memory_len: 20,
};

const EM_386: u16 = 3;
const EM_X86_64: u16 = 62;
const ET_EXEC: u16 = 2;
const ET_DYN: u16 = 3;
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_INTERP: u32 = 3;
const DT_NEEDED: u64 = 1;
const PF_X: u32 = 1;

/// Reads the header of a file.
pub(crate) fn read(bytes: &[u8]) -> Header {
    if !bytes.starts_with(b"\x7fELF") {
        return Header::NotElf;
    }
    let (Some(&class), Some(&data)) = (bytes.get(4), bytes.get(5)) else {
        return Header::Broken("the file ends inside the ELF header");
    };
    let Some(machine) = u16_at(bytes, 18).map(|raw| if data == 2 { raw.swap_bytes() } else { raw }) else {
        return Header::Broken("the file ends inside the ELF header");
    };
    let narrow = |abi| {
        read_program(bytes, &NARROW).map_or_else(Header::Broken, |program| Header::Narrow(program, abi))
    };
    match (class, machine) {
        (2, EM_X86_64) => read_program(bytes, &WIDE).map_or_else(Header::Broken, Header::Ours),
        (1, EM_386) => narrow("i386"),
        (1, EM_X86_64) => narrow("x32"),
        (1 | 2, _) => Header::Foreign(format!("a program for another processor ({})", machine_name(machine))),
        _ => Header::Broken("the ELF header names neither 32 nor 64 bit"),
    }
}

fn read_program(bytes: &[u8], layout: &Layout) -> Result<Program, &'static str> {
    let cut = "the file ends inside the ELF header";
    let kind = u16_at(bytes, 16).ok_or(cut)?;
    if kind != ET_EXEC && kind != ET_DYN {
        return Err("the ELF file is not a program");
    }
    let table = word_at(bytes, layout.table, layout).ok_or(cut)?;
    let count = u16_at(bytes, layout.count).ok_or(cut)?;
    let cut = "the file ends inside the program headers";
    let mut program = Program { fixed: kind == ET_EXEC, ..Program::default() };
    for index in 0..usize::from(count) {
        let len = layout.program_header;
        let start = usize::try_from(table).ok().and_then(|table| table.checked_add(index * len));
        let header = start.and_then(|start| bytes.get(start..)?.get(..len)).ok_or(cut)?;
        let word = |at| word_at(header, at, layout).ok_or(cut);
        let flags = u32_at(header, layout.flags).ok_or(cut)?;
        let (offset, len) = (word(layout.offset)?, word(layout.file_len)?);
        let contents = || bytes.get(usize::try_from(offset).ok()?..)?.get(..usize::try_from(len).ok()?);
        match u32_at(header, 0).ok_or(cut)? {
            PT_INTERP => {
                let name = contents().ok_or("the file ends inside the interpreter's name")?;
                let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
                program.interpreter = Some(String::from_utf8_lossy(name).into_owned());
            }
            PT_DYNAMIC => {
                let entries = contents().unwrap_or_default().chunks_exact(2 * layout.word);
                program.needs_libraries =
                    entries.into_iter().any(|entry| word_at(entry, 0, layout) == Some(DT_NEEDED));
            }
            PT_LOAD if flags & PF_X != 0 => {
                contents().ok_or("the file ends before its code does")?;
                program.code.push(Segment {
                    address: word(layout.address)?,
                    offset,
                    len: word(layout.memory_len)?,
                });
            }
            _ => {}
        }
    }
    if program.code.is_empty() { Err("the ELF file has no code") } else { Ok(program) }
}

fn machine_name(machine: u16) -> String {
    match machine {
        8 => "MIPS".into(),
        20 => "PowerPC".into(),
        21 => "PowerPC64".into(),
        22 => "s390".into(),
        40 => "ARM".into(),
        183 => "AArch64".into(),
        243 => "RISC-V".into(),
        258 => "LoongArch".into(),
        other => format!("ELF machine {other}"),
    }
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    array(bytes, at).map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_le_bytes)
}

/// Reads an address or a length in headers of this layout.
fn word_at(bytes: &[u8], at: usize, layout: &Layout) -> Option<u64> {
    if layout.word == 4 { u32_at(bytes, at).map(u64::from) } else { u64_at(bytes, at) }
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    array(bytes, at).map(u64::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Vec<u8> {
        std::fs::read("/proc/self/exe").expect("our own program")
    }

    #[test]
    fn reads_its_own_program() {
        let Header::Ours(program) = read(&own()) else { panic!("not ours") };
        assert!(!program.fixed && program.needs_libraries);
        assert_eq!(program.interpreter.as_deref(), Some("/lib64/ld-linux-x86-64.so.2"));
        assert_eq!(program.code.len(), 1);
    }

    #[test]
    fn every_truncation_is_an_answer() {
        let bytes = own();
        for len in 0..4096 {
            match read(&bytes[..len]) {
                Header::NotElf => assert!(len < 4),
                Header::Broken(_) => assert!(len >= 4),
                other => panic!("{len}: {other:?}"),
            }
        }
    }

    #[test]
    fn other_machines_are_named() {
        let mut bytes = own();
        bytes[18] = 183;
        assert_eq!(read(&bytes), Header::Foreign("a program for another processor (AArch64)".into()));
        (bytes[4], bytes[18]) = (1, 40);
        assert_eq!(read(&bytes), Header::Foreign("a program for another processor (ARM)".into()));
        (bytes[4], bytes[5], bytes[18], bytes[19]) = (2, 2, 0, 22);
        assert_eq!(read(&bytes), Header::Foreign("a program for another processor (s390)".into()));
    }

    #[test]
    fn headers_of_32_bits() {
        let mut bytes = vec![0; 52 + 32 + 4];
        bytes[..7].copy_from_slice(b"\x7fELF\x01\x01\x01");
        let mut put = |at: usize, word: u32| bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        put(16, u32::from(ET_EXEC) | 3 << 16);
        put(28, 52);
        put(44, 1);
        for (field, word) in [PT_LOAD, 84, 0x8048054, 0, 4, 0x10, PF_X].into_iter().enumerate() {
            put(52 + 4 * field, word);
        }
        let code = vec![Segment { address: 0x804_8054, offset: 84, len: 0x10 }];
        let program = Program { fixed: true, interpreter: None, needs_libraries: false, code };
        assert_eq!(read(&bytes), Header::Narrow(program, "i386"));
        assert!(matches!(read(&bytes[..87]), Header::Broken(_)));
    }
}
