//! The string table of pprof's format.

use std::collections::HashMap;

/// The texts of a file, each once. The first one is empty.
pub struct Strings {
    all: Vec<String>,
    indexes: HashMap<String, i64>,
}

impl Default for Strings {
    fn default() -> Strings {
        Strings { all: vec![String::new()], indexes: HashMap::from([(String::new(), 0)]) }
    }
}

impl Strings {
    /// Returns the index of a text, which is added if it is not there.
    pub fn index(&mut self, text: &str) -> i64 {
        if let Some(&index) = self.indexes.get(text) {
            return index;
        }
        let index = self.all.len() as i64;
        self.all.push(text.to_owned());
        self.indexes.insert(text.to_owned(), index);
        index
    }

    /// Returns the index of a text that has been added, and 0 for another one.
    pub fn find(&self, text: &str) -> i64 {
        self.indexes.get(text).copied().unwrap_or(0)
    }

    /// Takes the table out, by index.
    pub fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.all)
    }
}
