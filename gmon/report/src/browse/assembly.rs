//! The instructions of a function with their counts and samples.

use std::collections::BTreeMap;
use std::path::Path;

use gmon_blocks::{Disassembler, Syntax};
use gmon_export::html::Listing;
use gprofinject_image::debug::file_with_names;
use gprofinject_image::instructions::Code;
use gprofinject_image::names::demangle::demangle;
use gprofinject_image::names::short;

use crate::browse::data::Symbol;
use crate::cli::text::plain;

/// The most instructions of a function that are shown.
const MOST: usize = 200_000;

/// The instructions of a function, and of its cold part if that has samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Assembly {
    pub(crate) rows: Vec<Row>,
    /// Whether executions were counted.
    pub(crate) has_counts: bool,
    /// The sum of all samples.
    pub(crate) samples: u64,
    /// The index of the instruction with the highest cost.
    pub(crate) start: usize,
}

/// An instruction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row {
    /// The link address.
    pub(crate) address: u64,
    /// How often it was executed; `None` if that was not counted.
    pub(crate) count: Option<u64>,
    pub(crate) samples: u64,
    pub(crate) text: String,
}

/// The code of a module.
pub(crate) struct Module {
    code: Code,
    disassembler: Disassembler,
}

impl Module {
    /// Reads the code of a module's file.
    ///
    /// # Errors
    /// The reason, for the user.
    pub(crate) fn read(path: &Path, bytes: &[u8]) -> Result<Module, String> {
        let mut code = Code::parse(bytes).map_err(|error| error.to_string())?;
        if let Some(file) = file_with_names(path, bytes) {
            // Without the names, there are addresses.
            let _ = code.take_symbols(&file.bytes);
        }
        let name = |name: &str| short(&demangle(name)).into_owned();
        let disassembler = Disassembler::new(Syntax::Att, &code, name);
        Ok(Module { code, disassembler })
    }

    /// Returns the instructions of a function. `samples` are those of the function by link address.
    ///
    /// # Errors
    /// The reason why there are none, for the user.
    pub(crate) fn assembly(
        &mut self,
        function: &Symbol,
        samples: &BTreeMap<u64, u64>,
    ) -> Result<Assembly, String> {
        let mut rows = Vec::new();
        let Some((start, end)) = self.range(function) else {
            return Err(format!("no function is called {} in its module's symbols", plain(&function.name)));
        };
        let mut parts = vec![(start, end)];
        for &address in samples.keys() {
            // The compiler may have moved parts of the function that are rarely executed.
            if !parts.iter().any(|&(start, end)| (start..end).contains(&address))
                && let Some(part) =
                    self.code.function_at(address).and_then(|at| self.code.functions().get(at))
            {
                parts.push((part.start, part.end()));
            }
        }
        for (start, end) in parts {
            let instructions = self.code.instructions(start).take_while(|next| next.ip() < end);
            for instruction in instructions.take(MOST.saturating_sub(rows.len())) {
                let (address, next) = (instruction.ip(), instruction.next_ip());
                let here = samples.range(address..next.max(address)).map(|(_, &samples)| samples);
                rows.push(Row {
                    address,
                    count: None,
                    samples: here.fold(0, u64::saturating_add),
                    text: self.disassembler.text(&instruction),
                });
            }
        }
        match rows.is_empty() {
            true => Err(format!("no code at {start:#x}, where the function begins")),
            false => Ok(Assembly::new(rows)),
        }
    }

    /// Returns the address of a function, and the one after it; `None` if neither is known.
    fn range(&self, function: &Symbol) -> Option<(u64, u64)> {
        /// The size of functions of which nothing says where they end.
        const USUAL: u64 = 4096;
        let functions = self.code.functions();
        if function.address == 0 {
            // The recording has no addresses of functions that were not hooked.
            let found = functions.iter().find(|known| known.name == function.name)?;
            return Some((found.start, found.end()));
        }
        let start = function.address;
        let size = match function.size {
            0 => {
                let next = functions.iter().map(|next| next.start).filter(|&next| next > start).min();
                next.map_or(USUAL, |next| (next - start).min(USUAL))
            }
            size => size,
        };
        Some((start, start.saturating_add(size)))
    }
}

impl Assembly {
    /// Returns the instructions of a listing with their counts, and the samples by link address.
    pub(crate) fn of(listing: &Listing, samples: &BTreeMap<u64, u64>) -> Assembly {
        let next = listing.instructions.iter().skip(1).map(|next| Some(next.address)).chain([None]);
        let row = |(instruction, next): (&gmon_export::html::Instruction, Option<u64>)| {
            let address = instruction.address;
            // No instruction has more bytes.
            let end = next.filter(|next| (address..address + 16).contains(next)).unwrap_or(address + 1);
            let here = samples.range(address..end).map(|(_, &samples)| samples);
            Row {
                address,
                count: instruction.count,
                samples: here.fold(0, u64::saturating_add),
                text: instruction.text.clone(),
            }
        };
        Assembly::new(listing.instructions.iter().zip(next).map(row).collect())
    }

    fn new(rows: Vec<Row>) -> Assembly {
        let has_counts = rows.iter().any(|row| row.count.is_some());
        let samples = rows.iter().fold(0_u64, |sum, row| sum.saturating_add(row.samples));
        let key = |row: &Row| match samples {
            0 => row.count.unwrap_or(0),
            _ => row.samples,
        };
        let start = rows.iter().enumerate().max_by_key(|(index, row)| (key(row), std::cmp::Reverse(*index)));
        let start = start.map_or(0, |(index, _)| index);
        Assembly { rows, has_counts, samples, start }
    }
}

#[cfg(test)]
mod tests {
    use gmon_export::html::Instruction;

    use super::*;

    #[test]
    fn samples_belong_to_the_instruction_that_contains_them() {
        let instruction = |address, count| Instruction { address, count, ..Instruction::default() };
        let listing = Listing {
            function: 0,
            instructions: vec![
                instruction(0x10, Some(3)),
                instruction(0x13, Some(3)),
                instruction(0x900, None),
            ],
        };
        let samples = BTreeMap::from([(0x10, 1), (0x12, 2), (0x13, 9), (0x20, 100), (0x900, 4)]);
        let assembly = Assembly::of(&listing, &samples);
        assert_eq!(assembly.rows.iter().map(|row| row.samples).collect::<Vec<_>>(), [3, 9, 4]);
        assert_eq!((assembly.start, assembly.samples, assembly.has_counts), (1, 16, true));
        assert_eq!(Assembly::of(&Listing::default(), &samples), Assembly::default());
    }

    #[test]
    fn code_of_a_module() {
        // Each function is `push %rbx`, `pop %rbx`, `ret`; the second is where the compiler has moved a part of the first.
        let bytes = [0x53, 0x5b, 0xc3];
        let code = Code::of_bytes(&[(0x1000, "f", &bytes), (0x2000, "f.cold", &bytes)]);
        let disassembler = Disassembler::new(Syntax::Att, &code, str::to_owned);
        let mut module = Module { code, disassembler };
        let symbol =
            Symbol { module: gmon_run::Module::default(), address: 0x1000, size: 3, name: "f".to_owned() };
        let rows = |assembly: Result<Assembly, String>| -> Vec<(u64, u64)> {
            assembly.expect("code").rows.iter().map(|row| (row.address, row.samples)).collect()
        };
        let found = module.assembly(&symbol, &BTreeMap::from([(0x1001, 5), (0x2000, 2), (0x9000, 7)]));
        let expected = [(0x1000, 0), (0x1001, 5), (0x1002, 0), (0x2000, 2), (0x2001, 0), (0x2002, 0)];
        assert_eq!(rows(found), expected);
        let by_name = Symbol { address: 0, size: 0, ..symbol.clone() };
        assert_eq!(rows(module.assembly(&by_name, &BTreeMap::new())), expected.map(|(at, _)| (at, 0))[..3]);
        let without_size = Symbol { size: 0, ..symbol.clone() };
        assert_eq!(rows(module.assembly(&without_size, &BTreeMap::new())).len(), 3);
        for nowhere in [Symbol { address: 1, ..symbol.clone() }, Symbol { name: "g".to_owned(), ..by_name }] {
            assert!(module.assembly(&nowhere, &BTreeMap::new()).is_err());
        }
        assert!(Module::read(Path::new("/bin/p"), b"nothing").is_err());
    }
}
