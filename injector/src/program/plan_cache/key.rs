//! Everything that determines a plan, and its hash.

use std::fmt;

use gprofinject_image::Image;
use gprofinject_plan::{Engine, Hooks, Measured, Options, PLANNER, Role};

use crate::program::contents::{self, Mark};
use crate::program::subject::Subject;

/// The hash of a [`Question`], and so the name of its answer, the plan.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key(pub(super) [u8; blake3::OUT_LEN]);

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
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
    /// Whether nothing is to be hooked. [`Planner::plan`](crate::program::planner::Planner::plan) then changes what
    /// the plan says about each function.
    pub(crate) hookless: bool,
}

/// Entries of another layout must have another number here.
const LAYOUT: &[u8] = b"gprofinject plan cache, layout 7";

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
        let Options { hooks, engine, selected, min_size, insist, counted, role, standalone, measured, arena } =
            self.options;
        if counted.is_some() {
            return None;
        }
        let (Mark::Version(contents) | Mark::Bytes(contents)) = mark;
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
        let measured = match measured {
            Measured::None => 0,
            Measured::All => 1,
            Measured::Outer => 2,
        };
        let role = match role {
            Role::Program => 0,
            Role::Library => 1,
        };
        add(&[
            role,
            hooks,
            engine,
            (*insist).into(),
            measured,
            (*standalone).into(),
            self.hookless.into(),
            self.subject.is_preloaded_to.into(),
        ]);
        let selected: Vec<u8> =
            self.image.functions.iter().map(|function| selected(function).into()).collect();
        add(&selected);
        add(&min_size.to_le_bytes());
        add(contents.as_bytes());
        if let Some(arena) = arena {
            add(&arena.to_le_bytes());
        }
        Some(Key(*hasher.finalize().as_bytes()))
    }
}
