//! The layouts that two programs share: the injector, which plans and collects, and the agent, which
//! patches and counts inside the profiled process.
//!
//! * [`plan`]: the plan file. Written by the injector before the program starts, mapped by the agent.
//! * [`region`]: the region file. Created by the injector, filled by the agent, read by the injector.
//!
//! All words are little-endian and naturally aligned (x86-64 only). "Link address" means an address as
//! the symbol table has it; a runtime address is a link address plus the load bias of the run.
#![no_std]

pub mod attach;
pub mod frida;
pub mod plan;
pub mod region;

/// Environment variable that tells the agent its run: `FOLDER/NAME`, where `FOLDER` is the run folder and
/// `NAME` the process's own name in it. The agent removes it, and itself from `LD_PRELOAD`, before any code
/// of the program can look.
pub const RUN_VARIABLE: &str = "GPROFINJECT_RUN";
/// The user's own `LD_PRELOAD`, where there was one, for the agent to put back.
pub const PRELOAD_VARIABLE: &str = "GPROFINJECT_LD_PRELOAD";
/// File names inside the run folder. The agent and a socket (see [`ask`]) belong to the run.
pub const AGENT_FILE: &str = "libgprofinject.so";
/// Frida's gum, where it patches (see [`frida`]).
pub const FRIDA_FILE: &str = "libgprofinject-frida.so";
pub const ASK_FILE: &str = "ask";
/// A link to the command that made the folder, for agents that outlive it.
pub const COMMAND_FILE: &str = "gprofinject";
/// Plan and region file are a process's own: `NAME.plan`, `NAME.region`. Forked children share their parent's
/// plan and make their own region file, `f` and their process number.
pub const PLAN_SUFFIX: &str = ".plan";
pub const REGION_SUFFIX: &str = ".region";
/// Longest path of a run folder.
pub const FOLDER_MAX: usize = 1024;

/// What a profiled process tells the injector, over a SOCK_SEQPACKET socket in the run folder; one packet, then
/// perhaps an answer. The injector knows the sender by SO_PEERCRED.
pub mod ask {
    /// A forked child has made its region file: the byte, then its name in the run folder. No answer.
    pub const FORKED: u8 = b'F';
    /// A program is about to be executed: the byte, and with it (SCM_RIGHTS) a descriptor of the program's file. Only the
    /// process itself can tell what a path means to it: another root folder or mount namespace, `/proc/self`, its own
    /// descriptors. The answer is the name that the process goes on by, or an empty packet: it is not followed.
    pub const EXECUTES: u8 = b'E';
    /// From another gprofinject: the byte, a request. The answer says what was done.
    pub const CONTROL: u8 = b'C';
    /// Longest answer to a process.
    pub const NAME_MAX: usize = 32;
}

/// Raised by every change of a layout in this crate.
pub const VERSION: u32 = 8;
