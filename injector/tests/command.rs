//! Tests that the command starts. The system tests are a crate of their own (`tests/`). Because this test
//! needs the command, Cargo builds it before it runs the system tests.

use std::process::Command;

#[test]
fn it_says_its_version() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_gprofinject")).arg("--version").output().expect("it starts");
    assert!(output.status.success());
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        format!("gprofinject {}\n", env!("CARGO_PKG_VERSION"))
    );
}
