//! Runs compilers and keeps their output: the same source with the same flags is compiled once.
//!
//! The cache is the folder `programs` in the build folder. An entry's name is a hash of everything on which
//! the compiler's output depends: the command line, the contents of the sources, the headers beside them, the
//! variables that are set for the command, and the compiler, linker and C library of the machine. An entry is
//! made under another name and then renamed, so several tests and test runs may fill the cache at the same
//! time.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use gprofinject_skip as skip;

use crate::{run, tool};

/// The compilers whose output is kept.
const COMPILERS: [&str; 7] = ["gcc", "g++", "clang", "clang++", "gfortran", "musl-gcc", "rustc"];

/// The extensions of source files. A program may depend on any other file in a command line by its path.
const SOURCES: [&str; 6] = ["c", "cc", "s", "S", "rs", "f90"];

/// The options with which a compiler writes more than one file, or writes the output's name into them.
const MORE_FILES: [&str; 4] = ["--coverage", "-gsplit-dwarf", "-save-temps", "-MD"];

/// The other tools that determine the output. Those that are not installed are left out.
const TOOLS: [&str; 5] = ["ld", "as", "ld.gold", "objcopy", "gcc"];
const VARIABLES: [&str; 7] = [
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH",
    "COMPILER_PATH",
    "GCC_EXEC_PREFIX",
    "SOURCE_DATE_EPOCH",
];
const LIBRARIES: [&str; 5] = [
    "/usr/lib/x86_64-linux-gnu/crt1.o",
    "/usr/lib/x86_64-linux-gnu/libc.a",
    "/usr/lib/x86_64-linux-gnu/libc.so.6",
    "/usr/lib32/libc.so.6",
    "/usr/lib/x86_64-linux-musl/libc.so",
];

/// Programs that no test has used for this time are removed.
const KEPT: Duration = Duration::from_secs(14 * 24 * 3600);

/// Runs a compiler whose command line has `-o FILE`, or copies the file from the cache.
///
/// # Errors
/// The compiler fails. The error is its output.
pub fn compile(command: Command) -> Result<()> {
    let Some((key, output)) = key(&command) else { return run_compiler(command) };
    let name = output.file_name().context("-o names a file")?.to_owned();
    let made = kept(key, &name, |kept| {
        run_compiler(command)?;
        copy(&output, kept)
    })?;
    if let Made::Before(program) = made { copy(&program, &output) } else { Ok(()) }
}

/// Returns the path of the program that this command makes, after `finish` has processed it. Other tests
/// share the program, so nothing may write to it. The command has no `-o`.
///
/// # Errors
/// The compiler or `finish` fails. The `tag` identifies `finish` in the cache.
pub fn shared(
    mut command: Command,
    name: &OsStr,
    tag: &str,
    finish: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let folder = tempfile::tempdir()?;
    let output = folder.path().join(name);
    command.arg("-o").arg(&output);
    let (mut key, _) = key(&command).with_context(|| format!("cannot be kept: {command:?}"))?;
    key.update(tag.as_bytes());
    let made = kept(key, name, |kept| {
        run_compiler(command)?;
        finish(&output)?;
        copy(&output, kept)
    })?;
    match made {
        Made::Now(program) | Made::Before(program) => Ok(program),
    }
}

/// Copies a program that will be run.
///
/// A separate process copies it. If this process had the copy open for writing while another thread forks,
/// the child would keep it open until it executes something, and nothing could execute the copy ("text file
/// busy").
///
/// # Errors
/// `cp` fails. The error is its output.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    let done = Command::new("cp").arg("--").args([from, to]).output().context("cp")?;
    if !done.status.success() {
        bail!("{}", String::from_utf8_lossy(&done.stderr));
    }
    Ok(())
}

/// Writes a program that will be run, as [`copy`] does.
///
/// # Errors
/// The file cannot be written.
pub fn write_program(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let written = folder.path().join("program");
    fs::write(&written, bytes)?;
    fs::set_permissions(&written, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
    copy(&written, path)
}

/// Runs a compiler. The error is the compiler's output.
fn run_compiler(command: Command) -> Result<()> {
    let line = format!("{command:?}");
    let outcome = run::run(command, None, Duration::from_secs(600))?;
    if !outcome.status.success() {
        bail!("{line}\n{}", outcome.stderr_text());
    }
    Ok(())
}

/// A program in the cache: made by this call, or present before.
enum Made {
    Now(PathBuf),
    Before(PathBuf),
}

/// Returns the file `name` of the entry, which `make` makes if it is missing.
fn kept(key: blake3::Hasher, name: &OsStr, make: impl FnOnce(&Path) -> Result<()>) -> Result<Made> {
    let id = key.finalize().to_hex().to_string();
    // Within this process, only one thread makes an entry; the others wait for it.
    static MAKING: Mutex<Option<HashMap<String, Arc<Mutex<()>>>>> = Mutex::new(None);
    let making = {
        let mut all = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        all.get_or_insert_default().entry(id.clone()).or_default().clone()
    };
    let _only_one = making.lock().unwrap_or_else(PoisonError::into_inner);
    let entry = folder()?.join(&id);
    let program = entry.join(name);
    if program.exists() {
        // `tidy_up` uses this time, with a precision of a day.
        let _ = fs::File::open(&entry).and_then(|entry| entry.set_modified(SystemTime::now()));
        return Ok(Made::Before(program));
    }
    let new = tempfile::Builder::new().prefix("new-").tempdir_in(folder()?)?;
    make(&new.path().join(name))?;
    // Another process that was faster has made the same entry.
    if fs::rename(new.path(), &entry).is_ok() {
        let _ = new.keep();
    }
    Ok(Made::Now(program))
}

/// Returns the folder of the cache.
fn folder() -> Result<&'static Path> {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        let folder = tool::target_folder().join("programs");
        let _ = fs::create_dir_all(&folder);
        tidy_up(&folder);
        folder
    });
    fs::metadata(folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

/// Removes entries that were not used for [`KEPT`].
fn tidy_up(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let modified = entry.metadata().and_then(|metadata| metadata.modified());
        if modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > KEPT)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Returns the hash of everything on which the command's output depends, and the output's path. Returns
/// `None` if that is not known, so that the output is not kept.
fn key(command: &Command) -> Option<(blake3::Hasher, PathBuf)> {
    let compiler = command.get_program().to_str().filter(|name| COMPILERS.contains(name))?;
    let arguments: Vec<&OsStr> = command.get_args().collect();
    let here =
        command.get_current_dir().map_or_else(|| std::env::current_dir().ok(), |path| Some(path.into()))?;
    let output = arguments.windows(2).find(|two| two[0] == "-o").map(|two| here.join(two[1]))?;
    let has_lines = arguments.iter().any(|a| a.as_bytes().starts_with(b"-g") && *a != "-g0");
    let mut key = Key(blake3::Hasher::new());
    key.add(toolchain(compiler).as_bytes());
    for (name, value) in command.get_envs() {
        key.add(name.as_bytes());
        key.add(value.unwrap_or_default().as_bytes());
    }
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        if MORE_FILES.iter().any(|option| text.starts_with(option)) {
            return None;
        }
        match &*text {
            // The file's own name may be in the program.
            "-o" => {
                key.add(b"-o");
                key.add(arguments.next().map(Path::new).and_then(Path::file_name)?.as_bytes());
            }
            // The headers in the folders of the sources are in the key anyway.
            "-I" => {
                let folder = here.join(arguments.next()?);
                key.add(b"-I");
                folder.starts_with(tool::folder()).then_some(())?;
                key.add(folder.as_os_str().as_bytes());
                key.headers(&folder)?;
            }
            // A folder or a file that may exist no longer than the test, or whose contents are not in the
            // key.
            _ if text.starts_with('-') => {
                let temporary = std::env::temp_dir();
                let names_a_file =
                    |part: &str| !part.is_empty() && !part.starts_with('-') && here.join(part).exists();
                if text.starts_with("-L")
                    || text.contains(&*temporary.to_string_lossy())
                    || text.split([',', '=']).any(names_a_file)
                {
                    return None;
                }
                key.add(argument.as_bytes());
            }
            _ => {
                let path = here.join(argument);
                let extension = path.extension()?.to_str()?;
                let is_lasting = path.starts_with(tool::folder());
                let source = fs::read(&path).ok()?;
                // A Rust program contains the path wherever it can panic.
                let names_path = || has_lines || extension == "rs" || names_its_file(&source);
                if !SOURCES.contains(&extension) || !is_lasting && names_path() {
                    return None;
                }
                // Each run has another temporary folder, but the name of the file stays, and may be in the program.
                let name = if is_lasting { path.as_os_str() } else { path.file_name()? };
                key.add(name.as_bytes());
                key.add(&source);
                key.headers(path.parent()?)?;
            }
        }
    }
    Some((key.0, output))
}

/// Whether a program in C, C++ or assembly may contain the path of its source.
fn names_its_file(source: &[u8]) -> bool {
    [&b"__FILE__"[..], b"assert", b".file"].iter().any(|word| source.windows(word.len()).any(|w| w == *word))
}

/// A hash of several parts, each of which is separated from the next.
struct Key(blake3::Hasher);

impl Key {
    fn add(&mut self, part: &[u8]) {
        self.0.update(&(part.len() as u64).to_le_bytes()).update(part);
    }

    /// Adds all headers in a folder, because a source may include any of them.
    fn headers(&mut self, folder: &Path) -> Option<()> {
        let entries = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path());
        let mut headers: Vec<PathBuf> =
            entries.filter(|path| path.extension().is_some_and(|e| e == "h")).collect();
        headers.sort();
        for header in headers {
            self.add(header.file_name()?.as_bytes());
            self.add(&fs::read(header).ok()?);
        }
        Some(())
    }
}

/// Returns the compiler's version, and the sizes and times of the files with which it works.
fn toolchain(compiler: &str) -> String {
    static KNOWN: Mutex<Option<HashMap<String, String>>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let describe = || {
        let version = if compiler == "rustc" { "-vV" } else { "-v" };
        let said = Command::new(compiler).arg(version).output();
        let said = said.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
        let mut text = String::from_utf8_lossy(&said).into_owned();
        for name in VARIABLES {
            text += &format!("{name}={:?}\n", std::env::var_os(name));
        }
        let files = TOOLS.iter().chain([&compiler]).filter_map(|tool| skip::path_of(tool));
        for file in files.chain(LIBRARIES.iter().map(PathBuf::from)) {
            if let Ok(metadata) = fs::metadata(&file) {
                let (size, time) = (metadata.size(), (metadata.mtime(), metadata.mtime_nsec()));
                text += &format!("{} {size} {time:?}\n", file.display());
            }
        }
        text
    };
    known.get_or_insert_default().entry(compiler.to_owned()).or_insert_with(describe).clone()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Returns the key of a command that compiles this source with these arguments, in a folder of its own.
    fn key_of(source: &str, header: &str, arguments: &[&str]) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a.c"), source).unwrap();
        fs::write(folder.path().join("a.h"), header).unwrap();
        let mut command = Command::new("gcc");
        command.args(arguments).arg("-o").arg(folder.path().join("program")).arg(folder.path().join("a.c"));
        key(&command).map(|(key, _)| key.finalize().to_hex().to_string())
    }

    #[test]
    fn the_key_is_all_that_the_program_depends_on() {
        let plain = key_of("int main(void) {}", "", &["-O1"]).unwrap();
        assert_eq!(key_of("int main(void) {}", "", &["-O1"]).unwrap(), plain);
        assert_ne!(key_of("int main(void) { }", "", &["-O1"]).unwrap(), plain);
        assert_ne!(key_of("int main(void) {}", "int f(void);", &["-O1"]).unwrap(), plain);
        assert_ne!(key_of("int main(void) {}", "", &["-O1", "-w"]).unwrap(), plain);
        assert_ne!(key_of("int main(void) {}", "", &["-O1w"]).unwrap(), plain);
    }

    #[test]
    fn what_may_name_its_folder_is_not_kept() {
        let library = format!("-L{}", std::env::temp_dir().display());
        for arguments in [&["-g"][..], &["--coverage"], &[&library], &["-I", "/tmp"]] {
            assert_eq!(key_of("int main(void) {}", "", arguments), None, "{arguments:?}");
        }
        assert_eq!(key_of("char *name = __FILE__;", "", &[]), None);
    }

    #[test]
    fn a_program_is_compiled_once() {
        let folder = tempfile::tempdir().unwrap();
        // The process number makes this a different program in each run.
        let source = format!("int number = {}; int main(void) {{ return 0; }}", std::process::id());
        let mut made = 0;
        let mut first = None;
        for name in ["a", "b"] {
            let path = folder.path().join(format!("{name}.c"));
            fs::write(&path, &source).unwrap();
            fs::rename(&path, folder.path().join("same.c")).unwrap();
            let mut command = Command::new("gcc");
            command.arg(folder.path().join("same.c"));
            let finish = |_: &Path| {
                made += 1;
                Ok(())
            };
            let program = shared(command, OsStr::new("program"), "", finish).unwrap();
            assert_eq!(first.get_or_insert_with(|| program.clone()), &program);
        }
        assert_eq!(made, 1);
        assert!(Command::new(first.unwrap()).status().unwrap().success());
    }

    #[test]
    fn a_program_that_does_not_compile_is_not_kept() {
        for _ in 0..2 {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join("a.c"), "int main(void) { return x; }").unwrap();
            let mut command = Command::new("gcc");
            command.arg(folder.path().join("a.c")).arg("-o").arg(folder.path().join("a"));
            assert!(compile(command).unwrap_err().to_string().contains("undeclared"));
        }
    }
}
