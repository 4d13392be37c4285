//! The functions in debug information, by the addresses of their entries.

use std::collections::HashSet;
use std::sync::Arc;

use gimli::{
    AttributeValue, DW_AT_entry_pc, DW_AT_low_pc, DW_AT_name, DW_AT_ranges, DW_AT_sibling, DwTag,
    constants as dw,
};
use object::{Object, ObjectSymbol, SymbolKind};

use crate::file::object as file;
use crate::signatures::aggregates::OtherTypes;
use crate::signatures::convention::{Trust, Unclear, is_changed_copy};
use crate::signatures::info::DebugInfo;
use crate::signatures::model::{Enum, Rest, Shape, Signature};
use crate::signatures::sections::Slice;
use crate::signatures::split::MissingUnits;
use crate::signatures::subprogram::Subprogram;
use crate::signatures::types::{Types, is_fortran};
use crate::signatures::units::{Die, Unit, Units};
use crate::signatures::{c_family, fortran, located, rust};

/// The functions that other files can call, so that no compiler can have changed their conventions.
#[derive(Debug, Default)]
pub struct Exported(HashSet<u64>);

impl Exported {
    /// Reads the symbol tables of a program or library, and of its debug file.
    pub fn read<'f>(files: impl IntoIterator<Item = &'f [u8]>) -> Exported {
        let mut addresses = HashSet::new();
        for bytes in files {
            let Ok(file) = file::open(bytes) else { continue };
            let symbols = file.symbols().chain(file.dynamic_symbols());
            let functions = symbols.filter(|symbol| symbol.is_global() && symbol.kind() == SymbolKind::Text);
            addresses.extend(functions.map(|symbol| symbol.address()));
        }
        Exported(addresses)
    }
}

/// The signatures of functions, read when they are asked for.
pub struct Signatures<'s> {
    units: Units<'s>,
    types: Types,
    exported: Exported,
    /// The entries of functions, sorted by address.
    functions: Vec<(u64, Die)>,
    missing: Option<&'s MissingUnits>,
}

impl<'s> Signatures<'s> {
    /// Finds the functions. What is damaged is left out.
    pub fn new(info: &'s DebugInfo<'_>, exported: Exported) -> Signatures<'s> {
        let units = Units::new(info);
        let mut functions = Vec::new();
        for number in 0..units.count() {
            let Some(unit) = units.read(number) else { continue };
            visit(&units, &unit, dw::DW_TAG_subprogram, |entry| {
                if let Some(address) = entry.address {
                    functions.push((address, Die { unit: number, offset: entry.offset }));
                }
                true
            });
        }
        // The code of a function that several files define is kept once, and so should be its entry.
        functions.sort_by_key(|&(address, _)| address);
        functions.dedup_by_key(|&mut (address, _)| address);
        Signatures { units, types: Types::default(), exported, functions, missing: info.missing_units() }
    }

    /// The number of functions.
    pub fn count(&self) -> usize {
        self.functions.len()
    }

    /// The addresses of all functions, sorted.
    pub fn addresses(&self) -> impl Iterator<Item = u64> {
        self.functions.iter().map(|&(address, _)| address)
    }

    /// Returns the signature of the function that begins at a link address and has these names in the symbol table.
    ///
    /// # Errors
    /// It is not known which registers have its parameters.
    pub fn of<'n>(
        &mut self,
        address: u64,
        mut names: impl Iterator<Item = &'n str>,
    ) -> Result<Signature, Unclear> {
        let found = self.functions.binary_search_by_key(&address, |&(address, _)| address);
        let is_elsewhere = || self.missing.is_some_and(|missing| missing.have(address));
        let why = |_| if is_elsewhere() { Unclear::Split } else { Unclear::NoInformation };
        let (_, die) = self.functions[found.map_err(why)?];
        let is_copy = names.any(is_changed_copy);
        let function = Subprogram::read(&mut self.types, &mut self.units, die, address);
        let function = function.ok_or(Unclear::Damaged)?;
        if is_copy || function.is_changed {
            return located::signature(&function);
        }
        if function.is_unusual {
            return Err(Unclear::Changed);
        }
        let trust = Trust::of(&function, !self.exported.0.contains(&address));
        let signature = match function.language.ok_or(Unclear::Language)? {
            language if is_c(language) => c_family::signature(&function, trust, true)?,
            language if is_cpp(language) => c_family::signature(&function, trust, false)?,
            language if is_fortran(language) => fortran::signature(&function, trust)?,
            dw::DW_LANG_Rust => {
                let signature = rust::signature(&function, trust, function.name.as_deref())?;
                located::completed(signature, &function)
            }
            _ => return Err(Unclear::Language),
        };
        // A parameter is not where it should be: those after it may be elsewhere as well.
        match signature.rest {
            Some(Rest::Changed) if matches!(trust, Trust::Said { .. }) => {
                Ok(located::signature(&function).unwrap_or(signature))
            }
            _ => Ok(signature),
        }
    }

    /// Returns the enumeration with this name, the first one if there are several.
    pub fn enumeration(&mut self, name: &str) -> Option<Arc<Enum>> {
        let mut found = None;
        for number in 0..self.units.count() {
            let Some(unit) = self.units.read(number) else { continue };
            visit(&self.units, &unit, dw::DW_TAG_enumeration_type, |entry| {
                if entry.name == Some(name) {
                    found = Some(Die { unit: number, offset: entry.offset });
                }
                found.is_none()
            });
            if found.is_some() {
                break;
            }
        }
        match &self.types.at(&mut self.units, found?).shape {
            Shape::Enum(all) => Some(all.clone()),
            _ => None,
        }
    }
}

/// An entry, as far as the index needs it.
struct Indexed<'s> {
    offset: gimli::UnitOffset,
    /// The address of its code.
    address: Option<u64>,
    name: Option<&'s str>,
}

/// Calls `found` for all entries of a unit that have a tag, until it returns false or an entry is damaged.
fn visit<'s>(
    units: &Units<'s>,
    unit: &Unit<'s>,
    tag: DwTag,
    mut found: impl FnMut(Indexed<'s>) -> bool,
) -> Option<()> {
    let mut entries = unit.unit.entries_raw(None).ok()?;
    let mut attributes = Vec::new();
    while !entries.is_empty() {
        let offset = entries.next_offset();
        let Some(abbreviation) = entries.read_abbreviation().ok()? else { continue };
        let is_wanted = abbreviation.tag() == tag;
        if !is_wanted && !has_no_functions(abbreviation.tag(), tag) {
            entries.skip_attributes(abbreviation.attributes()).ok()?;
            continue;
        }
        entries.read_attributes(abbreviation.attributes(), &mut attributes).ok()?;
        let attribute =
            |name| attributes.iter().find(|attribute| attribute.name() == name).map(|a| a.value());
        if is_wanted {
            let name = units.text(unit, attribute(DW_AT_name));
            if !found(Indexed { offset, address: address(units, unit, attribute), name }) {
                break;
            }
        } else if let Some(AttributeValue::UnitRef(sibling)) = attribute(DW_AT_sibling)
            && sibling > offset
            && let Ok(after) = unit.unit.entries_raw(Some(sibling))
        {
            entries = after;
        }
    }
    Some(())
}

/// Whether no wanted entry with code can be below an entry with this tag.
fn has_no_functions(tag: DwTag, wanted: DwTag) -> bool {
    let is_class = matches!(
        tag,
        dw::DW_TAG_structure_type | dw::DW_TAG_class_type | dw::DW_TAG_union_type | dw::DW_TAG_interface_type
    );
    is_class && wanted == dw::DW_TAG_subprogram
        || matches!(tag, dw::DW_TAG_array_type | dw::DW_TAG_subroutine_type | dw::DW_TAG_enumeration_type)
}

/// Returns the address of a function's entry, if its code was kept by the linker.
fn address<'s>(
    units: &Units<'s>,
    unit: &Unit<'s>,
    attribute: impl Fn(gimli::DwAt) -> Option<AttributeValue<Slice<'s>>>,
) -> Option<u64> {
    let one = |value| units.dwarf(unit).attr_address(&unit.unit, value).ok().flatten();
    let named = attribute(DW_AT_entry_pc).and_then(one).or_else(|| attribute(DW_AT_low_pc).and_then(one));
    let of_ranges = || {
        let mut ranges = units.dwarf(unit).attr_ranges(&unit.unit, attribute(DW_AT_ranges)?).ok()??;
        Some(ranges.next().ok()??.begin)
    };
    let address = named.or_else(of_ranges)?;
    (address != 0 && !unit.unit.header.is_tombstone_address(address)).then_some(address)
}

fn is_c(language: gimli::DwLang) -> bool {
    matches!(
        language,
        dw::DW_LANG_C89
            | dw::DW_LANG_C
            | dw::DW_LANG_C99
            | dw::DW_LANG_C11
            | dw::DW_LANG_C17
            | dw::DW_LANG_ObjC
    )
}

fn is_cpp(language: gimli::DwLang) -> bool {
    matches!(
        language,
        dw::DW_LANG_C_plus_plus
            | dw::DW_LANG_C_plus_plus_03
            | dw::DW_LANG_C_plus_plus_11
            | dw::DW_LANG_C_plus_plus_14
            | dw::DW_LANG_C_plus_plus_17
            | dw::DW_LANG_C_plus_plus_20
            | dw::DW_LANG_ObjC_plus_plus
    )
}
