//! The symbols of a symbol table whose addresses are in code.

use crate::facts::NET;
use crate::file::dynamic;
use crate::file::elf::{Elf, Section, Symbol, records, string};
use crate::file::marks::{MARK_MAX, TextMarks, is_text_end, is_text_start};
use crate::file::ranges::CodeRanges;
use crate::functions::label::{Label, LabelKind, NAME_MAX};
use crate::functions::pclntab;
use crate::names::suffixes::parent_name;
use crate::names::text;
use crate::sort;
use object::LittleEndian as LE;
use object::elf;

/// The labels of a program.
#[derive(Debug, Default)]
pub(crate) struct Labels<'d> {
    /// The labels, sorted by address, then by rank, then by place in the table.
    pub(crate) labels: Vec<Label<'d>>,
    /// Whether they come from .symtab, which also has local functions.
    pub(crate) complete: bool,
    /// Whether the program contains its own unwinder.
    pub(crate) unwinder: bool,
    /// Whether the C library's profiler is linked in (-pg -static).
    pub(crate) profiler: bool,
    /// The name of a runtime in the program that walks the stack by return addresses, or uses it for other
    /// purposes.
    pub(crate) runtime: Option<&'static str>,
    /// The name of a module that compares its own code with the code at its build.
    pub(crate) checker: Option<&'static str>,
    /// The addresses of the symbols that linkers define at the start and the end of the code.
    pub(crate) marks: TextMarks,
}

impl<'d> Labels<'d> {
    /// Reads .symtab. If it has no functions, reads the .symtab of the debug file and the dynamic symbols, and without a
    /// debug file Go's own table of functions and the dynamic symbols.
    pub(crate) fn read(elf: &Elf<'d>, code: &CodeRanges, debug_file: Option<&'d [u8]>) -> Self {
        if let Some(labels) = Labels::of_sections(&elf.sections, code) {
            return labels;
        }
        let exported = || {
            let symbols = dynamic::Symbols::read(elf);
            Labels::collect(symbols.entries, symbols.names, code, false)
        };
        // A damaged debug file counts as absent.
        let sections = debug_file.and_then(|bytes| crate::file::elf::sections_of(bytes).ok());
        if let Some(labels) = sections.and_then(|sections| Labels::of_sections(&sections, code)) {
            // A debug file in .gnu_debugdata has only what the dynamic symbols have not.
            return labels.and(exported());
        }
        let go = Labels { labels: pclntab::labels(elf, code), ..Labels::default() };
        if go.labels.is_empty() { exported() } else { go.and(exported()) }
    }

    /// Reads .symtab. Returns `None` if there is none, or if it has no functions.
    fn of_sections(sections: &[Section<'d>], code: &CodeRanges) -> Option<Self> {
        let table = sections.iter().find(|section| section.kind == elf::SHT_SYMTAB)?;
        let strings = sections.get(table.link as usize).and_then(|section| section.bytes);
        let labels = Labels::collect(records(table.bytes?), strings.unwrap_or_default(), code, true);
        labels.labels.iter().any(|label| label.kind != LabelKind::Bare).then_some(labels)
    }

    /// Adds the labels of another table that this one does not have.
    fn and(mut self, other: Labels<'d>) -> Self {
        let Labels { labels, unwinder, profiler, runtime, checker, complete: _, marks: _ } = other;
        self.unwinder |= unwinder;
        self.profiler |= profiler;
        self.runtime = self.runtime.or(runtime);
        self.checker = self.checker.or(checker);
        let has = |label: &Label<'d>| {
            let first = self.labels.partition_point(|own| own.address < label.address);
            let same = self.labels[first..].iter().take_while(|own| own.address == label.address);
            same.into_iter().any(|own| own.name == label.name)
        };
        let missing: Vec<_> = labels.into_iter().filter(|label| !has(label)).collect();
        self.labels.extend(missing);
        sort::by_key(&mut self.labels, |label| label.rank.into());
        sort::by_key(&mut self.labels, |label| label.address);
        self
    }

    fn collect(symbols: &'d [Symbol], strings: &'d [u8], code: &CodeRanges, complete: bool) -> Self {
        let mut labels = Vec::with_capacity(symbols.len());
        let (mut unwinder, mut profiler) = (false, false);
        let mut runtime = None;
        let mut checker = None;
        let mut marks = TextMarks::default();
        let mut file = 0;
        // Symbols of one section mostly follow each other.
        let mut range = None;
        for symbol in symbols {
            let kind = match symbol.st_type() {
                elf::STT_FUNC => LabelKind::Function,
                elf::STT_GNU_IFUNC => LabelKind::Ifunc,
                elf::STT_NOTYPE => LabelKind::Bare,
                elf::STT_FILE => {
                    file += 1;
                    continue;
                }
                _ => continue,
            };
            let section = symbol.st_shndx.get(LE);
            let address = symbol.st_value.get(LE);
            // Some linkers give these symbols no section.
            if kind == LabelKind::Bare && section != elf::SHN_UNDEF {
                marks.note(string(strings, symbol.st_name.get(LE), MARK_MAX), address);
            }
            // Undefined symbols are elsewhere, and absolute ones are not addresses.
            if matches!(section, elf::SHN_UNDEF | elf::SHN_ABS | elf::SHN_COMMON) {
                continue;
            }
            if !range.is_some_and(|(start, end)| (start..end).contains(&address)) {
                let Some(found) = code.find_code(address) else { continue };
                range = Some((found.start, found.end));
            }
            let name = string(strings, symbol.st_name.get(LE), NAME_MAX);
            // Symbols that a linker defines at a section's edges, which belong to whatever begins there, and
            // labels that an assembler keeps for a compiler or a plugin (.L26, .annobin_a.c).
            if kind == LabelKind::Bare && is_mark(name) {
                continue;
            }
            unwinder |= name == b"_Unwind_RaiseException";
            profiler |= name == b"__monstartup";
            runtime = runtime.or_else(|| runtime_of(name));
            checker = checker.or_else(|| checker_of(name));
            let name = text::of(name);
            let size = symbol.st_size.get(LE);
            let bind = symbol.st_bind();
            let rank = rank(name, size, kind, bind);
            labels.push(Label { address, size, name, rank, kind, local: bind == elf::STB_LOCAL, file });
        }
        sort::by_key(&mut labels, |label| label.rank.into());
        sort::by_key(&mut labels, |label| label.address);
        Labels { labels, complete, unwinder, profiler, runtime, checker, marks }
    }
}

/// Returns the name of a runtime that looks up return addresses in tables of its own (to collect garbage, to
/// throw exceptions), and so must find the true ones. GHC's code does not return through the stack at all.
/// Free Pascal's runtime walks the frames by their pointers for each exception that is not handled, and
/// prints what it finds.
fn runtime_of(name: &[u8]) -> Option<&'static str> {
    match name {
        // The second one is exported by programs that contain the runtime (dotnet publish with PublishSingleFile), too.
        b"coreclr_initialize" | b"MetaDataGetDispenser" => Some(NET),
        b"caml_garbage_collection" => Some("OCaml"),
        b"StgRunIsImplementedInAssembler" | b"scheduleWaitThread" => Some("GHC"),
        _ if name.starts_with(b"SYSTEM_$$_GET_CALLER_FRAME") => Some("Free Pascal"),
        _ if name.starts_with(b"_ZN2v88internal") && has(name, b"StackFrameIterator") => Some("V8"),
        _ if name.starts_with(b"_ZN2js3jit") && has(name, b"JSJitFrameIter") => Some("SpiderMonkey"),
        _ => None,
    }
}

/// Returns the name of a cryptographic module. FIPS 140 requires that such a module checks its code when it
/// starts; if the module is linked in, these symbols are at the start of that code. (The names in AWS-LC may
/// begin with the release.)
fn checker_of(name: &[u8]) -> Option<&'static str> {
    match name {
        _ if name.ends_with(b"BORINGSSL_bcm_text_start") => Some("BoringSSL"),
        b"FIPS_text_start" => Some("OpenSSL"),
        b"wolfCrypt_FIPS_first" => Some("wolfCrypt"),
        _ => None,
    }
}

fn has(name: &[u8], part: &[u8]) -> bool {
    name.windows(part.len()).any(|window| window == part)
}

fn is_mark(name: &[u8]) -> bool {
    name.is_empty()
        || name.starts_with(b".")
        || name.starts_with(b"__start_")
        || name.starts_with(b"__stop_")
        || is_text_start(name)
        || is_text_end(name)
}

/// In a rank: the name is that of a cold part.
const COLD: u8 = 1 << 4;

impl Label<'_> {
    /// Whether the name is that of a cold part.
    pub(crate) fn has_cold_name(&self) -> bool {
        self.rank & COLD != 0
    }
}

/// Returns how good a name is for its address. A function's name is better than a cold part's, and that is
/// better than a bare label's. (An empty cold part has the address of whatever follows it, and so has an
/// empty function; a size therefore counts more than a binding.) A global name is better than a weak one, and
/// that is better than a local one. A name without a leading underscore is better than one with it.
fn rank(name: &str, size: u64, kind: LabelKind, bind: elf::SymbolBind) -> u8 {
    let binding = match bind {
        elf::STB_GLOBAL | elf::STB_GNU_UNIQUE => 0,
        elf::STB_WEAK => 1,
        _ => 2,
    };
    let cold = parent_name(name).is_some();
    (if cold { COLD } else { 0 })
        | u8::from(kind == LabelKind::Bare) << 5
        | u8::from(size == 0) << 3
        | binding << 1
        | u8::from(name.starts_with('_') || name.is_empty())
}

/// Returns the addresses in code that .dynsym exports, sorted.
pub(crate) fn exported(elf: &Elf<'_>, code: &CodeRanges) -> Vec<u64> {
    let mut addresses: Vec<u64> = exports(elf, code).map(|symbol| symbol.st_value.get(LE)).collect();
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// Returns whether .dynsym exports places in code, as data or otherwise.
pub(crate) fn exports_code(elf: &Elf<'_>, code: &CodeRanges, as_data: bool) -> bool {
    exports(elf, code).any(|symbol| (symbol.st_type() == elf::STT_OBJECT) == as_data)
}

/// Returns the symbols that .dynsym exports and that lie in code.
fn exports<'d>(elf: &Elf<'d>, code: &CodeRanges) -> impl Iterator<Item = &'d Symbol> {
    let symbols = dynamic::Symbols::read(elf).entries;
    let is_defined = |symbol: &&Symbol| symbol.st_shndx.get(LE) != elf::SHN_UNDEF;
    symbols.iter().filter(is_defined).filter(|symbol| code.find_code(symbol.st_value.get(LE)).is_some())
}
