//! What has numbers from 0 on, and lives to the end of the run.

use std::sync::Arc;

/// Things by number; some may be missing. A clone has those that there were when it was made, and costs nothing.
pub(crate) struct Numbered<T: 'static>(Arc<Vec<Option<&'static T>>>);

impl<T> Default for Numbered<T> {
    fn default() -> Numbered<T> {
        Numbered(Arc::default())
    }
}

impl<T> Clone for Numbered<T> {
    fn clone(&self) -> Numbered<T> {
        Numbered(Arc::clone(&self.0))
    }
}

impl<T> Numbered<T> {
    /// Returns the number of the next one that is added.
    pub(crate) fn next(&self) -> usize {
        self.0.len()
    }

    /// Returns the one with a number.
    pub(crate) fn get(&self, number: u32) -> Option<&'static T> {
        self.0.get(number as usize).copied().flatten()
    }

    /// Returns all that are not missing.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'static T> {
        self.0.iter().copied().flatten()
    }

    /// Adds one, or a missing one, under the next number.
    pub(crate) fn add(&mut self, one: Option<&'static T>) {
        Arc::make_mut(&mut self.0).push(one);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_does_not_change() {
        let mut all = Numbered::<u8>::default();
        all.add(Some(&1));
        let before = all.clone();
        all.add(None);
        all.add(Some(&3));
        assert_eq!((before.next(), all.next()), (1, 3));
        assert_eq!((before.get(2), all.get(2), all.get(1)), (None, Some(&3), None));
        assert_eq!(all.iter().collect::<Vec<_>>(), [&1, &3]);
    }
}
