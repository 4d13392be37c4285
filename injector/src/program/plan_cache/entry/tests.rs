//! Tests with entries that are damaged, belong to other users, or are not entries at all.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::program::plan_cache::entry::*;
use crate::program::plan_cache::key::PLAN;

const KEY: Key = Key { hash: [7; blake3::OUT_LEN], suffix: PLAN };
const DECISIONS: &[u8] = b"what was decided";
const FILE: [&[u8]; 2] = [b"the plan ", b"file"];

/// Returns a folder with an entry, and the entry's path.
fn shelf() -> (tempfile::TempDir, PrivateFolder, PathBuf) {
    let place = tempfile::tempdir().expect("a folder");
    let folder = PrivateFolder::open_own(&place.path().join("c"), 1).expect("made");
    let mut file = folder.create_file(&name(&KEY)).expect("a file");
    write_parts(&mut file, &KEY, DECISIONS, (&FILE, 0), 1 << 20).expect("written");
    let path = folder.path().join(name(&KEY));
    (place, folder, path)
}

#[test]
fn an_entry_is_read_as_it_was_written() {
    let (_place, folder, path) = shelf();
    let (entry, _) = read(&folder, &KEY).expect("there");
    assert_eq!((entry.decisions(), entry.contents()), (DECISIONS, FILE.concat().as_slice()));
    assert!(read(&folder, &Key { hash: [8; blake3::OUT_LEN], suffix: PLAN }).is_none());
    // Under another key's name it is not a valid entry of that key.
    let other = Key { hash: [9; blake3::OUT_LEN], suffix: PLAN };
    std::fs::rename(path, folder.path().join(name(&other))).expect("renamed");
    assert!(read(&folder, &other).is_none());
}

#[test]
fn reading_an_entry_makes_it_the_youngest() {
    let (_place, folder, path) = shelf();
    let accessed = || std::fs::metadata(&path).expect("there").accessed().expect("known");
    let old = std::fs::FileTimes::new().set_accessed(std::time::UNIX_EPOCH);
    std::fs::File::open(&path).and_then(|file| file.set_times(old)).expect("an old entry");
    assert_eq!(accessed(), std::time::UNIX_EPOCH);
    read(&folder, &KEY).expect("there");
    assert!(accessed().elapsed().expect("in the past").as_secs() < 3600);
}

#[test]
fn each_changed_byte_and_each_other_length_is_noticed() {
    let (_place, folder, path) = shelf();
    let whole = std::fs::read(&path).expect("there");
    for at in 0..whole.len() {
        for bit in [1, 0x80] {
            let mut damaged = whole.clone();
            damaged[at] ^= bit;
            std::fs::write(&path, damaged).expect("written");
            assert!(read(&folder, &KEY).is_none(), "byte {at}");
        }
        std::fs::write(&path, &whole[..at]).expect("written");
        assert!(read(&folder, &KEY).is_none(), "{at} bytes");
    }
    std::fs::write(&path, [whole.as_slice(), b"x"].concat()).expect("written");
    assert!(read(&folder, &KEY).is_none(), "a byte more");
    // Lengths whose sum overflows or exceeds any memory.
    let trailer = whole.len() - TRAILER;
    for lens in [[u64::MAX, trailer as u64 + 1], [1 << 62, 1 << 62], [1 << 40, 0]] {
        let mut damaged = whole.clone();
        damaged[trailer..][..8].copy_from_slice(&lens[0].to_le_bytes());
        damaged[trailer + 8..][..8].copy_from_slice(&lens[1].to_le_bytes());
        std::fs::write(&path, damaged).expect("written");
        assert!(read(&folder, &KEY).is_none(), "{lens:?}");
    }
    std::fs::write(&path, whole).expect("written");
    assert!(read(&folder, &KEY).is_some());
}

#[test]
fn what_is_no_private_file_is_not_read() {
    let (place, folder, path) = shelf();
    let set_mode = |mode| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode));
    for mode in [0o644, 0o660, 0o700, 0o602, 0o4600] {
        set_mode(mode).expect("a mode");
        assert!(read(&folder, &KEY).is_none(), "{mode:o}");
    }
    set_mode(0o600).expect("a mode");
    assert!(read(&folder, &KEY).is_some());

    let second = place.path().join("second");
    std::fs::hard_link(&path, &second).expect("a link");
    assert!(read(&folder, &KEY).is_none(), "two names");
    std::fs::remove_file(&path).expect("removed");
    symlink(&second, &path).expect("a link");
    assert!(read(&folder, &KEY).is_none(), "a symbolic link");

    let replace_by = |make: &dyn Fn(&Path)| {
        let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir(&path));
        make(&path);
        assert!(read(&folder, &KEY).is_none(), "{:?}", std::fs::symlink_metadata(&path));
    };
    replace_by(&|path| {
        fs::mknodat(fs::CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a pipe")
    });
    replace_by(&|path| std::fs::create_dir(path).expect("a folder"));
    replace_by(&|path| {
        // The file is sparse, and none of its many bytes is read.
        let file = folder.create_file(&name(&KEY)).expect("a file");
        file.set_len(1 << 40).expect("so long");
        assert!(path.exists());
    });
    if sys::ids().euid == 0 {
        replace_by(&|path| {
            std::fs::rename(&second, path).expect("renamed");
            assert!(read(&folder, &KEY).is_some());
            std::os::unix::fs::chown(path, Some(65534), None).expect("another user's");
        });
        replace_by(&|path| {
            let null = fs::makedev(1, 3);
            let made = fs::mknodat(fs::CWD, path, FileType::CharacterDevice, Mode::RUSR | Mode::WUSR, null);
            // Where devices cannot be created, there is nothing.
            let _ = made;
        });
    }
}

#[test]
fn an_entry_is_checked_once_after_each_start_of_the_system() {
    let (_place, folder, path) = shelf();
    assert!(read(&folder, &KEY).is_some());
    // A process that maps the file changes the time of its last access.
    let file = std::fs::File::open(&path).expect("there");
    let accessed = std::time::SystemTime::now();
    file.set_times(std::fs::FileTimes::new().set_accessed(accessed)).expect("times");
    let left = file.metadata().and_then(|metadata| metadata.modified()).expect("known");
    let mut damaged = std::fs::read(&path).expect("there");
    damaged[0] ^= 1;
    std::fs::write(&path, damaged).expect("written");
    let modified = |time| file.set_times(std::fs::FileTimes::new().set_modified(time)).expect("times");
    modified(left);
    assert!(read(&folder, &KEY).is_some(), "it is checked although it is as gprofinject has left it");
    // Another start of the system has other nanoseconds.
    modified(left - std::time::Duration::from_nanos(1));
    assert!(read(&folder, &KEY).is_none(), "it is not checked");
}
