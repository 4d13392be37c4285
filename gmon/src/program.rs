//! The functions of the profiled program, as gprof sees them.
//!
//! gprof knows a function by the symbols that it accepts from the program's symbol table, and charges every
//! address to the nearest symbol at or before it. A reader of the program's file makes a [`Program`] from its
//! symbols; this crate does not read program files.

use std::ops::Range;

use crate::build_id::BuildId;
use crate::format::Format;

/// A function symbol.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Function {
    /// The link-time address.
    pub start: u64,
    /// The size in bytes, or 0 if the symbol has none.
    pub size: u64,
    /// The name in the symbol table, not demangled.
    pub name: String,
}

impl Function {
    /// Returns the address after its last byte.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.size)
    }
}

/// A function that gprof does not show: its symbol is local, and has a `$` in its name or a `.` that is
/// followed by something other than a number, `clone.N` or `constprop.N`. gprof charges its code to the
/// preceding symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hidden {
    pub function: Function,
    /// The function that gprof shows and of which this one is a part or a version.
    pub whole: Option<Whole>,
}

/// The function to which a [`Hidden`] one belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    /// Its address.
    pub start: u64,
    pub relation: Relation,
}

/// The relation of a hidden function to the one to which it belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Relation {
    /// A second version of it (`f.isra.0`). A call of the version is a call of the function.
    Version,
    /// The rest of it (`f.part.0`). Other functions, into which the beginning is inlined, call the rest, so a
    /// call from anywhere except the function itself is a call of the function.
    Rest,
    /// A piece of its body (`f.cold`, `f._omp_fn.0`). Control enters it during a call of the function, and no
    /// call of the piece is a call of the function.
    Piece,
}

/// The functions and the code of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub format: Format,
    /// The build-id, or [`BuildId::UNKNOWN`] if the file has none.
    pub build_id: BuildId,
    functions: Vec<Function>,
    /// The addresses of `functions` that name data, sorted. gprof accepts data symbols that are in code, and
    /// weak ones.
    data: Vec<u64>,
    /// The hidden functions, sorted by address.
    hidden: Vec<Hidden>,
    code: Vec<Range<u64>>,
}

/// The place to which gprof assigns an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// In the function, or in code after a symbol without a size.
    In(&'a Function),
    /// After the function's end; gprof extends the function to the next symbol.
    Behind(&'a Function),
    /// Before the first function or outside the code; gprof drops it.
    Nowhere,
}

impl Program {
    /// Returns a program. `functions` may have any order, and one name is kept for each address; `code` are
    /// the ranges of executable sections.
    pub fn new(format: Format, mut functions: Vec<Function>, mut code: Vec<Range<u64>>) -> Program {
        // Of several names of an address, one with a size is preferred.
        functions.sort_by(|a, b| {
            (a.start, a.size == 0, &a.name, a.size).cmp(&(b.start, b.size == 0, &b.name, b.size))
        });
        functions.dedup_by_key(|function| function.start);
        code.sort_by_key(|range| range.start);
        let (data, hidden) = (Vec::new(), Vec::new());
        Program { format, build_id: BuildId::UNKNOWN, functions, data, hidden, code }
    }

    /// Replaces the symbols and the build-id. `functions` and `hidden` are sorted by address, with one symbol
    /// for each address; `data` has the addresses of those `functions` that name data, sorted.
    pub fn with_symbols(
        self,
        build_id: BuildId,
        functions: Vec<Function>,
        data: Vec<u64>,
        hidden: Vec<Hidden>,
    ) -> Program {
        Program { build_id, functions, data, hidden, ..self }
    }

    /// Returns the functions, sorted by address, one for each address.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Returns the ranges of the executable sections, sorted.
    pub fn code(&self) -> &[Range<u64>] {
        &self.code
    }

    /// Returns the functions that gprof does not show, sorted by address.
    pub fn hidden(&self) -> &[Hidden] {
        &self.hidden
    }

    /// Returns the hidden function that begins at an address.
    pub fn hidden_at(&self, start: u64) -> Option<&Hidden> {
        let index = self.hidden.binary_search_by_key(&start, |hidden| hidden.function.start).ok()?;
        self.hidden.get(index)
    }

    /// Returns the symbol to which gprof charges an address, however far before the address it is.
    pub fn symbol(&self, address: u64) -> Option<&Function> {
        let after = self.functions.partition_point(|function| function.start <= address);
        self.functions.get(after.checked_sub(1)?)
    }

    /// Whether a symbol of [`Program::functions`] names data.
    pub fn is_data(&self, symbol: &Function) -> bool {
        self.data.binary_search(&symbol.start).is_ok()
    }

    /// Returns the range of code that contains an address.
    pub fn code_at(&self, address: u64) -> Option<&Range<u64>> {
        let after = self.code.partition_point(|range| range.start <= address);
        self.code.get(after.checked_sub(1)?).filter(|range| range.contains(&address))
    }

    /// Returns the function to which gprof charges an address.
    pub fn place(&self, address: u64) -> Place<'_> {
        let after = self.functions.partition_point(|function| function.start <= address);
        let Some(function) = after.checked_sub(1).map(|index| &self.functions[index]) else {
            return Place::Nowhere;
        };
        let inside = function.size > 0 && address - function.start < function.size;
        let has_next = after < self.functions.len();
        match (inside, self.code_at(address).is_some()) {
            (true, _) => Place::In(function),
            (false, true) if function.size == 0 => Place::In(function),
            (false, true) => Place::Behind(function),
            (false, false) if has_next => Place::Behind(function),
            (false, false) => Place::Nowhere,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_in_behind_or_nowhere() {
        let function = |start, size| Function { start, size, name: format!("f{start:x}") };
        let functions = vec![function(0x110, 0x10), function(0x140, 0), function(0x160, 8)];
        let program = Program::new(Format::LITTLE_64, functions, std::iter::once(0x100..0x180).collect());
        let name = |address| match program.place(address) {
            Place::In(function) => format!("in {}", function.name),
            Place::Behind(function) => format!("behind {}", function.name),
            Place::Nowhere => "nowhere".to_owned(),
        };
        assert_eq!(name(0x10f), "nowhere");
        assert_eq!(name(0x11f), "in f110");
        assert_eq!(name(0x120), "behind f110");
        assert_eq!(name(0x15f), "in f140");
        assert_eq!(name(0x17f), "behind f160");
        assert_eq!(name(0x180), "nowhere");
    }
}
