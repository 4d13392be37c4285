//! The flag sets: compilers arrange code differently with each of them.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compiler {
    Gnu,
    Clang,
    /// gcc with musl as the C library. It compiles C only.
    Musl,
}

/// A set of compiler flags.
#[derive(Debug)]
pub struct FlagSet {
    pub name: &'static str,
    pub compiler: Compiler,
    pub flags: &'static [&'static str],
    /// The corresponding flags of rustc; `None` if rustc has none.
    pub rust: Option<&'static [&'static str]>,
    /// A linker that may be missing.
    pub needs: Option<&'static str>,
    /// Whether the compiler inserts calls of another profiler. Some programs then behave differently when
    /// they run alone, because glibc's counters interfere.
    pub profiling: bool,
}

const fn gnu(name: &'static str, flags: &'static [&'static str]) -> FlagSet {
    FlagSet { name, compiler: Compiler::Gnu, flags, rust: None, needs: None, profiling: false }
}

const fn clang(name: &'static str, flags: &'static [&'static str]) -> FlagSet {
    FlagSet { compiler: Compiler::Clang, needs: Some("clang"), ..gnu(name, flags) }
}

const fn profiling(set: FlagSet) -> FlagSet {
    FlagSet { profiling: true, ..set }
}

/// All flag sets: nine ordinary ones, and ten for programs that are built for profiling.
pub const FLAG_SETS: &[FlagSet] = &[
    FlagSet { rust: Some(&["-Copt-level=0"]), ..gnu("O0", &["-O0"]) },
    FlagSet { rust: Some(&["-Copt-level=2"]), ..gnu("O2", &["-O2"]) },
    FlagSet { rust: Some(&["-Copt-level=3"]), ..gnu("O3-noplt", &["-O3", "-fno-plt"]) },
    FlagSet { rust: Some(&["-Copt-level=s"]), ..gnu("Os-cf", &["-Os", "-fcf-protection"]) },
    FlagSet {
        rust: Some(&["-Copt-level=2", "-Crelocation-model=static"]),
        ..gnu("O2-nopie", &["-O2", "-fno-pie", "-no-pie"])
    },
    FlagSet { rust: Some(&["-Copt-level=2", "-Clto=fat"]), ..gnu("O2-lto", &["-O2", "-flto"]) },
    gnu("O2-gc", &["-O2", "-ffunction-sections", "-Wl,--gc-sections"]),
    FlagSet {
        needs: Some("ld.gold"),
        ..gnu("O2-icf", &["-O2", "-ffunction-sections", "-fuse-ld=gold", "-Wl,--icf=all"])
    },
    clang("clang-O2", &["-O2"]),
    profiling(gnu("O0-pg-nopie", &["-O0", "-pg", "-fno-pie", "-no-pie"])),
    profiling(gnu("O2-pg", &["-O2", "-pg"])),
    profiling(gnu("O3-fentry-cf", &["-O3", "-pg", "-mfentry", "-fcf-protection"])),
    profiling(gnu("O2-fentry-nopie", &["-O2", "-pg", "-mfentry", "-mrecord-mcount", "-fno-pie", "-no-pie"])),
    profiling(gnu("O2-nop-mcount", &["-O2", "-pg", "-mfentry", "-mnop-mcount", "-fno-pie", "-no-pie"])),
    profiling(gnu("O2-patchable", &["-O2", "-fpatchable-function-entry=16,6"])),
    profiling(gnu("Os-patchable-short", &["-Os", "-fpatchable-function-entry=3,1"])),
    profiling(gnu("O2-instrument", &["-O2", "-finstrument-functions"])),
    profiling(clang("clang-O2-pg", &["-O2", "-pg"])),
    profiling(clang("clang-O1-instrument", &["-O1", "-finstrument-functions"])),
];

/// The name of the flag set of programs that musl's dynamic linker loads.
pub const MUSL_DYNAMIC: &str = "musl-dynamic";

/// The flag sets of standalone programs, which no dynamic linker of glibc loads.
pub const STANDALONE_SETS: &[FlagSet] = &[
    FlagSet {
        rust: Some(&["-Copt-level=2", "-Ctarget-feature=+crt-static", "-Crelocation-model=static"]),
        ..gnu("static", &["-O2", "-static"])
    },
    FlagSet {
        rust: Some(&["-Copt-level=2", "-Ctarget-feature=+crt-static"]),
        ..gnu("static-pie", &["-O2", "-static-pie"])
    },
    FlagSet { compiler: Compiler::Musl, needs: Some("musl-gcc"), ..gnu("musl", &["-O2", "-static"]) },
    FlagSet { compiler: Compiler::Musl, needs: Some("musl-gcc"), ..gnu(MUSL_DYNAMIC, &["-O2"]) },
];

/// Returns the flag set of that name.
///
/// # Panics
/// If there is none.
pub fn flag_set(name: &str) -> &'static FlagSet {
    FLAG_SETS.iter().find(|set| set.name == name).unwrap_or_else(|| panic!("no flag set {name}"))
}
