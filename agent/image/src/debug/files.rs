//! A program's separate debug file. It is searched where debuggers search it, and must prove in the same ways
//! that it belongs to this build.
//!
//! Whoever makes a program decides what the program says about its debug file. So a name is only accepted as
//! the name of a file, without folders; only regular files are opened; and a file counts only if its build-id
//! is the program's, or if it has the checksum in the program's `.gnu_debuglink`. It must belong to this user, to root or
//! to the program's owner, because its line information names files. The cache of debuginfod may be in
//! a folder of somebody for whom root works; what is there counts only if this user or root has written it.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use object::read::elf::{FileHeader, SectionHeader};
use object::{LittleEndian, Object, elf};
use rustix::fs::OFlags;

/// The folder into which distributions put debug files.
const SYSTEM: &str = "/usr/lib/debug";
/// The size in bytes above which a file is not read.
pub(crate) const MAX_SIZE: u64 = 4 << 30;

/// A debug file that belongs to the program's build.
#[derive(Debug)]
pub struct DebugFile {
    pub path: PathBuf,
    pub bytes: Vec<u8>,
    /// Whether the debug file is in a section of the program, which is the file at `path`. Then other tools, such
    /// as gprof, do not see it.
    pub embedded: bool,
}

/// Returns the separate debug files of a program, the most likely one first. Each is read when the iterator
/// reaches it.
///
/// They are searched below `/usr/lib/debug/.build-id`, below `.build-id` beside the program and below
/// `.debug/.build-id`; in debuginfod's cache; under the name in the program's `.gnu_debuglink`, beside the program, in
/// `.debug` and below `/usr/lib/debug`; and as `PROGRAM.debug` beside the program and in `.debug`.
pub fn debug_files(program: &Path, bytes: &[u8]) -> impl Iterator<Item = DebugFile> {
    search(program, bytes, &caches(|name| std::env::var_os(name)), Wanted::All)
}

/// Returns the same files, with zeros in place of the sections about lines, types and variables, which are most of them.
pub(crate) fn symbol_files(program: &Path, bytes: &[u8]) -> impl Iterator<Item = DebugFile> {
    search(program, bytes, &caches(|name| std::env::var_os(name)), Wanted::Symbols)
}

/// What is wanted of a debug file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    All,
    Symbols,
}

/// Reads the file of a program or library at a path that a profile contains, if it still has this build-id, or any if that is
/// empty. Returns its bytes and its owner. Whoever has written the profile chose the path, so nothing but regular ELF files are read.
pub fn module_file(path: &Path, build_id: &[u8]) -> Option<(Vec<u8>, u32)> {
    let (bytes, owner) = read(path, |_| true)?;
    let known = object::File::parse(&*bytes).ok()?.build_id().ok().flatten().unwrap_or_default().to_vec();
    (build_id.is_empty() || known == build_id).then_some((bytes, owner))
}

fn search(
    program: &Path,
    bytes: &[u8],
    caches: &[PathBuf],
    wanted: Wanted,
) -> impl Iterator<Item = DebugFile> + use<> {
    let program = program.canonicalize().unwrap_or_else(|_| program.to_owned());
    let trusted = [0, rustix::process::geteuid().as_raw()];
    let maker = program.metadata().ok().map(|metadata| metadata.uid());
    let claim = Claim::of(bytes);
    let candidates = claim.as_ref().map_or_else(Vec::new, |claim| claim.candidates(&program, caches));
    candidates.into_iter().filter(move |candidate| candidate.path != program).filter_map(move |candidate| {
        let is_trusted = |owner| trusted.contains(&owner) || !candidate.cached && maker == Some(owner);
        let claim = claim.as_ref()?;
        // A checksum is one of all bytes.
        let bytes = match wanted {
            Wanted::Symbols if claim.build_id.is_some() => read_symbols(&candidate.path, is_trusted)?,
            _ => read(&candidate.path, is_trusted)?.0,
        };
        let is_it = claim.is_met_by(&bytes, wanted);
        is_it.then_some(DebugFile { path: candidate.path, bytes, embedded: false })
    })
}

/// Returns the folders that debuginfod's clients use as their cache, by the environment.
fn caches(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let folder = |name| variable(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
    let own = folder("DEBUGINFOD_CACHE_PATH");
    let xdg = folder("XDG_CACHE_HOME").map(|folder| folder.join("debuginfod_client"));
    let home = folder("HOME").map(|folder| folder.join(".cache/debuginfod_client"));
    own.into_iter().chain(xdg).chain(home).collect()
}

/// A place where the debug file may be.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    path: PathBuf,
    /// Whether it is in a cache, where only files of this user or of root count.
    cached: bool,
}

/// What a program says about its debug file.
struct Claim {
    /// The build-id, if it has one.
    build_id: Option<Vec<u8>>,
    /// A name without folders, and the file's checksum.
    link: Option<(Vec<u8>, u32)>,
}

impl Claim {
    fn of(bytes: &[u8]) -> Option<Claim> {
        let file = object::File::parse(bytes).ok()?;
        let build_id = file.build_id().ok().flatten().filter(|id| id.len() > 1).map(<[u8]>::to_vec);
        let link = file.gnu_debuglink().ok().flatten();
        let link = link.filter(|(name, _)| is_name(name)).map(|(name, crc)| (name.to_vec(), crc));
        (build_id.is_some() || link.is_some()).then_some(Claim { build_id, link })
    }

    fn candidates(&self, program: &Path, caches: &[PathBuf]) -> Vec<Candidate> {
        let mut found = Vec::new();
        let beside = |path| Candidate { path, cached: false };
        let folder = program.parent().unwrap_or(Path::new("/"));
        let own = folder.join(".debug");
        if let Some((first, rest)) = self.build_id.as_ref().and_then(|id| id.split_first()) {
            let rest: String = rest.iter().map(|byte| format!("{byte:02x}")).collect();
            let file = format!(".build-id/{first:02x}/{rest}.debug");
            found.extend([Path::new(SYSTEM), folder, &own].map(|folder| beside(folder.join(&file))));
            let file = format!("{first:02x}{rest}/debuginfo");
            found.extend(caches.iter().map(|cache| Candidate { path: cache.join(&file), cached: true }));
        }
        if let Some((name, _)) = &self.link {
            let name = std::ffi::OsStr::from_bytes(name);
            let below = Path::new(SYSTEM).join(folder.strip_prefix("/").unwrap_or(folder));
            found.extend([folder, &own, &below].map(|folder| beside(folder.join(name))));
        }
        if let Some(name) = program.file_name() {
            let mut name = name.to_owned();
            name.push(".debug");
            found.extend([folder, &own].map(|folder| beside(folder.join(&name))));
        }
        found
    }

    fn is_met_by(&self, bytes: &[u8], wanted: Wanted) -> bool {
        let Ok(file) = object::File::parse(bytes) else { return false };
        match (&self.build_id, file.build_id().ok().flatten()) {
            (Some(own), Some(other)) => own == other,
            (Some(_), None) if wanted == Wanted::Symbols => false,
            _ => self.link.as_ref().is_some_and(|(_, crc)| *crc == crc32fast::hash(bytes)),
        }
    }
}

fn is_name(name: &[u8]) -> bool {
    let name = Path::new(std::ffi::OsStr::from_bytes(name));
    let mut components = name.components();
    matches!((components.next(), components.next()), (Some(Component::Normal(only)), None) if only == name.as_os_str())
}

/// Opens a file without waiting for anything but a regular file that has this name.
fn open(path: &Path) -> Option<File> {
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32;
    File::options().read(true).custom_flags(flags).open(path).ok()
}

/// Reads a regular ELF file if its owner is trusted, and returns its bytes and its owner.
fn read(path: &Path, is_trusted: impl FnOnce(u32) -> bool) -> Option<(Vec<u8>, u32)> {
    read_open(open(path)?, MAX_SIZE, is_trusted)
}

/// Reads a regular ELF file if its owner is trusted, with zeros in place of the `.debug` sections.
fn read_symbols(path: &Path, is_trusted: impl FnOnce(u32) -> bool) -> Option<Vec<u8>> {
    let file = open(path)?;
    let metadata = file.metadata().ok().filter(|metadata| metadata.is_file() && metadata.len() < MAX_SIZE)?;
    if !is_trusted(metadata.uid()) {
        return None;
    }
    // Of these zeros, only what is written takes memory.
    let mut bytes = vec![0; usize::try_from(metadata.len()).ok()?];
    let fill = |bytes: &mut [u8], (start, len): (u64, u64)| {
        let end = usize::try_from(start.checked_add(len)?).ok()?;
        file.read_exact_at(bytes.get_mut(usize::try_from(start).ok()?..end)?, start).ok()
    };
    let head = size_of::<elf::FileHeader64<LittleEndian>>() as u64;
    fill(&mut bytes, (0, head))?;
    let header = elf::FileHeader64::<LittleEndian>::parse(&*bytes).ok()?;
    let (at, count) = (header.e_shoff(LittleEndian), u64::from(header.e_shnum(LittleEndian)));
    let table = (at, count * u64::from(header.e_shentsize(LittleEndian)));
    let names = usize::from(header.e_shstrndx(LittleEndian).0);
    fill(&mut bytes, table)?;
    let header = elf::FileHeader64::<LittleEndian>::parse(&*bytes).ok()?;
    let sections = header.section_headers(LittleEndian, &*bytes).ok()?.to_vec();
    let range = |section: &elf::SectionHeader64<LittleEndian>| section.file_range(LittleEndian);
    fill(&mut bytes, sections.get(names).and_then(range)?)?;
    let header = elf::FileHeader64::<LittleEndian>::parse(&*bytes).ok()?;
    let strings = header.section_strings(LittleEndian, &*bytes, &sections).ok()?;
    let is_needed = |section: &&elf::SectionHeader64<LittleEndian>| {
        let name = section.name(LittleEndian, strings).unwrap_or_default();
        !name.starts_with(b".debug") && !name.starts_with(b".zdebug")
    };
    let needed: Vec<_> = sections.iter().filter(is_needed).filter_map(range).collect();
    needed.into_iter().try_for_each(|range| fill(&mut bytes, range))?;
    Some(bytes)
}

/// Reads an open file, if it is a regular ELF file of less than `most` bytes whose owner is trusted.
pub(crate) fn read_open(
    file: File,
    most: u64,
    is_trusted: impl FnOnce(u32) -> bool,
) -> Option<(Vec<u8>, u32)> {
    let metadata = file.metadata().ok().filter(|metadata| metadata.is_file() && metadata.len() < most)?;
    if !is_trusted(metadata.uid()) {
        return None;
    }
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).ok()?);
    file.take(most).read_to_end(&mut bytes).ok()?;
    bytes.starts_with(b"\x7fELF").then_some((bytes, metadata.uid()))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use gprofinject_skip::{have, skipped};

    use super::*;

    #[test]
    fn a_name_is_no_path() {
        assert!(is_name(b"p.debug") && is_name(b"..x") && is_name(b"\xff"));
        for path in [&b""[..], b".", b"..", b"/etc/passwd", b"a/b", b"a/", b"./a"] {
            assert!(!is_name(path), "{path:?}");
        }
    }

    #[test]
    fn where_a_debug_file_may_be() {
        let claim = Claim { build_id: Some(vec![0xab, 1, 2]), link: Some((b"x.dbg".to_vec(), 7)) };
        let expected = [
            "/usr/lib/debug/.build-id/ab/0102.debug",
            "/opt/p/.build-id/ab/0102.debug",
            "/opt/p/.debug/.build-id/ab/0102.debug",
            "/cache/ab0102/debuginfo",
            "/home/u/.cache/debuginfod_client/ab0102/debuginfo",
            "/opt/p/x.dbg",
            "/opt/p/.debug/x.dbg",
            "/usr/lib/debug/opt/p/x.dbg",
            "/opt/p/prog.debug",
            "/opt/p/.debug/prog.debug",
        ];
        let caches = caches(|name| match name {
            "DEBUGINFOD_CACHE_PATH" => Some("/cache".into()),
            "XDG_CACHE_HOME" => Some("relative".into()),
            _ => Some("/home/u".into()),
        });
        let candidates = claim.candidates(Path::new("/opt/p/prog"), &caches);
        let in_cache = |path: &str| path.ends_with("/debuginfo");
        let expected = expected.map(|path| Candidate { path: path.into(), cached: in_cache(path) });
        assert_eq!(candidates, expected);
    }

    #[test]
    fn symbols_without_the_rest() {
        let test = "symbols_without_the_rest";
        if !have("gcc") {
            return skipped(test, "no gcc");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let line = "echo 'int f(int x) { return x + 1; } int main(void) { return f(0); }' > p.c
             gcc -g -gz -Wl,--build-id=0x0123 -o p p.c; cp p p.debug; strip -s p";
        let done = Command::new("sh").args(["-ec", line]).current_dir(folder.path()).status();
        assert!(done.expect("a shell").success());
        let path = folder.path().join("p");
        let bytes = std::fs::read(&path).expect("a program");
        let all = search(&path, &bytes, &[], Wanted::All).next().expect("the debug file");
        let symbols = search(&path, &bytes, &[], Wanted::Symbols).next().expect("the debug file");
        let functions = |file: &DebugFile| {
            let found = crate::symbols::functions(&file.bytes);
            found.iter().map(|function| (function.address, function.name.to_owned())).collect::<Vec<_>>()
        };
        assert!(functions(&all).iter().any(|(_, name)| name == "f"));
        assert_eq!((&symbols.path, functions(&symbols)), (&all.path, functions(&all)));
        let zeros = |file: &DebugFile| file.bytes.iter().filter(|byte| **byte == 0).count();
        assert!(symbols.bytes.len() == all.bytes.len() && zeros(&symbols) > zeros(&all));
        // Damaged files, whatever is in their headers, are refused or read.
        for at in 0..64 {
            let mut damaged = all.bytes.clone();
            damaged[at] ^= 0xff;
            std::fs::write(&all.path, damaged).expect("written");
            let _ = search(&path, &bytes, &[], Wanted::Symbols).next();
        }
    }

    #[test]
    fn a_cache_of_somebody_else_is_not_used() {
        let test = "a_cache_of_somebody_else_is_not_used";
        if !have("gcc") {
            return skipped(test, "no gcc");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("cache/0123")).expect("a folder");
        let line = "echo 'int main(void) { return 0; }' > p.c
             gcc -g -Wl,--build-id=0x0123 -o p p.c; cp p cache/0123/debuginfo; strip -s p";
        let done = Command::new("sh").args(["-ec", line]).current_dir(folder.path()).status();
        assert!(done.expect("a shell").success());
        let bytes = std::fs::read(at("p")).expect("a program");
        let found = || {
            search(&at("p"), &bytes, &[at("cache")], Wanted::All).map(|file| file.path).collect::<Vec<_>>()
        };
        let file = at("cache/0123/debuginfo");
        assert_eq!(found(), std::slice::from_ref(&file));
        if std::os::unix::fs::chown(&file, Some(12_345), None).is_err() {
            return skipped(test, "not permitted here");
        }
        assert!(found().is_empty());
        // debuginfod's client leaves an empty file where a server knows nothing.
        std::fs::remove_file(&file).expect("a file");
        std::fs::write(&file, "").expect("a file");
        assert!(found().is_empty());
    }
}
