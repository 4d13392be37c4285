//! Tables of text whose columns are as wide as they have to be.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::cli::text::Style;

/// The width above which a text does not widen its column, so that one long name does not move what follows the others.
const WIDEST: usize = 300;
/// The distance between columns.
const GAP: &str = "  ";

/// A table. Its columns are aligned to the right, except for the last ones, which are names.
pub(crate) struct Table {
    headings: Vec<&'static str>,
    /// The number of columns at the end that are aligned to the left.
    names: usize,
    rows: Vec<Vec<String>>,
    /// The counts after which some rows are coloured, by their indexes.
    counts: HashMap<usize, Option<u64>>,
}

impl Table {
    pub(crate) fn new(headings: Vec<&'static str>, names: usize) -> Table {
        Table { headings, names, rows: Vec::new(), counts: HashMap::new() }
    }

    /// Adds a row with a text for each column.
    pub(crate) fn push(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    /// Adds a row that is coloured so that what never ran and what was not counted stand out.
    pub(crate) fn push_counted(&mut self, count: Option<u64>, row: Vec<String>) {
        self.counts.insert(self.rows.len(), count);
        self.rows.push(row);
    }

    /// Prints the table. If `total` is set, the last row is printed like the headings.
    ///
    /// # Errors
    /// `out` cannot be written to.
    pub(crate) fn print(&self, total: bool, style: Style, out: &mut impl Write) -> io::Result<()> {
        let width = |column: usize| {
            let texts = self.rows.iter().filter_map(|row| row.get(column)).map(|text| text.chars().count());
            texts.filter(|&width| width <= WIDEST).max().unwrap_or(0).max(self.headings[column].len())
        };
        let widths: Vec<usize> = (0..self.headings.len()).map(width).collect();
        let line = |texts: &mut dyn Iterator<Item = &str>| {
            let mut line = String::new();
            for (column, text) in texts.enumerate() {
                let width = widths.get(column).copied().unwrap_or(0);
                // Spaces before the first column would only take room.
                line += if column > 0 { GAP } else { "" };
                line += &if column + self.names < widths.len() {
                    format!("{text:>width$}")
                } else {
                    format!("{text:<width$}")
                };
            }
            line.trim_end().to_owned()
        };
        writeln!(out, "{}", style.heading(&line(&mut self.headings.iter().copied())))?;
        for (index, row) in self.rows.iter().enumerate() {
            let text = line(&mut row.iter().map(String::as_str));
            if total && index + 1 == self.rows.len() {
                writeln!(out, "{}", style.heading(&text))?;
            } else {
                let count = self.counts.get(&index).copied();
                let text = match count {
                    Some(count) => style.count(count, text),
                    None => text,
                };
                writeln!(out, "{text}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::report_args::When;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(vec!["calls", "self", "name", "module"], 2);
        table.push(["1000000", "1.000 s ", "f", "a"].map(str::to_owned).to_vec());
        table.push(["1", "20 ns", "longer", "b"].map(str::to_owned).to_vec());
        let mut out = Vec::new();
        table.print(true, Style::new(Some(When::Never)), &mut out).expect("memory");
        let expected = "  calls      self  name    module\n\
                        1000000  1.000 s   f       a\n\
                        \x20     1     20 ns  longer  b\n";
        assert_eq!(String::from_utf8_lossy(&out), expected);
    }
}
