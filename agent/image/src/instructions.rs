//! The instructions of a program, which may be a 32-bit one, and the functions that contain them.

use std::ops::Range;

use ::object::{Architecture, Object, ObjectSection, ObjectSymbol, SymbolKind};
use gmon::{BuildId, Format, Function};
use iced_x86::{Decoder, DecoderOptions, Instruction};

use crate::file::object::{self, ProgramError, is_code};
use crate::names::text;

/// The executable bytes and the functions of an x86 program.
#[derive(Clone, Debug)]
pub struct Code {
    pub build_id: BuildId,
    /// 32 or 64.
    bitness: u32,
    sections: Vec<Section>,
    functions: Vec<Function>,
}

#[derive(Clone, Debug)]
struct Section {
    address: u64,
    bytes: Vec<u8>,
}

/// Why a file's instructions cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CodeError {
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error("code for {0:?}, expected x86-64 or i386")]
    Architecture(Architecture),
    #[error("no code in it (a separate debug file?), expected the program itself")]
    NoCode,
}

impl Code {
    /// Reads an ELF file. In contrast to [`Program`](gmon::Program), which contains what gprof sees, this has
    /// every function symbol, also those of parts of functions (`f.cold`, `f.part.0`).
    ///
    /// # Errors
    /// The bytes are not an x86 ELF file, or are damaged.
    pub fn parse(bytes: &[u8]) -> Result<Code, CodeError> {
        let file = object::open(bytes)?;
        let bitness = match file.architecture() {
            Architecture::X86_64 => 64,
            Architecture::I386 => 32,
            other => return Err(CodeError::Architecture(other)),
        };
        let mut sections: Vec<_> = file
            .sections()
            .filter(is_code)
            .filter_map(|section| {
                let bytes = section.data().ok().filter(|bytes| !bytes.is_empty())?.to_vec();
                // A section beyond the end of the address space is damaged.
                section.address().checked_add(bytes.len() as u64)?;
                Some(Section { address: section.address(), bytes })
            })
            .collect();
        if sections.is_empty() {
            return Err(CodeError::NoCode);
        }
        sections.sort_by_key(|section| section.address);
        let build_id = object::build_id(&file);
        let mut code = Code { build_id, bitness, sections, functions: Vec::new() };
        code.set_functions(symbols(&file));
        Ok(code)
    }

    /// Returns 64-bit code that is in no file: the address, the name and the bytes of each function.
    pub fn of_bytes(functions: &[(u64, &str, &[u8])]) -> Code {
        let section = |&(address, _, bytes): &(u64, &str, &[u8])| Section { address, bytes: bytes.to_vec() };
        let sections = functions.iter().map(section).collect();
        let mut code = Code { build_id: BuildId::UNKNOWN, bitness: 64, sections, functions: Vec::new() };
        let function = |&(start, name, bytes): &(u64, &str, &[u8])| Function {
            start,
            size: bytes.len() as u64,
            name: name.to_owned(),
        };
        code.set_functions(functions.iter().map(function).collect());
        code
    }

    /// Removes all functions, as if the program were stripped.
    pub fn take_no_symbols(&mut self) {
        self.functions.clear();
    }

    /// Uses the names in a separate debug file, if it has more.
    ///
    /// # Errors
    /// The bytes are not an ELF file.
    pub fn take_symbols(&mut self, debug_file: &[u8]) -> Result<(), ProgramError> {
        let functions = symbols(&::object::File::parse(debug_file)?);
        if functions.len() > self.functions.len() {
            self.set_functions(functions);
        }
        Ok(())
    }

    fn set_functions(&mut self, mut functions: Vec<Function>) {
        functions.retain(|function| self.section(function.start).is_some());
        // Of an address's names, one with a size is preferred, then one without leading underscores.
        let key = |f: &Function| (f.start, f.size == 0, f.name.starts_with('_'), f.name.clone());
        functions.sort_by_cached_key(key);
        functions.dedup_by_key(|function| function.start);
        let starts: Vec<u64> = functions.iter().skip(1).map(|f| f.start).chain([u64::MAX]).collect();
        for (function, next) in functions.iter_mut().zip(starts) {
            let Some(section) = self.section(function.start) else { continue };
            let end = section.end().min(next);
            if function.size == 0 || function.start.saturating_add(function.size) > end {
                function.size = end - function.start;
            }
        }
        self.functions = functions;
    }

    /// Returns the format of the program's profiles.
    pub fn format(&self) -> Format {
        if self.bitness == 32 { Format::LITTLE_32 } else { Format::LITTLE_64 }
    }

    /// Returns the functions, sorted and without overlap. All have a size.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Returns the index of the function that contains the address.
    pub fn function_at(&self, address: u64) -> Option<usize> {
        let index = self.functions.partition_point(|function| function.start <= address).checked_sub(1)?;
        let function = &self.functions[index];
        (address - function.start < function.size).then_some(index)
    }

    /// Returns the addresses of the executable section that contains this one.
    pub fn section_at(&self, address: u64) -> Option<Range<u64>> {
        self.section(address).map(|section| section.address..section.end())
    }

    fn section(&self, address: u64) -> Option<&Section> {
        let index = self.sections.partition_point(|section| section.address <= address).checked_sub(1)?;
        let section = &self.sections[index];
        (address < section.end()).then_some(section)
    }

    /// Returns the instructions from an address on, up to the first that cannot be decoded, or to the
    /// section's end.
    pub fn instructions(&self, address: u64) -> impl Iterator<Item = Instruction> + use<'_> {
        let bytes = self
            .section(address)
            .and_then(|section| section.bytes.get(usize::try_from(address - section.address).ok()?..));
        let bytes = bytes.unwrap_or_default();
        let mut decoder = Decoder::with_ip(self.bitness, bytes, address, DecoderOptions::NONE);
        std::iter::from_fn(move || {
            let instruction = decoder.can_decode().then(|| decoder.decode())?;
            (!instruction.is_invalid()).then_some(instruction)
        })
    }

    /// Returns the bytes of an instruction.
    pub fn bytes(&self, instruction: &Instruction) -> &[u8] {
        let section = self.section(instruction.ip());
        let bytes = section.and_then(|section| {
            let start = usize::try_from(instruction.ip() - section.address).ok()?;
            section.bytes.get(start..start + instruction.len())
        });
        bytes.unwrap_or_default()
    }
}

impl Section {
    fn end(&self) -> u64 {
        self.address + self.bytes.len() as u64
    }
}

/// Returns the function symbols; for a stripped program, those to which other objects may bind.
fn symbols(file: &::object::File) -> Vec<Function> {
    let taken = |symbol: &::object::Symbol| {
        let name = symbol.name_bytes().ok().map(text::of).filter(|name| !name.is_empty())?;
        let function = symbol.kind() == SymbolKind::Text && symbol.is_definition();
        function.then(|| Function { start: symbol.address(), size: symbol.size(), name: name.to_owned() })
    };
    let functions: Vec<_> = file.symbols().filter_map(|symbol| taken(&symbol)).collect();
    if functions.is_empty() {
        file.dynamic_symbols().filter_map(|symbol| taken(&symbol)).collect()
    } else {
        functions
    }
}
