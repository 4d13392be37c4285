//! The little of an ELF header that decides what is possible at all, readable where
//! [`gprofinject_plan::image`] has already given up.

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Header {
    /// x86-64, 64 bit.
    Ours(Program),
    /// ELF for another processor or word size: what it is for.
    Foreign(String),
    /// Begins as an ELF file and does not go on as one.
    Broken(&'static str),
    NotElf,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Program {
    /// Loaded where it was linked (ET_EXEC).
    pub(crate) fixed: bool,
    pub(crate) interpreter: Option<String>,
    pub(crate) code: Vec<Segment>,
}

/// An executable PT_LOAD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) address: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

const EM_X86_64: u16 = 62;
const ET_EXEC: u16 = 2;
const ET_DYN: u16 = 3;
const PT_LOAD: u32 = 1;
const PT_INTERP: u32 = 3;
const PF_X: u32 = 1;
const PROGRAM_HEADER: usize = 56;

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
    match (class, machine) {
        (2, EM_X86_64) => read_program(bytes).map_or_else(Header::Broken, Header::Ours),
        (1, _) => Header::Foreign(format!("a 32-bit program ({})", machine_name(machine))),
        (2, _) => Header::Foreign(format!("a program for another processor ({})", machine_name(machine))),
        _ => Header::Broken("the ELF header names neither 32 nor 64 bit"),
    }
}

fn read_program(bytes: &[u8]) -> Result<Program, &'static str> {
    let cut = "the file ends inside the ELF header";
    let kind = u16_at(bytes, 16).ok_or(cut)?;
    if kind != ET_EXEC && kind != ET_DYN {
        return Err("the ELF file is not a program");
    }
    let table = u64_at(bytes, 32).ok_or(cut)?;
    let count = u16_at(bytes, 56).ok_or(cut)?;
    let cut = "the file ends inside the program headers";
    let mut program = Program { fixed: kind == ET_EXEC, ..Program::default() };
    for index in 0..usize::from(count) {
        let start = usize::try_from(table).ok().and_then(|table| table.checked_add(index * PROGRAM_HEADER));
        let header = start.and_then(|start| bytes.get(start..)?.get(..PROGRAM_HEADER)).ok_or(cut)?;
        let word = |at| u64_at(header, at).ok_or(cut);
        let flags = u32_at(header, 4).ok_or(cut)?;
        let (offset, len) = (word(8)?, word(32)?);
        let contents = || bytes.get(usize::try_from(offset).ok()?..)?.get(..usize::try_from(len).ok()?);
        match u32_at(header, 0).ok_or(cut)? {
            PT_INTERP => {
                let name = contents().ok_or("the file ends inside the interpreter's name")?;
                let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
                program.interpreter = Some(String::from_utf8_lossy(name).into_owned());
            }
            PT_LOAD if flags & PF_X != 0 => {
                contents().ok_or("the file ends before its code does")?;
                program.code.push(Segment { address: word(16)?, offset, len: word(40)? });
            }
            _ => {}
        }
    }
    if program.code.is_empty() { Err("the ELF file has no code") } else { Ok(program) }
}

fn machine_name(machine: u16) -> String {
    match machine {
        3 => "i386".into(),
        8 => "MIPS".into(),
        20 => "PowerPC".into(),
        21 => "PowerPC64".into(),
        22 => "s390".into(),
        40 => "ARM".into(),
        EM_X86_64 => "x32".into(),
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
        assert!(!program.fixed);
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
        (bytes[4], bytes[18]) = (1, 3);
        assert_eq!(read(&bytes), Header::Foreign("a 32-bit program (i386)".into()));
        (bytes[4], bytes[5], bytes[18], bytes[19]) = (2, 2, 0, 22);
        assert_eq!(read(&bytes), Header::Foreign("a program for another processor (s390)".into()));
    }
}
