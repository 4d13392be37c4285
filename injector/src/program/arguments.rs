//! The arguments and results of traced calls: what is known of them, and what the user wants to see (`--args`).
//!
//! A module and its functions enter; how the agent reads their arguments, and how they are shown, leave. What the user says of a
//! function comes first, then debug information, then the prototypes of the C library.

pub(crate) mod kinds;
pub(crate) mod prototypes;
pub(crate) mod spec;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use gmon_trace::value::{Parameter, Signature, ValueKind};
use gprofinject_abi::args::{FETCHES_MAX, FLOAT, Fetch, Op};
use gprofinject_image::debug::{DebugFile, SplitFiles, debug_files};
use gprofinject_image::signatures::{
    self, DebugInfo, Exported, Rest, Shape, Signatures, StringLayout, Unclear, Value,
};
use gprofinject_image::{Function, FunctionKind};
use gprofinject_plan::Told;
use gprofinject_plan::fetches::FetchTable;

use crate::program::arguments::spec::{Format, Item, ValueSpec};
use crate::program::filters::Filters;

/// The greatest number of a function's parameters that a trace has.
const PARAMETERS_MAX: usize = 64;

/// Which arguments are traced.
#[derive(Debug, Default)]
pub(crate) struct ArgsChoice {
    /// Whether those of all functions are of which something is known.
    auto: bool,
    chosen: Vec<Chosen>,
    /// Whether their values are kept, and no calls traced.
    keeps: bool,
    /// The text.
    typed: String,
}

/// What the user says of some functions.
#[derive(Debug)]
struct Chosen {
    functions: Filters,
    /// The values; if there are none, those that are known.
    values: Vec<ValueSpec>,
}

impl ArgsChoice {
    /// Parses the value of `--args`.
    ///
    /// # Errors
    /// It is no specification, or it has a malformed pattern.
    pub(crate) fn parse(text: &str) -> Result<ArgsChoice> {
        let mut choice = ArgsChoice { typed: text.to_owned(), ..ArgsChoice::default() };
        let items = spec::parse(text).with_context(|| {
            "--args takes auto, or FUNCTION@VALUES as in 'main@arg1/i32,arg2/s,retval/i32', several separated by ;"
        })?;
        for item in items {
            match item {
                Item::Auto => choice.auto = true,
                Item::Functions { glob, values } => {
                    choice.chosen.push(Chosen { functions: Filters::only("--args", &glob)?, values });
                }
            }
        }
        Ok(choice)
    }

    /// Parses the value of `--values`: the same language, in which a comma may stand for the semicolon between functions.
    ///
    /// # Errors
    /// It is no specification, or it has a malformed pattern.
    pub(crate) fn parse_values(text: &str) -> Result<ArgsChoice> {
        let mut parts = text.split_inclusive([',', ';']);
        let mut items: String = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            if part.contains('@') && items.ends_with(',') {
                items.pop();
                items.push(';');
            }
            items.push_str(part);
        }
        let mut choice = ArgsChoice { keeps: true, typed: text.to_owned(), ..ArgsChoice::default() };
        let parsed = spec::parse(&items).with_context(|| {
            "--values takes auto, or FUNCTION@VALUES as in 'malloc@arg1/u64,write@arg1/i32,arg3/u64,retval'"
        })?;
        for item in parsed {
            match item {
                Item::Auto => choice.auto = true,
                Item::Functions { glob, values } => {
                    choice.chosen.push(Chosen { functions: Filters::only("--values", &glob)?, values });
                }
            }
        }
        Ok(choice)
    }

    /// Returns the value of `--values`, if it is one.
    pub(crate) fn typed_values(&self) -> Option<&str> {
        self.keeps.then_some(self.typed.as_str())
    }

    /// Whether any results are wanted.
    pub(crate) fn wants_results(&self) -> bool {
        let wants = |chosen: &Chosen| chosen.values.is_empty() || chosen.values.iter().any(|v| v.is_result);
        self.auto || self.chosen.iter().any(wants)
    }

    /// Returns when a function tells the agent about its calls, because values are kept. A function may jump to another one whose results are
    /// kept, which then returns by the exit of the first one.
    pub(crate) fn told(&self, module: &[&str], function: &Function<'_>) -> Told {
        let (values, wants_known) = self.of(module, function);
        let is_called = function.kind != FunctionKind::IfuncResolver;
        Told {
            begins: is_called && (wants_known || values.iter().any(|value| !value.is_result)),
            results: is_called && (wants_known || values.iter().any(|value| value.is_result)),
            ends: is_called && self.wants_results(),
        }
    }

    /// Returns the patterns that have matched no function, as typed.
    pub(crate) fn unused(&self) -> impl Iterator<Item = String> {
        self.chosen.iter().flat_map(|chosen| chosen.functions.unused())
    }

    /// Returns the values that the user says of a function, and whether those that are known are wanted.
    fn of(&self, module: &[&str], function: &Function<'_>) -> (Vec<&ValueSpec>, bool) {
        let mut values = Vec::new();
        let mut wants_known = self.auto;
        for chosen in self.chosen.iter().filter(|chosen| chosen.functions.select(module, function.names())) {
            wants_known |= chosen.values.is_empty();
            values.extend(&chosen.values);
        }
        (values, wants_known)
    }
}

/// A program or a library.
#[derive(Clone, Copy)]
pub(crate) struct Module<'m> {
    pub(crate) path: &'m Path,
    /// Its names in patterns `MODULE!FUNCTION`.
    pub(crate) names: &'m [&'m str],
    pub(crate) bytes: &'m [u8],
    /// The debug file that has the names of its functions, if it has none itself.
    pub(crate) debug_file: Option<&'m DebugFile>,
    /// Whether it is a program that contains the C library.
    pub(crate) is_static: bool,
}

/// What is known of a module's functions.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// For the agent.
    pub(crate) fetches: FetchTable,
    /// For the trace: those of functions that have or may have arguments or results.
    pub(crate) signatures: Vec<(u32, Signature)>,
    /// The values that are kept, by the function's number: those of arguments, and those of results.
    pub(crate) kept: BTreeMap<u32, [Vec<Kept>; 2]>,
    /// Whether values are kept, and no calls traced.
    keeps: bool,
    /// Of how many functions nothing is shown although it was wanted, and why.
    pub(crate) unclear: BTreeMap<Unclear, usize>,
    /// Enumerations that the user has named and that are not there.
    pub(crate) missing: BTreeSet<String>,
    /// How many units of split DWARF were not found, and the name of the .dwo file of one.
    pub(crate) missing_units: Option<(usize, PathBuf)>,
}

/// Finds out what is known of functions, each with its number in the module.
pub(crate) fn signatures<'f, 'd: 'f>(
    module: &Module<'_>,
    choice: &ArgsChoice,
    functions: impl IntoIterator<Item = (u32, &'f Function<'d>)>,
) -> Known {
    let mut known = Known { keeps: choice.keeps, ..Known::default() };
    // Debug information is large, and not read before it is needed.
    let mut wanted = Vec::new();
    for (number, function) in functions {
        let (values, wants_known) = choice.of(module.names, function);
        // The arguments of a resolver are not those of the function for which it chooses the code.
        let is_called = function.kind != FunctionKind::IfuncResolver;
        if is_called && (wants_known || !values.is_empty()) {
            wanted.push((number, function, values));
        }
    }
    if wanted.is_empty() {
        return known;
    }
    let file = debug_file(module);
    let bytes = file.as_ref().map(|file| file.bytes()).unwrap_or_default();
    let mut info = DebugInfo::read(bytes).ok();
    if let Some(info) = &mut info {
        // An enumeration that the user names may be in any unit.
        let names_enum = |value: &&ValueSpec| matches!(value.format, Format::Enum(_));
        let needs_all = wanted.iter().any(|(.., values)| values.iter().any(names_enum));
        let mut addresses: Vec<u64> = wanted.iter().map(|(_, function, _)| function.address).collect();
        addresses.sort_unstable();
        let files = SplitFiles::of(module.path, file.as_ref().and_then(Source::path));
        info.find_split(&files, Some(addresses.as_slice()).filter(|_| !needs_all));
        known.missing_units = info.missing_units().map(|missing| (missing.count, missing.name.clone()));
    }
    let exported = || Exported::read([module.bytes, bytes]);
    let mut debug = info.as_ref().map(|info| Signatures::new(info, exported()));
    let strings = strings_of(module.bytes);
    let is_c_library = module.is_static || module.names.iter().any(|name| prototypes::is_c_library(name));
    for (number, function, values) in wanted {
        if !values.is_empty() {
            let shown = by_specs(values.into_iter(), strings, debug.as_mut(), &mut known.missing);
            known.add(number, shown);
            continue;
        }
        let of_debug = match &mut debug {
            Some(debug) => debug.of(function.address, function.names()),
            None => Err(Unclear::NoInformation),
        };
        let prototype = || prototypes::of(function.names()).filter(|_| is_c_library);
        let is_whole =
            matches!(&of_debug, Ok(signature) if matches!(signature.rest, None | Some(Rest::Variadic)));
        let prototype = if is_whole { None } else { prototype() };
        match (of_debug, prototype) {
            (_, Some(values)) => {
                known.add(number, by_specs(values.iter(), strings, None, &mut BTreeSet::new()));
            }
            (Ok(signature), None) => known.add(number, by_types(&signature)),
            (Err(why), None) => {
                *known.unclear.entry(why).or_default() += 1;
                known.add(number, Shown::unknown());
            }
        }
    }
    known
}

impl Known {
    fn add(&mut self, number: u32, shown: Shown) {
        if self.keeps {
            let kept = shown.kept;
            let fetches = |all: &[Kept]| all.iter().map(|kept| kept.fetch).collect::<Vec<_>>();
            if kept.iter().any(|all| !all.is_empty()) {
                self.fetches.add(number, &fetches(&kept[0]), fetches(&kept[1]).first().copied());
                self.kept.insert(number, kept);
            }
            return;
        }
        let Shown { signature, arguments, result, kept: _ } = shown;
        if !arguments.is_empty() || result.is_some() {
            self.fetches.add(number, &arguments, result);
        }
        // A function without arguments and results has nothing to be shown.
        if !signature.parameters.is_empty() || signature.result.is_some() {
            self.signatures.push((number, signature));
        }
    }
}

/// What is shown of a function's calls, and how it is read.
#[derive(Default)]
struct Shown {
    signature: Signature,
    arguments: Vec<Fetch>,
    result: Option<Fetch>,
    /// The same for values that are kept: arguments and results.
    kept: [Vec<Kept>; 2],
}

impl Shown {
    /// Returns what is shown of a function of whose arguments and result nothing is known: that there may be some.
    fn unknown() -> Shown {
        let mut shown = Shown::default();
        shown.argument(None, (ValueKind::Unsupported, None));
        shown
    }

    fn result(&mut self, kind: ValueKind, fetch: Option<Fetch>) {
        let kept = fetch.and_then(|fetch| Kept::new("retval".to_owned(), &kind, fetch));
        self.kept[1].extend(kept.filter(|_| self.kept[1].is_empty()));
        self.signature.result = Some(kind);
        self.result = fetch;
    }

    fn argument(&mut self, name: Option<String>, (kind, fetch): (ValueKind, Option<Fetch>)) {
        if self.signature.parameters.len() < PARAMETERS_MAX {
            let number = || fetch.as_ref().map_or(String::new(), kinds::place_name);
            let kept = fetch.and_then(|fetch| Kept::new(name.clone().unwrap_or_else(number), &kind, fetch));
            self.kept[0].extend(kept.filter(|_| self.kept[0].len() < FETCHES_MAX));
            self.signature.parameters.push(Parameter { name, kind });
            self.arguments.extend(fetch);
        }
    }
}

/// A value that is kept.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    /// The name of the argument, or its number; `retval` of a result.
    pub(crate) name: String,
    /// How its values are shown.
    pub(crate) kind: ValueKind,
    fetch: Fetch,
}

impl Kept {
    /// Returns how a value is kept; `None` if it is neither a number of at most 8 bytes nor a text.
    fn new(name: String, kind: &ValueKind, fetch: Fetch) -> Option<Kept> {
        let is_signed = match (fetch.op.get()?, kind) {
            (Op::Scalar | Op::Load, ValueKind::Float { bytes: 4 | 8 }) => FLOAT,
            (Op::Scalar | Op::Load, ValueKind::Float { .. } | ValueKind::Unsupported) => return None,
            (Op::Words | Op::Stack | Op::Bytes, _) => return None,
            _ => fetch.is_signed,
        };
        Some(Kept { name, kind: kind.clone(), fetch: Fetch { is_signed, ..fetch } })
    }
}

/// Returns what is shown of a function by the types of its parameters and its result.
fn by_types(signature: &signatures::Signature) -> Shown {
    let mut shown = Shown::default();
    for parameter in &signature.parameters {
        // What has no contents is not passed.
        if !is_empty(&parameter.value) {
            let name = parameter.name.as_deref().map(str::to_owned);
            shown.argument(name, kinds::of_value(&parameter.value));
        }
    }
    // There may be more.
    if matches!(signature.rest, Some(Rest::Type | Rest::Changed)) {
        shown.argument(None, (ValueKind::Unsupported, None));
    }
    if let Some(value) = signature.result.as_ref().filter(|value| !is_empty(value)) {
        let (kind, fetch) = kinds::of_value(value);
        shown.result(kind, fetch);
    }
    shown
}

fn is_empty(value: &Value) -> bool {
    value.place == signatures::Place::Nowhere || value.ty.shape == Shape::Void
}

/// Returns what is shown of a function by what the user says.
fn by_specs<'v>(
    values: impl Iterator<Item = &'v ValueSpec>,
    strings: StringLayout,
    mut debug: Option<&mut Signatures<'_>>,
    missing: &mut BTreeSet<String>,
) -> Shown {
    let mut shown = Shown::default();
    for value in values {
        let (kind, fetch) = kinds::of_spec(value, strings, |name| {
            let found = debug.as_mut().and_then(|debug| debug.enumeration(name));
            if found.is_none() {
                missing.insert(name.to_owned());
            }
            found
        });
        if value.is_result {
            shown.result(kind, Some(fetch));
        } else {
            shown.argument(value.name.clone(), (kind, Some(fetch)));
        }
    }
    shown
}

/// The file that has a module's debug information.
enum Source<'m> {
    Own(&'m [u8]),
    /// The debug file that has the names of its functions.
    Known(&'m DebugFile),
    Other(DebugFile),
}

impl Source<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Source::Own(bytes) => bytes,
            Source::Known(file) => &file.bytes,
            Source::Other(file) => &file.bytes,
        }
    }

    /// Returns the path of a file that is not the module.
    fn path(&self) -> Option<&Path> {
        match self {
            Source::Own(_) => None,
            Source::Known(file) => Some(&file.path),
            Source::Other(file) => Some(&file.path),
        }
    }
}

/// Finds the file with a module's debug information.
fn debug_file<'m>(module: &Module<'m>) -> Option<Source<'m>> {
    let own = Some(Source::Own(module.bytes)).into_iter().chain(module.debug_file.map(Source::Known));
    let others = debug_files(module.path, module.bytes).map(Source::Other);
    own.chain(others).find(|source| DebugInfo::is_in(source.bytes()))
}

/// Returns how the strings are laid out of which the user says that they are some: as those of the C++ library that the module needs.
fn strings_of(bytes: &[u8]) -> StringLayout {
    let needs_libcxx =
        gprofinject_image::headers::needed(bytes).iter().any(|name| name.starts_with("libc++"));
    if needs_libcxx { StringLayout::Libcxx } else { StringLayout::Libstdcxx }
}

#[cfg(test)]
mod tests;
