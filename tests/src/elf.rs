//! The functions of a program: addresses, extents, names, and the parents of `.cold` parts.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use anyhow::{Context, Result};
use object::{Object, ObjectSection, ObjectSymbol, SectionKind, SymbolKind};

/// The compiler's start-up code, which is linked into every program. It has no unwind information and symbols
/// of size zero, so a tool may ignore it; a tool that counts it must count it correctly.
pub const START_UP: &[&str] = &[
    "_init",
    "_fini",
    "frame_dummy",
    "__do_global_dtors_aux",
    "register_tm_clones",
    "deregister_tm_clones",
    "_dl_relocate_static_pie",
    // Present with -pg.
    "__gmon_start__",
    "atexit",
    "__stack_chk_fail_local",
];

/// An address at which a function starts, with all names that it has.
#[derive(Debug, Clone)]
pub struct Function {
    pub address: u64,
    /// The size of the symbol; for a symbol without a size, up to the next symbol or the section's end.
    pub size: u64,
    pub names: Vec<String>,
    /// The start of the function of which this is the `.cold` part.
    pub parent: Option<u64>,
}

impl Function {
    pub fn name(&self) -> &str {
        &self.names[0]
    }

    pub fn is_start_up(&self) -> bool {
        self.names.iter().any(|name| START_UP.contains(&name.as_str()))
    }
}

struct Section {
    address: u64,
    data: Vec<u8>,
    is_plt: bool,
    is_main: bool,
}

/// A program's code, at its link-time addresses.
pub struct Program {
    functions: BTreeMap<u64, Function>,
    /// Where the function of a name starts: the first one, if there are several.
    by_name: HashMap<String, u64>,
    sections: Vec<Section>,
}

impl Program {
    pub fn read(path: &Path) -> Result<Program> {
        let data = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let file = object::File::parse(&*data).with_context(|| path.display().to_string())?;

        let mut sections = Vec::new();
        for section in file.sections().filter(|s| s.kind() == SectionKind::Text) {
            sections.push(Section {
                address: section.address(),
                data: section.data()?.to_vec(),
                is_main: section.name()? == ".text",
                is_plt: section.name()?.starts_with(".plt") || section.name()?.starts_with(".iplt"),
            });
        }

        let mut functions: BTreeMap<u64, Function> = BTreeMap::new();
        let mut sources: HashMap<(String, String), u64> = HashMap::new(); // (source file, name)
        let mut by_name: HashMap<String, u64> = HashMap::new();
        let mut cold: Vec<(u64, String, String)> = Vec::new(); // address, source file, parent's name
        let mut source = String::new();
        for symbol in file.symbols() {
            let name = symbol.name().unwrap_or_default().to_string();
            if symbol.kind() == SymbolKind::File {
                source = name;
                continue;
            }
            if symbol.kind() != SymbolKind::Text || !symbol.is_definition() || symbol.address() == 0 {
                continue;
            }
            // A GNU_IFUNC symbol has the address of its resolver, which is called like any function.
            let address = symbol.address();
            if let Some((parent, _)) = name.split_once(".cold") {
                cold.push((address, source.clone(), parent.to_string()));
            }
            sources.insert((source.clone(), name.clone()), address);
            by_name.insert(name.clone(), address);
            let function = functions.entry(address).or_insert_with(|| Function {
                address,
                size: 0,
                names: Vec::new(),
                parent: None,
            });
            function.size = function.size.max(symbol.size());
            function.names.push(name);
        }

        // A static function's name may occur in several sources; the one in the part's own source is its
        // parent.
        for (address, source, parent) in cold {
            let found = sources.get(&(source, parent.clone())).or_else(|| by_name.get(&parent)).copied();
            if let (Some(function), Some(parent)) = (functions.get_mut(&address), found) {
                function.parent = Some(parent);
            }
        }

        // musl's entry point has a name, and is no function by its symbol.
        let entry = file.entry();
        if let Some(symbol) =
            file.symbol_by_name("_start").filter(|symbol| symbol.address() == entry && entry != 0)
        {
            functions.entry(entry).or_insert_with(|| Function {
                address: entry,
                size: symbol.size(),
                names: vec!["_start".to_owned()],
                parent: None,
            });
        }

        let starts: Vec<u64> = functions.keys().copied().collect();
        for (i, start) in starts.iter().enumerate() {
            let section_end = sections
                .iter()
                .map(|s| (s.address, s.address + s.data.len() as u64))
                .find(|(low, high)| (low..high).contains(&start))
                .map_or(start + 1, |(_, high)| high);
            let limit = starts.get(i + 1).map_or(section_end, |next| section_end.min(*next));
            if let Some(function) = functions.get_mut(start).filter(|f| f.size == 0) {
                function.size = limit - start;
            }
        }
        let mut by_name = HashMap::new();
        for function in functions.values() {
            for name in &function.names {
                by_name.entry(name.clone()).or_insert(function.address);
            }
        }
        Ok(Program { functions, by_name, sections })
    }

    pub fn functions(&self) -> impl Iterator<Item = &Function> {
        self.functions.values()
    }

    /// Returns the function that starts at `address`.
    pub fn entry(&self, address: u64) -> Option<&Function> {
        self.functions.get(&address)
    }

    /// Returns the function that contains `address`, as gprof sees it: a `.cold` part is a function of its
    /// own.
    pub fn containing(&self, address: u64) -> Option<&Function> {
        let (_, function) = self.functions.range(..=address).next_back()?;
        (address - function.address < function.size.max(1)).then_some(function)
    }

    /// Returns the function to which the code at `address` belongs: `.cold` parts belong to their parents.
    pub fn owner(&self, address: u64) -> Option<&Function> {
        let function = self.containing(address)?;
        match function.parent {
            Some(parent) => self.entry(parent),
            None => Some(function),
        }
    }

    /// Returns the function that has `name` among its names: the first one, if there are several.
    pub fn named(&self, name: &str) -> Option<&Function> {
        self.entry(*self.by_name.get(name)?)
    }

    /// Returns the function's name for messages, or the address.
    pub fn label(&self, address: u64) -> String {
        match self.containing(address) {
            Some(f) if f.address == address => f.name().to_string(),
            Some(f) => format!("{}+{:#x}", f.name(), address - f.address),
            None => format!("{address:#x}"),
        }
    }

    /// Returns the code from `address` to the end of its section.
    pub fn code(&self, address: u64) -> &[u8] {
        self.section(address).map_or(&[], |s| &s.data[(address - s.address) as usize..])
    }

    pub fn is_plt(&self, address: u64) -> bool {
        self.section(address).is_some_and(|s| s.is_plt)
    }

    /// Whether the address is in `.text`.
    pub fn is_main_text(&self, address: u64) -> bool {
        self.section(address).is_some_and(|s| s.is_main)
    }

    fn section(&self, address: u64) -> Option<&Section> {
        self.sections.iter().find(|s| s.address <= address && address - s.address < s.data.len() as u64)
    }
}
