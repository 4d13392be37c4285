//! Compiles small programs into the target folder, and checks the invariants of every image.

use gprofinject_image::{Function, FunctionKind, Image};
use gprofinject_plan::{Hooks, Measured, Options, Role};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns a folder that only this test uses.
pub(crate) fn folder(test: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("image").join(test);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// Returns the name of the test that this thread runs.
fn this_test() -> String {
    format!("image::{}", std::thread::current().name().unwrap_or_default())
}

/// Returns whether the tool is installed. If it is not, this reports the test as skipped.
pub(crate) fn has(tool: &str) -> bool {
    gprofinject_skip::have_for(&this_test(), &[tool])
}

/// Reports that the test, or a part of it, does not run.
pub(crate) fn skipped(reason: &str) {
    gprofinject_skip::skipped(&this_test(), reason);
}

/// Flags that take a library, a plugin or a linker that not every machine has beside its compiler.
const OPTIONAL: [&[&str]; 5] = [
    // libc.a
    &["-static"],
    // libc.a, and rcrt1.o
    &["-static-pie"],
    // The linker's plugin: clang's is in a package of its own.
    &["-flto"],
    // binutils 2.38
    &["-Wl,-z,pack-relative-relocs"],
    // Options of LLVM itself, which may give them up in any version.
    &["-mllvm", "-hot-cold-split=true", "-mllvm", "-hotcoldsplit-threshold=0"],
];

/// As [`compile`]. `None`: this machine lacks what one of the [`OPTIONAL`] flags takes, because an empty program does not compile with it
/// either, and the test is skipped.
pub(crate) fn compile_if_possible(
    folder: &Path,
    compiler: &str,
    sources: &[(&str, &str)],
    flags: &[&str],
) -> Option<PathBuf> {
    let wanted = OPTIONAL.iter().filter(|wanted| flags.windows(wanted.len()).any(|part| part == **wanted));
    for wanted in wanted {
        if !gprofinject_skip::can_compile_for(&this_test(), compiler, wanted) {
            return None;
        }
    }
    Some(compile(folder, compiler, sources, flags))
}

/// Compiles sources, each given as `(file name, text)`, in a folder. Returns the program's path.
pub(crate) fn compile(folder: &Path, compiler: &str, sources: &[(&str, &str)], flags: &[&str]) -> PathBuf {
    let program = try_compile(folder, compiler, sources, flags);
    program.unwrap_or_else(|error| panic!("{compiler} {flags:?} in {}: {error}", folder.display()))
}

/// Compiles sources like [`compile`]. If the compiler fails, for example because it has no static libraries
/// or does not know an option, this returns its error message.
pub(crate) fn try_compile(
    folder: &Path,
    compiler: &str,
    sources: &[(&str, &str)],
    flags: &[&str],
) -> Result<PathBuf, String> {
    for (name, text) in sources {
        std::fs::write(folder.join(name), text).unwrap();
    }
    let program = folder.join("program");
    let names = sources.iter().map(|(name, _)| name);
    let output = Command::new(compiler)
        .current_dir(folder)
        .args(names)
        .args(flags)
        .arg("-o")
        .arg(&program)
        .output()
        .map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(program),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

pub(crate) fn run(tool: &str, arguments: &[&str]) -> String {
    let output = Command::new(tool).args(arguments).output().unwrap();
    assert!(output.status.success(), "{tool} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Checks the invariants that the documentation states for every image.
pub(crate) fn check(image: &Image<'_>) {
    assert!(image.lo < image.hi && image.lo.is_multiple_of(4096) && image.hi.is_multiple_of(4096));
    for pair in image.functions.windows(2) {
        assert!(pair[0].address + pair[0].size <= pair[1].address, "overlap: {pair:#x?}");
        assert!(pair[0].limit <= pair[1].address, "limit: {pair:#x?}");
    }
    for function in &image.functions {
        assert!(function.size > 0, "empty: {function:#x?}");
        assert!(function.address + function.size <= function.limit, "{function:#x?}");
        let room = function.limit - function.address;
        assert!(image.code_at(function.address, room).is_some(), "no code: {function:#x?}");
        if let FunctionKind::Cold(Some(parent)) = function.kind {
            assert_ne!(image.functions[parent].address, function.address);
        }
    }
    for list in [&image.details().code_pointers, &image.details().landing_pads, &image.facts.text_relocations]
    {
        assert!(list.is_sorted_by(|a, b| a < b));
        assert!(list.iter().all(|&address| image.code_at(address, 1).is_some()));
    }
}

/// Returns the function with this name or alias.
pub(crate) fn named<'i, 'd>(image: &'i Image<'d>, name: &str) -> &'i Function<'d> {
    let found =
        image.functions.iter().find(|function| function.name == name || function.aliases.contains(&name));
    found.unwrap_or_else(|| panic!("no function {name}"))
}

/// Returns the function that contains an address.
pub(crate) fn around<'i, 'd>(image: &'i Image<'d>, address: u64) -> &'i Function<'d> {
    let holds =
        |function: &&Function<'_>| (function.address..function.address + function.size).contains(&address);
    image.functions.iter().find(holds).unwrap_or_else(|| panic!("{address:#x} is in no function"))
}

/// Returns the options of a plan that hooks entries and exits of all functions, and counts only.
pub(crate) fn options(role: Role) -> Options<'static> {
    Options {
        hooks: Hooks::Both,
        engine: Default::default(),
        selected: &|_| true,
        min_size: 0,
        insist: false,
        shadow_stack: false,
        counted: None,
        clock: false,
        outermost: false,
        role,
        measured: Measured::None,
        told: None,
        arena: None,
        words: 0,
    }
}
