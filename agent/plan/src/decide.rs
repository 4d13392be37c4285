//! How each function is hooked, or why it is not.
//!
//! A [`Flow`](crate::flow::facts::Flow) and the user's options enter; a [`hook::Hook`] or a
//! [`verdict::Reason`] for each function leaves. This layer writes no machine code: it only says which bytes
//! will be overwritten and which instructions relocated.
//!
//! Every function that has room gets a near jump. One that has none looks for a *cave*, five unused bytes
//! within reach of a short jump: padding between functions, or bytes after another function's near jump that
//! are dead because the instructions there were relocated. A function whose callers are all known can be
//! hooked at its call sites instead. Any function that is left slides into the patch of the next function
//! ([`sled`]).
//!
//! ```text
//! decisions             the order in which the tactics are tried, over all functions
//! tactics, slide        the tactics
//! caves, in_place       unused bytes near a function; calls that can stay where they are
//! decider               the state that the tactics share
//! fit, frida            whether a patch fits, for the built-in jump and for Frida's gum
//! foreign               branches of other functions into what a hook overwrites
//! thunk_spec, tails     what each thunk has to do; jumps from one hooked function to another
//! cells, own_return     which exits need no hook, and which must have none
//! uncalled              how a thunk recognizes that control has come without a call
//! unwinder, own_text    functions of an unwinder; programs that read their own code
//! agents, flags         what the agent calls itself; functions that take or return a condition in the flags
//! runtime_code          code that a runtime has compiled for itself
//! shared                hooks whose patches others rely on
//! shortcuts             branches within the module that pass the thunks by, if calls from outside alone are counted
//! go                    functions of Go's runtime that are not entered by calls
//! gs                    whether a program uses the register gs itself
//! standalone            the functions by which a standalone program unwinds and leaves frames
//! system_calls          the system calls of a standalone program that lead to the agent
//! start                 the first instructions of a function, and what leads to them
//! hook, sled, verdict, options   the types
//! ```
//!
//! The tactics are methods of [`decider::Decider`] and call each other: a jump may need a cave for a short
//! branch, and to make a cave a hook of Frida's may be replaced by a jump.

pub(crate) mod agents;
pub(crate) mod caves;
pub(crate) mod cells;
pub(crate) mod decider;
pub(crate) mod decisions;
pub(crate) mod fit;
pub(crate) mod flags;
pub(crate) mod foreign;
pub(crate) mod frida;
pub(crate) mod go;
pub(crate) mod gs;
pub(crate) mod hook;
pub(crate) mod in_place;
pub(crate) mod options;
pub(crate) mod own_return;
pub(crate) mod own_text;
pub(crate) mod retpoline;
pub(crate) mod runtime_code;
pub(crate) mod shared;
pub(crate) mod shortcuts;
pub(crate) mod sled;
pub(crate) mod slide;
pub(crate) mod stack_copiers;
pub(crate) mod standalone;
pub(crate) mod start;
pub(crate) mod system_calls;
pub(crate) mod tactics;
pub(crate) mod tails;
pub(crate) mod thunk_spec;
pub(crate) mod uncalled;
pub(crate) mod unwinder;
pub(crate) mod verdict;
