//! Asks the system's dynamic linker which libraries it would load for a program, as ldd does.
//!
//! The search order has many parts (RPATH of every library on the way, LD_LIBRARY_PATH, the cache, folders for kinds of
//! processors, LD_PRELOAD), and the dynamic linker is the one who knows them. It maps the files and runs no code of theirs.
//! A program names its dynamic linker itself, so only the system's own is run.

use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::os::sys;

/// The path of the dynamic linker by the ABI of x86-64 Linux, and that of musl's.
const SYSTEM: [&str; 2] = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1"];
/// The variables that make the dynamic linker run other code, or print something else.
const VARIABLES: [&str; 7] =
    ["LD_AUDIT", "LD_DEBUG", "LD_DEBUG_OUTPUT", "LD_PROFILE", "LD_SHOW_AUXV", "LD_VERBOSE", "LD_WARN"];
/// The variable that makes glibc's list libraries instead of running the program. Unlike with its option `--list`, it goes on
/// if one is missing. musl's has only the option, which glibc's therefore is not given.
const TRACE: &str = "LD_TRACE_LOADED_OBJECTS";
/// The number of bytes of the answer that are read.
const LONGEST: u64 = 1 << 20;

/// A library that a program needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Needed {
    /// The file from which it will be loaded.
    File(PathBuf),
    /// There is no such library.
    Missing(String),
}

/// Returns the libraries that the dynamic linker will load when a program starts, in their order. `interpreter` is the one
/// that the program names.
///
/// # Errors
/// It cannot be asked, for this reason.
pub(crate) fn needed(program: &Path, interpreter: &str) -> Result<Vec<Needed>, String> {
    let (system, is_musl) = trusted(interpreter)?;
    // The dynamic linker searches the folders of libraries for a name without a slash.
    let program = program.canonicalize().map_err(|error| sys::reason(&error))?;
    let mut command = Command::new(system);
    if is_musl {
        command.arg("--list");
    } else {
        command.env(TRACE, "1");
    }
    command.arg(program).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    for variable in VARIABLES {
        command.env_remove(variable);
    }
    let mut child = command.spawn().map_err(|error| sys::reason(&error))?;
    let mut text = Vec::new();
    let read = match child.stdout.take() {
        Some(output) => output.take(LONGEST).read_to_end(&mut text),
        None => Ok(0),
    };
    // If it has more to say, nobody listens any more.
    let ended = child.wait().map_err(|error| sys::reason(&error))?;
    read.map_err(|error| sys::reason(&error))?;
    let found = parse(&text);
    if found.is_empty() && !ended.success() {
        return Err("the dynamic linker cannot load it".to_owned());
    }
    Ok(found)
}

/// Returns the system's dynamic linker, if that is the one that a program names, and whether it is musl's.
///
/// # Errors
/// It is another one, or other users could have changed it.
fn trusted(interpreter: &str) -> Result<(PathBuf, bool), String> {
    let real = |path: &str| Path::new(path).canonicalize().ok();
    let named = real(interpreter);
    let mut systems = SYSTEM.iter().zip([false, true]);
    let Some((Some(system), is_musl)) = systems
        .find(|(path, _)| named.is_some() && real(path) == named)
        .map(|(_, is_musl)| (named.clone(), is_musl))
    else {
        return Err(format!("its dynamic linker {interpreter} is not the system's, and is not run"));
    };
    const OTHERS_WRITE: u32 = 0o022;
    let is_safe =
        |path: &Path| fs::metadata(path).is_ok_and(|file| file.uid() == 0 && file.mode() & OTHERS_WRITE == 0);
    match system.ancestors().all(is_safe) {
        true => Ok((system, is_musl)),
        false => Err(format!("other users than root can change its dynamic linker {interpreter}")),
    }
}

/// Parses lines such as `name => path (0x7f12)`, `path (0x7f12)` and `name => not found`. A path may be relative to the
/// current folder. The kernel's object has neither an arrow nor a path.
fn parse(text: &[u8]) -> Vec<Needed> {
    let mut found: Vec<Needed> = Vec::new();
    for line in text.split(|&byte| byte == b'\n') {
        let line = line.trim_ascii();
        let arrow = line.windows(4).position(|window| window == b" => ");
        let (name, place) = match arrow {
            Some(at) => (&line[..at], &line[at + 4..]),
            None => (&line[..0], line),
        };
        let address = place.windows(4).rposition(|window| window == b" (0x");
        let needed = match address {
            None if place == b"not found" => Needed::Missing(String::from_utf8_lossy(name).into_owned()),
            Some(end) if place[..end].contains(&b'/') => {
                let path = Path::new(OsStr::from_bytes(&place[..end]));
                Needed::File(path.canonicalize().unwrap_or_else(|_| path.to_owned()))
            }
            _ => continue,
        };
        if !found.contains(&needed) {
            found.push(needed);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_parsed() {
        let text = b"\tlinux-vdso.so.1 (0x00007ffd1)\n\tlibx.so => /no such/ => (0x/libx.so (0x00007f1)\n\
                     \tlibgone.so.1 => not found\n\tlibgone.so.1 => not found\n\t/no/pre.so (0x1)\n\tstatically linked\n";
        let file = |path: &str| Needed::File(path.into());
        let gone = Needed::Missing("libgone.so.1".into());
        assert_eq!(parse(text), [file("/no such/ => (0x/libx.so"), gone, file("/no/pre.so")]);
    }

    #[test]
    fn only_the_systems_dynamic_linker_is_run() {
        let own = std::env::current_exe().expect("this program");
        let found = needed(&own, SYSTEM[0]).expect("an answer");
        let is_libc = |needed: &Needed| matches!(needed, Needed::File(path) if path.ends_with("libc.so.6"));
        assert!(found.iter().any(is_libc), "{found:?}");
        assert!(needed(&own, own.to_str().expect("a name")).is_err_and(|why| why.contains("not run")));
    }
}
