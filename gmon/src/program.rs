//! The profiled program's functions, as gprof sees them.
//!
//! gprof knows a function by the symbols that it takes from the program's symbol table, and charges every
//! address to the nearest symbol at or before it. A reader of the program's file makes a [`Program`] from its
//! symbols; this crate reads no program files itself.

use std::ops::Range;

use crate::build_id::BuildId;
use crate::format::Format;

/// A function symbol.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Function {
    /// Link-time address.
    pub start: u64,
    /// Bytes; 0 if the symbol does not say.
    pub size: u64,
    /// As in the symbol table, not demangled.
    pub name: String,
}

impl Function {
    /// First address behind it.
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.size)
    }
}

/// A function that gprof does not show: its symbol is local, and has a `$` in its name or a `.` that is
/// followed by something other than a number, `clone.N` or `constprop.N`. gprof charges its code to the
/// symbol before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hidden {
    pub function: Function,
    /// The function that gprof shows and that this one is a part or a version of.
    pub whole: Option<Whole>,
}

/// The function that a [`Hidden`] one belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole {
    /// Its address.
    pub start: u64,
    pub relation: Relation,
}

/// What a hidden function is to the one that it belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Relation {
    /// A second version of it (`f.isra.0`): whoever calls it calls the function.
    Version,
    /// The rest of it (`f.part.0`), which others call that have the beginning inlined: a call from anywhere
    /// but the function itself is a call of the function.
    Rest,
    /// A piece of its body (`f.cold`, `f._omp_fn.0`): control comes there in the course of a call of the
    /// function, and no call of the piece is a call of the function.
    Piece,
}

/// Functions and code of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    pub format: Format,
    /// [`BuildId::UNKNOWN`] unless the file has one.
    pub build_id: BuildId,
    functions: Vec<Function>,
    /// Sorted: addresses of `functions` that name data. gprof takes those that lie among code, and weak ones.
    data: Vec<u64>,
    /// Sorted by address.
    hidden: Vec<Hidden>,
    code: Vec<Range<u64>>,
}

/// Where gprof puts an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place<'a> {
    /// In the function, or in code after a symbol without size.
    In(&'a Function),
    /// Behind the function's end; gprof extends it to the next symbol.
    Behind(&'a Function),
    /// Before the first function or outside the code; gprof drops it.
    Nowhere,
}

impl Program {
    /// `functions` in any order, one name for each address is kept; `code`: the ranges of executable
    /// sections.
    pub fn new(format: Format, mut functions: Vec<Function>, mut code: Vec<Range<u64>>) -> Program {
        // Of several names of an address, one that has a size says more.
        functions.sort_by(|a, b| {
            (a.start, a.size == 0, &a.name, a.size).cmp(&(b.start, b.size == 0, &b.name, b.size))
        });
        functions.dedup_by_key(|function| function.start);
        code.sort_by_key(|range| range.start);
        let (data, hidden) = (Vec::new(), Vec::new());
        Program { format, build_id: BuildId::UNKNOWN, functions, data, hidden, code }
    }

    /// Replaces the symbols and the build-id. `functions` and `hidden` are sorted by address, with one symbol for
    /// each address; `data` holds, sorted, the addresses of those `functions` that name data.
    pub fn with_symbols(
        self,
        build_id: BuildId,
        functions: Vec<Function>,
        data: Vec<u64>,
        hidden: Vec<Hidden>,
    ) -> Program {
        Program { build_id, functions, data, hidden, ..self }
    }

    /// Sorted by address, one for each address.
    pub fn functions(&self) -> &[Function] {
        &self.functions
    }

    /// Ranges of the executable sections, sorted.
    pub fn code(&self) -> &[Range<u64>] {
        &self.code
    }

    /// Sorted by address: the functions that gprof does not show.
    pub fn hidden(&self) -> &[Hidden] {
        &self.hidden
    }

    /// The hidden function that begins at an address.
    pub fn hidden_at(&self, start: u64) -> Option<&Hidden> {
        let index = self.hidden.binary_search_by_key(&start, |hidden| hidden.function.start).ok()?;
        self.hidden.get(index)
    }

    /// The symbol that gprof charges for an address, however far before it that is.
    pub fn symbol(&self, address: u64) -> Option<&Function> {
        let after = self.functions.partition_point(|function| function.start <= address);
        self.functions.get(after.checked_sub(1)?)
    }

    /// Whether a symbol of [`Program::functions`] names data.
    pub fn is_data(&self, symbol: &Function) -> bool {
        self.data.binary_search(&symbol.start).is_ok()
    }

    /// The range of code that an address lies in.
    pub fn code_at(&self, address: u64) -> Option<&Range<u64>> {
        let after = self.code.partition_point(|range| range.start <= address);
        self.code.get(after.checked_sub(1)?).filter(|range| range.contains(&address))
    }

    /// The function that gprof charges for an address.
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
