//! `--open`: the report for a browser, which `gmon html` writes and opens.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::os::say::{Level, Voice};
use crate::os::sys;

/// Writes the report of a recording beside it and opens it. gmon says where it is, and opens it as the user who called sudo.
pub(crate) fn open(gmon: &Path, recording: Option<&Path>, voice: Voice) {
    let Some(recording) = recording else {
        voice.warn("--open: there is no recording to be shown");
        return;
    };
    let mut command = Command::new(gmon);
    command.args(["html", "--open", "-o"]).arg(report_of(recording)).arg("--").arg(recording);
    command.stdin(Stdio::null());
    if voice.0 == Level::Quiet {
        command.stdout(Stdio::null()).stderr(Stdio::null());
    }
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(_) => voice.warn("--open: gmon html has failed"),
        Err(error) => voice.warn(format_args!("--open: {}: {}", gmon.display(), sys::reason(&error))),
    }
}

/// Returns the name of the report: that of the recording with another ending.
fn report_of(recording: &Path) -> OsString {
    let name = recording.as_os_str().as_bytes();
    let stem = name.strip_suffix(b".pb.gz").unwrap_or(name);
    OsString::from_vec([stem, b".html"].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_beside_the_recording() {
        assert_eq!(report_of(Path::new("gmon.pb.gz")), "gmon.html");
        assert_eq!(report_of(Path::new("a/b.rank1.pb.gz")), "a/b.rank1.html");
        assert_eq!(report_of(Path::new("odd")), "odd.html");
    }
}
