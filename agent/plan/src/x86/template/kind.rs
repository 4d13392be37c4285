//! Which thunk a function gets.

use crate::x86::scratch::{R10, R11};
use iced_x86::Register;

/// The register that a thunk uses besides rax on entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Second {
    /// r11, saved and restored.
    Kept,
    /// r11 or r10, which nobody needs; see [`crate::flow::registers::scan`].
    R11,
    R10,
    /// Nobody needs either: r11, and r10 in place of rax.
    Free,
}

impl Second {
    pub(crate) const ALL: [Second; 4] = [Second::Kept, Second::R11, Second::R10, Second::Free];

    pub(crate) fn register(self) -> Register {
        if self == Second::R10 { Register::R10 } else { Register::R11 }
    }

    /// What rax is in the listings.
    pub(crate) fn first(self) -> Register {
        if self == Second::Free { Register::R10 } else { Register::RAX }
    }
}

/// What a thunk looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// Entry and exit, else entry only.
    pub both: bool,
    /// Several home slots, chosen by a hash of the return address, else one.
    pub hashed: bool,
    /// The hash is the return address itself, masked.
    pub masked: bool,
    /// The mask fits into a signed byte.
    pub narrow: bool,
    /// Save and restore rax on entry, if it is used; see [`crate::flow::registers::scan`].
    pub keep_rax: bool,
    pub second: Second,
    /// What of r10 and r11 need not be kept on exit: a set of [`crate::x86::scratch::R10`] and R11.
    pub dead_on_exit: u8,
}

impl Kind {
    /// One number for each kind, below [`Kind::COUNT`].
    pub(crate) fn index(self) -> usize {
        let bits = [self.narrow, self.masked, self.both, self.hashed, self.keep_rax];
        let bits = bits.iter().fold(0, |n, &b| n * 2 + usize::from(b));
        (bits * Second::ALL.len() + self.second as usize) * 4 + usize::from(self.dead_on_exit & 3)
    }

    pub(crate) const COUNT: usize = 32 * Second::ALL.len() * 4;

    /// The inverse of [`Kind::index`].
    #[cfg(test)]
    pub(crate) fn of(index: usize) -> Kind {
        let bit = |n: usize| (index / (4 * Second::ALL.len())) >> n & 1 != 0;
        Kind {
            narrow: bit(4),
            masked: bit(3),
            both: bit(2),
            hashed: bit(1),
            keep_rax: bit(0),
            second: Second::ALL[index / 4 % Second::ALL.len()],
            dead_on_exit: (index % 4) as u8,
        }
    }

    /// The largest of tail calls.
    pub(crate) const LARGEST: Kind = Kind {
        both: true,
        hashed: true,
        masked: false,
        narrow: false,
        keep_rax: true,
        second: Second::Kept,
        dead_on_exit: 0,
    };

    pub(crate) fn keeps_rax(self) -> bool {
        self.keep_rax && self.second != Second::Free
    }

    /// Which slow path an exit takes; see [`ExitWay`].
    pub(crate) fn exit_way(self) -> ExitWay {
        match self.dead_on_exit & (R10 | R11) {
            0 | R11 => ExitWay::Saved,
            R10 => ExitWay::SaveR11,
            _ => ExitWay::SaveRax,
        }
    }
}

/// The slow path of exits wants rax and r11 saved; what the thunk has not saved is saved on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitWay {
    Saved,
    SaveRax,
    SaveR11,
}
