//! Messages for what an agent reports about itself.

use gprofinject_abi::region::Trouble;

use crate::os::sys;
use crate::store::region::layout::{AgentReport, AgentState};

/// Returns why nothing is hooked, or `None` if something is.
pub(crate) fn trouble(report: &AgentReport) -> Option<String> {
    let what = match report.state {
        AgentState::Armed => return None,
        AgentState::New => {
            "the agent was not loaded (does the program clear LD_PRELOAD, or end before its main?)".into()
        }
        AgentState::SettingUp => "the program ended while the hooks were put in".into(),
        AgentState::Refused => trouble_text(report.trouble),
    };
    let place = match report.trouble_address {
        0 => String::new(),
        address => format!(" at {address:#x}"),
    };
    let errno = match report.errno {
        0 => String::new(),
        libc::ENOMEM => format!(": {} (ulimit -v, ulimit -d)", sys::errno_text(libc::ENOMEM)),
        errno => format!(": {}", sys::errno_text(errno)),
    };
    Some(format!("{what}{place}{errno}"))
}

fn trouble_text(trouble: u32) -> String {
    const TEXTS: [(Trouble, &str); 8] = [
        (Trouble::Files, "the agent could not open its plan or counters"),
        (Trouble::Version, "the agent is of another version"),
        (Trouble::OtherProgram, "another program was started than the one that was planned"),
        (Trouble::Arena, "there was no memory near the program's code"),
        (Trouble::TextDiffers, "the program's code in memory is not that of its file"),
        (Trouble::Protect, "the program's code could not be made writable"),
        (Trouble::Memory, "the agent got no memory"),
        (Trouble::Hooks, "a library defines __cyg_profile_func_enter, which was taken for libc's empty one"),
    ];
    let text = TEXTS.iter().find(|(known, _)| *known as u32 == trouble);
    text.map_or_else(|| format!("the agent gave up (reason {trouble})"), |(_, text)| (*text).to_owned())
}
