//! Commands of gmon in the folder of a test.

use std::process::{Command, Output};

use gmon_run::Recording;
use serde_json::Value;

use super::Folder;

pub(crate) fn gmon(folder: &Folder, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gmon"));
    command.args(args).current_dir(&folder.0).output().expect("gmon runs")
}

/// Returns what a command prints, which must succeed without a message.
pub(crate) fn text(folder: &Folder, args: &[&str]) -> String {
    let output = gmon(folder, args);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), stderr.as_ref()), (Some(0), ""), "{args:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn json(folder: &Folder, args: &[&str]) -> Value {
    serde_json::from_str(&text(folder, args)).expect("JSON")
}

/// Returns the message of a command that must fail.
pub(crate) fn message(folder: &Folder, args: &[&str]) -> String {
    let output = gmon(folder, args);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{args:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.strip_prefix("gmon: ").expect("gmon's message").trim_end().to_owned()
}

/// Returns a folder with `gmon.pb.gz`.
pub(crate) fn folder(name: &str, measured: &Recording) -> Folder {
    let folder = Folder::new(&format!("measured-{name}"));
    folder.write("gmon.pb.gz", &measured.write());
    folder
}
