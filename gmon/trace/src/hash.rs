//! A fast hash function for small numbers that a file chooses. A random secret prevents a file from making all of them collide.

use std::hash::{BuildHasher, Hasher, RandomState};

/// A factory of hashers with the same secret.
#[derive(Clone, Debug)]
pub(crate) struct Quick {
    secret: u64,
}

impl Default for Quick {
    fn default() -> Quick {
        // A multiplier must be odd.
        Quick { secret: RandomState::new().hash_one(0_u64) | 1 }
    }
}

impl BuildHasher for Quick {
    type Hasher = QuickHasher;

    fn build_hasher(&self) -> QuickHasher {
        QuickHasher { secret: self.secret, state: 0 }
    }
}

/// A hasher of a few numbers.
pub(crate) struct QuickHasher {
    secret: u64,
    state: u64,
}

impl QuickHasher {
    fn add(&mut self, number: u64) {
        let product = u128::from(self.state ^ number) * u128::from(self.secret);
        self.state = product as u64 ^ (product >> 64) as u64;
    }
}

impl Hasher for QuickHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.add(byte.into()));
    }

    fn write_isize(&mut self, number: isize) {
        self.add(number as u64);
    }

    fn write_u32(&mut self, number: u32) {
        self.add(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.add(number);
    }

    fn finish(&self) -> u64 {
        self.state
    }
}
