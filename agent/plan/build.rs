//! Computes the version of the planner, a hash of its sources. A cached plan may be used only by the version
//! that made it.

use std::collections::hash_map::DefaultHasher;
use std::error::Error;
use std::fs;
use std::hash::Hasher;
use std::path::Path;

/// Everything that a plan depends on besides the program: this crate, the layouts that it writes, the reader
/// of programs, and the crates that decode and encode instructions. A change that does not affect plans
/// merely invalidates cached ones.
const SOURCES: [&str; 8] = [
    "src",
    "Cargo.toml",
    "build.rs",
    "../abi/src",
    "../abi/Cargo.toml",
    "../image/src",
    "../image/Cargo.toml",
    "../../Cargo.lock",
];

fn main() -> Result<(), Box<dyn Error>> {
    let mut hasher = DefaultHasher::new();
    for source in SOURCES.map(Path::new) {
        // There is no lock file if the crate is built outside its workspace.
        if source.exists() {
            println!("cargo::rerun-if-changed={}", source.display());
            add(source, &mut hasher)?;
        }
    }
    println!("cargo::rustc-env=GPROFINJECT_PLANNER={:016x}", hasher.finish());
    Ok(())
}

/// Adds the names and contents of a file, or of all files below a folder, in an order that does not depend on the file
/// system.
fn add(path: &Path, hasher: &mut DefaultHasher) -> Result<(), Box<dyn Error>> {
    let name = path.as_os_str().as_encoded_bytes();
    hasher.write_usize(name.len());
    hasher.write(name);
    if path.is_dir() {
        let entries: Result<Vec<_>, _> = fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect();
        let mut entries = entries.map_err(|error: std::io::Error| error)?;
        entries.sort();
        hasher.write_usize(entries.len());
        return entries.iter().try_for_each(|entry| add(entry, hasher));
    }
    let bytes = fs::read(path)?;
    hasher.write_usize(bytes.len());
    hasher.write(&bytes);
    Ok(())
}
