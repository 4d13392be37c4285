//! The place of a process's files: the run folder, and the process's own name in it.

use gprofinject_abi::{FOLDER_MAX, ask::NAME_MAX};

const PATH: usize = FOLDER_MAX + NAME_MAX + 32;

/// `FOLDER/NAME`.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    bytes: [u8; PATH],
    folder: usize,
    len: usize,
}

impl Place {
    pub(crate) const NONE: Place = Place { bytes: [0; PATH], folder: 0, len: 0 };

    pub(crate) fn new(path: &[u8]) -> Option<Place> {
        let folder = path.iter().rposition(|&b| b == b'/')?;
        if folder > FOLDER_MAX || path.len() - folder - 1 > NAME_MAX {
            return None;
        }
        let mut place = Place { folder, len: path.len(), ..Place::NONE };
        place.bytes.get_mut(..path.len())?.copy_from_slice(path);
        Some(place)
    }

    pub(crate) fn is_none(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn folder(&self) -> &[u8] {
        self.bytes.get(..self.folder).unwrap_or_default()
    }

    pub(crate) fn name(&self) -> &[u8] {
        self.bytes.get(self.folder + 1..self.len).unwrap_or_default()
    }

    /// Returns another process's place in the same folder, named by a letter and a number.
    pub(crate) fn sibling(&self, letter: u8, number: u32) -> Place {
        let mut place = *self;
        let mut digits = [0; 10];
        let mut rest = number;
        let mut first = digits.len();
        while first == digits.len() || rest != 0 {
            first -= 1;
            digits[first] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        place.len = self.folder + 1;
        for &byte in [letter].iter().chain(&digits[first..]) {
            place.bytes[place.len] = byte;
            place.len += 1;
        }
        place
    }

    /// Returns the path of one of the process's files, NUL-terminated.
    pub(crate) fn file(&self, suffix: &str) -> File {
        let mut file = File { bytes: self.bytes, len: self.len };
        file.push(suffix);
        file
    }

    /// Returns the path of a file of the whole run, NUL-terminated.
    pub(crate) fn shared(&self, name: &str) -> File {
        let mut file = File { bytes: self.bytes, len: self.folder + 1 };
        file.push(name);
        file
    }
}

/// A path.
pub(crate) struct File {
    bytes: [u8; PATH],
    len: usize,
}

impl File {
    fn push(&mut self, text: &str) {
        for &byte in text.as_bytes() {
            self.bytes[self.len] = byte;
            self.len += 1;
        }
        self.bytes[self.len] = 0;
    }

    /// Returns the path with its NUL.
    pub(crate) fn path(&self) -> &[u8] {
        &self.bytes[..=self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_files() {
        let place = Place::new(b"/dev/shm/run/0").expect("a place");
        assert_eq!((place.folder(), place.name()), (&b"/dev/shm/run"[..], &b"0"[..]));
        assert_eq!(place.file(".plan").path(), b"/dev/shm/run/0.plan\0");
        assert_eq!(place.shared("ask").path(), b"/dev/shm/run/ask\0");
        let child = place.sibling(b'f', 1234);
        assert_eq!(child.name(), b"f1234");
        assert_eq!(child.file(".region").path(), b"/dev/shm/run/f1234.region\0");
        assert_eq!(place.sibling(b'f', 0).name(), b"f0");
        assert!(Place::new(b"x").is_none());
        assert!(Place::new(&[b'/'; 2000]).is_none());
    }
}
