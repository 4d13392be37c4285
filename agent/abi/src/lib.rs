//! The layouts that two programs share: the injector, which plans and collects, and the agent, which
//! patches and counts inside the profiled process.
//!
//! * [`plan`]: the plan file. Written by the injector before the program starts, mapped by the agent.
//! * [`region`]: the region file. Created by the injector, filled by the agent, read by the injector.
//! * [`names`]: the names of both, and of the other files in a run folder.
//! * [`args`]: how the agent reads the arguments and results of traced calls.
//! * [`ask`]: the requests of a profiled process to the injector.
//! * [`attach`]: the injector's orders to an agent in a process that is already running.
//! * [`frida`]: the information that the agent gives to the library with Frida's gum.
//! * [`shared`]: accessors to the records of a region file that several threads use at once.
//!
//! The types here *are* the layouts. Both sides read and write whole records as bytes, through the traits of the crate
//! zerocopy, whose derives refuse a type with hidden padding or with a field for which not every bit pattern is a
//! value. A field that holds one of several named values has a number type of its own, with a checked conversion
//! (`coded.rs`). Offsets that machine code relies on are asserted beside each record.
//!
//! All words are little-endian and naturally aligned (x86-64 only). "Link address" means an address as
//! the symbol table has it; a runtime address is a link address plus the load bias of the run.
#![no_std]

pub mod args;
pub mod ask;
pub mod attach;
pub mod clock;
mod coded;
pub mod frida;
pub mod full;
pub mod names;
pub mod plan;
pub mod region;
pub mod shared;
pub mod tally;
pub mod times;
pub mod trace;

pub use names::{
    AGENT_FILE, ASK_FILE, COMMAND_FILE, FOLDER_MAX, FRIDA_FILE, PLAN_SUFFIX, PRELOAD_VARIABLE, REGION_SUFFIX,
    RUN_VARIABLE,
};

/// Version of all layouts in this crate, and of the other files in a run folder. Every change of a layout raises it.
pub const VERSION: u32 = 40;
