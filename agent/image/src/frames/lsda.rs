//! Exception tables (LSDA), as GCC and clang write them (gcc/except.c):
//!
//! ```text
//! lp_start encoding, [lp_start]      default: the start of the function
//! type table encoding, [offset]
//! call site encoding, table length
//! call sites: start, length, landing pad (0: none), action
//! action records: filter, offset of the next one
//! types, the last one first; exception specifications
//! ```
//!
//! [`Head`] reads as far as the call sites, [`Table`] all that is in use.

use gimli::DwEhPe;
use gimli::constants::DW_EH_PE_omit;

use crate::frames::encoded::Reader;

/// A range of addresses in an exception table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Site {
    /// The first address.
    pub start: u64,
    /// The first address behind it.
    pub end: u64,
    /// Address of the landing pad. 0: there is none.
    pub pad: u64,
    /// One more than the offset of the first action record. 0: there is none.
    pub action: u64,
}

/// The first part of an exception table.
pub(crate) struct Head<'d> {
    /// What landing pads are relative to.
    pads: u64,
    /// How types are encoded. `DW_EH_PE_omit`: there are none.
    encoding: DwEhPe,
    /// The end of the types, if there are any: an address, and an offset from it.
    types: Option<(u64, u64)>,
    site_encoding: DwEhPe,
    /// The bytes of the call sites.
    pub(crate) sites: Reader<'d>,
    /// What stands behind the call sites, beginning with the action records.
    rest: Reader<'d>,
}

impl<'d> Head<'d> {
    /// Reads from the first byte of a table on. `None`: the table is damaged, or has an encoding that is not known.
    pub(crate) fn read(mut reader: Reader<'d>) -> Option<Head<'d>> {
        let encoding = DwEhPe(reader.byte()?);
        let pads = if encoding == DW_EH_PE_omit { reader.function } else { reader.pointer(encoding)? };
        let encoding = DwEhPe(reader.byte()?);
        let types = if encoding == DW_EH_PE_omit {
            None
        } else {
            let offset = reader.uleb()?;
            Some((reader.address, offset))
        };
        let site_encoding = DwEhPe(reader.byte()?);
        let len = usize::try_from(reader.uleb()?).ok()?;
        let sites = Reader { bytes: reader.bytes.get(..len)?, ..reader };
        let rest = Reader {
            bytes: reader.bytes.get(len..)?,
            address: reader.address.wrapping_add(len as u64),
            ..reader
        };
        Some(Head { pads, encoding, types, site_encoding, sites, rest })
    }

    /// Returns the call sites; `None` stands for one that is damaged.
    pub(crate) fn sites(&self) -> impl Iterator<Item = Option<Site>> {
        let mut reader = self.sites;
        std::iter::from_fn(move || (!reader.bytes.is_empty()).then(|| self.site(&mut reader)))
    }

    fn site(&self, reader: &mut Reader<'d>) -> Option<Site> {
        let start = reader.function.wrapping_add(reader.value(self.site_encoding)?);
        let end = start.wrapping_add(reader.value(self.site_encoding)?);
        let pad = reader.value(self.site_encoding)?;
        let action = reader.uleb()?;
        let pad = if pad == 0 { 0 } else { self.pads.wrapping_add(pad) };
        Some(Site { start, end, pad, action })
    }
}

/// What is in use of an exception table.
pub struct Table<'d> {
    /// The ranges.
    pub sites: Vec<Site>,
    /// The action records in use, from the first one on.
    pub actions: &'d [u8],
    /// How types are encoded. `DW_EH_PE_omit`: there are none.
    pub encoding: DwEhPe,
    /// Bytes of a type.
    pub size: usize,
    /// The types in use as they are encoded, the last one first.
    pub types: &'d [u8],
    /// Address of `types`.
    pub types_at: u64,
    /// The exception specifications in use, which stand behind the types.
    pub specifications: &'d [u8],
}

impl<'d> Table<'d> {
    /// Reads the exception table at an address, of the frame description that begins at `function`. `data_from` returns the
    /// program's bytes from an address to the end of the segment, and `data_at` so many at an address. `None`: the table is
    /// damaged, or has an encoding that is not known.
    pub(crate) fn read(
        address: u64,
        function: u64,
        data_from: impl Fn(u64) -> Option<&'d [u8]>,
        data_at: impl Fn(u64, u64) -> Option<&'d [u8]>,
    ) -> Option<Table<'d>> {
        let head = Head::read(Reader { bytes: data_from(address)?, address, function })?;
        let sites = head.sites().collect::<Option<Vec<Site>>>()?;
        let used = Used::of(&sites, &head.rest)?;
        let mut table = Table {
            sites,
            actions: head.rest.bytes.get(..used.actions)?,
            encoding: head.encoding,
            size: 0,
            types: &[],
            types_at: 0,
            specifications: &[],
        };
        let Some((from, offset)) = head.types else {
            return (used.types == 0 && used.specifications == 0).then_some(table);
        };
        let base = from.checked_add(offset)?;
        table.size = match table.encoding.0 & 0xf {
            0x00 | 0x04 | 0x0c => 8,
            0x02 | 0x0a => 2,
            0x03 | 0x0b => 4,
            _ => return None,
        };
        let mut types = used.types;
        if used.specifications > 0 {
            let mut reader = Reader { bytes: data_from(base)?, address: base, function: 0 };
            let all = reader.bytes;
            // These are lists of types, each ended by a zero. Reads up to the end of the last one that is in
            // use.
            while all.len() - reader.bytes.len() < used.specifications || {
                let done = all.len() - reader.bytes.len();
                all.get(done.checked_sub(1)?) != Some(&0)
            } {
                types = types.max(reader.uleb()?);
            }
            table.specifications = all.get(..all.len() - reader.bytes.len())?;
        }
        let len = types.checked_mul(table.size as u64).filter(|&len| len <= base)?;
        table.types_at = base - len;
        table.types = data_at(table.types_at, len)?;
        Some(table)
    }
}

/// How much of what stands behind the ranges is in use.
#[derive(Default)]
struct Used {
    /// Bytes of action records.
    actions: usize,
    /// The number of types.
    types: u64,
    /// Bytes of exception specifications.
    specifications: usize,
}

impl Used {
    /// Follows the action records that the ranges use.
    fn of(sites: &[Site], actions: &Reader) -> Option<Used> {
        const LONGEST: usize = 4096;
        let mut used = Used::default();
        for site in sites.iter().filter(|s| s.action != 0) {
            let mut at = usize::try_from(site.action - 1).ok()?;
            for _ in 0..LONGEST {
                let all = actions.bytes;
                let mut reader = Reader { bytes: all.get(at..)?, ..*actions };
                let filter = reader.sleb()? as i64;
                let next_at = all.len() - reader.bytes.len();
                let next = reader.sleb()? as i64;
                used.actions = used.actions.max(all.len() - reader.bytes.len());
                if filter > 0 {
                    used.types = used.types.max(filter as u64);
                } else if filter < 0 {
                    used.specifications = used.specifications.max(usize::try_from(-filter).ok()?);
                }
                if next == 0 {
                    break;
                }
                at = next_at.checked_add_signed(isize::try_from(next).ok()?)?;
            }
        }
        Some(used)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two call sites, of which the second has a landing pad and an action that catches the first type, of one byte offsets.
    const TABLE: [u8; 22] = [
        0xff, // lp_start: the function
        0x03, 15, // types: udata4, up to 15 bytes behind this one
        0x01, 8, // call sites: uleb128, 8 bytes
        0, 4, 0, 0, // 0x1000..0x1004: no pad
        4, 2, 0x20, 1, // 0x1004..0x1006: pad 0x1020, first action
        1, 0, // catches type 1; the last action
        0, 0, 0, // alignment
        0x78, 0x56, 0x34, 0x12,
    ];

    #[test]
    fn all_that_is_in_use() {
        const AT: u64 = 0x5000;
        let from = |at: u64| TABLE.get(usize::try_from(at.checked_sub(AT)?).ok()?..);
        let at = |at: u64, len: u64| from(at)?.get(..len as usize);
        let table = Table::read(AT, 0x1000, from, at).expect("a table");
        let sites = [
            Site { start: 0x1000, end: 0x1004, pad: 0, action: 0 },
            Site { start: 0x1004, end: 0x1006, pad: 0x1020, action: 1 },
        ];
        assert_eq!(table.sites, sites);
        assert_eq!((table.actions, table.size), (&[1, 0][..], 4));
        assert_eq!(table.types, [0x78, 0x56, 0x34, 0x12]);
        // The types end at 0x5012: one byte further, and they would be others.
        assert_eq!(table.types_at, AT + 18);
        let cut = |at: u64| from(at).and_then(|bytes| bytes.get(..bytes.len() - 10));
        assert!(Table::read(AT, 0x1000, cut, at).is_none());
    }

    #[test]
    fn sites_before_the_damage() {
        // The second site's encoded number has no end.
        let mut bytes = TABLE;
        bytes[9..13].fill(0x80);
        let head = Head::read(Reader { bytes: &bytes, address: 0, function: 0x1000 }).expect("a head");
        let sites: Vec<_> = head.sites().map_while(|site| site).collect();
        assert_eq!(sites, [Site { start: 0x1000, end: 0x1004, pad: 0, action: 0 }]);
    }
}
