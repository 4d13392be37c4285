//! Instructions as text, with the names of functions in their operands.

use gprofinject_image::instructions::Code;
use iced_x86::{Formatter, GasFormatter, Instruction, IntelFormatter, SymbolResolver, SymbolResult};

/// How assembly is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// As gcc and objdump do: `mov %rsp,%rbp`.
    Att,
    /// As Intel's manuals do: `mov rbp, rsp`.
    Intel,
}

/// Writes instructions as text.
pub struct Disassembler {
    formatter: Box<dyn Formatter>,
}

impl Disassembler {
    /// Returns a disassembler for a program's code. Operands have the functions' names as `shown` returns them.
    pub fn new(syntax: Syntax, code: &Code, shown: impl Fn(&str) -> String) -> Disassembler {
        let functions = code.functions().iter().map(|f| (f.start, f.end(), shown(&f.name))).collect();
        let names: Option<Box<dyn SymbolResolver>> = Some(Box::new(Names { functions }));
        let mut formatter: Box<dyn Formatter> = match syntax {
            Syntax::Att => Box::new(GasFormatter::with_options(names, None)),
            Syntax::Intel => Box::new(IntelFormatter::with_options(names, None)),
        };
        formatter.options_mut().set_first_operand_char_index(8);
        formatter.options_mut().set_hex_prefix("0x");
        formatter.options_mut().set_hex_suffix("");
        formatter.options_mut().set_uppercase_hex(false);
        formatter.options_mut().set_space_after_operand_separator(syntax == Syntax::Intel);
        formatter.options_mut().set_rip_relative_addresses(false);
        Disassembler { formatter }
    }

    /// Returns an instruction as text.
    pub fn text(&mut self, instruction: &Instruction) -> String {
        let mut text = String::new();
        self.formatter.format(instruction, &mut text);
        text
    }
}

/// The functions' first addresses, the addresses after their ends, and their names.
struct Names {
    functions: Vec<(u64, u64, String)>,
}

impl SymbolResolver for Names {
    fn symbol(
        &mut self,
        _: &Instruction,
        _: u32,
        _: Option<u32>,
        address: u64,
        _: u32,
    ) -> Option<SymbolResult<'_>> {
        let index = self.functions.partition_point(|(start, ..)| *start <= address).checked_sub(1)?;
        let (start, end, name) = &self.functions[index];
        (address < *end).then(|| SymbolResult::with_str(*start, name))
    }
}
