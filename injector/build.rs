//! Builds the libraries that are part of the command (see `src/store/run_folder.rs`): the agent and, with the
//! feature `frida`, the library with Frida's gum. It runs a cargo of its own, because a cdylib cannot be an
//! ordinary dependency and always needs the release profile.

use std::env;
use std::error::Error;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Variables that are meant for the outer build only: flags and wrappers of `cargo clippy`, coverage and
/// sanitizer runs, which must not change code that runs in other processes, and the outer target folder,
/// which the outer cargo has locked.
const NOT_INHERITED: [&str; 12] = [
    "CARGO_BUILD_BUILD_DIR",
    "CARGO_BUILD_RUSTFLAGS",
    "CARGO_BUILD_TARGET",
    "CARGO_BUILD_TARGET_DIR",
    "CARGO_ENCODED_RUSTFLAGS",
    "CARGO_PROFILE_RELEASE_PANIC",
    "CARGO_TARGET_DIR",
    "CLIPPY_ARGS",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTDOC",
    "RUSTDOCFLAGS",
    "RUSTFLAGS",
];

/// The variable with the folder of Frida's gum, if it is not where Frida publishes it.
const DEVKIT: &str = "FRIDA_GUM_DEVKIT";
/// The variable that is set where documentation is built. Then there is no devkit, and nothing is linked.
const DOCUMENTATION: &str = "DOCS_RS";
/// The variable by which Cargo names what stands in for the compiler. Cargo keeps what clippy makes apart from builds.
const WRAPPER: &str = "RUSTC_WORKSPACE_WRAPPER";

const HELP: &str = "docs/frida.md says where Frida publishes its gum devkit, and how to name a folder with it by \
                    FRIDA_GUM_DEVKIT";

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("no OUT_DIR")?);
    println!("cargo::rerun-if-changed=build.rs");
    agent(&out)?;
    if env::var_os("CARGO_FEATURE_FRIDA").is_some() {
        frida(&out).map_err(|error| format!("the feature frida: {error}. {HELP}"))?;
    }
    Ok(())
}

fn agent(out: &Path) -> Result<(), Box<dyn Error>> {
    let folder = source("agent")?;
    for part in ["src", "abi/src", "abi/Cargo.toml", "Cargo.toml", "build.rs"] {
        changes(&folder.join(part));
    }
    for variable in [DOCUMENTATION, WRAPPER] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    if env::var_os(DOCUMENTATION).is_some() {
        println!("cargo::warning={DOCUMENTATION} is set: the command can be documented, but not used");
    }
    // Both are built in one folder, so that what they depend on is built once. Each replaces the other there.
    let target = out.join("agent");
    for (variable, name, features) in [
        ("GPROFINJECT_AGENT", "libgprofinject.so", ""),
        ("GPROFINJECT_STANDALONE", "libgprofinject-standalone.so", "standalone"),
    ] {
        let library = out.join(name);
        if is_only_checked() {
            std::fs::write(&library, [])?;
        } else {
            let mut cargo = cargo("gprofinject-agent", &folder, &target)?;
            let status = cargo.args(["--lib", "--features", features]).status()?;
            if !status.success() {
                return Err(format!("building the agent library failed: {status}").into());
            }
            std::fs::copy(target.join("release/libgprofinject_agent.so"), &library)?;
        }
        embed(variable, &library);
    }
    Ok(())
}

/// Whether the command is not made, but checked by clippy or documented. Then empty libraries do, of which the agent's takes
/// longer to build than all of the command takes to check.
fn is_only_checked() -> bool {
    let is_clippy = |wrapper: OsString| Path::new(&wrapper).file_stem() == Some(OsStr::new("clippy-driver"));
    env::var_os(DOCUMENTATION).is_some() || env::var_os(WRAPPER).is_some_and(is_clippy)
}

fn frida(out: &Path) -> Result<(), Box<dyn Error>> {
    let folder = source("agent/frida")?;
    for part in ["src", "Cargo.toml", "build.rs"] {
        changes(&folder.join(part));
    }
    println!("cargo::rerun-if-env-changed={DEVKIT}");
    let target = out.join("frida");
    let library = target.join("release/libgprofinject_frida.so");
    if is_only_checked() {
        std::fs::create_dir_all(library.parent().ok_or("no folder")?)?;
        std::fs::write(&library, [])?;
    } else {
        gum(&folder, &target)?;
    }
    embed("GPROFINJECT_FRIDA", &library);
    Ok(())
}

fn gum(folder: &Path, target: &Path) -> Result<(), Box<dyn Error>> {
    let devkit = env::var_os(DEVKIT).filter(|folder| !folder.is_empty());
    let mut cargo = cargo("gprofinject-frida", folder, target)?;
    match &devkit {
        Some(devkit) => cargo.args(["--features", "gum"]).env("BINDGEN_EXTRA_CLANG_ARGS", include(devkit)?),
        None => cargo.args(["--features", "auto-download"]),
    };
    let status = cargo.status()?;
    if !status.success() {
        let how = match devkit {
            Some(devkit) => format!("with the devkit in {}", devkit.display()),
            None => format!("and {DEVKIT} is not set, so the devkit was to be downloaded"),
        };
        return Err(format!("building the library with Frida's gum failed ({status}), {how}").into());
    }
    Ok(())
}

/// Returns the option by which clang finds the devkit's header.
fn include(devkit: &OsStr) -> Result<String, Box<dyn Error>> {
    for file in ["frida-gum.h", "libfrida-gum.a"] {
        let path = Path::new(devkit).join(file);
        changes(&path);
        if !path.is_file() {
            return Err(format!("{DEVKIT} names {}, which has no {file}", devkit.display()).into());
        }
    }
    match devkit.to_str() {
        Some(path) if !path.contains('\'') && path.starts_with('/') => Ok(format!("-I'{path}'")),
        _ => Err(format!("{DEVKIT} must be an absolute path without quotes").into()),
    }
}

/// Returns a folder of the workspace.
fn source(name: &str) -> Result<PathBuf, Box<dyn Error>> {
    let here = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("no CARGO_MANIFEST_DIR")?);
    Ok(here.join("..").join(name))
}

fn changes(path: &Path) {
    if path.exists() {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

fn embed(variable: &str, library: &Path) {
    println!("cargo::rustc-env={variable}={}", library.display());
}

fn cargo(package: &str, folder: &Path, target: &Path) -> Result<Command, Box<dyn Error>> {
    let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // Where the optimiser does less, paths that do not save the program's vector registers use them.
    let profile = env::vars_os().map(|(name, _)| name);
    for name in profile.filter(|name| name.to_string_lossy().starts_with("CARGO_PROFILE_")) {
        cargo.env_remove(name);
    }
    cargo
        .args(["build", "--release", "--package", package, "--manifest-path"])
        .arg(folder.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(target)
        // The library is written to a run folder at every start: a third of a millisecond, without line
        // tables.
        .env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo")
        .current_dir(source("injector")?);
    for name in NOT_INHERITED {
        cargo.env_remove(name);
    }
    Ok(cargo)
}
