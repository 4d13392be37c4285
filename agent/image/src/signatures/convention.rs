//! Whether a function has the calling convention of its type, or one that the compiler has changed.
//!
//! GCC gives each function whose parameters it changes another name. LLVM does not: it removes parameters and results that nobody
//! uses, or passes what a pointer leads to in place of the pointer, if all calls of the function are in the same compilation. Newer
//! versions say so of each function that has lost a parameter or its result. For the others, a parameter counts only if the
//! compiler says that it is in its register when the function is entered.

use crate::names::suffixes::{self, Suffix};
use crate::signatures::entry::{Agreement, Said};
use crate::signatures::model::Place;
use crate::signatures::subprogram::Subprogram;
use crate::signatures::units::Producer;

/// Why a function's parameters are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum Unclear {
    #[error("there is no debug information of it")]
    NoInformation,
    #[error("its debug information is damaged")]
    Damaged,
    #[error("the compiler has changed its parameters or its result")]
    Changed,
    #[error("the calling convention of its language is not known")]
    Language,
    #[error("the type of its result does not say how it is returned")]
    Type,
}

/// What is trusted of a function's debug information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trust {
    /// Its convention is that of its type, unless debug information says otherwise.
    Type,
    /// Parameters count only as far as debug information says that they are there.
    Said {
        /// Whether the function still returns its result.
        has_result: bool,
    },
}

impl Trust {
    /// Decides what is trusted of a function.
    pub(crate) fn of(function: &Subprogram, is_local: bool) -> Trust {
        match function.producer {
            Producer::Gcc => Trust::Type,
            _ if !is_local || !function.is_optimised => Trust::Type,
            Producer::Llvm { marks_removal } => Trust::Said { has_result: marks_removal },
            Producer::Other => Trust::Said { has_result: false },
        }
    }

    /// Whether a parameter is where the convention has it.
    ///
    /// # Errors
    /// It is elsewhere, so the function has another convention.
    pub(crate) fn accepts(self, said: Said, place: Place) -> Result<bool, Unclear> {
        match (said.agrees(place), self) {
            (Agreement::Confirmed, _) => Ok(true),
            (Agreement::Open, Trust::Type) => Ok(true),
            (Agreement::Open, Trust::Said { .. }) => Ok(place == Place::Nowhere),
            (Agreement::Contradicted, Trust::Said { .. }) => Ok(false),
            (Agreement::Contradicted, Trust::Type) => Err(Unclear::Changed),
        }
    }

    pub(crate) fn has_result(self) -> bool {
        matches!(self, Trust::Type | Trust::Said { has_result: true })
    }
}

/// Whether a symbol's name says that the function is a copy with other parameters than those in the source.
pub(crate) fn is_changed_copy(name: &str) -> bool {
    let mut name = name;
    while let Some(split) = suffixes::split(name) {
        // A cold part is never called, and has the suffixes of its function before its own.
        if split.suffix != Suffix::Cold {
            return true;
        }
        name = split.base;
    }
    // Suffixes that make another function of it may stand behind: `f.isra.0.lto_priv.1`.
    name.split('.').skip(1).any(|part| matches!(part, "isra" | "constprop" | "part" | "specialized"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_changed_copies() {
        for name in
            ["f.isra.0", "f.constprop.1", "f.part.0", "f.isra.0.cold", "f.isra.0.lto_priv.0", "f._omp_fn.0"]
        {
            assert!(is_changed_copy(name), "{name}");
        }
        for name in ["f", "f.cold", "f.lto_priv.0", "f.llvm.123", "partial", "isra.f", "_ZN1a4partEv"] {
            assert!(!is_changed_copy(name), "{name}");
        }
    }
}
