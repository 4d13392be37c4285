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
        let end = function.address.saturating_add(self.size(function));
        let mut parts = vec![(function.address, end)];
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
            true => Err(format!("no code at {:#x}, where the function begins", function.address)),
            false => Ok(Assembly::new(rows)),
        }
    }

    fn size(&self, function: &Symbol) -> u64 {
        /// The size of functions of which nothing says where they end.
        const USUAL: u64 = 4096;
        match function.size {
            0 => {
                let next = self.code.functions().iter().map(|next| next.start);
                let next = next.filter(|&start| start > function.address).min();
                next.map_or(USUAL, |next| (next - function.address).min(USUAL))
            }
            size => size,
        }
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
    fn this_command_itself() {
        let path = std::env::current_exe().expect("a path");
        let bytes = std::fs::read(&path).expect("a file");
        let mut module = Module::read(&path, &bytes).expect("a program");
        let wanted =
            module.code.functions().iter().find(|function| function.size > 64).expect("a function").clone();
        let symbol = Symbol {
            path: path.display().to_string(),
            build_id: Vec::new(),
            address: wanted.start,
            size: wanted.size,
            name: wanted.name,
        };
        let assembly = module.assembly(&symbol, &BTreeMap::from([(wanted.start, 5)])).expect("code");
        assert_eq!((assembly.rows[0].address, assembly.rows[0].samples), (wanted.start, 5));
        assert!(assembly.rows.last().is_some_and(|row| row.address < wanted.start + wanted.size));
        let nowhere = Symbol { address: 1, size: 8, ..symbol };
        assert!(module.assembly(&nowhere, &BTreeMap::new()).is_err());
        assert!(Module::read(&path, b"nothing").is_err());
    }
}
