//! Where the devkit is, and what keeps the library to itself: it stands in other people's processes.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=FRIDA_GUM_DEVKIT");
    if std::env::var_os("CARGO_FEATURE_GUM").is_none() {
        return;
    }
    if let Some(devkit) = std::env::var_os("FRIDA_GUM_DEVKIT") {
        println!("cargo::rustc-link-search=native={}", devkit.display());
    }
    for argument in [
        "-Wl,--hash-style=gnu",
        "-Wl,-soname,libgprofinject-frida.so",
        // Its code is where hooks lead to as long as the process lives.
        "-Wl,-z,nodelete",
        // Its words that lead to libc are set right when it starts (`imports.rs`).
        "-Wl,-z,norelro",
        // What is missing shall be missed here, not in a program that is being profiled.
        "-Wl,-z,defs",
    ] {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
