//! The user's requests to the planner.

use crate::decide::verdict::Reason;
use crate::x86::template::kind::{Measured, Role};
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

/// Who writes the patches, and what they may do.
#[derive(Clone, Copy)]
pub(crate) struct Means {
    pub engine: Engine,
    /// See [`Options::shadow_stack`].
    pub shadow_stack: bool,
}

/// When a function tells the agent about its calls, if [`Measured::Chosen`] calls do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// When they begin, because the function's arguments are kept.
    pub begins: bool,
    /// When they end, because the function's results are kept: it has an exit, if that is possible.
    pub results: bool,
    /// When they end, if the function has an exit: because the results of functions to which it may jump are kept.
    pub ends: bool,
}

/// The user's requests to the planner.
pub struct Options<'a> {
    /// Whether exits are to be hooked. The plan may do less: see [`Plan::downgrade`](crate::Plan::downgrade).
    pub hooks: Hooks,
    /// The engine that writes the patches.
    pub engine: Engine,
    /// Returns whether the user wants the function hooked, by its names.
    pub selected: &'a (dyn Fn(&Function) -> bool + Sync),
    /// The size in bytes that a function must have to be hooked.
    pub min_size: u64,
    /// Whether the user insists on hooks in a program that may read its own code.
    pub insist: bool,
    /// Whether the processor keeps a shadow stack for the process, or may do so later. Then no exits are hooked, whatever
    /// `hooks` says, and no calls are relocated: each return has to be that of the last call.
    pub shadow_stack: bool,
    /// Returns whether the function's basic blocks are to be counted. If this is `None`, no function's
    /// are.
    pub counted: Option<&'a dyn Fn(&Function) -> bool>,
    /// Whether functions count, on the calling thread, the instructions that they execute: the clock of
    /// [`ClockKind::Instructions`](gprofinject_abi::clock::ClockKind::Instructions).
    pub clock: bool,
    /// Whether only calls from outside of the module are counted and measured: those whose call site is in other code.
    pub outermost: bool,
    /// What the image is for a process.
    pub role: Role,
    /// Which calls tell the agent when they begin and end.
    pub measured: Measured,
    /// Which functions tell the agent about their calls, if `measured` is [`Measured::Chosen`].
    pub told: Option<&'a dyn Fn(&Function) -> Told>,
    /// The link address at which the arena begins, which is a multiple of the page size, or `None` for the usual place.
    /// In a process that runs already, something else may be there. In a position-independent image, addresses wrap
    /// around zero.
    pub arena: Option<u64>,
    /// The thread pointer offset of the agent's words, as far as it is known: see [`PlanHeader::words`](gprofinject_abi::plan::PlanHeader::words).
    pub words: i64,
}

/// What the user selects: by the function's names, and by its size.
#[derive(Clone, Copy)]
pub(crate) struct Selection<'a> {
    selected: &'a (dyn Fn(&Function) -> bool + Sync),
    min_size: u64,
}

impl Options<'_> {
    /// Returns the part of the options that says how functions may be patched.
    pub(crate) fn means(&self) -> Means {
        Means { engine: self.engine, shadow_stack: self.shadow_stack }
    }

    /// Returns the part of the options that selects functions.
    pub(crate) fn selection(&self) -> Selection<'_> {
        Selection { selected: self.selected, min_size: self.min_size }
    }
}

impl Selection<'_> {
    /// Returns why the user leaves a function out, or `None` if the function is to be hooked.
    pub(crate) fn left_out(self, function: &Function) -> Option<Reason> {
        if !(self.selected)(function) {
            return Some(Reason::NotSelected);
        }
        (function.size < self.min_size).then_some(Reason::TooSmall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TEXT, image};
    use gprofinject_image::ElfType;

    #[test]
    fn functions_are_left_out_by_name_and_by_size() {
        let code = [0x90; 64];
        let image = image(ElfType::Exec, TEXT, &code, &[15, 16]);
        let left_out = |selected: bool, min_size| {
            let selected = move |_: &Function| selected;
            let options = Options {
                hooks: Hooks::Both,
                engine: Engine::Builtin,
                selected: &selected,
                min_size,
                insist: false,
                shadow_stack: false,
                counted: None,
                clock: false,
                outermost: false,
                role: Role::Program,
                measured: Measured::None,
                told: None,
                arena: None,
                words: 0,
            };
            [&image.functions[0], &image.functions[1]].map(|function| options.selection().left_out(function))
        };
        assert_eq!(left_out(true, 0), [None, None]);
        assert_eq!(left_out(true, 16), [Some(Reason::TooSmall), None]);
        assert_eq!(left_out(false, 16), [Some(Reason::NotSelected); 2]);
    }
}
