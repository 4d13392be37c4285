//! The layouts that two programs share: the injector, which plans and collects, and the agent, which
//! patches and counts inside the profiled process.
//!
//! * [`plan`]: the plan file. Written by the injector before the program starts, mapped by the agent.
//! * [`region`]: the region file. Created by the injector, filled by the agent, read by the injector.
//!
//! * [`attach`]: orders to an agent in a process that runs already.
//! * [`frida`]: what the agent tells the library with Frida's gum.
//! * [`shared`]: the records of a region file as several threads use them at once.
//!
//! The types here *are* the layouts. Both sides read and write whole records as bytes, through the traits of the crate
//! zerocopy, whose derives refuse a type with hidden padding or with a field for which not every bit pattern is a value.
//! A field that holds one of several named values has a number type of its own, with a checked conversion (`coded.rs`).
//! Offsets that machine code relies on are asserted beside each record.
//!
//! All words are little-endian and naturally aligned (x86-64 only). "Link address" means an address as
//! the symbol table has it; a runtime address is a link address plus the load bias of the run.
#![no_std]

pub mod attach;
mod coded;
pub mod frida;
pub mod plan;
pub mod region;
pub mod shared;

/// Environment variable that tells the agent its run: `FOLDER/NAME`, where `FOLDER` is the run folder and
/// `NAME` the process's own name in it. The agent removes it, and itself from `LD_PRELOAD`, before any code
/// of the program can look.
pub const RUN_VARIABLE: &str = "GPROFINJECT_RUN";
/// The user's own `LD_PRELOAD`, if it was set. The agent puts it back.
pub const PRELOAD_VARIABLE: &str = "GPROFINJECT_LD_PRELOAD";
/// File name of the agent's library in the run folder.
pub const AGENT_FILE: &str = "libgprofinject.so";
/// File name of the library with Frida's gum in the run folder of a run in which gum patches (see [`frida`]).
pub const FRIDA_FILE: &str = "libgprofinject-frida.so";
/// File name of the injector's socket in the run folder (see [`ask`]).
pub const ASK_FILE: &str = "ask";
/// File name of a link to the command that has made the run folder. A process that outlives that command executes it.
pub const COMMAND_FILE: &str = "gprofinject";
/// A process's plan file is `NAME.plan`. Forked children share their parent's.
pub const PLAN_SUFFIX: &str = ".plan";
/// A process's region file is `NAME.region`. A forked child makes its own, named `f` and its process number.
pub const REGION_SUFFIX: &str = ".region";
/// Longest path of a run folder.
pub const FOLDER_MAX: usize = 1024;

/// What a profiled process tells the injector over a SOCK_SEQPACKET socket in the run folder: one packet per connection,
/// to which some kinds get an answer. The injector identifies the sender by SO_PEERCRED.
pub mod ask {
    /// First byte if a forked child has made its region file. The child's name in the run folder follows. The injector
    /// sends no answer.
    pub const FORKED: u8 = b'F';
    /// The only byte if the process is about to execute a program. A descriptor of the program's file comes with it
    /// (SCM_RIGHTS), because only the process itself can resolve a path: it may have another root folder or mount
    /// namespace, or the path may lead through `/proc/self`. The injector answers with the name that the process has from
    /// then on, or with an empty packet if it does not follow the program.
    pub const EXECUTES: u8 = b'E';
    /// First byte of a request from another gprofinject. The injector answers with what it did.
    pub const CONTROL: u8 = b'C';
    /// Bytes of the longest name in an answer to a process.
    pub const NAME_MAX: usize = 32;
}

/// Version of all layouts in this crate. Every change of a layout raises it.
pub const VERSION: u32 = 8;
