//! Everything that determines a plan, and its hash.

use std::fmt;

use gprofinject_image::Image;
use gprofinject_plan::{Engine, Hooks, Measured, Options, PLANNER, Placement, Role, Told};

use crate::os::sys::ARENA;
use crate::program::contents::{self, Mark};
use crate::program::subject::Subject;

/// The hash of a [`Question`] or of a file's version, and so the name of an entry: the plan, or what was found out about the file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub(super) hash: [u8; blake3::OUT_LEN],
    /// What the name of the entry ends in.
    pub(super) suffix: &'static str,
}

/// The suffix of entries with plans.
pub(super) const PLAN: &str = ".plan";
/// The suffix of entries with files, and what was found out about them.
pub(super) const FILE: &str = ".file";

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hash.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The arguments of [`gprofinject_plan::Plan::new`], and what is done with its result.
pub(crate) struct Question<'q, 'd> {
    pub(crate) subject: &'q Subject<'d>,
    pub(crate) image: &'q Image<'d>,
    pub(crate) options: &'q Options<'q>,
    /// Whether the options select all functions or none, if that is known without a look at them.
    pub(crate) selects: Option<bool>,
    /// Whether nothing is to be hooked. [`Planner::plan`](crate::program::planner::Planner::plan) then changes what
    /// the plan says about each function.
    pub(crate) hookless: bool,
}

/// Entries of another layout must have another number here.
const LAYOUT: &[u8] = b"gprofinject plan cache, layout 11";

/// What a file is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadFor {
    /// To hook it as a program.
    Program,
    /// To hook it as a library.
    Library,
    /// Samples in it are to get the names of functions.
    Names,
}

impl Key {
    /// Returns the key of what was found out about a file with this hash of its version, when it was read for this purpose.
    pub(super) fn of_file(version: blake3::Hash, purpose: ReadFor) -> Key {
        let mut hasher = blake3::Hasher::new();
        hasher.update(LAYOUT).update(PLANNER.as_bytes()).update(b"file").update(&[purpose as u8]);
        Key { hash: *hasher.update(version.as_bytes()).finalize().as_bytes(), suffix: FILE }
    }

    /// Returns the key of the plan file that was made of a library's plan for these numbers.
    pub(super) fn of_placed(plan: &Key, at: &Placement) -> Key {
        let Placement { moved, first_function, first_slot, first_tail, first_counter, words } = *at;
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"placed").update(&plan.hash);
        for number in [moved, words] {
            hasher.update(&number.to_le_bytes());
        }
        for number in [first_function, first_slot, first_tail, first_counter] {
            hasher.update(&number.to_le_bytes());
        }
        Key { hash: *hasher.finalize().as_bytes(), suffix: ARENA }
    }
}

impl Question<'_, '_> {
    /// Returns the hash, or `None` if the program's contents have no mark or the answer has parts that are not kept.
    pub(super) fn key(&self) -> Option<Key> {
        self.key_with(self.subject.mark?)
    }

    /// Returns the hash under which the answer is kept if the program was read when it was asked for, or `None` if that is [`Question::key`].
    pub(super) fn key_by_bytes(&self) -> Option<Key> {
        let Some(Mark::Version(_)) = self.subject.mark else { return None };
        self.key_with(Mark::Bytes(contents::of_bytes(self.subject.bytes, self.subject.debug_file)))
    }

    fn key_with(&self, mark: Mark) -> Option<Key> {
        let Options {
            hooks,
            engine,
            selected,
            min_size,
            insist,
            shadow_stack,
            counted,
            clock,
            outermost,
            role,
            measured,
            told,
            arena,
            words,
        } = self.options;
        if counted.is_some() || *clock {
            return None;
        }
        let contents = mark.hash();
        let mut hasher = blake3::Hasher::new();
        let mut add = |bytes: &[u8]| {
            // The length keeps one part from being mistaken for the beginning of the next.
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        add(LAYOUT);
        add(PLANNER.as_bytes());
        let hooks = match hooks {
            Hooks::Both => 0,
            Hooks::Entry => 1,
        };
        let engine = match engine {
            Engine::Builtin => 0,
            Engine::Frida => 1,
            Engine::FridaOrBuiltin => 2,
        };
        let role = match role {
            Role::Program => 0,
            Role::Standalone => 1,
            Role::Library => 2,
            Role::StandaloneLibrary => 3,
        };
        // Where nothing is to be hooked, nothing is chosen either.
        let told = told.filter(|_| *measured == Measured::Chosen && self.selects != Some(false));
        let measured = match measured {
            Measured::None => 0,
            Measured::All => 1,
            Measured::Outer => 2,
            Measured::Long => 3,
            Measured::Chosen => 4,
        };
        add(&[
            role,
            hooks,
            engine,
            (*insist).into(),
            (*shadow_stack).into(),
            (*outermost).into(),
            measured,
            self.hookless.into(),
            self.image.facts.hooks_removed.into(),
        ]);
        // For a single function, both say the same.
        let selected = match self.selects {
            Some(all) => vec![all.into()],
            None => self.image.functions.iter().map(|function| selected(function).into()).collect(),
        };
        add(&selected);
        if let Some(told) = told {
            let of = |function| {
                let Told { begins, results, ends } = told(function);
                u8::from(begins) | u8::from(ends) << 1 | u8::from(results) << 2
            };
            add(&self.image.functions.iter().map(of).collect::<Vec<u8>>());
        }
        add(&min_size.to_le_bytes());
        add(contents.as_bytes());
        add(&words.to_le_bytes());
        if let Some(arena) = arena {
            add(&arena.to_le_bytes());
        }
        Some(Key { hash: *hasher.finalize().as_bytes(), suffix: PLAN })
    }
}
