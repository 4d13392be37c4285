//! What the user asks for.

use gprofinject_image::Function;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Hooks {
    /// Entry and exit, with a shadow stack.
    Both,
    /// Entry only.
    Entry,
}

/// Who patches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Engine {
    #[default]
    Builtin,
    /// Frida's gum, and what it cannot do safely is refused.
    Frida,
    /// Frida's gum, and what it cannot do safely is left to the built-in tactics.
    FridaOrBuiltin,
}

pub struct Options<'a> {
    pub hooks: Hooks,
    pub engine: Engine,
    /// Whether the user wants the function hooked.
    pub selected: &'a (dyn Fn(&Function) -> bool + Sync),
    /// The user insists on hooks in a program that may look at its own code.
    pub insist: bool,
    /// Whether the function's blocks are to be counted. None: no function's.
    pub counted: Option<&'a dyn Fn(&Function) -> bool>,
}
