//! The libraries that are part of this command: the agent, and Frida's gum in builds with the feature
//! `frida`.

use anyhow::{Result, bail};
use gprofinject_abi::{AGENT_FILE, FRIDA_FILE};
use gprofinject_plan::Engine;

use crate::options::EngineArg;

/// The agent library, which build.rs builds.
pub(crate) static AGENT: &[u8] = include_bytes!(env!("GPROFINJECT_AGENT"));

/// The agent library for standalone programs, which build.rs builds.
pub(crate) static STANDALONE: &[u8] = include_bytes!(env!("GPROFINJECT_STANDALONE"));

/// The library with gum, which build.rs builds.
#[cfg(feature = "frida")]
static LIBRARY: Option<&[u8]> = Some(include_bytes!(env!("GPROFINJECT_FRIDA")));
#[cfg(not(feature = "frida"))]
static LIBRARY: Option<&[u8]> = None;

impl EngineArg {
    /// The engine as the planner knows it.
    pub(crate) fn engine(self) -> Engine {
        match self {
            EngineArg::Builtin => Engine::Builtin,
            EngineArg::Frida => Engine::Frida,
            EngineArg::FridaOrBuiltin => Engine::FridaOrBuiltin,
        }
    }

    /// The name as it is typed.
    pub(crate) fn name(self) -> &'static str {
        match self {
            EngineArg::Builtin => "builtin",
            EngineArg::Frida => "frida",
            EngineArg::FridaOrBuiltin => "frida,builtin",
        }
    }

    /// Checks that the engine can patch in this build, and in a program that is started or (`running`) in a
    /// process that already runs.
    ///
    /// # Errors
    /// It cannot; the message says why.
    pub(crate) fn check(self, running: bool) -> Result<()> {
        if self == EngineArg::Builtin {
            return Ok(());
        }
        if LIBRARY.is_none() {
            bail!(
                "--engine {}: this gprofinject was built without Frida; build it with --features frida, for \
                 which docs/frida.md says what it takes, or omit --engine",
                self.name()
            );
        }
        if running {
            bail!(
                "--engine {}: Frida's gum comes into a program when it is started, not into a running process; \
                 omit --engine",
                self.name()
            );
        }
        Ok(())
    }

    /// Returns the libraries that are preloaded: their names in the run folder and their bytes.
    pub(crate) fn libraries(self) -> impl Iterator<Item = (&'static str, &'static [u8])> {
        let frida = LIBRARY.filter(|_| self != EngineArg::Builtin);
        std::iter::once((AGENT_FILE, AGENT)).chain(frida.map(|library| (FRIDA_FILE, library)))
    }
}

/// The beginning of a GNU property note with the features that a file says all of its code is made for, up to the features: the owner, the type and
/// the length of the property (GNU_PROPERTY_X86_FEATURE_1_AND in the x86-64 psABI).
const FEATURES: [u8; 12] = *b"GNU\0\x02\0\0\xc0\x04\0\0\0";
/// The feature: returns are those of calls (GNU_PROPERTY_X86_FEATURE_1_SHSTK).
const SHADOW_STACK: u8 = 2;

/// Returns a library as one that is not made for a shadow stack, so that glibc does not turn it on in a process that loads the library.
pub(crate) fn without_mark(library: &[u8]) -> Vec<u8> {
    let mut library = library.to_vec();
    if let Some(at) = features(&library) {
        library[at] &= !SHADOW_STACK;
    }
    library
}

/// Returns the place of the features in a library.
fn features(library: &[u8]) -> Option<usize> {
    let at = library.windows(FEATURES.len()).position(|bytes| bytes == FEATURES)?;
    Some(at + FEATURES.len()).filter(|&at| at < library.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_is_marked_for_shadow_stacks_once_and_not_without_the_mark() {
        let at = features(AGENT).expect("a mark");
        assert_eq!(AGENT[at], SHADOW_STACK);
        assert_eq!(features(&AGENT[at..]), None);
        let without = without_mark(AGENT);
        assert_eq!(without[at], 0);
        assert!(without[..at] == AGENT[..at] && without[at + 1..] == AGENT[at + 1..]);
        assert_eq!(without_mark(&FEATURES), FEATURES, "a file that ends there");
    }
}
