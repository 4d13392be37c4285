//! The layouts that two programs share: the injector, which plans and collects, and the agent, which
//! patches and counts inside the profiled process.
//!
//! * [`plan`]: the plan file. Written by the injector before the program starts, mapped by the agent.
//! * [`region`]: the region file. Created by the injector, filled by the agent, read by the injector.
//!
//! All words are little-endian and naturally aligned (x86-64 only). "Link address" means an address as
//! the symbol table has it; a runtime address is a link address plus the load bias of the run.
#![no_std]

pub mod plan;
pub mod region;

/// Environment variable that names the run folder to the agent. The agent removes it, and itself from
/// `LD_PRELOAD`, before any code of the program can look.
pub const RUN_FOLDER_VARIABLE: &str = "GPROFINJECT_RUN_FOLDER";
/// The user's own `LD_PRELOAD`, where there was one, for the agent to put back.
pub const PRELOAD_VARIABLE: &str = "GPROFINJECT_LD_PRELOAD";
/// File names inside the run folder.
pub const AGENT_FILE: &str = "libgprofinject.so";
pub const PLAN_FILE: &str = "plan";
pub const REGION_FILE: &str = "region";
/// Raised by every change of a layout in this crate.
pub const VERSION: u32 = 1;
