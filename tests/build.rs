//! Builds the agent library once more, with the feature `provoke-panic`: the tests of the agent's panics need
//! a library that panics, and the library in the command must not have such a switch. A cdylib cannot be an
//! ordinary dependency, so this runs a cargo of its own, as the injector's `build.rs` does. It runs when the
//! tests are built, not when they run.

use std::env;
use std::error::Error;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Variables that are meant for the outer build only.
const NOT_INHERITED: [&str; 11] = [
    "CARGO_BUILD_BUILD_DIR",
    "CARGO_BUILD_RUSTFLAGS",
    "CARGO_BUILD_TARGET",
    "CARGO_BUILD_TARGET_DIR",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_PROFILE_RELEASE_PANIC",
    "CARGO_TARGET_DIR",
    "CLIPPY_ARGS",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTDOCFLAGS",
    "RUSTFLAGS",
];

/// The variable by which Cargo names what stands in for the compiler.
const WRAPPER: &str = "RUSTC_WORKSPACE_WRAPPER";

fn main() -> Result<(), Box<dyn Error>> {
    let variable = |name: &str| env::var_os(name).map(PathBuf::from).ok_or(format!("no {name}"));
    let agent = variable("CARGO_MANIFEST_DIR")?.join("../agent");
    println!("cargo::rerun-if-changed=build.rs");
    for part in ["src", "abi/src", "abi/Cargo.toml", "Cargo.toml", "build.rs"] {
        let path = agent.join(part);
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    let target = variable("OUT_DIR")?.join("panicking-agent");
    let library = target.join("release/libgprofinject_agent.so");
    println!("cargo::rustc-env=GPROFINJECT_PANICKING_AGENT={}", library.display());
    // Clippy needs only the path. Cargo keeps what clippy makes apart from builds.
    println!("cargo::rerun-if-env-changed={WRAPPER}");
    let wrapper = env::var_os(WRAPPER).unwrap_or_default();
    if Path::new(&wrapper).file_stem() == Some(OsStr::new("clippy-driver")) {
        return Ok(());
    }
    let mut cargo = Command::new(variable("CARGO")?);
    cargo.args(["build", "--release", "--lib", "--features", "provoke-panic", "--manifest-path"]);
    cargo.arg(agent.join("Cargo.toml")).arg("--target-dir").arg(&target);
    for name in NOT_INHERITED {
        cargo.env_remove(name);
    }
    let status = cargo.status()?;
    if !status.success() {
        return Err(format!("building the agent library that panics failed: {status}").into());
    }
    Ok(())
}
