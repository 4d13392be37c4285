//! Whether a function has the calling convention of its type, or one that the compiler has changed.
//!
//! GCC gives each function whose parameters it changes another name. LLVM does not: it removes parameters and results that nobody
//! uses, or passes what a pointer leads to in place of the pointer, if all calls of the function are in the same compilation. Newer
//! versions say so of each function that has lost a parameter or its result. For the others, a parameter counts only if the
//! compiler says that it is in its register when the function is entered. The functions that other files can call keep their
//! convention, but the calls in their own file do not pass what they ignore.

use crate::names::suffixes::{self, Suffix};
use crate::signatures::entry::{Agreement, Said};
use crate::signatures::model::{Place, Type};
use crate::signatures::subprogram::Subprogram;
use crate::signatures::units::Producer;

/// Why a function's parameters are not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, thiserror::Error)]
pub enum Unclear {
    #[error("there is no debug information of it")]
    NoInformation,
    #[error("its debug information is in a .dwo file, which was not found")]
    Split,
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
    /// The same, but what the function ignores may not be passed: a parameter has a value only if debug information says that it
    /// arrives.
    Used,
    /// Parameters count only as far as debug information says that they are there.
    Said {
        /// Whether the function still returns its result.
        has_result: bool,
    },
}

/// What is known of a parameter's place in the calling convention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// The parameter is there.
    Passed,
    /// The place is the parameter's, but there may be anything.
    Ignored,
    /// The function may have another convention from this parameter on.
    Unclear,
}

impl Trust {
    /// Decides what is trusted of a function.
    pub(crate) fn of(function: &Subprogram, is_local: bool) -> Trust {
        match function.producer {
            Producer::Gcc => Trust::Type,
            _ if !function.is_optimised => Trust::Type,
            _ if !is_local => Trust::Used,
            Producer::Llvm { marks_removal } => Trust::Said { has_result: marks_removal },
            Producer::Other => Trust::Said { has_result: false },
        }
    }

    /// Returns whether a parameter of this type arrives at the place that the convention has for it.
    ///
    /// # Errors
    /// It is elsewhere, so the function has another convention.
    pub(crate) fn arrival(self, said: Said, ty: &Type, place: Place) -> Result<Arrival, Unclear> {
        let arrives = || said.arrives(ty, place);
        match (self, said.agrees(place)) {
            (Trust::Type | Trust::Used, Agreement::Contradicted) => Err(Unclear::Changed),
            (Trust::Type, Agreement::Confirmed | Agreement::Open) => Ok(Arrival::Passed),
            (Trust::Used, _) => Ok(if arrives() { Arrival::Passed } else { Arrival::Ignored }),
            (Trust::Said { .. }, Agreement::Confirmed) if arrives() => Ok(Arrival::Passed),
            (Trust::Said { .. }, _) if place == Place::Nowhere => Ok(Arrival::Passed),
            (Trust::Said { .. }, _) => Ok(Arrival::Unclear),
        }
    }

    pub(crate) fn has_result(self) -> bool {
        matches!(self, Trust::Type | Trust::Used | Trust::Said { has_result: true })
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
