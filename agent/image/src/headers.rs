//! What kind of file it is, by the little of an ELF header that decides what can be done with it at all.
//!
//! The first bytes of any file enter; a [`Program`] leaves, or what the file is instead, in the user's words. This is readable
//! where [`Image::read`](crate::Image::read) has already given up: a 32-bit program is sampled, and a library or a program for
//! another processor is named.

use std::borrow::Cow;

use object::LittleEndian as LE;
use object::elf;
use object::pod;
use object::read::elf::{Dyn, FileHeader, ProgramHeader};

use crate::file::elf::{ElfType, records, slice};

/// What the headers say of a program or library for x86-64.
#[derive(Debug, PartialEq, Eq)]
pub struct Program {
    /// The name of its ABI, if its addresses have 32 bits.
    pub narrow: Option<&'static str>,
    pub elf_type: ElfType,
    pub interpreter: Option<String>,
    /// Whether it names libraries that the dynamic linker has to load (DT_NEEDED).
    pub needs_libraries: bool,
    pub code: Vec<ExecutableSegment>,
}

/// An executable PT_LOAD segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExecutableSegment {
    pub address: u64,
    pub offset: u64,
    /// The number of bytes in memory.
    pub len: u64,
}

const NO_ELF: &str = "it is not an ELF program";
const IN_HEADER: &str = "the file ends inside the ELF header";

/// Reads the headers of a program or library.
///
/// # Errors
/// The file is none for this processor, or is damaged; the text says what it is.
pub fn read(bytes: &[u8]) -> Result<Program, Cow<'static, str>> {
    if !bytes.starts_with(&elf::ELFMAG) {
        return Err(NO_ELF.into());
    }
    // These fields have the same offsets in headers of 32 and 64 bits.
    let (class, data) = bytes.get(4).zip(bytes.get(5)).ok_or(IN_HEADER)?;
    let machine = bytes.get(18..).and_then(|rest| rest.first_chunk().copied()).ok_or(IN_HEADER)?;
    let is_big_endian = elf::DataEncoding(*data) == elf::ELFDATA2MSB;
    let machine = if is_big_endian { u16::from_be_bytes(machine) } else { u16::from_le_bytes(machine) };
    let narrow = |abi| read_program::<elf::FileHeader32<LE>>(bytes, Some(abi));
    match (elf::FileClass(*class), elf::Machine(machine)) {
        (elf::ELFCLASS64, elf::EM_X86_64) => Ok(read_program::<elf::FileHeader64<LE>>(bytes, None)?),
        (elf::ELFCLASS32, elf::EM_386) => Ok(narrow("i386")?),
        (elf::ELFCLASS32, elf::EM_X86_64) => Ok(narrow("x32")?),
        (elf::ELFCLASS32 | elf::ELFCLASS64, machine) => {
            Err(format!("it is a program for another processor ({})", machine_name(machine)).into())
        }
        _ => Err("the ELF header names neither 32 nor 64 bit".into()),
    }
}

/// The thread-local variables of a file (PT_TLS): the address, the number of bytes that a thread has of them, and their alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tls {
    pub address: u64,
    pub len: u64,
    pub align: u64,
}

/// Returns the thread-local variables of a file with 64-bit addresses, if it has any.
pub fn tls(bytes: &[u8]) -> Option<Tls> {
    let (header, _) = pod::from_bytes::<elf::FileHeader64<LE>>(bytes).ok()?;
    let len = usize::from(header.e_phnum(LE)) * size_of::<elf::ProgramHeader64<LE>>();
    let segments: &[elf::ProgramHeader64<LE>] = records(slice(bytes, header.e_phoff(LE), len as u64)?);
    let segment = segments.iter().find(|segment| segment.p_type(LE) == elf::PT_TLS)?;
    Some(Tls { address: segment.p_vaddr(LE), len: segment.p_memsz(LE), align: segment.p_align(LE).max(1) })
}

/// Returns the name by which other files need a library (DT_SONAME), if it has one.
pub fn soname(bytes: &[u8]) -> Option<String> {
    let name = crate::file::elf::Elf::parse_any(bytes).ok()?.soname()?;
    Some(String::from_utf8_lossy(name).into_owned()).filter(|name| !name.is_empty())
}

/// Returns the names of the libraries that a program or library needs (DT_NEEDED).
pub fn needed(bytes: &[u8]) -> Vec<String> {
    let Ok(file) = crate::file::elf::Elf::parse_any(bytes) else { return Vec::new() };
    file.needed().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

/// Returns the strings of the dynamic linker (DT_STRTAB), each with a zero byte at its end: the names of what a file imports and exports.
/// A name may be the end of a longer one. `None` if the file has none, as a static program.
pub fn dynamic_strings(bytes: &[u8]) -> Option<&[u8]> {
    let file = crate::file::elf::Elf::parse_any(bytes).ok()?;
    let (address, len) = (file.dynamic_value(elf::DT_STRTAB)?, file.dynamic_value(elf::DT_STRSZ)?);
    file.at_address(address, len)
}

fn read_program<Elf: FileHeader<Endian = LE>>(
    bytes: &[u8],
    narrow: Option<&'static str>,
) -> Result<Program, &'static str> {
    let (header, _) = pod::from_bytes::<Elf>(bytes).map_err(|()| IN_HEADER)?;
    let elf_type = match header.e_type(LE) {
        elf::ET_EXEC => ElfType::Exec,
        elf::ET_DYN => ElfType::Dyn,
        _ => return Err("the ELF file is not a program"),
    };
    let count = usize::from(header.e_phnum(LE));
    let len = count * size_of::<Elf::ProgramHeader>();
    let table = slice(bytes, header.e_phoff(LE).into(), len as u64);
    let segments: &[Elf::ProgramHeader] = records(table.ok_or("the file ends inside the program headers")?);
    let mut program =
        Program { narrow, elf_type, interpreter: None, needs_libraries: false, code: Vec::new() };
    for segment in segments {
        let offset = segment.p_offset(LE).into();
        let contents = || slice(bytes, offset, segment.p_filesz(LE).into());
        match segment.p_type(LE) {
            elf::PT_INTERP => {
                let name = contents().ok_or("the file ends inside the interpreter's name")?;
                let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
                program.interpreter = Some(String::from_utf8_lossy(name).into_owned());
            }
            elf::PT_DYNAMIC => {
                let entries: &[Elf::Dyn] = records(at_address(bytes, segments, segment.p_vaddr(LE).into()));
                let used = entries.iter().map(|entry| entry.d_tag(LE)).take_while(|&tag| tag != elf::DT_NULL);
                program.needs_libraries = used.into_iter().any(|tag| tag == elf::DT_NEEDED);
            }
            elf::PT_LOAD if segment.p_flags(LE).contains(elf::PF_X) => {
                contents().ok_or("the file ends before its code does")?;
                program.code.push(ExecutableSegment {
                    address: segment.p_vaddr(LE).into(),
                    offset,
                    len: segment.p_memsz(LE).into(),
                });
            }
            _ => {}
        }
    }
    if program.code.is_empty() { Err("the ELF file has no code") } else { Ok(program) }
}

/// Returns the file's bytes from an address to the end of its segment: the dynamic linker finds what it reads by addresses.
fn at_address<'d, Segment: ProgramHeader<Endian = LE>>(
    bytes: &'d [u8],
    segments: &[Segment],
    address: u64,
) -> &'d [u8] {
    let found = segments.iter().filter(|segment| segment.p_type(LE) == elf::PT_LOAD).find_map(|load| {
        let (len, offset): (u64, u64) = (load.p_filesz(LE).into(), load.p_offset(LE).into());
        let within = address.checked_sub(load.p_vaddr(LE).into())?;
        slice(bytes, offset.checked_add(within)?, len.checked_sub(within)?)
    });
    found.unwrap_or_default()
}

fn machine_name(machine: elf::Machine) -> String {
    match machine {
        elf::EM_MIPS => "MIPS".into(),
        elf::EM_PPC => "PowerPC".into(),
        elf::EM_PPC64 => "PowerPC64".into(),
        elf::EM_S390 => "s390".into(),
        elf::EM_ARM => "ARM".into(),
        elf::EM_AARCH64 => "AArch64".into(),
        elf::EM_RISCV => "RISC-V".into(),
        elf::EM_LOONGARCH => "LoongArch".into(),
        other => format!("ELF machine {}", other.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Vec<u8> {
        std::fs::read("/proc/self/exe").expect("our own program")
    }

    #[test]
    fn reads_its_own_program() {
        let program = read(&own()).expect("a program");
        assert_eq!((program.narrow, program.elf_type), (None, ElfType::Dyn));
        assert!(program.needs_libraries);
        assert_eq!(program.interpreter.as_deref(), Some("/lib64/ld-linux-x86-64.so.2"));
        assert_eq!(program.code.len(), 1);
    }

    #[test]
    fn libraries_that_it_needs() {
        assert!(needed(&own()).iter().any(|name| name == "libc.so.6"), "{:?}", needed(&own()));
        assert_eq!(needed(b"\x7fELF"), [""; 0]);
    }

    #[test]
    fn every_truncation_is_an_answer() {
        let bytes = own();
        for len in 0..4096 {
            let why = read(&bytes[..len]).expect_err("cut off");
            assert_eq!(why == NO_ELF, len < 4, "{len}: {why}");
        }
    }

    #[test]
    fn other_machines_are_named() {
        let mut bytes = own();
        bytes[18] = 183;
        assert_eq!(read(&bytes), Err("it is a program for another processor (AArch64)".into()));
        (bytes[4], bytes[18]) = (1, 40);
        assert_eq!(read(&bytes), Err("it is a program for another processor (ARM)".into()));
        (bytes[4], bytes[5], bytes[18], bytes[19]) = (2, 2, 0, 22);
        assert_eq!(read(&bytes), Err("it is a program for another processor (s390)".into()));
    }

    #[test]
    fn headers_of_32_bits() {
        let mut bytes = vec![0; 52 + 32 + 4];
        bytes[..7].copy_from_slice(b"\x7fELF\x01\x01\x01");
        let mut put = |at: usize, word: u32| bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
        put(16, u32::from(elf::ET_EXEC.0) | u32::from(elf::EM_386.0) << 16);
        put(28, 52);
        put(44, 1);
        for (field, word) in [elf::PT_LOAD.0, 84, 0x8048054, 0, 4, 0x10, elf::PF_X.0].into_iter().enumerate()
        {
            put(52 + 4 * field, word);
        }
        let code = vec![ExecutableSegment { address: 0x804_8054, offset: 84, len: 0x10 }];
        let (narrow, elf_type) = (Some("i386"), ElfType::Exec);
        let program = Program { narrow, elf_type, interpreter: None, needs_libraries: false, code };
        assert_eq!(read(&bytes), Ok(program));
        assert_eq!(read(&bytes[..87]), Err("the file ends before its code does".into()));
    }
}
