//! Reads those parts of exception tables that are in use, in the form in which GCC writes them
//! (gcc/except.c).

use gimli::DwEhPe;
use gimli::constants::DW_EH_PE_omit;
use gprofinject_image::Image;
use gprofinject_image::frames::encoded::Reader;
use gprofinject_image::frames::unwind::Description;

/// A range of addresses in an exception table.
pub(crate) struct Site {
    /// The first address.
    pub(crate) start: u64,
    /// The first address after it.
    pub(crate) end: u64,
    /// Address of the landing pad, or 0 if there is none.
    pub(crate) pad: u64,
    /// One more than the offset of the first action record, or 0 if there is none.
    pub(crate) action: u64,
}

/// An exception table (LSDA).
pub(crate) struct Table<'d> {
    /// The ranges.
    pub(crate) sites: Vec<Site>,
    /// The action records in use, from the first one on.
    pub(crate) actions: &'d [u8],
    /// The encoding of types, or `DW_EH_PE_omit` if there are none.
    pub(crate) encoding: DwEhPe,
    /// Bytes of a type.
    pub(crate) size: usize,
    /// The encoded types that are in use, the last one first.
    pub(crate) types: &'d [u8],
    /// Address of `types`.
    pub(crate) types_at: u64,
    /// The exception specifications that are in use. They follow the types.
    pub(crate) specifications: &'d [u8],
}

impl<'d> Table<'d> {
    /// Reads the exception table of a frame description. Returns `None` if the table is damaged, or has an
    /// unknown encoding.
    pub(crate) fn read(image: &Image<'d>, d: &Description) -> Option<Table<'d>> {
        let bytes = image.data_from(d.lsda)?;
        let mut reader = Reader { bytes, address: d.lsda, function: d.start };
        let encoding = DwEhPe(reader.byte()?);
        let pads = if encoding == DW_EH_PE_omit { d.start } else { reader.pointer(encoding)? };
        let encoding = DwEhPe(reader.byte()?);
        let base = if encoding == DW_EH_PE_omit {
            None
        } else {
            let offset = reader.uleb()?;
            Some(reader.address.checked_add(offset)?)
        };
        let site_encoding = DwEhPe(reader.byte()?);
        let len = usize::try_from(reader.uleb()?).ok()?;
        let mut list = Reader { bytes: reader.bytes.get(..len)?, ..reader };
        let mut sites = Vec::new();
        while !list.bytes.is_empty() {
            let start = d.start.wrapping_add(list.value(site_encoding)?);
            let end = start.wrapping_add(list.value(site_encoding)?);
            let pad = list.value(site_encoding)?;
            let action = list.uleb()?;
            let pad = if pad == 0 { 0 } else { pads.wrapping_add(pad) };
            sites.push(Site { start, end, pad, action });
        }
        let actions =
            Reader { bytes: reader.bytes.get(len..)?, address: reader.address + len as u64, ..reader };
        let used = Used::of(&sites, &actions)?;
        let mut table = Table {
            sites,
            actions: actions.bytes.get(..used.actions)?,
            encoding,
            size: 0,
            types: &[],
            types_at: 0,
            specifications: &[],
        };
        let Some(base) = base else {
            return (used.types == 0 && used.specifications == 0).then_some(table);
        };
        table.size = match encoding.0 & 0xf {
            0x00 | 0x04 | 0x0c => 8,
            0x02 | 0x0a => 2,
            0x03 | 0x0b => 4,
            _ => return None,
        };
        let mut types = used.types;
        if used.specifications > 0 {
            let mut reader = Reader { bytes: image.data_from(base)?, address: base, function: 0 };
            let all = reader.bytes;
            // The specifications are lists of types, each terminated by a zero. This reads up to the end
            // of the last list in use.
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
        table.types = image.data_at(table.types_at, len)?;
        Some(table)
    }
}

/// How much of the data after the ranges is in use.
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
