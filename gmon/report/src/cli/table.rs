//! Tables of text whose columns are as wide as they have to be, and together as wide as the terminal at most.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, Write};

use gprofinject_image::names::fit;

use crate::cli::text::Style;
use crate::cli::units::count;

/// The width above which a text does not widen its column, so that a few long names do not move what follows the others: without a terminal,
/// where names are whole, and with one.
const WIDEST: usize = 64;
const WIDEST_SHORTENED: usize = 300;
/// The distance between columns.
const GAP: &str = "  ";
/// The width of a name below which numbers that may be left out are left out.
const NAME: usize = 24;
/// The width of any further column of names, such as that of modules, on a narrow terminal.
const SECOND: usize = 12;

/// The width up to which a count has all its digits where counts are short.
const SHORT_COUNT: usize = 5;

/// A table. Its columns are aligned to the right, except for the last ones, which are names.
pub(crate) struct Table {
    headings: Vec<&'static str>,
    /// The number of columns at the end that are aligned to the left.
    names: usize,
    /// The headings of the columns that may be left out, the one that is left out first in front.
    optional: Vec<&'static str>,
    /// The headings of the columns with counts, which a narrow terminal has with a unit if there is room for another column then.
    counts_of: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    /// The counts after which some rows are coloured, by their indexes.
    counts: HashMap<usize, Option<u64>>,
}

impl Table {
    pub(crate) fn new(headings: Vec<&'static str>, names: usize) -> Table {
        Table {
            headings,
            names,
            optional: Vec::new(),
            counts_of: Vec::new(),
            rows: Vec::new(),
            counts: HashMap::new(),
        }
    }

    /// Sets which columns are left out if the terminal is too narrow, the one that is left out first in front.
    pub(crate) fn optional(mut self, headings: &[&'static str]) -> Table {
        self.optional = headings.to_vec();
        self
    }

    /// Sets which columns have counts, such as 1925676. If the terminal is too narrow for all columns, they may have `1926k` instead.
    pub(crate) fn counts(mut self, headings: &[&'static str]) -> Table {
        self.counts_of = headings.to_vec();
        self
    }

    /// Sets a column that is never left out.
    pub(crate) fn keep(mut self, heading: &str) -> Table {
        self.optional.retain(|known| *known != heading);
        self
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
        let (widths, rows) = self.layout(style.width());
        let first = widths.iter().position(Option::is_some);
        let line = |texts: &mut dyn Iterator<Item = &str>| {
            let mut line = String::new();
            for (column, (text, width)) in texts.zip(&widths).enumerate() {
                let Some(width) = *width else { continue };
                // Spaces before the first column would only take room.
                line += if Some(column) == first { "" } else { GAP };
                let is_name = column + self.names >= widths.len();
                line += &match (is_name, style.width()) {
                    (false, _) => format!("{text:>width$}"),
                    (true, None) => format!("{text:<width$}"),
                    (true, Some(_)) => format!("{:<width$}", shortened(text, width)),
                };
            }
            line.trim_end().to_owned()
        };
        writeln!(out, "{}", style.heading(&line(&mut self.headings.iter().copied())))?;
        for (index, row) in rows.iter().enumerate() {
            let text = line(&mut row.iter().map(String::as_str));
            if total && index + 1 == rows.len() {
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

    /// Returns the width of each column, and the rows: with short counts if more columns have room then.
    fn layout(&self, room: Option<usize>) -> (Vec<Option<usize>>, Cow<'_, [Vec<String>]>) {
        let left_out = |widths: &[Option<usize>]| widths.iter().filter(|width| width.is_none()).count();
        let widths = self.widths(room, &self.rows);
        if left_out(&widths) == 0 {
            return (widths, Cow::Borrowed(&self.rows));
        }
        let shorter = |(heading, text): (&&'static str, &String)| match text.parse() {
            Ok(number) if self.counts_of.contains(heading) => count(number, SHORT_COUNT),
            _ => text.clone(),
        };
        let short: Vec<Vec<String>> =
            self.rows.iter().map(|row| self.headings.iter().zip(row).map(shorter).collect()).collect();
        let with_short = self.widths(room, &short);
        match left_out(&with_short) < left_out(&widths) {
            true => (with_short, Cow::Owned(short)),
            false => (widths, Cow::Borrowed(&self.rows)),
        }
    }

    /// Returns the width of each column; `None` for one that is left out.
    fn widths(&self, room: Option<usize>, rows: &[Vec<String>]) -> Vec<Option<usize>> {
        let most = if room.is_none() { WIDEST } else { WIDEST_SHORTENED };
        let widest = |column: usize| {
            let texts = rows.iter().filter_map(|row| row.get(column)).map(|text| text.chars().count());
            texts.filter(|&width| width <= most).max().unwrap_or(0).max(self.headings[column].len())
        };
        let mut widths: Vec<Option<usize>> =
            (0..self.headings.len()).map(|column| Some(widest(column))).collect();
        let Some(room) = room else { return widths };
        let first = widths.len() - self.names;
        let taken =
            |widths: &[Option<usize>]| widths.iter().flatten().map(|width| width + GAP.len()).sum::<usize>();
        // What the names take if they are made as short as they may be.
        let least = |widths: &[Option<usize>]| {
            let names = widths[first..].iter().enumerate();
            names
                .filter_map(|(at, width)| {
                    Some((*width)?.min(if at == 0 { NAME } else { SECOND }) + GAP.len())
                })
                .sum::<usize>()
        };
        let room = room + GAP.len();
        for heading in &self.optional {
            if taken(&widths[..first]) + least(&widths) <= room {
                break;
            }
            let column = self.headings.iter().position(|known| known == heading);
            if let Some(width) = column.and_then(|column| widths.get_mut(column)) {
                *width = None;
            }
        }
        // The names share what is left: further ones get what they need up to a third of it, the first one the rest.
        let mut left = room.saturating_sub(taken(&widths[..first]));
        if taken(&widths[first..]) > left {
            for width in widths[(first + 1).min(self.headings.len())..].iter_mut().flatten() {
                *width = (*width).min((left / 3).max(SECOND));
                left = left.saturating_sub(*width + GAP.len());
            }
            if let Some(Some(width)) = widths.get_mut(first) {
                *width = (*width).min(left.saturating_sub(GAP.len()).max(1));
            }
        }
        widths
    }
}

/// Returns a text that takes at most `width` columns. Spaces in front of a name stay.
fn shortened(text: &str, width: usize) -> String {
    let name = text.trim_start();
    let indent = &text[..text.len() - name.len()];
    let indent = &indent[..indent.len().min(width / 4)];
    format!("{indent}{}", fit(name, width - indent.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::report_args::When;

    fn table() -> Table {
        let mut table = Table::new(vec!["calls", "self", "name", "module"], 2).optional(&["self"]);
        table.push(["1000000", "1.000 s ", "f", "a"].map(str::to_owned).to_vec());
        table.push(["1", "20 ns", "    a_space::longer", "library.so"].map(str::to_owned).to_vec());
        table
    }

    fn text(width: Option<usize>) -> String {
        let style = Style::new(Some(When::Never));
        let style = width.map_or(style, |width| style.of_width(width));
        let mut out = Vec::new();
        table().print(true, style, &mut out).expect("memory");
        String::from_utf8_lossy(&out).into_owned()
    }

    #[test]
    fn columns_are_aligned() {
        let expected = "  calls      self  name                 module\n\
                        1000000  1.000 s   f                    a\n\
                        \x20     1     20 ns      a_space::longer  library.so\n";
        assert_eq!(text(None), expected);
        assert_eq!(text(Some(50)), expected);
    }

    #[test]
    fn a_long_name_moves_nothing_but_its_own_row() {
        let mut table = Table::new(vec!["name", "module"], 2);
        let long = "f".repeat(WIDEST + 1);
        table.push(vec![long.clone(), "a".to_owned()]);
        table.push(vec!["g".to_owned(), "b".to_owned()]);
        let mut out = Vec::new();
        table.print(false, Style::new(Some(When::Never)), &mut out).expect("memory");
        assert_eq!(String::from_utf8_lossy(&out), format!("name  module\n{long}  a\ng     b\n"));
    }

    #[test]
    fn a_narrow_table_has_fewer_columns_and_shorter_names() {
        for width in 30..50 {
            let text = text(Some(width));
            let longest = text.lines().map(|line| line.chars().count()).max();
            assert!(longest <= Some(width), "{width}\n{text}");
            assert!(text.contains("longer") && text.contains("1000000"), "{width}\n{text}");
        }
        assert!(text(Some(50)).contains("self") && !text(Some(30)).contains("self"));
    }

    #[test]
    fn counts_become_short_if_that_keeps_a_column() {
        let style = |width| Style::new(Some(When::Never)).of_width(width);
        let shown = |width, kept| {
            let mut table = Table::new(vec!["calls", "self", "a longer name of it"], 1)
                .optional(&["self"])
                .counts(&["calls"])
                .keep(kept);
            table.push(["335123456", "1.000 s ", &"f".repeat(30)].map(str::to_owned).to_vec());
            let mut out = Vec::new();
            table.print(false, style(width), &mut out).expect("memory");
            String::from_utf8_lossy(&out).into_owned()
        };
        assert!(shown(50, "").contains("335123456") && shown(50, "").contains("1.000 s"));
        assert!(shown(42, "").contains(" 335M") && shown(42, "").contains("1.000 s"));
        assert!(shown(36, "").contains("335123456") && !shown(36, "").contains("1.000 s"));
        assert!(shown(36, "self").contains("1.000 s"));
    }
}
