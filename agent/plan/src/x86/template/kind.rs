//! The kinds of thunks.

use crate::x86::scratch::{R10, R11};
use iced_x86::Register;
use serde::{Deserialize, Serialize};

/// What an image is for a process, which determines how its thunks find the words of their thread
/// ([`ThreadWords`](gprofinject_abi::plan::ThreadWords)), and which of them they write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// The program. Its plan holds wherever the program is loaded. The words are at `fs:[offset]`.
    Program,
    /// A program for which no dynamic linker loads the agent, so that fs is the program's own. The words are at
    /// `gs:[offset]`.
    Standalone,
    /// A shared library. Its plan is made for the place where a process has loaded it by
    /// [`Plan::placed`](crate::Plan::placed). Only the built-in engine patches libraries. The words are at `fs:[offset]`,
    /// and the thunk stores into `library_last` in place of `last`.
    Library,
    /// A library in the process of a standalone program. The words are at `gs:[offset]`, and the thunk stores into
    /// `library_last`.
    StandaloneLibrary,
}

impl Role {
    /// Returns whether it is a library.
    pub fn is_library(self) -> bool {
        matches!(self, Role::Library | Role::StandaloneLibrary)
    }

    /// Returns whether the process is that of a standalone program.
    pub fn is_standalone(self) -> bool {
        matches!(self, Role::Standalone | Role::StandaloneLibrary)
    }

    /// Returns the register of the segment that contains the words.
    pub(crate) fn segment(self) -> Register {
        if self.is_standalone() { Register::GS } else { Register::FS }
    }

    /// Returns the prefix byte of instructions that access the words.
    pub(crate) fn segment_prefix(self) -> u8 {
        if self.is_standalone() { 0x65 } else { 0x64 }
    }
}

/// Which calls tell the agent when they begin and end, so that their durations are measured. Every function whose exit can be hooked
/// then has an exit, and its thunk calls the agent after the entry and before the exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Measured {
    #[default]
    /// None.
    None,
    /// All.
    All,
    /// Those up to a depth. The thunks compare the stack pointer with the [thread words] to find out which are deeper.
    ///
    /// [thread words]: gprofinject_abi::plan::ThreadWords::deep
    Outer,
    /// Those of functions whose calls are not found short ([`ArcTimes::short`]). All calls tell the agent when they begin, and the thunks
    /// compare the stack pointer with the [thread words] to find out which have been counted only, and need not tell that they end.
    ///
    /// [`ArcTimes::short`]: gprofinject_abi::times::ArcTimes::short
    /// [thread words]: gprofinject_abi::plan::ThreadWords::deep
    Long,
    /// Those of functions whose arguments or results are kept: see [`Told`](crate::Told). Nothing else about the plan differs from one
    /// without measured calls.
    Chosen,
}

impl Measured {
    /// Returns the value that the word in the plan's header stands for.
    pub(crate) fn of(word: u64) -> Measured {
        match word {
            0 => Measured::None,
            1 => Measured::All,
            3 => Measured::Long,
            4 => Measured::Chosen,
            _ => Measured::Outer,
        }
    }
}

/// The register that a thunk uses besides rax on entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Second {
    /// r11, which is saved and restored.
    Kept,
    /// r11, whose value is not needed: see [`crate::flow::registers`].
    R11,
    /// r10, whose value is not needed.
    R10,
    /// r11, and r10 in place of rax. Neither value is needed.
    Free,
}

impl Second {
    /// All variants, in order.
    pub(crate) const ALL: [Second; 4] = [Second::Kept, Second::R11, Second::R10, Second::Free];

    /// Returns the register.
    pub(crate) fn register(self) -> Register {
        if self == Second::R10 { Register::R10 } else { Register::R11 }
    }

    /// Returns the register that the thunk uses where the listings show rax.
    pub(crate) fn first(self) -> Register {
        if self == Second::Free { Register::R10 } else { Register::RAX }
    }
}

/// The properties that distinguish the kinds of thunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kind {
    /// Whether the exit is hooked as well as the entry.
    pub both: bool,
    /// Whether only those calls have a hooked exit for which the slow path has filled a cell: calls by unhooked code. Then
    /// `both` is not set.
    pub callbacks: bool,
    /// Whether a call that is deeper than calls are measured has no cell and no exit. Then `both` is set.
    pub skips: bool,
    /// Whether the exit tells the agent the function's number, if [`Measured::Chosen`] calls do. Then the thunk has an exit.
    pub ends: bool,
    /// Whether there are several home slots, chosen by a hash of the return address.
    pub hashed: bool,
    /// Whether the hash is only the masked return address.
    pub masked: bool,
    /// Whether the mask fits into a signed byte.
    pub narrow: bool,
    /// Whether rax has to be saved and restored on entry, if it is used: see [`crate::flow::registers`].
    pub keep_rax: bool,
    /// The register that is used besides rax on entry.
    pub second: Second,
    /// Which of r10 and r11 need not be preserved on exit, as a set: see [`crate::x86::scratch`].
    pub dead_on_exit: u8,
}

impl Kind {
    /// Returns a number for the kind, below [`Kind::COUNT`].
    pub(crate) fn index(self) -> usize {
        let bits = [
            self.ends,
            self.skips,
            self.callbacks,
            self.narrow,
            self.masked,
            self.both,
            self.hashed,
            self.keep_rax,
        ];
        let bits = bits.iter().fold(0, |n, &b| n * 2 + usize::from(b));
        (bits * Second::ALL.len() + self.second as usize) * 4 + usize::from(self.dead_on_exit & 3)
    }

    /// The number of kinds.
    pub(crate) const COUNT: usize = 256 * Second::ALL.len() * 4;

    /// Returns the kind with this number.
    #[cfg(test)]
    pub(crate) fn of(index: usize) -> Kind {
        let bit = |n: usize| (index / (4 * Second::ALL.len())) >> n & 1 != 0;
        Kind {
            ends: bit(7),
            skips: bit(6),
            callbacks: bit(5),
            narrow: bit(4),
            masked: bit(3),
            both: bit(2),
            hashed: bit(1),
            keep_rax: bit(0),
            second: Second::ALL[index / 4 % Second::ALL.len()],
            dead_on_exit: (index % 4) as u8,
        }
    }

    /// The kind of tail calls whose thunk is the largest.
    pub(crate) const LARGEST: Kind = Kind {
        both: true,
        callbacks: false,
        skips: false,
        ends: false,
        hashed: true,
        masked: false,
        narrow: false,
        keep_rax: true,
        second: Second::Kept,
        dead_on_exit: 0,
    };

    /// Returns whether the thunk has an exit.
    pub(crate) fn has_exit(self) -> bool {
        self.both || self.callbacks
    }

    /// Returns whether the thunk saves rax on entry.
    pub(crate) fn keeps_rax(self) -> bool {
        self.keep_rax && self.second != Second::Free
    }

    /// Returns which slow path an exit takes.
    pub(crate) fn exit_way(self) -> ExitWay {
        match self.dead_on_exit & (R10 | R11) {
            0 | R11 => ExitWay::Saved,
            R10 => ExitWay::SaveR11,
            _ => ExitWay::SaveRax,
        }
    }
}

/// The slow path of exits expects rax and r11 to be saved. The stub that leads to it saves any register that
/// the thunk has not saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExitWay {
    /// The thunk has saved both.
    Saved,
    /// rax has to be saved.
    SaveRax,
    /// r11 has to be saved.
    SaveR11,
}
