//! Suffixes that compilers put behind a function's name, for what they copy or split off it.
//!
//! This is the only list of them. Which function such a name belongs to depends on more than the name: the users of this
//! module compare frames, source files and code too. (The rule by which gprof leaves out local names is another one, and has
//! two suffixes of its own: `gprof/program.rs`.)

/// What a suffix says about the code that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suffix {
    /// A changed copy of the whole function: `f.isra.0`, `f.constprop.0`.
    Version,
    /// The rest of the function after a test that was inlined into its callers: `f.part.0`.
    Rest,
    /// The function's unlikely basic blocks: `f.cold`, `f.cold.3`.
    Cold,
    /// Some of the function's basic blocks, in a section of their own: `f.__part.3`.
    Blocks,
    /// Other code that was moved out of the function: `f._omp_fn.0`, `f.warm`.
    Piece,
}

const SUFFIXES: [(&str, Suffix); 11] = [
    ("isra", Suffix::Version),
    ("constprop", Suffix::Version),
    ("clone", Suffix::Version),
    ("specialized", Suffix::Version),
    ("part", Suffix::Rest),
    ("cold", Suffix::Cold),
    ("__part", Suffix::Blocks),
    ("warm", Suffix::Piece),
    ("_omp_fn", Suffix::Piece),
    ("_omp_cpyfn", Suffix::Piece),
    ("omp_outlined", Suffix::Piece),
];

/// A name, split before the suffix that was added last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split<'n> {
    pub base: &'n str,
    pub suffix: Suffix,
    /// Whether a number follows the suffix, as in `f.cold.3`.
    pub numbered: bool,
}

/// Splits off the suffix that a compiler has added last. Returns `None` if there is none, or if it makes
/// another function of the code (`f.lto_priv.0` and `f.llvm.1` belong to another source file than `f`).
pub fn split(name: &str) -> Option<Split<'_>> {
    // Nearly every name ends here.
    let (front, last) = name.rsplit_once('.')?;
    let numbered = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
    let (base, word) = if numbered { front.rsplit_once('.')? } else { (front, last) };
    let &(_, suffix) = SUFFIXES.iter().find(|(known, _)| *known == word)?;
    (!base.is_empty()).then_some(Split { base, suffix, numbered })
}

/// Returns the name of the function whose cold part has this name: `f` for `f.cold`, `f.cold.3` and
/// `f.__part.3`.
pub fn parent_name(name: &str) -> Option<&str> {
    let split = split(name)?;
    let is_part = match split.suffix {
        Suffix::Cold => true,
        Suffix::Blocks => split.numbered,
        Suffix::Version | Suffix::Rest | Suffix::Piece => false,
    };
    is_part.then_some(split.base)
}

/// Returns the name before the first `.cold`, whatever follows: `f` for `f.cold`, `f.cold.3` and
/// `f.cold.3.llvm.17`.
pub fn before_cold(name: &str) -> Option<&str> {
    let (base, rest) = name.split_once(".cold")?;
    (rest.is_empty() || rest.starts_with('.')).then_some(base)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_suffix_is_taken_off() {
        let some = |base, suffix, numbered| Some(Split { base, suffix, numbered });
        assert_eq!(split("f.isra.0"), some("f", Suffix::Version, true));
        assert_eq!(split("f.constprop.0.cold"), some("f.constprop.0", Suffix::Cold, false));
        assert_eq!(split("f.1.part.0"), some("f.1", Suffix::Rest, true));
        assert_eq!(split("f.cold.12"), some("f", Suffix::Cold, true));
        assert_eq!(split("f.warm"), some("f", Suffix::Piece, false));
        for other in ["", "f", "f.0", "f.cold.", "f.llvm.1", ".cold", ".part.0", "a..b", "f$1", "f.coldish"] {
            assert_eq!(split(other), None, "{other}");
        }
    }

    #[test]
    fn names_of_cold_parts() {
        for part in ["f.cold", "f.cold.3", "f.__part.3"] {
            assert_eq!(parent_name(part), Some("f"), "{part}");
        }
        for other in ["f", "f.__part", "f.part.3", "f.warm", "f.cold.3.llvm.17", "cold"] {
            assert_eq!(parent_name(other), None, "{other}");
        }
        for part in ["f.cold", "f.cold.3", "f.cold.3.llvm.17", "f.cold.3.cold"] {
            assert_eq!(before_cold(part), Some("f"), "{part}");
        }
        assert_eq!(before_cold("f.coldish"), None);
    }
}
