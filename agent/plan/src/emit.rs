//! Machine code: the arena with its thunks, and the patches of the program that lead there.
//!
//! Hooks and copies enter; [`emitted::Emitted`] leaves. This layer decides only the places of things in the
//! arena. Emission can find that an instruction cannot be relocated; it then reports the function, and the
//! planner decides again.
//!
//! ```text
//! arena                  writes everything, in order
//! emitter                joins the parts, and writes the code and tables between and after them
//! copies, tail_calls     the copies of counted functions; the thunks of tail calls
//! system_calls, system_call  the system calls of a standalone program that lead to the agent: all, and the code of one
//! part                   thunks and bodies of consecutive functions, the work of one thread
//! thunks                 the thunk of one function, and its stubs
//! to_text                where code of the arena refers to a library that may be loaded anywhere
//! patch                  patches of the program
//! layout                 the places of everything in the arena
//! place                  where the arena is, and what it reaches
//! thunk, homes, tails    the kind of each thunk; the counters of its arcs; the places of the thunks of tail calls
//! sleds                  the code that distinguishes functions that slide into the same jump
//! bodies, cfi            unwind tables of relocated instructions, and of thunks
//! code, emitted          the bytes of the arena; the output of emission
//! ```

pub(crate) mod arena;
pub(crate) mod bodies;
pub(crate) mod cfi;
pub(crate) mod code;
pub(crate) mod copies;
pub(crate) mod emitted;
pub(crate) mod emitter;
pub(crate) mod fixups;
pub(crate) mod homes;
pub(crate) mod layout;
pub(crate) mod part;
pub(crate) mod patch;
pub(crate) mod place;
pub(crate) mod shortcuts;
pub(crate) mod sleds;
pub(crate) mod system_call;
pub(crate) mod system_calls;
pub(crate) mod tail_calls;
pub(crate) mod tails;
pub(crate) mod thunk;
pub(crate) mod thunks;
pub(crate) mod to_text;
