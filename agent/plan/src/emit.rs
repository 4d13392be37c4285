//! Machine code: the arena with its thunks, and the patches of the program that lead there.
//!
//! Hooks and copies enter; [`emitted::Emitted`] leaves. Nothing is decided here except where things stand,
//! but emission can find that an instruction cannot be relocated; then it says so, and the decisions are made
//! again.
//!
//! ```text
//! arena                  all of it, in order
//! emitter                puts the parts together and writes what stands between and behind them
//! copies, tail_calls     the copies of counted functions; the thunks of tail calls
//! part                   thunks and bodies of some of the functions, one thread's share
//! patch                  patches of the program
//! layout                 where everything in the arena stands
//! thunk, homes, tails    which thunk a function gets; where its arcs are counted; where tail calls' thunks stand
//! sleds                  the code that tells apart functions that slide into the same jump
//! bodies, cfi            unwind tables of relocated instructions, and of thunks
//! code, emitted          the bytes of the arena; what emission yields
//! ```

pub(crate) mod arena;
pub(crate) mod bodies;
pub(crate) mod cfi;
pub(crate) mod code;
pub(crate) mod copies;
pub(crate) mod emitted;
pub(crate) mod emitter;
pub(crate) mod homes;
pub(crate) mod layout;
pub(crate) mod part;
pub(crate) mod patch;
pub(crate) mod sleds;
pub(crate) mod tail_calls;
pub(crate) mod tails;
pub(crate) mod thunk;
