//! The bytes of a plan file.

use std::fmt;
use std::ops::Deref;

/// The bytes of a plan file, in memory or mapped.
pub struct StoredFile(Box<dyn Deref<Target = [u8]> + Send + Sync>);

impl StoredFile {
    /// Takes the bytes, or what holds them.
    pub fn new(bytes: impl Deref<Target = [u8]> + Send + Sync + 'static) -> StoredFile {
        StoredFile(Box::new(bytes))
    }
}

impl Deref for StoredFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for StoredFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.len())
    }
}
