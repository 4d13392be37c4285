//! What the tables of a file have in common: columns, and indexes as the file has them.

use crate::error::ReadError;

/// The check that all columns of a table have the same length.
pub(crate) struct Columns {
    pub(crate) table: &'static str,
    pub(crate) len: usize,
}

impl Columns {
    pub(crate) fn check(&self, columns: &[(&'static str, usize)]) -> Result<(), ReadError> {
        match columns.iter().find(|(_, len)| *len != self.len) {
            None => Ok(()),
            Some(&(column, len)) => {
                Err(ReadError::Column { table: self.table, column, len, expected: self.len })
            }
        }
    }
}

/// The string table, from which texts are copied.
pub(crate) struct Texts<'a> {
    pub(crate) table: &'a [String],
    /// The number of bytes that may be copied.
    pub(crate) left: u64,
}

/// The reason why there is no text.
pub(crate) enum NoText {
    Missing,
    TooMuch,
}

impl NoText {
    pub(crate) fn of(&self, table: &'static str, index: usize) -> ReadError {
        match self {
            NoText::Missing => ReadError::Entry { table, index, what: "a text that is not there" },
            NoText::TooMuch => ReadError::TooMuchMemory,
        }
    }
}

impl Texts<'_> {
    pub(crate) fn get(&mut self, index: i64) -> Result<String, NoText> {
        let index = usize::try_from(index).ok();
        let text = index.and_then(|index| self.table.get(index)).ok_or(NoText::Missing)?;
        self.left = self.left.checked_sub(text.len() as u64).ok_or(NoText::TooMuch)?;
        Ok(text.clone())
    }
}

/// Returns the index of a node's parent, of which the file has the distance.
pub(crate) fn parent(table: &'static str, index: usize, distance: u64) -> Result<Option<u32>, ReadError> {
    if distance == 0 {
        return Ok(None);
    }
    let parent = (index as u64).checked_sub(distance).and_then(|at| u32::try_from(at).ok());
    parent.map(Some).ok_or(ReadError::Entry { table, index, what: "a parent that is not there" })
}

/// Returns the index of a node's function, of which the file has the successor.
pub(crate) fn function(table: &'static str, index: usize, above: u64) -> Result<Option<u32>, ReadError> {
    let Some(function) = above.checked_sub(1) else { return Ok(None) };
    let wrong = |_| ReadError::Entry { table, index, what: "a function that is not there" };
    u32::try_from(function).map(Some).map_err(wrong)
}

/// Returns how far before a node its parent is; 0 if there is none.
pub(crate) fn distance_to(index: usize, parent: Option<u32>) -> u64 {
    let Some(parent) = parent else { return 0 };
    // A parent that does not come before its child becomes a distance that the reader refuses.
    let distance = (index as u64).checked_sub(u64::from(parent));
    distance.filter(|&distance| distance > 0).unwrap_or(u64::from(u32::MAX))
}

/// Returns the index of a function plus 1; 0 if there is none.
pub(crate) fn successor(function: Option<u32>) -> u64 {
    function.map_or(0, |function| u64::from(function) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A text that a million functions share would be a million texts in memory.
    #[test]
    fn copies_of_a_text() {
        let table = ["", "0123456789"].map(str::to_owned);
        let mut texts = Texts { table: &table, left: 25 };
        assert_eq!((texts.get(1).ok(), texts.get(0).ok()), (Some(table[1].clone()), Some(String::new())));
        assert!(
            matches!(texts.get(2), Err(NoText::Missing)) && matches!(texts.get(-1), Err(NoText::Missing))
        );
        assert!(texts.get(1).is_ok() && matches!(texts.get(1), Err(NoText::TooMuch)));
    }
}
