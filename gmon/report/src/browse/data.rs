//! A run, indexed for the views.

use std::cell::OnceCell;
use std::cmp::{Ordering, Reverse};

use gmon_export::{Arc, Function, Module, Run};
use gprofinject_image::names::short;

use crate::cli::text::plain;

/// What identifies a function in a recording and in its analysis.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Symbol {
    pub(crate) module: Module,
    /// The link address; 0 if only the name is known.
    pub(crate) address: u64,
    /// The number of bytes; 0 if it is not known.
    pub(crate) size: u64,
    /// The name in the symbol table.
    pub(crate) name: String,
}

/// By what functions are sorted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    Own,
    Inclusive,
    Calls,
    Instructions,
    Name,
}

/// A run.
pub(crate) struct Data {
    pub(crate) run: Run,
    /// The time of which shares are, in nanoseconds.
    pub(crate) total_ns: u64,
    /// The file name of the only module whose functions are listed.
    module: Option<String>,
    arcs: OnceCell<Arcs>,
    /// The names in small letters, for searches.
    small: OnceCell<Vec<String>>,
}

/// The arcs without call sites.
struct Arcs {
    /// Sorted by caller.
    pairs: Vec<Arc>,
    /// The indexes of the pairs, sorted by callee.
    by_callee: Vec<u32>,
}

impl Data {
    /// Returns the data of a run. `module` is the file name of the only module whose functions are listed, if not all are.
    pub(crate) fn new(run: Run, module: Option<String>) -> Data {
        Data { total_ns: run.total_ns(), run, module, arcs: OnceCell::new(), small: OnceCell::new() }
    }

    /// Whether inclusive times, and the times of arcs, are estimates.
    pub(crate) fn is_estimated(&self) -> bool {
        self.run.time == gmon_export::Time::Estimated
    }

    /// Returns a function.
    pub(crate) fn function(&self, index: u32) -> Option<&Function> {
        self.run.functions.get(index as usize)
    }

    /// Returns a function's name as it is shown: in short, or as it is in the source.
    pub(crate) fn name(&self, index: u32, is_full: bool) -> String {
        let Some(function) = self.function(index) else { return String::new() };
        match (is_full, function.demangled.as_str()) {
            (_, "") => format!("{:#x}", function.address),
            (true, name) => plain(name),
            (false, name) if self.run.module_of(function).is_some_and(Module::is_generated) => plain(name),
            (false, name) => plain(&short(name)),
        }
    }

    /// Returns the file name of a function's module.
    pub(crate) fn module(&self, index: u32) -> String {
        let module = self.function(index).and_then(|function| self.run.module_of(function));
        module.map_or_else(String::new, |module| plain(module.name()))
    }

    /// Returns what identifies a function in other models; `None` if its module is not known.
    pub(crate) fn symbol(&self, index: u32) -> Option<Symbol> {
        symbol(&self.run, index)
    }

    /// Returns the function that has this identity.
    pub(crate) fn find(&self, wanted: &Symbol) -> Option<u32> {
        let is_it = |function: &Function| {
            function.address == wanted.address
                && function.name == wanted.name
                && self.run.module_of(function) == Some(&wanted.module)
        };
        self.run.functions.iter().position(is_it).map(|index| index as u32)
    }

    /// Returns the orders that this run has numbers for, the usual one first.
    pub(crate) fn sorts(&self) -> Vec<Sort> {
        let mut sorts = Vec::new();
        if self.run.time.is_some() {
            sorts.extend([Sort::Own, Sort::Inclusive]);
        }
        sorts.push(Sort::Calls);
        if self.run.has_instructions {
            sorts.push(Sort::Instructions);
        }
        sorts.push(Sort::Name);
        sorts
    }

    /// Returns the indexes of the functions with any numbers whose names contain a text, sorted. The case of letters matters if
    /// the text has a capital one.
    pub(crate) fn rows(&self, text: &str, sort: Sort, is_reversed: bool) -> Vec<u32> {
        let functions = &self.run.functions;
        let has_numbers = |function: &Function| {
            (function.calls, function.inclusive_ns, function.samples, function.instructions) != (0, 0, 0, 0)
        };
        let in_module = |function: &Function| match &self.module {
            None => true,
            Some(name) => self.run.module_of(function).is_some_and(|module| module.name() == name),
        };
        let is_wanted = |index: usize| match text {
            "" => true,
            text if text.chars().any(char::is_uppercase) => functions[index].demangled.contains(text),
            text => self.small().get(index).is_some_and(|name| name.contains(text)),
        };
        let mut rows: Vec<u32> = (0..functions.len())
            .filter(|&index| {
                has_numbers(&functions[index]) && in_module(&functions[index]) && is_wanted(index)
            })
            .map(|index| index as u32)
            .collect();
        let key = |function: &Function| match sort {
            Sort::Own => function.self_ns,
            Sort::Inclusive => function.inclusive_ns,
            Sort::Calls => function.calls,
            Sort::Instructions => function.instructions,
            Sort::Name => 0,
        };
        let compare = |a: &u32, b: &u32| -> Ordering {
            let (a, b) = (&functions[*a as usize], &functions[*b as usize]);
            let first = match sort {
                Sort::Name => Ordering::Equal,
                _ => Reverse(key(a)).cmp(&Reverse(key(b))).then(b.calls.cmp(&a.calls)),
            };
            first.then_with(|| a.demangled.cmp(&b.demangled))
        };
        rows.sort_by(|a, b| if is_reversed { compare(b, a) } else { compare(a, b) });
        rows
    }

    fn small(&self) -> &[String] {
        self.small.get_or_init(|| {
            self.run.functions.iter().map(|function| function.demangled.to_lowercase()).collect()
        })
    }

    fn arcs(&self) -> &Arcs {
        self.arcs.get_or_init(|| {
            let pairs = self.run.pairs();
            let mut by_callee: Vec<u32> = (0..pairs.len() as u32).collect();
            by_callee.sort_by_key(|&index| pairs[index as usize].callee);
            Arcs { pairs, by_callee }
        })
    }

    /// Returns the arcs into a function, those with the most time or calls last, as gprof has them.
    pub(crate) fn callers(&self, function: u32) -> Vec<&Arc> {
        let Arcs { pairs, by_callee } = self.arcs();
        let callee = |index: &u32| pairs[*index as usize].callee;
        let first = by_callee.partition_point(|index| callee(index) < function);
        let found = by_callee[first..].iter().take_while(|index| callee(index) == function);
        let mut found: Vec<&Arc> = found.map(|&index| &pairs[index as usize]).collect();
        found.sort_by_key(|arc| (arc.inclusive_ns, arc.calls));
        found
    }

    /// Returns the arcs out of a function, those with the most time or calls first.
    pub(crate) fn callees(&self, function: u32) -> Vec<&Arc> {
        let pairs = &self.arcs().pairs;
        let first = pairs.partition_point(|arc| arc.caller < Some(function));
        let mut found: Vec<&Arc> =
            pairs[first..].iter().take_while(|arc| arc.caller == Some(function)).collect();
        found.sort_by_key(|arc| Reverse((arc.inclusive_ns, arc.calls)));
        found
    }
}

/// Returns what identifies a function of a run; `None` if its module is not known.
pub(crate) fn symbol(run: &Run, index: u32) -> Option<Symbol> {
    let function = run.functions.get(index as usize)?;
    let module = run.module_of(function)?;
    Some(Symbol {
        module: module.clone(),
        address: function.address,
        size: function.size,
        name: function.name.clone(),
    })
}
