//! The units of debug information, and the entries in them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use gimli::{
    AttributeValue, DW_AT_language, DW_AT_producer, DebugInfoOffset, DebuggingInformationEntry, DwTag,
    UnitHeader, UnitOffset, UnitType, constants as dw,
};

use crate::signatures::info::DebugInfo;
use crate::signatures::sections::Slice;
use crate::signatures::split::Skeletons;

pub(crate) type Entry<'s> = DebuggingInformationEntry<Slice<'s>>;
pub(crate) type Attribute<'s> = AttributeValue<Slice<'s>>;

/// The greatest number of units that are kept ready for reading.
const LOADED_MAX: usize = 256;
/// The greatest length in bytes of a name.
const NAME_MAX: usize = 256;

/// An entry: a function, a parameter, a type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Die {
    pub(crate) unit: usize,
    pub(crate) offset: UnitOffset,
}

/// All units.
pub(crate) struct Units<'s> {
    /// The program's, and those of split DWARF.
    files: Vec<File<'s>>,
    units: Vec<Header<'s>>,
    /// The types in type units, by their signatures.
    types: HashMap<u64, Die>,
    loaded: HashMap<usize, Arc<Unit<'s>>>,
}

/// A file with units.
struct File<'s> {
    dwarf: gimli::Dwarf<Slice<'s>>,
    /// Those of its `.debug_info`, by their offsets.
    of_info: Range<usize>,
    /// The skeleton units of its units, if it is one of split DWARF.
    skeletons: Skeletons<'s>,
}

struct Header<'s> {
    file: usize,
    header: UnitHeader<Slice<'s>>,
}

/// A unit that is ready for reading.
pub(crate) struct Unit<'s> {
    pub(crate) unit: gimli::Unit<Slice<'s>>,
    /// The index of its file.
    file: usize,
    pub(crate) language: Option<gimli::DwLang>,
    pub(crate) producer: Producer,
}

/// Which compiler has made a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Producer {
    /// It gives functions another name when it changes their parameters.
    Gcc,
    /// It changes parameters of functions that no other file can call.
    Llvm {
        /// Whether it says of each function from which it has removed parameters or the result that it did so.
        marks_removal: bool,
    },
    Other,
}

impl<'s> Units<'s> {
    /// Finds all units. Those after a damaged one are left out, and so are skeleton units, whose entries are elsewhere.
    pub(crate) fn new(info: &'s DebugInfo<'_>) -> Units<'s> {
        let mut units =
            Units { files: Vec::new(), units: Vec::new(), types: HashMap::new(), loaded: HashMap::new() };
        let (dwarf, split) = (info.dwarf(), info.split());
        let others = split.files(&dwarf);
        units.add(dwarf, Skeletons::new(), |header| !split.is_skeleton(header.debug_info_offset()));
        for (dwarf, skeletons) in others {
            units.add(dwarf, skeletons, |_| true);
        }
        units
    }

    fn add(
        &mut self,
        dwarf: gimli::Dwarf<Slice<'s>>,
        skeletons: Skeletons<'s>,
        is_wanted: impl Fn(&UnitHeader<Slice<'s>>) -> bool,
    ) {
        let (file, first) = (self.files.len(), self.units.len());
        let mut all = dwarf.units();
        while let Ok(Some(header)) = all.next() {
            if is_wanted(&header) {
                self.units.push(Header { file, header });
            }
        }
        let of_info = first..self.units.len();
        let mut all = dwarf.type_units();
        while let Ok(Some(header)) = all.next() {
            self.units.push(Header { file, header });
        }
        for (unit, Header { header, .. }) in self.units.iter().enumerate().skip(first) {
            if let UnitType::Type { type_signature, type_offset }
            | UnitType::SplitType { type_signature, type_offset } = header.type_()
            {
                self.types.insert(type_signature.0, Die { unit, offset: type_offset });
            }
        }
        self.files.push(File { dwarf, of_info, skeletons });
    }

    /// The number of units.
    pub(crate) fn count(&self) -> usize {
        self.units.len()
    }

    /// Returns the sections that a unit's attributes refer to.
    pub(crate) fn dwarf(&self, unit: &Unit<'s>) -> &gimli::Dwarf<Slice<'s>> {
        &self.files[unit.file].dwarf
    }

    /// Returns a unit without keeping it.
    pub(crate) fn read(&self, unit: usize) -> Option<Unit<'s>> {
        let &Header { file, header } = self.units.get(unit)?;
        let File { dwarf, skeletons, .. } = self.files.get(file)?;
        let mut unit = dwarf.unit(header).ok()?;
        // Addresses are relative to what the skeleton unit says. A .dwo file may have units of another program as well.
        match unit.dwo_id {
            Some(id) if file > 0 => unit.copy_relocated_attributes(skeletons.get(&id)?),
            _ => {}
        }
        let root = unit.entry(unit.header.root_offset()).ok()?;
        let language = match root.attr_value(DW_AT_language) {
            Some(AttributeValue::Language(language)) => Some(language),
            _ => None,
        };
        let producer = root.attr_value(DW_AT_producer).and_then(|v| dwarf.attr_string(&unit, v).ok());
        let producer = producer.map_or(Producer::Other, |name| Producer::named(&name.to_string_lossy()));
        Some(Unit { unit, file, language, producer })
    }

    /// Returns a unit.
    pub(crate) fn unit(&mut self, unit: usize) -> Option<Arc<Unit<'s>>> {
        if let Some(loaded) = self.loaded.get(&unit) {
            return Some(loaded.clone());
        }
        if self.loaded.len() >= LOADED_MAX {
            self.loaded.clear();
        }
        let read = Arc::new(self.read(unit)?);
        self.loaded.insert(unit, read.clone());
        Some(read)
    }

    /// Returns an entry and its unit.
    pub(crate) fn entry(&mut self, die: Die) -> Option<(Arc<Unit<'s>>, Entry<'s>)> {
        let unit = self.unit(die.unit)?;
        let entry = unit.unit.entry(die.offset).ok()?;
        Some((unit, entry))
    }

    /// Returns the entry to which an attribute of an entry of a unit refers.
    pub(crate) fn referred(&self, unit: usize, attribute: Option<Attribute<'s>>) -> Option<Die> {
        match attribute? {
            AttributeValue::UnitRef(offset) => Some(Die { unit, offset }),
            AttributeValue::DebugInfoRef(offset) => self.at(self.units.get(unit)?.file, offset),
            AttributeValue::DebugTypesRef(signature) => self.types.get(&signature.0).copied(),
            _ => None,
        }
    }

    fn at(&self, file: usize, offset: DebugInfoOffset) -> Option<Die> {
        let of_info = &self.files.get(file)?.of_info;
        let units = self.units.get(of_info.clone())?;
        let start = |unit: &Header| unit.header.debug_info_offset().unwrap_or(DebugInfoOffset(0));
        let index = units.partition_point(|unit| start(unit).0 <= offset.0).checked_sub(1)?;
        let offset = offset.to_unit_offset(&units.get(index)?.header)?;
        Some(Die { unit: of_info.start + index, offset })
    }

    /// Returns the text of an attribute, if it is UTF-8.
    pub(crate) fn text(&self, unit: &Unit<'s>, attribute: Option<Attribute<'s>>) -> Option<&'s str> {
        let bytes = self.dwarf(unit).attr_string(&unit.unit, attribute?).ok()?;
        std::str::from_utf8(bytes.slice()).ok()
    }

    /// Returns a name, shortened if it is very long.
    pub(crate) fn name(&self, unit: &Unit<'s>, entry: &Entry<'s>) -> Option<Arc<str>> {
        let name = self.text(unit, entry.attr_value(gimli::DW_AT_name))?;
        let end = (0..=name.len().min(NAME_MAX)).rev().find(|&end| name.is_char_boundary(end))?;
        (!name.is_empty()).then(|| Arc::from(&name[..end]))
    }
}

impl Producer {
    fn named(name: &str) -> Producer {
        /// The first versions that mark functions without their parameters by DW_CC_nocall: those with LLVM 17.
        const CLANG: u32 = 17;
        const RUSTC: u32 = 73;
        let number_after = |prefix: &str| {
            let after = name.split_once(prefix)?.1;
            after.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u32>().ok()
        };
        if name.starts_with("GNU ") {
            return Producer::Gcc;
        }
        let known = match number_after("rustc version 1.") {
            Some(minor) => Some(minor >= RUSTC),
            None => number_after("clang version ").map(|major| major >= CLANG),
        };
        known.map_or(Producer::Other, |marks_removal| Producer::Llvm { marks_removal })
    }
}

/// Returns an attribute that is a number.
pub(crate) fn number(entry: &Entry<'_>, name: gimli::DwAt) -> Option<u64> {
    let value = entry.attr_value(name)?;
    value.udata_value().or_else(|| value.sdata_value().map(|value| value as u64))
}

/// Whether an entry of a type only gives another one a name, or qualifies it.
pub(crate) fn is_name(tag: DwTag) -> bool {
    matches!(
        tag,
        dw::DW_TAG_typedef
            | dw::DW_TAG_const_type
            | dw::DW_TAG_volatile_type
            | dw::DW_TAG_restrict_type
            | dw::DW_TAG_atomic_type
            | dw::DW_TAG_immutable_type
            | dw::DW_TAG_template_alias
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn producers() {
        let llvm = |marks_removal| Producer::Llvm { marks_removal };
        for (name, expected) in [
            ("GNU C17 12.2.0 -mtune=generic -g", Producer::Gcc),
            ("Debian clang version 14.0.6", llvm(false)),
            ("clang version 19.1.0 (https://github.com/llvm/llvm-project)", llvm(true)),
            ("clang LLVM (rustc version 1.95.0 (59807616e 2026-04-14))", llvm(true)),
            ("clang LLVM (rustc version 1.72.1 (d5c2e9c34 2023-09-13))", llvm(false)),
            ("Intel(R) C Intel(R) 64 Compiler", Producer::Other),
            ("clang version x", Producer::Other),
            ("", Producer::Other),
        ] {
            assert_eq!(Producer::named(name), expected, "{name}");
        }
    }
}
