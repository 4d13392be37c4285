//! The functions of a program: a list or, if an earlier run has found them, its tables, which become a list when one is needed.

use std::borrow::Cow;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::function::{Function, FunctionKind};
use crate::tables::{Reader, Writer};

/// The functions of a program, sorted by address. Some questions are answered without a list of them.
#[derive(Debug)]
pub struct Functions<'d>(Source<'d>);

#[derive(Debug)]
enum Source<'d> {
    Read(Vec<Function<'d>>),
    /// What an earlier run has kept, and the list that was made of it.
    Kept(Tables, OnceLock<Vec<Function<'static>>>),
}

/// What is kept of a list.
#[derive(Debug)]
struct Tables {
    records: Cow<'static, [Record]>,
    /// The end of each name among the names.
    ends: Cow<'static, [u32]>,
    names: &'static [u8],
}

/// A function without its names.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Record {
    address: u64,
    size: u64,
    limit: u64,
    /// The number of its name among the names.
    name: u32,
    /// The number of its names: one, and its aliases, which follow it.
    names: u32,
    /// One of [`ORDINARY`], [`IFUNC_RESOLVER`], [`START`] and [`COLD`], or what is more than the latter by one and the index of the
    /// function to which a part belongs.
    kind: u32,
    /// See [`Function::frame`]: 2 for `None`.
    frame: u32,
}

const ORDINARY: u32 = 0;
const IFUNC_RESOLVER: u32 = 1;
const START: u32 = 2;
const COLD: u32 = 3;

impl Record {
    fn kind(&self) -> FunctionKind {
        match self.kind {
            ORDINARY => FunctionKind::Ordinary,
            IFUNC_RESOLVER => FunctionKind::IfuncResolver,
            START => FunctionKind::Start,
            COLD => FunctionKind::Cold(None),
            part => FunctionKind::Cold(Some((part - COLD - 1) as usize)),
        }
    }
}

impl<'d> Functions<'d> {
    /// The number of functions.
    pub fn len(&self) -> usize {
        match &self.0 {
            Source::Read(list) => list.len(),
            Source::Kept(tables, _) => tables.records.len(),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the addresses of the functions.
    pub fn addresses(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.len()).filter_map(|index| self.address(index))
    }

    /// Returns the address of a function.
    pub fn address(&self, index: usize) -> Option<u64> {
        match &self.0 {
            Source::Read(list) => list.get(index).map(|function| function.address),
            Source::Kept(tables, _) => tables.records.get(index).map(|record| record.address),
        }
    }

    /// Returns a function.
    pub fn function(&self, index: usize) -> Option<Function<'d>> {
        match &self.0 {
            Source::Read(list) => list.get(index).cloned(),
            Source::Kept(tables, _) => tables.records.get(index).map(|record| tables.function(record)),
        }
    }

    /// Returns the index of the last function that begins at an address or before it. Another index near it makes the search shorter.
    pub fn last_up_to(&self, address: u64, near: usize) -> Option<usize> {
        let is_up_to = |index: usize| self.address(index).is_some_and(|start| start <= address);
        let (mut first, mut end) = (0, self.len());
        // The distance doubles until the index is between two that were looked at.
        if near < end {
            let mut distance = 1;
            if is_up_to(near) {
                first = near;
                while near + distance < end && is_up_to(near + distance) {
                    first = near + distance;
                    distance *= 2;
                }
                end = end.min(near + distance);
            } else {
                end = near;
                while distance <= near && !is_up_to(near - distance) {
                    end = near - distance;
                    distance *= 2;
                }
                first = near.saturating_sub(distance);
            }
        }
        while first < end {
            let middle = first + (end - first) / 2;
            if is_up_to(middle) { first = middle + 1 } else { end = middle }
        }
        first.checked_sub(1)
    }

    /// Returns the index of the function that contains an address, or `None` between functions.
    pub fn index_at(&self, address: u64) -> Option<usize> {
        let index = self.last_up_to(address, usize::MAX)?;
        let (start, end) = self.bounds(index)?;
        (start..end).contains(&address).then_some(index)
    }

    /// Returns the start and the end of a function.
    pub(crate) fn bounds(&self, index: usize) -> Option<(u64, u64)> {
        match &self.0 {
            Source::Read(list) => list.get(index).map(|f| (f.address, f.address + f.size)),
            Source::Kept(tables, _) => tables.records.get(index).map(|r| (r.address, r.address + r.size)),
        }
    }

    /// Returns the kinds of the functions.
    pub fn kinds(&self) -> impl Iterator<Item = FunctionKind> + '_ {
        (0..self.len()).filter_map(|index| self.kind(index))
    }

    /// Returns the kind of a function.
    pub fn kind(&self, index: usize) -> Option<FunctionKind> {
        match &self.0 {
            Source::Read(list) => list.get(index).map(|function| function.kind),
            Source::Kept(tables, _) => tables.records.get(index).map(Record::kind),
        }
    }

    /// Returns the start of the first function and the end of the last one, or `None` if there is none.
    pub fn extent(&self) -> Option<(u64, u64)> {
        let ends = (0..self.len()).filter_map(|index| Some(self.bounds(index)?.1));
        Some((self.address(0)?, ends.max()?))
    }

    /// Adds tables with all functions.
    ///
    /// # Errors
    /// They do not fit in the tables' numbers.
    pub(crate) fn write(&self, writer: &mut Writer) -> Result<(), std::num::TryFromIntError> {
        let mut records: Vec<Record> = Vec::with_capacity(self.len());
        let (mut ends, mut names): (Vec<u32>, Vec<u8>) = Default::default();
        for function in self.iter() {
            let name = u32::try_from(ends.len())?;
            for name in function.names() {
                names.extend(name.as_bytes());
                ends.push(u32::try_from(names.len())?);
            }
            let kind = match function.kind {
                FunctionKind::Ordinary => ORDINARY,
                FunctionKind::IfuncResolver => IFUNC_RESOLVER,
                FunctionKind::Start => START,
                FunctionKind::Cold(None) => COLD,
                FunctionKind::Cold(Some(of)) => u32::try_from(of + COLD as usize + 1)?,
            };
            let Function { address, size, limit, frame, .. } = *function;
            let (names, frame) = (ends.len() as u32 - name, frame.map_or(2, u32::from));
            records.push(Record { address, size, limit, name, names, kind, frame });
        }
        writer.add(&records);
        writer.add(&ends);
        writer.add(&names);
        Ok(())
    }

    /// Reads what [`Functions::write`] has written. Returns `None` if it is damaged.
    pub(crate) fn read(reader: &mut Reader<'static>) -> Option<Functions<'static>> {
        let (records, ends, names) = (reader.table::<Record>()?, reader.table::<u32>()?, reader.bytes(1)?);
        let mut named: u64 = 0;
        let mut is_sound_record = |record: &Record| {
            let is_next = u64::from(record.name) == named && record.names > 0;
            named += u64::from(record.names);
            is_next && record.address.checked_add(record.size).is_some()
        };
        let is_sound = records.iter().all(&mut is_sound_record)
            && named == ends.len() as u64
            && records.is_sorted_by(|a, b| a.address < b.address);
        is_sound.then(|| Functions(Source::Kept(Tables { records, ends, names }, OnceLock::new())))
    }
}

impl Tables {
    /// Makes the list.
    fn list(&self) -> Vec<Function<'static>> {
        self.records.iter().map(|record| self.function(record)).collect()
    }

    fn function(&self, record: &Record) -> Function<'static> {
        let aliases = record.name + 1..record.name + record.names;
        Function {
            address: record.address,
            size: record.size,
            limit: record.limit,
            name: self.name(record.name),
            aliases: aliases.map(|number| self.name(number)).collect(),
            kind: record.kind(),
            frame: (record.frame < 2).then_some(record.frame == 1),
        }
    }

    /// Returns a name. One whose place is damaged is empty.
    fn name(&self, number: u32) -> &'static str {
        let end_of = |number: u32| self.ends.get(number as usize).map(|&end| end as usize);
        let start = number.checked_sub(1).map_or(Some(0), end_of);
        let bytes = start.zip(end_of(number)).and_then(|(start, end)| self.names.get(start..end));
        bytes.and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
    }
}

impl Default for Functions<'_> {
    fn default() -> Self {
        Functions(Source::Read(Vec::new()))
    }
}

impl<'d> From<Vec<Function<'d>>> for Functions<'d> {
    fn from(list: Vec<Function<'d>>) -> Functions<'d> {
        Functions(Source::Read(list))
    }
}

impl<'d> Deref for Functions<'d> {
    type Target = Vec<Function<'d>>;

    fn deref(&self) -> &Vec<Function<'d>> {
        match &self.0 {
            Source::Read(list) => list,
            Source::Kept(tables, list) => list.get_or_init(|| tables.list()),
        }
    }
}

impl<'d> DerefMut for Functions<'d> {
    fn deref_mut(&mut self) -> &mut Vec<Function<'d>> {
        if let Source::Kept(tables, list) = &mut self.0 {
            self.0 = Source::Read(list.take().unwrap_or_else(|| tables.list()));
        }
        match &mut self.0 {
            Source::Read(list) => list,
            Source::Kept(..) => unreachable!("it is a list now"),
        }
    }
}

impl<'f, 'd> IntoIterator for &'f Functions<'d> {
    type Item = &'f Function<'d>;
    type IntoIter = std::slice::Iter<'f, Function<'d>>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_may_begin_anywhere() {
        let function = |n: u64| Function {
            address: 16 * n,
            size: 8,
            limit: 16 * n + 16,
            name: "f",
            aliases: Vec::new(),
            kind: FunctionKind::Ordinary,
            frame: None,
        };
        for count in [0, 1, 2, 7, 64] {
            let functions = Functions::from((1..=count).map(function).collect::<Vec<_>>());
            for address in 0..16 * (count + 2) {
                let expected = functions.partition_point(|f| f.address <= address).checked_sub(1);
                for near in (0..count as usize + 2).chain([usize::MAX]) {
                    assert_eq!(
                        functions.last_up_to(address, near),
                        expected,
                        "{address} of {count} from {near}"
                    );
                }
                let inside = expected.filter(|_| address % 16 < 8 && address < 16 * (count + 1));
                assert_eq!(functions.index_at(address), inside);
            }
        }
    }
}
