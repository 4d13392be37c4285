//! Tests with folders, links and pipes that another user might place in the way.

use std::os::unix::fs::{PermissionsExt, symlink};

use super::*;

fn place() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("a mode");
}

#[test]
fn what_is_made_can_be_opened_and_is_gone_when_removed() {
    let place = place();
    let made = PrivateFolder::create(place.path()).expect("made");
    made.create_file("a").expect("a file").write_all(b"one").expect("written");
    made.replace("a", b"two").expect("written");
    made.link("a", "b").expect("linked");
    let again = PrivateFolder::open(made.path()).expect("opened");
    assert_eq!(again.read("b", 3).expect("read"), b"two");
    assert_eq!(again.read("b", 2).expect_err("too long").raw_os_error(), Some(libc::EFBIG));
    let mut names = again.names().expect("readable");
    names.sort();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(again.names().expect("readable once more").len(), 2);
    assert!(again.exists() && made.create_file("a").is_err());
    again.remove().expect("removed");
    assert!(!made.exists() && !made.path().exists());
    assert!(matches!(PrivateFolder::open(made.path()), Err(Distrust::Absent)));
}

#[test]
fn links_and_folders_that_others_may_enter_are_not_opened() {
    let place = place();
    let made = PrivateFolder::create(place.path()).expect("made");
    symlink(made.path(), place.path().join("link")).expect("a link");
    assert!(matches!(PrivateFolder::open(&place.path().join("link")), Err(Distrust::Failed(_))));
    let (name, around) = (made.path().file_name().expect("a name"), place.path().join("around"));
    symlink(place.path(), &around).expect("a link");
    assert!(matches!(PrivateFolder::open(&around.join(name)), Err(Distrust::Failed(_))));
    assert!(PrivateFolder::open(Path::new("relative")).is_err());
    assert!(PrivateFolder::open(&place.path().join("..").join(name)).is_err());
    for mode in [0o701, 0o710, 0o720, 0o704, 0o777] {
        set_mode(made.path(), mode);
        assert!(matches!(PrivateFolder::open(made.path()), Err(Distrust::Open(_))), "{mode:o}");
    }
}

#[test]
fn pipes_and_links_in_it_are_not_opened() {
    let place = place();
    let made = PrivateFolder::create(place.path()).expect("made");
    let pipe = made.path().join("pipe");
    fs::mknodat(fs::CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).expect("a pipe");
    std::fs::write(place.path().join("target"), "x").expect("a file");
    made.symlink(&place.path().join("target"), "link").expect("a link");
    for name in ["pipe", "link", "absent"] {
        assert!(made.open_file(name).is_err() && made.read(name, 9).is_err(), "{name}");
        assert!(made.open_to_write(name).is_err(), "{name}");
    }
    made.replace("link", b"new").expect("the link itself is replaced");
    assert_eq!(std::fs::read(place.path().join("target")).expect("read"), b"x");
}

#[test]
fn an_own_folder_is_made_and_links_and_other_users_folders_are_refused() {
    let place = place();
    let inner = place.path().join("a/b/c");
    assert!(matches!(PrivateFolder::open_own(&inner, 0), Err(Distrust::Absent)));
    assert!(matches!(PrivateFolder::open_own(&inner, 2), Err(Distrust::Absent)), "a is one too many");
    std::fs::create_dir(place.path().join("a")).expect("a folder");
    let made = PrivateFolder::open_own(&inner, 2).expect("made");
    made.create_file("f").expect("a file");
    let mode = |path: &Path| std::fs::metadata(path).expect("made").permissions().mode() & 0o7777;
    assert_eq!((mode(&inner), mode(&place.path().join("a/b"))), (0o700, 0o700));
    assert!(PrivateFolder::open_own(&inner, 0).expect("there").has("f"));

    symlink(&inner, place.path().join("link")).expect("a link");
    symlink(place.path().join("a"), place.path().join("around")).expect("a link");
    for path in ["link", "around/b/c", "a/b/c/f", "a/../a/b/c"] {
        assert!(PrivateFolder::open_own(&place.path().join(path), 2).is_err(), "{path}");
    }
    set_mode(&inner, 0o710);
    assert!(matches!(PrivateFolder::open_own(&inner, 2), Err(Distrust::Open(0o710))));
    set_mode(&inner, 0o700);
    set_mode(&place.path().join("a"), 0o775);
    assert!(PrivateFolder::open_own(&inner, 2).is_err(), "its group can replace b");
    set_mode(&place.path().join("a"), 0o1777);
    assert!(PrivateFolder::open_own(&inner, 2).is_ok());
    if sys::ids().euid == 0 {
        std::os::unix::fs::chown(place.path().join("a"), Some(65534), None).expect("another user's");
        assert!(PrivateFolder::open_own(&inner, 2).is_err(), "user 65534 can replace b");
        std::os::unix::fs::chown(place.path().join("a"), Some(0), None).expect("ours");
        std::os::unix::fs::chown(&inner, Some(65534), None).expect("another user's");
        assert!(matches!(PrivateFolder::open_own(&inner, 2), Err(Distrust::Foreign(65534))));
    }
}

#[test]
fn places_where_others_can_rename_are_refused() {
    let place = place();
    let inner = place.path().join("inner");
    std::fs::create_dir(&inner).expect("a folder");
    for (outer, mode, fits) in
        [(0o700, 0o700, true), (0o755, 0o1777, true), (0o755, 0o777, false), (0o775, 0o700, false)]
    {
        set_mode(place.path(), outer);
        set_mode(&inner, mode);
        assert_eq!(PrivateFolder::create(&inner).is_ok(), fits, "{outer:o} {mode:o}");
    }
}

#[test]
fn only_links_to_memory_files_of_the_folder_are_followed() {
    let place = place();
    let made = PrivateFolder::create(place.path()).expect("made");
    let memory = |name: &Path| memory_files::empty_memory_file(name).expect("made");
    let regular = made.create_file("regular").expect("made");
    let (own, other) = (memory(&made.path().join("own")), memory(&place.path().join("other")));
    for (file, name) in [(&regular, "a"), (&own, "b"), (&other, "c")] {
        made.symlink(&sys::path_of(file), name).expect("linked");
    }
    made.symlink(&made.path().join("regular"), "d").expect("linked");
    made.symlink(Path::new("/proc/self/fd/../maps"), "e").expect("linked");
    for name in ["a", "b", "c", "d", "e"] {
        assert!(made.open_of_anybody(name).is_err(), "{name}");
    }
    for file in [&own, &other] {
        memory_files::fix_length(file).expect("fixed");
    }
    assert!(made.open_to_write("b").is_ok() && made.open_file("b").is_ok());
    assert!(made.open_of_anybody("c").is_err());
    // If the process has ended, its heir has the file.
    let gone = format!("/proc/{}/fd/{}", i32::MAX, own.as_raw_fd());
    made.symlink(Path::new(&gone), "f").expect("linked");
    assert!(made.open_of_anybody("f").is_err());
    made.symlink(Path::new("/proc/self"), HEIR).expect("linked");
    assert!(made.open_of_anybody("f").is_ok());
}
