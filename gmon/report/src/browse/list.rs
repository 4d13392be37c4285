//! A list of which some rows are shown and one is selected.

use gmon_screen::Key;

/// Where a list is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct List {
    pub(crate) len: usize,
    /// The index of the selected row.
    pub(crate) selected: usize,
    /// The index of the first row that is shown.
    first: usize,
    /// The number of rows that fit.
    page: usize,
}

impl List {
    /// Returns a list of that many rows.
    pub(crate) fn new(len: usize, selected: usize) -> List {
        let mut list = List { len, ..List::default() };
        list.select(selected);
        list
    }

    /// Selects a row, or the last one if there are fewer.
    pub(crate) fn select(&mut self, row: usize) {
        self.selected = row.min(self.len.saturating_sub(1));
    }

    /// Returns the indexes of the rows to show, of which `page` fit. The selected row is among them.
    pub(crate) fn shown(&mut self, page: usize) -> std::ops::Range<usize> {
        let is_new = self.page == 0;
        self.page = page.max(1);
        if is_new || self.selected < self.first || self.selected >= self.first + self.page {
            self.first = match () {
                // A row far away is shown with what stands around it.
                () if is_new || self.selected.abs_diff(self.first) > 2 * self.page => {
                    self.selected.saturating_sub(self.page / 2)
                }
                () if self.selected < self.first => self.selected,
                () => self.selected + 1 - self.page,
            };
        }
        self.first = self.first.min(self.len.saturating_sub(self.page));
        self.first..(self.first + page).min(self.len)
    }

    /// Moves as a key says. Returns whether it is a key that moves.
    pub(crate) fn key(&mut self, key: Key) -> bool {
        let page = self.page.saturating_sub(1).max(1);
        match key {
            Key::Up | Key::Char('k') => self.selected = self.selected.saturating_sub(1),
            Key::Down | Key::Char('j') => self.select(self.selected.saturating_add(1)),
            Key::PageUp => self.selected = self.selected.saturating_sub(page),
            Key::PageDown | Key::Char(' ') => self.select(self.selected.saturating_add(page)),
            Key::Home | Key::Char('g') => self.selected = 0,
            Key::End | Key::Char('G') => self.select(usize::MAX),
            _ => return false,
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_selected_row_is_shown() {
        let mut list = List::new(100, 50);
        assert_eq!(list.shown(10), 45..55);
        for _ in 0..5 {
            assert!(list.key(Key::Down));
        }
        assert_eq!((list.selected, list.shown(10)), (55, 46..56));
        list.key(Key::End);
        assert_eq!((list.selected, list.shown(10)), (99, 90..100));
        list.key(Key::PageUp);
        list.key(Key::PageUp);
        assert_eq!((list.selected, list.shown(10)), (81, 81..91));
        list.key(Key::Home);
        assert_eq!((list.selected, list.shown(10)), (0, 0..10));
        // A larger terminal has no empty rows while there are others above.
        list.key(Key::End);
        assert_eq!((list.shown(10), list.shown(30)), (90..100, 70..100));
        let mut empty = List::new(0, 7);
        for key in [Key::Up, Key::Down, Key::PageDown, Key::End] {
            empty.key(key);
            assert_eq!((empty.selected, empty.shown(10)), (0, 0..0));
        }
        assert_eq!(List::new(3, 2).shown(0), 2..2);
    }
}
