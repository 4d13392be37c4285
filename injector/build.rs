//! Builds the agent library, which travels inside the command (see `src/run_folder.rs`), with a cargo of
//! its own: a cdylib cannot be an ordinary dependency, and it always wants the release profile.

use std::env;
use std::error::Error;
use std::path::PathBuf;
use std::process::Command;

/// Meant for the outer build only: flags and wrappers of `cargo clippy`, coverage or sanitizer runs,
/// which code that runs in other people's processes must not inherit, and the outer target folder, whose
/// lock the outer cargo holds.
const NOT_INHERITED: [&str; 11] = [
    "CARGO_BUILD_BUILD_DIR",
    "CARGO_BUILD_RUSTFLAGS",
    "CARGO_BUILD_TARGET",
    "CARGO_BUILD_TARGET_DIR",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_TARGET_DIR",
    "CLIPPY_ARGS",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTDOC",
    "RUSTDOCFLAGS",
    "RUSTFLAGS",
];

fn main() -> Result<(), Box<dyn Error>> {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("no CARGO_MANIFEST_DIR")?);
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("no OUT_DIR")?);
    let agent = here.join("../agent");
    for part in ["src", "abi/src", "abi/Cargo.toml", "Cargo.toml", "build.rs"] {
        let path = agent.join(part);
        if path.exists() {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    println!("cargo::rerun-if-changed=build.rs");

    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo
        .args(["build", "--release", "--lib", "--package", "gprofinject-agent", "--manifest-path"])
        .arg(agent.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(out.join("agent"))
        // Written to a run folder at every start: a third of a millisecond, without line tables.
        .env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo")
        .current_dir(&here);
    for name in NOT_INHERITED {
        cargo.env_remove(name);
    }
    let status = cargo.status()?;
    if !status.success() {
        return Err(format!("building the agent library failed: {status}").into());
    }
    let library = out.join("agent/release/libgprofinject_agent.so");
    println!("cargo::rustc-env=GPROFINJECT_AGENT={}", library.display());
    Ok(())
}
