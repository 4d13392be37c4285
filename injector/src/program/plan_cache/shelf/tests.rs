//! Tests of what is kept and what is removed.

use std::fs::FileTimes;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};

use crate::program::plan_cache::shelf::*;

/// The unit of the sizes of entries in these tests: what the file system gives a file at least.
const UNIT: u64 = 4096;

fn shelf(units: u64, since: i64) -> (tempfile::TempDir, Shelf) {
    let place = tempfile::tempdir().expect("a folder");
    let folder = open(&place.path().join("caches/gprofinject"), None, since).expect("made").folder;
    (place, Shelf::new(folder, Bounds { bytes: units * UNIT, free: 0, since }))
}

fn keep(shelf: &Shelf, number: u8, units: u64) -> io::Result<()> {
    shelf.keep_written(&key(number), |file| file.write_all(&vec![number; (units * UNIT) as usize]))?;
    shelf.tidy()
}

/// The start of a run that has not begun yet.
const LATER: i64 = i64::MAX;

fn key(number: u8) -> Key {
    Key { hash: [number; blake3::OUT_LEN], suffix: PLAN }
}

/// Returns the numbers of the entries that are there.
fn kept(shelf: &Shelf) -> Vec<u8> {
    (0..100).filter(|&number| shelf.folder.has(&entry::name(&key(number)))).collect()
}

/// Sets the time at which an entry was last used.
fn age(shelf: &Shelf, name: &str, seconds: u64) {
    let file = shelf.folder.open_to_write(name).expect("there");
    let time = SystemTime::now() - Duration::from_secs(seconds);
    file.set_times(FileTimes::new().set_accessed(time).set_modified(time)).expect("set");
}

#[test]
fn what_was_not_used_for_longest_goes_first() {
    let (_place, shelf) = shelf(100, LATER);
    for number in 1..=3 {
        keep(&shelf, number, 30).expect("kept");
        age(&shelf, &entry::name(&key(number)), 100 - u64::from(number));
    }
    assert_eq!(kept(&shelf), [1, 2, 3]);
    age(&shelf, &entry::name(&key(1)), 50);
    keep(&shelf, 4, 30).expect("kept");
    assert_eq!(kept(&shelf), [1, 3, 4]);
    age(&shelf, &entry::name(&key(4)), 40);
    keep(&shelf, 5, 70).expect("kept");
    assert_eq!(kept(&shelf), [4, 5]);
    // An entry replaces another one of the same key.
    keep(&shelf, 5, 1).expect("kept");
    let stat = shelf.folder.stat(&entry::name(&key(5))).expect("there");
    assert_eq!((kept(&shelf).as_slice(), stat.st_size), ([4, 5].as_slice(), UNIT as i64));
    // This entry alone is too large.
    keep(&shelf, 6, 101).expect("kept for a short time");
    assert!(kept(&shelf).is_empty() && !shelf.is_full());
}

#[test]
fn what_a_run_uses_is_not_removed_for_what_it_adds() {
    let (_place, shelf) = shelf(100, 0);
    for number in 1..=3 {
        keep(&shelf, number, 30).expect("kept");
    }
    assert!(!shelf.is_full());
    assert!(keep(&shelf, 4, 30).is_err() && shelf.is_full());
    assert_eq!(kept(&shelf), [1, 2, 3], "the last one has gone");
    keep(&shelf, 5, 1).expect_err("nothing more is written");
    // The next run uses the first three, and has no room for the fourth either.
    let again = Shelf::new(shelf.folder.clone(), shelf.bounds);
    assert!(keep(&again, 4, 30).is_err() && again.is_full());
    assert_eq!(kept(&again), [1, 2, 3]);
}

#[test]
fn holes_take_no_space() {
    let (_place, shelf) = shelf(100, LATER);
    let long = shelf.keep_written(&key(1), |file| file.set_len(1000 * UNIT));
    assert!(long.is_ok() && shelf.tidy().is_ok());
    assert_eq!(kept(&shelf), [1]);
}

#[test]
fn what_cannot_be_written_leaves_nothing_and_takes_nothings_place() {
    let (_place, shelf) = shelf(100, LATER);
    keep(&shelf, 1, 1).expect("kept");
    let full = shelf.keep_written(&key(1), |file| {
        file.write_all(b"a part")?;
        Err(io::Error::from_raw_os_error(libc::ENOSPC))
    });
    assert_eq!(full.expect_err("no space").raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(shelf.folder.stat(&entry::name(&key(1))).expect("there").st_size, UNIT as i64);
    assert_eq!(shelf.folder.names().expect("readable").len(), 1);
    let greedy = Shelf::new(shelf.folder.clone(), Bounds { free: u64::MAX, ..shelf.bounds });
    assert_eq!(keep(&greedy, 2, 1).expect_err("no space").raw_os_error(), Some(libc::ENOSPC));
    assert_eq!(kept(&shelf), [1]);
}

#[test]
fn what_killed_writers_left_goes_and_other_files_stay() {
    let (_place, shelf) = shelf(100, LATER);
    let unfinished = |number| format!("{}-1{UNFINISHED}", entry::name(&key(number)));
    for (name, seconds) in [(unfinished(1), 7200), (unfinished(2), 60), ("notes".to_owned(), 1 << 30)] {
        shelf.folder.create_file(&name).expect("a file");
        age(&shelf, &name, seconds);
    }
    keep(&shelf, 3, 1).expect("kept");
    let mut names = shelf.folder.names().expect("readable");
    names.sort();
    assert_eq!(names, [unfinished(2), entry::name(&key(3)), "notes".to_owned()]);
}

#[test]
fn an_entry_is_for_its_owner_only() {
    let (place, shelf) = shelf(100, LATER);
    keep(&shelf, 1, 1).expect("kept");
    let mode =
        |path: &str| std::fs::metadata(place.path().join(path)).expect("there").permissions().mode() & 0o7777;
    assert_eq!((mode("caches"), mode("caches/gprofinject")), (0o700, 0o700));
    let path = format!("caches/gprofinject/{}", entry::name(&key(1)));
    assert_eq!(mode(&path), 0o600);
}
