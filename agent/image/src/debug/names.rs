//! The file in which a stripped program or library has the names of its functions.

use std::path::Path;

use object::Object;

use crate::debug::embedded::embedded;
use crate::debug::files::{DebugFile, debug_files, symbol_files};
use crate::symbols::is_stripped;

/// Returns the debug file with the names of the functions of a program or library, or `None` if the file itself
/// has them, or if nobody has.
///
/// A separate debug file comes first, because it has all names and source lines, and gprof can read it. The one in
/// `.gnu_debugdata` has functions only. What is then still missing comes from `.dynsym`.
pub fn file_with_names(path: &Path, bytes: &[u8]) -> Option<DebugFile> {
    if !is_stripped(bytes) {
        return None;
    }
    with_names(path, bytes, debug_files(path, bytes))
}

/// Returns the same file for somebody who wants nothing but the names: a separate file has zeros in place of the sections about
/// lines, types and variables.
pub fn names_alone(path: &Path, bytes: &[u8]) -> Option<DebugFile> {
    if !is_stripped(bytes) {
        return None;
    }
    with_names(path, bytes, symbol_files(path, bytes))
}

fn with_names(path: &Path, bytes: &[u8], mut files: impl Iterator<Item = DebugFile>) -> Option<DebugFile> {
    files.find(|file| !is_stripped(&file.bytes)).or_else(|| {
        let inner = embedded(bytes).filter(|inner| is_of_use(inner, bytes))?;
        Some(DebugFile { path: path.to_owned(), bytes: inner, embedded: true })
    })
}

/// Whether an embedded file has functions and belongs to the program's build.
fn is_of_use(inner: &[u8], program: &[u8]) -> bool {
    let (Ok(file), Ok(program)) = (object::File::parse(inner), object::File::parse(program)) else {
        return false;
    };
    let ids = (file.build_id().ok().flatten(), program.build_id().ok().flatten());
    let differ = matches!(ids, (Some(own), Some(other)) if own != other);
    file.architecture() == program.architecture() && !differ && !is_stripped(inner)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;

    use gprofinject_skip::{have, skipped};
    use tempfile::TempDir;

    use super::*;
    use crate::Image;

    const SOURCE: &str = r#"
__attribute__((noinline)) static int inner(int x) { __asm__ volatile("" : "+r"(x)); return x + 1; }
__attribute__((noinline)) int outer(int x) { return inner(x) + inner(x + 1); }
int main(int argc, char **argv) { (void)argv; return outer(argc); }
"#;

    /// Runs a line of commands in the folder.
    fn run(folder: &Path, line: &str) {
        let done = Command::new("sh").args(["-ec", line]).current_dir(folder).output().expect("a shell");
        assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// Compiles the program `p` or the library `libp.so`, and returns the folder and the path of the file. Returns
    /// `None` if a tool is missing.
    fn compiled(test: &str, tools: &[&str], library: bool) -> Option<(TempDir, PathBuf)> {
        if let Some(missing) = ["gcc", "objcopy", "strip"].iter().chain(tools).find(|tool| !have(tool)) {
            skipped(test, &format!("no {missing}"));
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("p.c"), SOURCE).expect("a file");
        let (options, name) = if library { ("-shared -fPIC -Wl,-e,outer", "libp.so") } else { ("", "p") };
        let id = "-Wl,--build-id=0x0123456789abcdef";
        run(folder.path(), &format!("gcc -g -O1 {options} {id} -o {name} p.c"));
        let path = folder.path().join(name);
        Some((folder, path))
    }

    /// Puts a symbol table into `.gnu_debugdata`, as rpm's scripts do, and strips the file.
    fn embed(folder: &Path, name: &str) {
        run(
            folder,
            &format!(
                "objcopy --only-keep-debug {name} full
                 nm -D {name} --format=posix --defined-only | cut -d' ' -f1 | sort > dynamic
                 nm full --format=posix --defined-only | grep -E ' [Tt] ' | cut -d' ' -f1 | sort > functions
                 comm -13 dynamic functions > kept
                 objcopy -S --remove-section .comment --keep-symbols=kept full mini
                 xz mini
                 objcopy --add-section .gnu_debugdata=mini.xz {name}
                 strip -s {name}
                 rm full"
            ),
        );
    }

    /// Returns the names of the functions as they are in the image, and those of which no name is known.
    fn names(path: &Path) -> (Vec<String>, usize, Option<DebugFile>) {
        let bytes = std::fs::read(path).expect("a file");
        let file = file_with_names(path, &bytes);
        let names = file.as_ref().map(|file| file.bytes.as_slice());
        let image = Image::read_with(&bytes, names).or_else(|_| Image::read_library(&bytes, names));
        let image = image.expect("an image");
        let all: Vec<_> = image.functions.iter().flat_map(|f| f.names()).map(str::to_owned).collect();
        let unnamed = image.functions.iter().filter(|function| function.name.is_empty()).count();
        (all, unnamed, file)
    }

    fn has(names: &[String], name: &str) -> bool {
        names.iter().any(|other| other == name)
    }

    #[test]
    fn a_file_with_symbols_needs_no_other() {
        let Some((_folder, path)) = compiled("a_file_with_symbols_needs_no_other", &[], false) else {
            return;
        };
        let (names, _, file) = names(&path);
        assert!(has(&names, "inner") && has(&names, "outer") && file.is_none());
    }

    #[test]
    fn without_any_names() {
        let Some((folder, path)) = compiled("without_any_names", &[], true) else { return };
        run(folder.path(), "strip -s libp.so");
        let (names, unnamed, file) = names(&path);
        // What the library exports is in .dynsym; the other function is known by its frame only.
        assert!(!has(&names, "inner") && has(&names, "outer") && unnamed > 0 && file.is_none(), "{names:?}");
    }

    #[test]
    fn a_separate_file_by_link() {
        let Some((folder, path)) = compiled("a_separate_file_by_link", &[], true) else { return };
        run(
            folder.path(),
            "objcopy --only-keep-debug libp.so p.dbg; strip -s libp.so; objcopy --add-gnu-debuglink=p.dbg libp.so",
        );
        let (names, _, file) = names(&path);
        assert!(has(&names, "inner") && has(&names, "outer"), "{names:?}");
        assert!(file.is_some_and(|file| !file.embedded && file.path.ends_with("p.dbg")));
    }

    #[test]
    fn a_file_embedded_in_a_program_and_in_a_library() {
        for library in [false, true] {
            let test = "a_file_embedded_in_a_program_and_in_a_library";
            let Some((folder, path)) = compiled(test, &["xz", "comm"], library) else { return };
            let name = path.file_name().expect("a name").to_string_lossy().into_owned();
            embed(folder.path(), &name);
            let (found, _, file) = names(&path);
            assert!(has(&found, "inner") && has(&found, "outer"), "{found:?}");
            assert_eq!(found.iter().filter(|name| *name == "outer").count(), 1, "{found:?}");
            assert!(file.is_some_and(|file| file.embedded && file.path == path));
        }
    }

    #[test]
    fn damaged_embedded_files() {
        let test = "damaged_embedded_files";
        let Some((folder, path)) = compiled(test, &["xz", "comm"], true) else { return };
        embed(folder.path(), "libp.so");
        let bytes = std::fs::read(&path).expect("a file");
        let packed = std::fs::read(folder.path().join("mini.xz")).expect("a file");
        let at = bytes.windows(packed.len()).position(|window| window == packed).expect("the section");
        for index in (0..packed.len()).step_by(3) {
            for bit in [1, 0x10, 0x80] {
                let mut damaged = bytes.clone();
                damaged[at + index] ^= bit;
                // No panic, whatever is found.
                let _ = file_with_names(&path, &damaged);
            }
        }
        // The file of another build.
        let mut other = bytes.clone();
        let id = other.windows(8).position(|w| w == [1, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
        other[id.expect("a build-id")] ^= 1;
        assert!(file_with_names(&path, &other).is_none());
    }
}
