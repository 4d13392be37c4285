//! Tests of where files may be written. Root plays the other users, because it can give files away. Without
//! root, these tests report that they are skipped.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};

use super::*;

/// Another user, who has no name in a password file.
const OTHER: u32 = 54_321;

struct Here(tempfile::TempDir);

impl Here {
    fn new() -> Here {
        Here(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, mode: u32) -> PathBuf {
        let path = self.at(name);
        std::fs::write(&path, b"old").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    /// Returns a folder of the other user.
    fn folder(&self, name: &str) -> PathBuf {
        let path = self.at(name);
        std::fs::create_dir(&path).unwrap();
        chown(&path, Some(OTHER), Some(OTHER)).unwrap();
        path
    }
}

/// Writes in both ways.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let checked = Target::check(path).and_then(|target| target.write(bytes));
    let at_once = super::write(path, bytes);
    assert_eq!(checked.is_ok(), at_once.is_ok(), "{checked:?}, {at_once:?}");
    checked
}

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().mode() & 0o7777
}

/// Whether the test can play two users. Reports it if not.
fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        gprofinject_skip::skipped(test, "it takes root to make another user's files");
    }
    root
}

#[test]
fn checking_leaves_no_trace_and_writing_keeps_links_and_modes() {
    let here = Here::new();
    let new = Target::check(&here.at("new")).unwrap();
    assert_eq!(std::fs::read_dir(here.0.path()).unwrap().count(), 0);
    new.write(b"one").unwrap();
    assert_eq!(mode(&here.at("new")), allowed());

    std::fs::set_permissions(here.at("new"), std::fs::Permissions::from_mode(0o640)).unwrap();
    symlink("new", here.at("link")).unwrap();
    write(&here.at("link"), b"two").unwrap();
    assert_eq!(std::fs::read(here.at("new")).unwrap(), b"two");
    assert!(std::fs::symlink_metadata(here.at("link")).unwrap().is_symlink());
    assert_eq!(mode(&here.at("new")), 0o640 & allowed());

    symlink("later", here.at("dangling")).unwrap();
    write(&here.at("dangling"), b"three").unwrap();
    assert_eq!(std::fs::read(here.at("later")).unwrap(), b"three");
    std::fs::create_dir(here.at("folder")).unwrap();
    symlink(here.at("folder"), here.at("way")).unwrap();
    write(&here.at("way/../way/x"), b"four").unwrap();
    assert_eq!(std::fs::read(here.at("folder/x")).unwrap(), b"four");
    assert_eq!(std::fs::read_dir(here.0.path()).unwrap().count(), 6);
}

#[test]
fn impossible_places_are_errors() {
    let here = Here::new();
    let errno = |path: &Path| Target::check(path).unwrap_err().raw_os_error();
    let of = |errno: Errno| Some(errno.raw_os_error());
    assert_eq!(errno(here.0.path()), of(Errno::ISDIR));
    assert_eq!(errno(Path::new("/")), of(Errno::ISDIR));
    assert_eq!(errno(&here.at("..")), of(Errno::ISDIR));
    assert_eq!(errno(&here.at("no/gmon.out")), of(Errno::NOENT));
    assert_eq!(errno(&here.at("new/")), of(Errno::ISDIR));
    assert_eq!(errno(&here.at(&"x".repeat(256))), of(Errno::NAMETOOLONG));
    assert_eq!(errno(&here.file("file", 0o644).join("x")), of(Errno::NOTDIR));
    symlink("a", here.at("b")).unwrap();
    symlink("b", here.at("a")).unwrap();
    assert_eq!(errno(&here.at("a")), of(Errno::LOOP));
    write(&here.at(&"x".repeat(255)), b"x").unwrap();
    write(Path::new("/dev/null"), b"x").unwrap();
    assert!(write(Path::new("/dev/full"), b"x").is_err());
}

/// The set-user-ID, set-group-ID and sticky bits are removed, and so is what the umask removes from new
/// files.
#[test]
fn modes_are_bounded() {
    let here = Here::new();
    for old in [0o6777, 0o4755, 0o2666, 0o1600, 0o666, 0o444] {
        let path = here.file("file", old);
        if !is_root("modes_are_bounded") && old == 0o444 {
            continue;
        }
        write(&path, b"new").unwrap();
        assert_eq!((mode(&path), std::fs::read(&path).unwrap()), (old & 0o666 & allowed(), b"new".to_vec()));
        std::fs::remove_file(path).unwrap();
    }
}

/// A new file replaces the old one. A process that has the old file open, or a link to it, keeps it as it
/// was.
#[test]
fn the_old_file_is_not_written_into() {
    let here = Here::new();
    let path = here.file("file", 0o644);
    std::fs::hard_link(&path, here.at("other")).unwrap();
    write(&path, b"new").unwrap();
    assert_eq!(std::fs::read(here.at("other")).unwrap(), b"old");
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
}

#[test]
fn where_a_file_has_no_name_at_first_or_a_temporary_one() {
    let here = Here::new();
    let folder = walk(&here.at("x")).unwrap().folder;
    let New { file, name } = new_file(&folder).unwrap();
    assert_eq!(file.metadata().unwrap().mode() & 0o7777, PRIVATE);
    assert!(name.is_none() || std::fs::read_dir(here.0.path()).unwrap().count() == 1);
    // /proc has neither kind of file.
    assert!(Target::check(Path::new("/proc/new")).is_err());
}

#[test]
fn descriptors_are_written_to_whoever_owns_the_file() {
    use std::os::fd::AsRawFd;
    let here = Here::new();
    let path = here.file("file", 0o600);
    let file = File::options().write(true).open(&path).unwrap();
    let name = PathBuf::from(format!("/dev/fd/{}", file.as_raw_fd()));
    let target = Target::check(&name).unwrap();
    assert_eq!(target.file(), Some(path.as_path()));
    drop(file);
    target.write(b"new").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
    let (reader, writer) = std::io::pipe().unwrap();
    write(Path::new(&format!("/proc/self/fd/{}", writer.as_raw_fd())), b"piped").unwrap();
    drop(writer);
    assert_eq!(std::io::read_to_string(reader).unwrap(), "pipedpiped", "once in each way");
}

#[test]
fn a_pipe_waits_for_its_reader() {
    let here = Here::new();
    let pipe = here.at("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let target = Target::check(&pipe).unwrap();
    assert!(target.is_stream());
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| std::fs::read(&pipe).unwrap());
        target.write(b"piped").unwrap();
        assert_eq!(reader.join().unwrap(), b"piped");
    });
    if is_root("a_pipe_waits_for_its_reader") {
        let folder = here.folder("theirs");
        let theirs = folder.join("pipe");
        std::fs::rename(&pipe, &theirs).unwrap();
        chown(&theirs, Some(OTHER), None).unwrap();
        let error = Target::check(&theirs).unwrap_err();
        assert!(error.to_string().contains("another user"), "{error}");
    }
}

/// This is the kernel's fs.protected_symlinks for all folders: those of other users, and those to which
/// everybody can write.
#[test]
fn links_of_another_user_are_not_followed() {
    if !is_root("links_of_another_user_are_not_followed") {
        return;
    }
    let here = Here::new();
    let victim = here.file("victim", 0o600);
    let theirs = here.folder("theirs");
    for (folder, mode) in [(&theirs, 0o755), (&theirs, 0o1777)] {
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(mode)).unwrap();
        for (name, to) in [("final", victim.clone()), ("new", here.at("none")), ("way", here.0.path().into())]
        {
            let link = folder.join(name);
            let _ = std::fs::remove_file(&link);
            symlink(&to, &link).unwrap();
            lchown(&link, Some(OTHER), Some(OTHER)).unwrap();
        }
        for name in ["final", "new", "way/victim", "way/none"] {
            let error = Target::check(&folder.join(name)).unwrap_err();
            assert!(error.to_string().contains("another user (number 54321)"), "{name}: {error}");
        }
        // A link that the calling user has made is followed.
        symlink(&victim, folder.join("own")).unwrap();
        Target::check(&folder.join("own")).unwrap();
        std::fs::remove_file(folder.join("own")).unwrap();
    }
    assert_eq!(std::fs::read(&victim).unwrap(), b"old");
    assert!(!here.at("none").exists());
}

/// What the check has found is checked again: a link that is made in between is not followed either.
#[test]
fn a_link_that_comes_after_the_check() {
    if !is_root("a_link_that_comes_after_the_check") {
        return;
    }
    let here = Here::new();
    let victim = here.file("victim", 0o600);
    let theirs = here.folder("theirs");
    let path = theirs.join("gmon.out");
    let target = Target::check(&path).unwrap();
    symlink(&victim, &path).unwrap();
    lchown(&path, Some(OTHER), Some(OTHER)).unwrap();
    assert!(target.write(b"new").is_err());
    // In the last step, too: the name is taken, and the link is replaced.
    std::fs::remove_file(&path).unwrap();
    let place = walk(&path).unwrap();
    symlink(&victim, &path).unwrap();
    replace(&place, new_file(&place.folder).unwrap(), b"new", false, 0o666).unwrap();
    assert_eq!(std::fs::read(&victim).unwrap(), b"old");
    assert!(std::fs::symlink_metadata(&path).unwrap().is_file());
    assert_eq!(std::fs::metadata(&path).unwrap().uid(), 0);
}

/// The file of the other user is replaced, and the new one belongs to the calling user.
#[test]
fn in_another_users_folder_the_file_is_ours() {
    if !is_root("in_another_users_folder_the_file_is_ours") {
        return;
    }
    let here = Here::new();
    let path = here.folder("theirs").join("gmon.out");
    std::fs::write(&path, b"old").unwrap();
    chown(&path, Some(OTHER), Some(OTHER)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o6777)).unwrap();
    write(&path, b"new").unwrap();
    let now = std::fs::metadata(&path).unwrap();
    assert_eq!((now.uid(), now.mode() & 0o7777), (0, 0o666 & allowed()));
}

/// Only files that no other user can have put there are overwritten.
#[test]
fn a_file_that_another_user_has_put_there_is_not_overwritten() {
    if !is_root("a_file_that_another_user_has_put_there_is_not_overwritten") {
        return;
    }
    let here = Here::new();
    let victim = here.file("victim", 0o600);
    let theirs = here.folder("theirs");
    std::fs::hard_link(&victim, theirs.join("linked")).unwrap();
    std::fs::write(theirs.join("own"), b"old").unwrap();
    chown(theirs.join("own"), Some(OTHER), None).unwrap();
    for (name, why) in [("linked", "other names"), ("own", "another user")] {
        let error = open_to_overwrite(&walk(&theirs.join(name)).unwrap(), 0o666).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    let place = walk(&here.file("ours", 0o6777)).unwrap();
    drop(open_to_overwrite(&place, 0o666).unwrap());
    assert_eq!(mode(&here.at("ours")), 0o666 & allowed());
}

#[test]
fn a_rescued_file_is_new_and_not_in_a_folder_of_another_user() {
    let here = Here::new();
    let name = OsStr::new("gmon.out.1");
    let first = rescue_to(here.0.path(), name, b"a").unwrap();
    let second = rescue_to(here.0.path(), name, b"b").unwrap();
    assert!(first != second && mode(&first) == PRIVATE && mode(&second) == PRIVATE);
    assert_eq!(std::fs::read(first).unwrap(), b"a");
    if is_root("a_rescued_file_is_new_and_not_in_a_folder_of_another_user") {
        assert!(rescue_to(&here.folder("theirs"), name, b"c").is_err());
    }
}
