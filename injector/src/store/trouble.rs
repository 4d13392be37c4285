//! Messages for what an agent reports about itself.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use gprofinject_abi::region::{LOST_WORDS, Lost, LostCode, Trouble, TroubleCode};

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
    if report.trouble == Trouble::Panic.code() {
        return Some(format!("{what} ({})", panic_text(report)));
    }
    let place = match report.trouble_address {
        0 => String::new(),
        address => format!(" at {address:#x}"),
    };
    let errno = match report.errno {
        0 => String::new(),
        errno => format!(": {}", sys::errno_text(errno)),
    };
    Some(format!("{what}{place}{errno}"))
}

/// Returns the libraries that the agent has not hooked although nobody has decided that, with the reasons, as far as the report has
/// room for them. An empty path stands for all libraries. The program may have written anything there instead.
pub(crate) fn lost(report: &AgentReport) -> Vec<(PathBuf, String)> {
    let count = usize::try_from(report.lost_libraries).unwrap_or(usize::MAX);
    let one = |[first, path @ ..]: &[u64; LOST_WORDS]| {
        let path = path.iter().flat_map(|word| word.to_le_bytes()).take_while(|&byte| byte != 0).collect();
        let error = match (first >> 32) as i32 {
            0 => String::new(),
            errno => format!(": {}", sys::errno_text(errno)),
        };
        let what = match LostCode(*first as u32).get()? {
            Lost::File => "the process could not open its file",
            Lost::Answer => "the process could not ask gprofinject about it",
            Lost::Memory => "there was no memory for its hooks",
            Lost::Text => "its code in memory is not that of its file",
            Lost::Base => "it is linked for another first address than 0",
        };
        Some((PathBuf::from(OsString::from_vec(path)), format!("{what}{error}")))
    };
    report.lost.iter().take(count).filter_map(one).collect()
}

/// Returns what is wrong with the counters if the agent has panicked after the hooks were in place, or `None` if it has
/// not.
pub(crate) fn failure(report: &AgentReport) -> Option<String> {
    let failed = report.state == AgentState::Armed && report.trouble == Trouble::Panic.code();
    failed.then(|| {
        format!("the agent has a defect and stopped counting: counts are too low ({})", panic_text(report))
    })
}

/// Where the agent has panicked. The program may have written anything there instead, so only plain characters are shown.
fn panic_text(report: &AgentReport) -> String {
    let bytes = report.panic_file.iter().flat_map(|word| word.to_le_bytes()).take_while(|&byte| byte != 0);
    let file: String =
        bytes.map(|byte| if byte.is_ascii_graphic() { char::from(byte) } else { '?' }).collect();
    format!("please report a panic at {file}:{}", report.errno)
}

fn trouble_text(trouble: TroubleCode) -> String {
    let Some(known) = trouble.get() else { return format!("the agent gave up (reason {})", trouble.0) };
    let text = match known {
        Trouble::Files => "the agent could not open its plan or counters",
        Trouble::Version => "the agent is of another version",
        Trouble::OtherProgram => "another program was started than the one that was planned",
        Trouble::Arena => "there was no memory near the program's code",
        Trouble::TextDiffers => "the program's code in memory is not that of its file",
        Trouble::Protect => "the program's code could not be made writable",
        Trouble::Memory => "the agent got no memory",
        Trouble::DynamicLinker => {
            "musl's dynamic linker, which makes the program's threads, could not be hooked"
        }
        Trouble::NoNewCode => {
            "no memory may become executable (PR_SET_MDWE, a seccomp filter or SELinux forbids it)"
        }
        Trouble::Hooks => "a library defines __cyg_profile_func_enter, which was taken for libc's empty one",
        Trouble::AddressSanitizer => {
            "AddressSanitizer is preloaded, whose reports would show the hooks; without it in LD_PRELOAD, the program is hooked"
        }
        Trouble::ShadowStack => {
            "its own GLIBC_TUNABLES turn the processor's shadow stack (SHSTK) on; give them to gprofinject too, so that entries are hooked"
        }
        Trouble::Panic => "the agent has a defect",
    };
    text.into()
}

#[cfg(test)]
mod tests {
    use gprofinject_abi::region::PANIC_FILE_WORDS;

    use super::*;

    #[test]
    fn a_panic_is_named() {
        let mut panic_file = [0; PANIC_FILE_WORDS];
        panic_file[0] = u64::from_le_bytes(*b"src/\x1b[.r");
        panic_file[1] = u64::from_le_bytes(*b"s\0\0\0\0\0\0\0");
        let trouble = Trouble::Panic.code();
        let mut report = AgentReport { trouble, errno: 7, panic_file, ..AgentReport::default() };
        report.state = AgentState::Refused;
        let expected = "the agent has a defect (please report a panic at src/?[.rs:7)";
        assert_eq!((super::trouble(&report).as_deref(), failure(&report)), (Some(expected), None));
        report.state = AgentState::Armed;
        assert_eq!(super::trouble(&report), None);
        assert!(failure(&report).is_some_and(|text| text.contains("counts are too low")));
        report.trouble = TroubleCode::default();
        assert_eq!(failure(&report), None);
    }
}
