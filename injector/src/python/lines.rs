//! The lines of instructions, by the tables of code objects.

use std::num::NonZeroU32;

use crate::python::layout::Tables;

/// Which line each instruction of a function is of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Lines(Box<[Range]>);

/// The instructions of a line that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    /// The number of bytes before them. They end where the next range begins.
    start: u32,
    /// `None` for instructions of no line, or behind the last one.
    line: Option<NonZeroU32>,
}

impl Lines {
    /// Reads the table of a function that begins on a line. The table may contain anything.
    pub(super) fn of(table: &[u8], first: u32, tables: Tables) -> Lines {
        let mut making = Making { line: i64::from(first), ..Making::default() };
        match tables {
            Tables::Lnotab => making.lnotab(table),
            Tables::Ranges => making.ranges(table),
            Tables::Locations => making.locations(table),
        }
        Lines(making.ranges.into())
    }

    /// Returns the line of the instruction behind so many bytes.
    pub(super) fn at(&self, instruction: u32) -> Option<NonZeroU32> {
        let behind = self.0.partition_point(|range| range.start <= instruction);
        self.0.get(behind.checked_sub(1)?)?.line
    }

    /// The number of ranges.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// The ranges that were found, and where the next one begins.
#[derive(Default)]
struct Making {
    ranges: Vec<Range>,
    start: u32,
    line: i64,
}

impl Making {
    /// Begins a range of a line, or of none, where the last one ends.
    fn begin(&mut self, line: Option<i64>) {
        let line = line.and_then(|line| NonZeroU32::new(u32::try_from(line).ok()?));
        match self.ranges.last_mut() {
            Some(last) if last.line == line => {}
            // An empty range.
            Some(last) if last.start == self.start => last.line = line,
            _ => self.ranges.push(Range { start: self.start, line }),
        }
    }

    fn lnotab(&mut self, table: &[u8]) {
        if !table.is_empty() {
            self.begin(Some(self.line));
        }
        for &[bytes, lines] in table.as_chunks().0 {
            self.start = self.start.saturating_add(bytes.into());
            self.line += i64::from(lines.cast_signed());
            self.begin(Some(self.line));
        }
    }

    fn ranges(&mut self, table: &[u8]) {
        for &[bytes, lines] in table.as_chunks().0 {
            let lines = Some(lines.cast_signed()).filter(|&lines| lines != i8::MIN);
            self.line += i64::from(lines.unwrap_or(0));
            self.begin(lines.map(|_| self.line));
            self.start = self.start.saturating_add(bytes.into());
        }
        self.begin(None);
    }

    fn locations(&mut self, table: &[u8]) {
        /// The forms of entries that have the difference behind them, that have it in their number, and that have no line.
        const WITH_LINES: std::ops::RangeInclusive<u8> = 13..=14;
        const FEW_LINES: std::ops::RangeInclusive<u8> = 10..=12;
        const NO_LINE: u8 = 15;
        const BEGINS: u8 = 0x80;
        const UNIT: u32 = 2;
        let mut rest = table;
        while let Some((&head, others)) = rest.split_first() {
            let form = head >> 3 & 15;
            let lines = match form {
                _ if WITH_LINES.contains(&form) => signed(others),
                _ if FEW_LINES.contains(&form) => i64::from(form - FEW_LINES.start()),
                _ => 0,
            };
            self.line += lines;
            self.begin(Some(self.line).filter(|_| form != NO_LINE));
            self.start = self.start.saturating_add((u32::from(head & 7) + 1) * UNIT);
            let end = others.iter().position(|&byte| byte & BEGINS != 0).unwrap_or(others.len());
            rest = others.get(end..).unwrap_or_default();
        }
        self.begin(None);
    }
}

/// Returns the number with a sign with which bytes begin: six bits of it are in each byte, the lowest ones first.
fn signed(bytes: &[u8]) -> i64 {
    const GOES_ON: u8 = 0x40;
    const MOST: usize = 6;
    let mut number = 0;
    for (index, byte) in bytes.iter().take(MOST).enumerate() {
        number |= i64::from(byte & (GOES_ON - 1)) << (6 * index);
        if byte & GOES_ON == 0 {
            break;
        }
    }
    if number & 1 == 1 { -(number >> 1) } else { number >> 1 }
}
