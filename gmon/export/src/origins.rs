//! Where the functions of a gmon.syms come from.
//!
//! The addresses of a gmon.syms are made up, and its names may have the module behind them. A section of the file that gprof
//! ignores says what they stand for: the modules of the process, and the code at each range of addresses. gprofinject writes
//! it, and [`load::process`](crate::load::process) reads it.

use object::{Object, ObjectSection};
use prost::Message;

/// The name of the section.
pub const SECTION: &str = ".gprofinject.origins";
/// The version of [`Origins`]. A change that older readers would misunderstand raises it.
pub const VERSION: u32 = 1;

/// The section of the symbols of functions in a gmon.syms.
const FUNCTIONS: &str = ".text.functions";

/// Whether an ELF file is a gmon.syms, and no program.
pub fn is_symbols(bytes: &[u8]) -> bool {
    object::File::parse(bytes).is_ok_and(|file| {
        let has = |name| file.section_by_name(name).is_some();
        has(SECTION) || (has(FUNCTIONS) && file.entry() == 0 && file.segments().next().is_none())
    })
}

/// The name of the callers that are not known: code that is not hooked, while no hooked function was running.
pub const OUTSIDE: &str = "[outside]";
/// The name of the code in which samples are that belong to no module.
pub const ELSEWHERE: &str = "[elsewhere]";

/// The contents of the section, as a message of Protocol Buffers. The columns `address`, `len`, `module` and `link` have
/// an element for each range, sorted by address.
#[derive(Clone, PartialEq, Message)]
pub struct Origins {
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// The modules; the first one is the program.
    #[prost(message, repeated, tag = "2")]
    pub modules: Vec<Module>,
    /// The address in gmon.syms at which a range begins.
    #[prost(uint64, repeated, tag = "3")]
    pub address: Vec<u64>,
    /// The number of bytes.
    #[prost(uint64, repeated, tag = "4")]
    pub len: Vec<u64>,
    /// The index of the module.
    #[prost(uint32, repeated, tag = "5")]
    pub module: Vec<u32>,
    /// The link address of the range's first byte in the module, or 0 if it is not known.
    #[prost(uint64, repeated, tag = "6")]
    pub link: Vec<u64>,
}

/// A module of the process.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Module {
    /// The path, or the file name alone if no more is known.
    #[prost(string, tag = "1")]
    pub path: String,
    /// The text after the `@` of names that have the module behind them.
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(bytes = "vec", tag = "3")]
    pub build_id: Vec<u8>,
    /// The link address of the first byte of its code.
    #[prost(uint64, tag = "4")]
    pub start: u64,
    /// The link address after its code.
    #[prost(uint64, tag = "5")]
    pub limit: u64,
    /// The offset in the file of the byte at `start`.
    #[prost(uint64, tag = "6")]
    pub offset: u64,
}

impl Origins {
    /// Adds a range. Ranges are added in the order of their addresses.
    pub fn push(&mut self, address: u64, len: u64, module: u32, link: u64) {
        self.address.push(address);
        self.len.push(len);
        self.module.push(module);
        self.link.push(link);
    }

    /// Reads the section of a gmon.syms. Returns `None` if there is none, or one that this version does not understand.
    pub fn read(symbols: &[u8]) -> Option<Origins> {
        let file = object::File::parse(symbols).ok()?;
        let origins = Origins::decode(file.section_by_name(SECTION)?.data().ok()?).ok()?;
        let len = origins.address.len();
        let columns = [origins.len.len(), origins.module.len(), origins.link.len()];
        let fits = columns.iter().all(|&column| column == len)
            && origins.address.is_sorted()
            && origins.module.iter().all(|&module| (module as usize) < origins.modules.len());
        (origins.version == VERSION && fits).then_some(origins)
    }

    /// Returns the module and the link address of an address in gmon.syms, or `None` if it is in no range.
    pub fn find(&self, address: u64) -> Option<(u32, u64)> {
        let index = self.address.partition_point(|&start| start <= address).checked_sub(1)?;
        let offset = address - self.address[index];
        let link = self.link[index];
        let known = offset < self.len[index];
        known.then_some((self.module[index], if link == 0 { 0 } else { link.saturating_add(offset) }))
    }

    /// Returns the range of addresses in a module's code that begins at an address in gmon.syms.
    pub(crate) fn range_at(&self, address: u64) -> Option<(u32, u64, u64)> {
        let index = self.address.binary_search(&address).ok()?;
        Some((self.module[index], self.link[index], self.len[index]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_address_stands_for() {
        let mut origins = Origins::default();
        origins.push(0x100, 0x10, 1, 0x5000);
        origins.push(0x120, 1, 0, 0);
        let found = [0xff, 0x100, 0x10f, 0x110, 0x120, 0x121].map(|address| origins.find(address));
        assert_eq!(found, [None, Some((1, 0x5000)), Some((1, 0x500f)), None, Some((0, 0)), None]);
        assert_eq!(origins.range_at(0x100), Some((1, 0x5000, 0x10)));
        assert_eq!(origins.range_at(0x101), None);
    }
}
