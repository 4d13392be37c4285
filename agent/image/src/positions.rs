//! The places in the source by which compilers recognise code when they compile it again: the line within its function, the
//! discriminator, and the calls that were inlined.
//!
//! The debug information of a file enters; for the address of an instruction, its [`Position`]s leave, the function's own first and
//! that of the innermost inlined one last. What a profile makes of them, this layer does not know.
//!
//! DWARF 5, 6.2.2 (`discriminator`) and 3.3.8 (inlined calls). `DW_AT_GNU_discriminator` at an inlined call is that of the call (LLVM,
//! `lib/CodeGen/AsmPrinter/DwarfCompileUnit.cpp`; gcc, `gcc/dwarf2out.cc`).

use std::collections::HashMap;

use gimli::{
    DW_AT_GNU_discriminator, DW_AT_MIPS_linkage_name, DW_AT_abstract_origin, DW_AT_call_line,
    DW_AT_decl_line, DW_AT_linkage_name, DW_AT_name, DW_AT_specification, Section, constants as dw,
};

use crate::signatures::DebugInfo;
use crate::signatures::units::{Die, Entry, Producer, Unit, Units, number};

/// How many entries can say something of one function: the code, the abstract function, its declaration in a class.
const CHAIN_MAX: usize = 8;
/// The length in bytes of the longest name that is kept.
const NAME_MAX: usize = 1 << 16;
/// The greatest number of scopes, and of rows of all line tables, that are read.
const SCOPES_MAX: usize = 1 << 25;
const ROWS_MAX: usize = 1 << 27;
/// How deep inlined functions are followed. Only in damaged files are they deeper.
const INLINED_MAX: usize = 256;
/// How often the bytes of all line tables are read at most, which units may share.
const TIMES: usize = 8;

/// The source positions of a file's code.
#[derive(Debug, Default)]
pub struct Positions {
    functions: Vec<SourceFunction>,
    scopes: Vec<Scope>,
    /// The code of functions that are not inlined, sorted.
    roots: Vec<Extent>,
    /// Sorted by address, without overlap.
    rows: Vec<Row>,
}

/// A function of the source.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourceFunction {
    /// The name that it has for the linker, without what a compiler adds to the names of copies and parts.
    pub name: String,
    /// The line of its declaration, from which compilers count; 0 if it is not known.
    pub line: u32,
}

/// A place in a function of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The index of the function in [`Positions::functions`].
    pub function: u32,
    pub line: u32,
    /// As it is in the debug information, or 0.
    pub discriminator: u32,
}

/// Which compiler has made some code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compiler {
    Gcc,
    /// clang, rustc and others that use LLVM.
    Llvm,
    Other,
}

/// Code of a function, as a whole or inlined at one place.
#[derive(Debug)]
struct Scope {
    function: u32,
    compiler: Compiler,
    /// The line and the discriminator of the inlined call.
    call: (u32, u32),
    /// The code of what was inlined into it, sorted.
    inlined: Vec<Extent>,
}

/// A part of the code of a scope.
#[derive(Clone, Copy, Debug)]
struct Extent {
    start: u64,
    end: u64,
    scope: u32,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    start: u64,
    end: u64,
    line: u32,
    discriminator: u32,
}

impl Positions {
    /// Reads the positions of a file's code. Damaged units are left out.
    pub fn read(info: &DebugInfo) -> Positions {
        let mut reader =
            Reader { positions: Positions::default(), indexes: HashMap::new(), dies: HashMap::new() };
        let mut units = Units::new(info);
        for index in 0..units.count() {
            if let Some(unit) = units.read(index) {
                reader.unit(&mut units, index, &unit);
            }
        }
        let mut positions = reader.positions;
        sort(&mut positions.roots);
        for scope in &mut positions.scopes {
            sort(&mut scope.inlined);
        }
        positions.rows = rows(info);
        positions
    }

    /// The functions that [`Position::function`] refers to.
    pub fn functions(&self) -> &[SourceFunction] {
        &self.functions
    }

    /// Returns the function of the source to which the code at an address belongs, inlined or not as a whole, and what has compiled
    /// it.
    pub fn function_at(&self, address: u64) -> Option<(&SourceFunction, Compiler)> {
        let scope = self.scope(find(&self.roots, address)?)?;
        Some((self.functions.get(scope.function as usize)?, scope.compiler))
    }

    /// Returns the positions of an instruction: in the function to which the code belongs, and in each function that was inlined,
    /// the innermost last. Returns `None` if the instruction belongs to no line.
    pub fn at(&self, address: u64) -> Option<Vec<Position>> {
        let row = self.row(address).filter(|row| row.line > 0)?;
        let mut scope = self.scope(find(&self.roots, address)?)?;
        let mut positions = Vec::new();
        while let Some(inner) = find(&scope.inlined, address).and_then(|inner| self.scope(inner)) {
            if positions.len() >= INLINED_MAX {
                return None;
            }
            let (line, discriminator) = inner.call;
            positions.push(Position { function: scope.function, line, discriminator });
            scope = inner;
        }
        let Row { line, discriminator, .. } = *row;
        positions.push(Position { function: scope.function, line, discriminator });
        Some(positions)
    }

    /// Whether any instruction in a range of addresses has a discriminator.
    pub fn has_discriminators(&self, start: u64, end: u64) -> bool {
        let first = self.rows.partition_point(|row| row.end <= start);
        let rows = self.rows.get(first..).unwrap_or_default().iter();
        rows.take_while(|row| row.start < end).any(|row| row.discriminator != 0)
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.roots.is_empty() || self.rows.is_empty()
    }

    fn scope(&self, index: u32) -> Option<&Scope> {
        self.scopes.get(index as usize)
    }

    fn row(&self, address: u64) -> Option<&Row> {
        let index = self.rows.partition_point(|row| row.start <= address).checked_sub(1)?;
        self.rows.get(index).filter(|row| address < row.end)
    }
}

fn sort(extents: &mut [Extent]) {
    extents.sort_by_key(|extent| (extent.start, extent.end));
}

/// Returns the scope with an address, of extents that are sorted. Of those that overlap, which is possible in damaged files only, the
/// one counts that begins last.
fn find(extents: &[Extent], address: u64) -> Option<u32> {
    let index = extents.partition_point(|extent| extent.start <= address).checked_sub(1)?;
    extents.get(index).filter(|extent| address < extent.end).map(|extent| extent.scope)
}

struct Reader {
    positions: Positions,
    /// The index of each function.
    indexes: HashMap<SourceFunction, u32>,
    /// The function of each entry that was looked at.
    dies: HashMap<Die, Option<u32>>,
}

impl Reader {
    /// Reads the functions of a unit and what was inlined into them.
    fn unit<'s>(&mut self, units: &mut Units<'s>, index: usize, unit: &Unit<'s>) {
        let compiler = match unit.producer {
            Producer::Gcc => Compiler::Gcc,
            Producer::Llvm { .. } => Compiler::Llvm,
            Producer::Other => Compiler::Other,
        };
        let mut entries = unit.unit.entries();
        // The scopes in which the current entry is, with their depths.
        let mut open: Vec<(isize, u32)> = Vec::new();
        while let Ok(Some(entry)) = entries.next_dfs() {
            let depth = entry.depth();
            while open.last().is_some_and(|&(of, _)| of >= depth) {
                open.pop();
            }
            let is_inlined = match entry.tag() {
                dw::DW_TAG_subprogram => false,
                dw::DW_TAG_inlined_subroutine => true,
                _ => continue,
            };
            let extents = extents(units, unit, entry);
            if extents.is_empty() || self.positions.scopes.len() >= SCOPES_MAX {
                continue;
            }
            let die = Die { unit: index, offset: entry.offset() };
            let Some(function) = self.function(units, die) else { continue };
            let at = |name| number(entry, name).and_then(|value| u32::try_from(value).ok()).unwrap_or(0);
            let call = (at(DW_AT_call_line), at(DW_AT_GNU_discriminator));
            let scope = self.positions.scopes.len() as u32;
            let of_scope = extents.into_iter().map(|(start, end)| Extent { start, end, scope });
            // A function may be described within another one, such as a method of a local class.
            match open.last().filter(|_| is_inlined) {
                Some(&(_, outer)) => {
                    if let Some(outer) = self.positions.scopes.get_mut(outer as usize) {
                        outer.inlined.extend(of_scope);
                    }
                }
                None => self.positions.roots.extend(of_scope),
            }
            self.positions.scopes.push(Scope { function, compiler, call, inlined: Vec::new() });
            open.push((depth, scope));
        }
    }

    /// Returns the index of the function that an entry describes, if it has a name.
    fn function(&mut self, units: &mut Units<'_>, die: Die) -> Option<u32> {
        if let Some(&known) = self.dies.get(&die) {
            return known;
        }
        let found = describe(units, die);
        let index = found.map(|function| {
            let functions = &mut self.positions.functions;
            *self.indexes.entry(function).or_insert_with_key(|function| {
                functions.push(function.clone());
                functions.len() as u32 - 1
            })
        });
        self.dies.insert(die, index);
        index
    }
}

/// Returns the name and the line of a function.
fn describe(units: &mut Units<'_>, die: Die) -> Option<SourceFunction> {
    let (mut linkage, mut name, mut line) = (None, None, None);
    let mut next = Some(die);
    for _ in 0..CHAIN_MAX {
        let Some(here) = next else { break };
        let (unit, entry) = units.entry(here)?;
        let text = |attribute| units.text(&unit, entry.attr_value(attribute)).map(str::to_owned);
        linkage = linkage.or_else(|| text(DW_AT_linkage_name)).or_else(|| text(DW_AT_MIPS_linkage_name));
        name = name.or_else(|| text(DW_AT_name));
        line = line.or_else(|| number(&entry, DW_AT_decl_line));
        let origin = entry.attr_value(DW_AT_abstract_origin);
        let origin = origin.or_else(|| entry.attr_value(DW_AT_specification));
        next = units.referred(here.unit, origin).filter(|&to| to != here);
    }
    let name = linkage.or(name).filter(|name| !name.is_empty() && name.len() <= NAME_MAX)?;
    let line = line.and_then(|line| u32::try_from(line).ok()).unwrap_or(0);
    Some(SourceFunction { name, line })
}

/// Returns the addresses of an entry's code.
fn extents<'s>(units: &Units<'s>, unit: &Unit<'s>, entry: &Entry<'s>) -> Vec<(u64, u64)> {
    let mut extents = Vec::new();
    let Ok(mut ranges) = units.dwarf(unit).die_ranges(&unit.unit, entry) else { return extents };
    while let Ok(Some(range)) = ranges.next() {
        // What the linker has dropped begins at 0.
        if range.begin > 0 && range.begin < range.end {
            extents.push((range.begin, range.end));
        }
    }
    extents
}

/// Reads all line tables. Where rows overlap, the first one with the highest start counts.
fn rows(info: &DebugInfo) -> Vec<Row> {
    let dwarf = info.dwarf();
    let mut rows: Vec<Row> = Vec::new();
    let mut left = dwarf.debug_line.reader().slice().len().saturating_mul(TIMES);
    let mut units = dwarf.units();
    while let Ok(Some(header)) = units.next() {
        let Ok(unit) = dwarf.unit(header) else { continue };
        let Some(program) = unit.line_program.clone() else { continue };
        match left.checked_sub(program.header().raw_program_buf().slice().len()) {
            Some(less) => left = less,
            None => break,
        }
        let mut before: Option<Row> = None;
        let mut table = program.rows();
        while let Ok(Some((_, row))) = table.next_row() {
            let address = row.address();
            if let Some(row) = before.take().filter(|row| row.start > 0 && row.start < address) {
                rows.push(Row { end: address, ..row });
            }
            if row.end_sequence() {
                continue;
            }
            let line = row.line().and_then(|line| u32::try_from(line.get()).ok()).unwrap_or(0);
            let discriminator = u32::try_from(row.discriminator()).unwrap_or(0);
            before = Some(Row { start: address, end: address, line, discriminator });
            if rows.len() >= ROWS_MAX {
                break;
            }
        }
    }
    rows.sort_by_key(|row| row.start);
    rows.dedup_by_key(|row| row.start);
    let starts: Vec<u64> = rows.iter().skip(1).map(|row| row.start).collect();
    rows.iter_mut().zip(starts).for_each(|(row, next)| row.end = row.end.min(next));
    rows
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use gprofinject_skip::{have, skipped};

    use super::*;
    use crate::debug::SplitFiles;

    const SOURCE: &str = r#"
namespace n {
template <class T> struct box {
    T value;
    __attribute__((always_inline)) T twice(T by) const { return by > 2 ? value * by : value - by; }
};
}
__attribute__((always_inline)) static inline int inner(int x) { int y = x > 3 ? x * 7 : x - 5; return y ^ x; }
__attribute__((always_inline)) static inline int middle(int x) { return inner(x) + (x > 9 ? inner(x + 1) : x); }
__attribute__((noinline)) int outer(int x) {
    for (int i = 0; i < x; i++) x += i % 3 ? middle(i) : n::box<int>{x}.twice(i);
    return x;
}
int main(int argc, char **) { return outer(argc) + middle(argc); }
"#;

    /// What addr2line says of addresses: the functions with lines and discriminators, the innermost first.
    fn said(program: &Path, addresses: &[u64]) -> Vec<Vec<(String, u32, u32)>> {
        let mut command = Command::new("addr2line");
        command.args(["-a", "-i", "-f", "-e"]).arg(program);
        command.args(addresses.iter().map(|address| format!("{address:#x}")));
        let out = command.output().expect("addr2line");
        let text = String::from_utf8(out.stdout).expect("text");
        let mut all: Vec<Vec<(String, u32, u32)>> = Vec::new();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if line.starts_with("0x") {
                all.push(Vec::new());
                continue;
            }
            let place = lines.next().expect("a place");
            let (_, place) = place.rsplit_once(':').expect("a line");
            let number = |text: &str| text.trim_end_matches(')').parse().unwrap_or(0);
            let (line_number, discriminator) = place.split_once(" (discriminator ").unwrap_or((place, "0"));
            let frame = (line.to_owned(), number(line_number), number(discriminator));
            all.last_mut().expect("an address").push(frame);
        }
        all
    }

    /// The name of a function, a line and a discriminator.
    type Frame = (String, u32, u32);

    /// Compares positions with those of addr2line. Returns the address of each line, and what was found there, the outermost function first.
    fn compare(compiler: &str, flags: &[&str]) -> Vec<(u64, Vec<Frame>)> {
        let test = format!("positions by {compiler} {}", flags.join(" "));
        for tool in [compiler, "addr2line"] {
            if !have(tool) {
                skipped(&test, &format!("no {tool}"));
                return Vec::new();
            }
        }
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("p.cc"), SOURCE).expect("a file");
        let program = folder.path().join("p");
        let built =
            Command::new(compiler).args(flags).args(["-O2", "-o", "p", "p.cc"]).current_dir(&folder).status();
        assert!(built.expect("a compiler").success(), "{test}");
        let bytes = std::fs::read(&program).expect("a program");
        let mut info = DebugInfo::read(&bytes).expect("debug information");
        info.find_split(&SplitFiles::of(&program, None), None);
        assert!(info.missing_units().is_none());
        let positions = Positions::read(&info);
        let starts: Vec<u64> =
            positions.rows.iter().filter(|row| row.line > 0).map(|row| row.start).collect();
        let expected = said(&program, &starts);
        assert_eq!(expected.len(), starts.len());
        let (mut deep, mut discriminated) = (0, 0);
        let (mut read, is_split) = (Vec::new(), flags.contains(&"-gsplit-dwarf"));
        for (&start, expected) in starts.iter().zip(&expected) {
            let mut found: Vec<Frame> = positions
                .at(start)
                .unwrap_or_else(|| panic!("{test}: nothing at {start:#x}"))
                .iter()
                .map(|position| {
                    let function = &positions.functions()[position.function as usize];
                    (function.name.clone(), position.line, position.discriminator)
                })
                .collect();
            found.reverse();
            deep = deep.max(found.len());
            discriminated += usize::from(found.iter().any(|frame| frame.2 > 0));
            read.push((start, found.clone()));
            let lines = |all: &[Frame]| all.iter().map(|frame| frame.1).collect::<Vec<_>>();
            // binutils do not read all that gcc splits off; the same build without that is compared with it.
            if is_split && lines(expected) == [0] {
                continue;
            }
            assert_eq!(lines(&found), lines(expected), "{test}: {start:#x}");
            // addr2line knows the discriminator of the instruction only, and inlined functions by their short names.
            assert_eq!(found[0].2, expected[0].2, "{test}: {start:#x}");
            let (own, said) = (&found[found.len() - 1].0, &expected[expected.len() - 1].0);
            assert_eq!(own, said, "{test}: {start:#x}");
        }
        assert!(deep >= 3, "{test}: {deep} deep");
        // gcc gives discriminators to few places.
        assert!(discriminated > 0 || compiler == "g++", "{test}: no discriminators");
        let named: Vec<_> = positions.functions().iter().map(|f| (f.name.as_str(), f.line)).collect();
        // gcc does not say under which name the linker would know a function of one file that it has inlined everywhere.
        let [middle, inner] =
            if compiler == "g++" { ["middle", "inner"] } else { ["_ZL6middlei", "_ZL5inneri"] };
        for expected in
            [(middle, 9), (inner, 8), ("_Z5outeri", 10), ("main", 14), ("_ZNK1n3boxIiE5twiceEi", 5)]
        {
            assert!(named.contains(&expected), "{test}: {named:?}");
        }
        read
    }

    #[test]
    fn of_gcc() {
        let whole = compare("g++", &["-gdwarf-5"]);
        compare("g++", &["-gdwarf-4"]);
        assert_eq!(compare("g++", &["-gdwarf-5", "-gsplit-dwarf"]), whole);
    }

    #[test]
    fn of_clang() {
        let compiler = ["clang++", "clang++-14"].into_iter().find(|name| have(name)).unwrap_or("clang++");
        compare(compiler, &["-g", "-fdebug-info-for-profiling"]);
        compare(compiler, &["-gdwarf-4", "-fdebug-info-for-profiling"]);
        compare(compiler, &["-gline-tables-only", "-fdebug-info-for-profiling"]);
    }

    #[test]
    fn damaged_files() {
        if !have("gcc") {
            return skipped("damaged_files", "no gcc");
        }
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("p.c"), "int main(int c, char **v) { return v[c] ? c : 1; }\n")
            .expect("a file");
        let built = Command::new("gcc").args(["-g", "-O2", "-o", "p", "p.c"]).current_dir(&folder).status();
        assert!(built.expect("gcc").success());
        let bytes = std::fs::read(folder.path().join("p")).expect("a program");
        let file = object::File::parse(&*bytes).expect("an ELF file");
        use object::{Object, ObjectSection};
        for name in [".debug_info", ".debug_line", ".debug_abbrev", ".debug_str"] {
            let Some((start, len)) = file.section_by_name(name).and_then(|section| section.file_range())
            else {
                continue;
            };
            for at in (start..start + len).step_by(3) {
                let mut damaged = bytes.clone();
                damaged[at as usize] ^= 0x81;
                // No panic, whatever is found.
                if let Ok(info) = DebugInfo::read(&damaged) {
                    let positions = Positions::read(&info);
                    positions.rows.iter().for_each(|row| drop(positions.at(row.start)));
                }
            }
        }
    }
}
