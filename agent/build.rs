//! The agent links with nothing: it runs before the C library is ready, and inside functions that the C
//! library calls.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for argument in [
        "-nostdlib",
        "-nostartfiles",
        "-Wl,--hash-style=gnu",
        "-Wl,-z,norelro",
        "-Wl,-soname,libgprofinject.so",
        // Its returns are those of its calls. The injector takes the mark out where the plans are not made for a shadow stack.
        "-Wl,-z,shstk",
    ] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
    // No dynamic linker finds other definitions of a standalone library's functions.
    if std::env::var_os("CARGO_FEATURE_STANDALONE").is_some() {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    }
}
