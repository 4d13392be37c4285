//! Whether control groups have the memory that gprofinject takes in them. A process that exceeds its group's memory is killed, so it is
//! decided before.

use std::sync::Arc;

use rustix::process::Resource;

use crate::os::cgroup;
use crate::os::limits::{self, Limit};
use crate::os::say::Voice;

/// In files of fewer bytes, hooks take little.
const LITTLE: u64 = 256 << 10;
/// Copies of code, thunks, plans and counters take two to three bytes for each byte of the file. Half of the memory is left to the program.
const IN_THE_PROCESS: u64 = 5;
/// Planning takes so many bytes for each byte of the file.
const PLANNING: u64 = 16;

/// Returns whether there is memory for hooking a file of this length in a process.
///
/// # Errors
/// There is not; the error is the reason.
pub(crate) fn is_left(pid: i32, len: u64) -> Result<(), Arc<str>> {
    if len < LITTLE {
        return Ok(());
    }
    let own = std::process::id() as i32;
    for (pid, share, whose) in [(pid, IN_THE_PROCESS, "the process"), (own, PLANNING, "gprofinject")] {
        if let Some(most) = cgroup::memory_lately(pid).filter(|&most| len.saturating_mul(share) > most) {
            return Err(format!(
                "the control group of {whose} may use only {most} bytes of memory (memory.max)"
            )
            .into());
        }
    }
    Ok(())
}

/// Returns how many bytes of memory the control group of a process may use, if that is limited.
///
/// # Errors
/// There is no memory for hooks in the process at all; the error is the reason.
pub(crate) fn is_enough(pid: i32) -> Result<Option<u64>, String> {
    const LEAST: u64 = 8 << 20;
    match cgroup::memory(pid) {
        Some(most @ ..LEAST) => {
            Err(format!("the control group of the process may use only {most} bytes of memory (memory.max)"))
        }
        most => Ok(most),
    }
}

/// Returns which limit leaves gprofinject so little that it had better not begin.
pub(crate) fn too_little() -> Option<String> {
    const FILES: u64 = 12;
    const MEMORY: u64 = 12 << 20;
    let files = Limit::below(Resource::Nofile, FILES).map(|files| files.to_string());
    files.or_else(|| {
        let most = cgroup::memory(std::process::id() as i32).filter(|&most| most < MEMORY)?;
        Some(format!("the control group may use only {most} bytes of memory (memory.max)"))
    })
}

/// Says which limits may stop gprofinject, before they do.
pub(crate) fn say_what_is_low(voice: Voice) {
    /// Every processor and every process of the program takes a few of gprofinject's descriptors.
    const FILES: u64 = 64;
    const MEMORY: u64 = 32 << 20;
    if let Some(files) = Limit::below(Resource::Nofile, FILES) {
        voice.note(format_args!("{files}, which may be too few for gprofinject"));
    }
    if let Some(processes) = limits::few_processes() {
        voice.note(format_args!("{processes}, and gprofinject's own ones count as well"));
    }
    if let Some(most) = cgroup::memory(std::process::id() as i32).filter(|&most| most < MEMORY) {
        voice.note(format_args!(
            "the control group may use only {most} bytes of memory (memory.max): with gprofinject in it, that may be too little, \
             and the kernel kills a process without a word"
        ));
    }
}
