//! The user's requests to the planner.

use gprofinject_image::Function;
use serde::{Deserialize, Serialize};

/// Which events of functions the user wants hooked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hooks {
    /// Entry and exit. Exits need a shadow stack of return addresses.
    Both,
    /// Entry only.
    Entry,
}

/// The engine that writes the patches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Engine {
    #[default]
    /// The agent itself, by the built-in tactics.
    Builtin,
    /// Frida's gum. What gum cannot patch safely is refused.
    Frida,
    /// Frida's gum. What gum cannot patch safely is left to the built-in tactics.
    FridaOrBuiltin,
}

/// The user's requests to the planner.
pub struct Options<'a> {
    /// Whether exits are to be hooked. The plan may do less: see [`Plan::downgrade`](crate::Plan::downgrade).
    pub hooks: Hooks,
    /// The engine that writes the patches.
    pub engine: Engine,
    /// Returns whether the user wants the function hooked.
    pub selected: &'a (dyn Fn(&Function) -> bool + Sync),
    /// Whether the user insists on hooks in a program that may read its own code.
    pub insist: bool,
    /// Returns whether the function's basic blocks are to be counted. If this is `None`, no function's
    /// are.
    pub counted: Option<&'a dyn Fn(&Function) -> bool>,
}
