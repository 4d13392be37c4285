//! Maps and dumps that nobody has written in good faith.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::generated::origin::{Known, MAP_LONGEST};
use crate::generated::table::Table;
use crate::generated::{jitdump, map};

/// The number of files of each kind.
const MUTANTS: u64 = 10_000;

struct Random(u64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % most.max(1) as u64) as usize
    }
}

/// Changes a file in a few places: bits, numbers, pieces that are removed, repeated or moved.
fn mutated(original: &[u8], random: &mut Random) -> Vec<u8> {
    const NUMBERS: [u64; 8] = [0, 1, 7, 0xff, 1 << 31, u32::MAX as u64, 1 << 63, u64::MAX];
    let mut bytes = original.to_vec();
    for _ in 0..=random.below(6) {
        let at = random.below(bytes.len());
        let end = bytes.len().min(at + random.below(64));
        match random.below(6) {
            0 => bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1 << random.below(8)),
            1 => {
                let number = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
                bytes.iter_mut().skip(at & !7).zip(number).for_each(|(byte, new)| *byte = new);
            }
            2 => drop(bytes.drain(at..end)),
            3 => {
                let piece = bytes[at..end].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, piece);
            }
            4 => bytes.truncate(at),
            _ => {
                let digits = format!("{:x} ", NUMBERS[random.below(NUMBERS.len())]);
                bytes.splice(at..at, digits.into_bytes());
            }
        }
    }
    bytes
}

/// Reads what a table says at many addresses and times.
fn ask(table: &mut Table, random: &mut Random) {
    table.sort();
    let mut replay = table.replay();
    for time in [0, 15, 25, 35, 1 << 40, u64::MAX] {
        replay.go_to(time);
        for _ in 0..20 {
            let address =
                [0x1000, 0x2000, 0x7f00_0000_0000, 0][random.below(4)] + random.below(0x4000) as u64;
            if let Some(name) = replay.at(address) {
                let name = table.name_of(name).expect("each index has a name");
                assert!(!name.contains(char::is_control) && name.len() <= 3 * 512, "{name:?}");
            }
        }
    }
}

#[test]
fn mutated_maps_and_dumps() {
    let mut random = Random(0x6a69_7464_756d_7021);
    let lines = (0..40_u64)
        .map(|n| format!("{:x} {:x} LazyCompile:*f{n} /a/b.js:{n}\n", 0x7f00_0000_0000 + n * 0x80, 0x40 + n));
    let lines: String = lines.collect();
    let dump = jitdump::tests::dump(0);
    for _ in 0..MUTANTS {
        let (mut of_map, mut of_dump) = (Table::default(), Table::default());
        let text = mutated(lines.as_bytes(), &mut random);
        assert!(map::read(&mut &*text, &mut of_map).expect("memory can be read"));
        assert!(of_map.len() <= 2 * text.len() / 5);
        ask(&mut of_map, &mut random);
        let bytes = mutated(&dump, &mut random);
        assert!(jitdump::read(&mut &*bytes, &mut of_dump).expect("memory can be read"));
        assert!(of_dump.len() <= bytes.len() / 40);
        ask(&mut of_dump, &mut random);
    }
}

/// The root folder of a process, in which it has written something.
struct Scene {
    folder: tempfile::TempDir,
    known: Known,
}

impl Scene {
    fn new() -> Scene {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("tmp")).expect("a folder");
        let root: OwnedFd = File::open(folder.path()).expect("opened").into();
        let user = rustix::process::geteuid().as_raw();
        let began = SystemTime::now() - Duration::from_secs(1);
        Scene { folder, known: Known { pid: 7, root: Some(root), user, began } }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the number of functions that are read, or why none are.
    fn read(&self, path: &str, is_map: bool) -> Result<usize, String> {
        let mut table = Table::default();
        let result = self.known.add(path, is_map, &mut table);
        result.map(|_| table.len()).map_err(|error| error.to_string())
    }
}

const MAP: &str = "/tmp/perf-7.map";
const DUMP: &str = "/tmp/jit-7.dump";

fn refused(scene: &Scene, path: &str, is_map: bool, why: &str) {
    let said = scene.read(path, is_map).expect_err(why);
    assert!(said.contains(why), "{said}, not {why}");
}

#[test]
fn files_of_the_process_are_read_in_its_root_folder() {
    let scene = Scene::new();
    std::fs::write(scene.path("tmp/perf-7.map"), "1000 10 f\n2000 10 g\n").expect("written");
    std::fs::write(scene.path("tmp/jit-7.dump"), jitdump::tests::dump(0)).expect("written");
    assert_eq!((scene.read(MAP, true), scene.read(DUMP, false)), (Ok(2), Ok(4)));
    // The folder may be a link, which leads nowhere out of the root folder.
    std::fs::rename(scene.path("tmp"), scene.path("other")).expect("renamed");
    symlink("/other", scene.path("tmp")).expect("a link");
    assert_eq!(scene.read(MAP, true), Ok(2));
    // The kernel says where a dump is, after all links.
    refused(&scene, DUMP, false, "symbolic links");
}

#[test]
fn what_is_no_file_of_the_process_is_not_read() {
    let mut scene = Scene::new();
    let map = scene.path("tmp/perf-7.map");
    let again = |make: &dyn Fn(&Path)| {
        let _ = std::fs::remove_file(&map);
        make(&map);
    };
    std::fs::write(scene.path("secret"), "1000 10 secret\n").expect("written");
    again(&|map| symlink("/secret", map).expect("a link"));
    refused(&scene, MAP, true, "no regular file");
    again(&|map| symlink(scene.path("secret"), map).expect("a link"));
    refused(&scene, MAP, true, "no regular file");
    again(&|map| std::fs::hard_link(scene.path("secret"), map).expect("a link"));
    refused(&scene, MAP, true, "several names");
    again(&|map| {
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, map, rustix::fs::FileType::Fifo, mode, 0).expect("a pipe");
    });
    refused(&scene, MAP, true, "no regular file");
    again(&|map| std::fs::write(map, "1000 10 f\n").expect("written"));
    assert_eq!(scene.read(MAP, true), Ok(1));
    scene.known.began = SystemTime::now() + Duration::from_secs(5);
    refused(&scene, MAP, true, "older");
    scene.known.began = SystemTime::UNIX_EPOCH;
    if rustix::process::geteuid().is_root() {
        // Those of root are trusted, and those of others are not.
        scene.known.user = 12345;
        assert_eq!(scene.read(MAP, true), Ok(1));
        std::os::unix::fs::chown(&map, Some(54321), None).expect("root may");
        refused(&scene, MAP, true, "user 54321");
        std::os::unix::fs::chown(&map, Some(12345), None).expect("root may");
        assert_eq!(scene.read(MAP, true), Ok(1));
    } else {
        eprintln!("not tested, because only root can: files of other users");
    }
}

#[test]
fn a_file_without_end_is_cut_off() {
    let scene = Scene::new();
    let mut file = File::create(scene.path("tmp/perf-7.map")).expect("created");
    file.write_all(b"1000 10 f\n").expect("written");
    file.set_len(MAP_LONGEST + 4096).expect("sparse");
    let mut table = Table::default();
    assert!(!scene.known.add(MAP, true, &mut table).expect("read"));
    assert_eq!(table.len(), 1);
}
