//! Imports point down: in no crate do files, or folders beside each other, import each other in a circle.

use std::path::{Path, PathBuf};
use std::process::Command;

use gprofinject_tests::layers::House;

gprofinject_tests::trials! {
    together:
        imports_point_down;
}

/// Returns the root files of all crates of the workspace, with the crates on which each depends.
fn crates() -> Vec<(String, PathBuf, Vec<String>)> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml");
    let mut command = Command::new(env!("CARGO"));
    command
        .args(["metadata", "--no-deps", "--offline", "--format-version=1", "--manifest-path"])
        .arg(manifest);
    let output = command.output().expect("cargo runs");
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo prints JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let mut found = Vec::new();
    for package in packages {
        let name = package["name"].as_str().expect("a name");
        let dependencies = package["dependencies"].as_array().expect("dependencies");
        let ours = dependencies.iter().filter(|d| d["path"].is_string() && d["kind"].is_null());
        let ours: Vec<String> = ours.filter_map(|d| d["name"].as_str()).map(str::to_owned).collect();
        for target in package["targets"].as_array().expect("targets") {
            let kind = target["kind"][0].as_str().expect("a kind");
            let root = PathBuf::from(target["src_path"].as_str().expect("a path"));
            let is_root = root.file_name().is_some_and(|name| name == "lib.rs" || name == "main.rs");
            if matches!(kind, "lib" | "cdylib" | "rlib" | "staticlib" | "bin") && is_root {
                found.push((format!("{name} ({kind})"), root, ours.clone()));
            }
        }
    }
    found
}

fn imports_point_down() {
    let crates = crates();
    assert!(crates.len() >= 6, "only {} crates found", crates.len());
    let mut wrong = Vec::new();
    for (name, root, dependencies) in crates {
        let house = House::read(&root).expect("a crate of ours");
        println!(
            "{name}, above {}",
            if dependencies.is_empty() { "none".to_owned() } else { dependencies.join(", ") }
        );
        for layer in house.layers().iter().rev() {
            let names: Vec<&str> =
                layer.iter().map(|name| if name.is_empty() { "(root)" } else { name }).collect();
            println!("    {}", names.join(", "));
        }
        wrong.extend(
            house.circles().into_iter().map(|ties| format!("{name}: files in a circle: {}", ties.join(", "))),
        );
        let folders = house.circles_of_folders().into_iter();
        wrong.extend(folders.map(|ties| format!("{name}: folders in a circle: {}", ties.join(", "))));
        let through = house.through_the_root().into_iter();
        wrong.extend(through.map(|file| format!("{name}: {file} imports through the crate's root")));
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
