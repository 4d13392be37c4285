//! Tests with region files as a hostile process leaves them: a profile is written whatever the file contains.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use gmon_run::Recording;
use gprofinject_abi::region::{BlockHeader, Overflow, SLOTS, Slot, counters_offset, segment_offset};

use crate::options::CountArg;
use crate::os::clock::Moment;
use crate::os::say::{Level, Voice};
use crate::profile::baseline::Baseline;
use crate::profile::collect::Account;
use crate::profile::counted::{Counted, Reading, counted, guests};
use crate::profile::elsewhere::Names;
use crate::profile::ends::End;
use crate::profile::model::{Arc, PROGRAM, Place, Profile};
use crate::profile::recorder::{Processes, Recorder};
use crate::program::filters::Filters;
use crate::program::library::tests::with_filters;
use crate::program::numbered::Numbered;
use crate::program::plan_cache::PlanCache;
use crate::program::planner;
use crate::program::profilee::{Profilee, Profilees};
use crate::sampling::histogram::Histogram;
use crate::store::private_folder::PrivateFolder;
use crate::store::region::file::RegionFile;
use crate::store::region::layout::{AgentState, BLOCKS_MAX, HISTOGRAM, Layout, Orders};

fn program(count: Option<CountArg>) -> &'static Profilee {
    let filters =
        Filters::new(&[], &[], 0).and_then(|filters| filters.counting(count, &[])).expect("no patterns");
    // Any program that is always installed and not large.
    let binary = std::path::Path::new("/bin/ls");
    let subject = planner::subject(binary, false);
    let planned = with_filters(&filters, |planner| planner.plan(subject, binary, true));
    assert!(planned.hooked() > 20, "{:?}", subject.kind.unhookable());
    let mut profilees = Profilees::default();
    profilees.first(binary, binary.into(), planned, true)
}

fn reading(profilee: &'static Profilee) -> Reading<'static> {
    let libraries = Box::leak(Box::default());
    Reading {
        profilee,
        libraries,
        maps: Box::leak(Box::default()),
        origin: None,
        rate: 100,
        end: End::Running(Moment::now()),
        own_call: None,
        is_part: false,
        has_own: true,
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, most: u64) -> u64 {
        self.next() % most
    }

    /// Returns a random word, often one at which the behaviour changes.
    fn word(&mut self) -> u64 {
        const EDGES: [u64; 12] = [
            0,
            1,
            u32::MAX as u64,
            1 << 32,
            (1 << 52) - 1,
            1 << 52,
            1 << 61,
            1 << 62,
            1 << 63,
            u64::MAX - 1,
            u64::MAX,
            1 << 47,
        ];
        match self.below(3) {
            0 => self.next(),
            1 => self.below(100),
            _ => EDGES.get(self.below(EDGES.len() as u64) as usize).copied().unwrap_or_default(),
        }
    }
}

/// Makes a file as an agent leaves it, with the counts of two threads and of one guest.
fn sound(folder: &PrivateFolder, layout: &Layout, profilee: &Profilee, random: &mut Random) {
    let _ = folder.remove_file("0.region");
    let file = RegionFile::new(folder, "0.region".into());
    let region = file.create(layout, Orders { follow: true, ..Orders::default() }).expect("created");
    assert_eq!(region.report().expect("readable").0.state, AgentState::New);
    drop(region);
    let file = folder.open_to_write("0.region").expect("opened");
    let put = |offset: u64, words: &[u64]| {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        file.write_all_at(&bytes, offset).expect("written");
    };
    let entry = profilee.planned.plan.as_ref().map_or(0, |plan| plan.text.0);
    for block in 0..3 {
        let at = layout.blocks_offset + block * layout.block_len();
        put(at, &[77 + block, 0, 1 | if block == 2 { 4242 << 32 } else { 0 }]);
        for slot in 0..40 {
            put(
                at + SLOTS + slot * size_of::<Slot>() as u64,
                &[entry + random.below(1 << 16), random.below(1 << 20)],
            );
        }
        for n in 0..40 {
            let entry = [entry + random.below(1 << 16), random.below(1 << 20), random.below(30)];
            put(at + segment_offset(layout.slot_bytes, 0) + n * size_of::<Overflow>() as u64, &entry);
        }
        for counter in 0..(layout.counter_bytes / 8).min(500) {
            put(at + counters_offset(layout.slot_bytes) + 8 * counter, &[random.below(1000)]);
        }
    }
    // The state is that hooks are in place, and children count in this file.
    put(std::mem::offset_of!(gprofinject_abi::region::RegionHeader, state) as u64, &[2]);
    put(std::mem::offset_of!(gprofinject_abi::region::RegionHeader, guests) as u64, &[1]);
}

fn damage(folder: &PrivateFolder, layout: &Layout, random: &mut Random) {
    let file = folder.open_to_write("0.region").expect("opened");
    for _ in 0..=random.below(30) {
        let block = layout.blocks_offset + random.below(4) * layout.block_len();
        let at = match random.below(7) {
            0 => random.below(256),
            1 => HISTOGRAM + random.below(1 << 14),
            2 => block + random.below(size_of::<BlockHeader>() as u64),
            3 => block + SLOTS + random.below(1024) / 8 * 8,
            4 => block + segment_offset(layout.slot_bytes, 0) + random.below(1024) / 8 * 8,
            5 => block + counters_offset(layout.slot_bytes) + random.below(1024) / 8 * 8,
            _ => random.below(layout.blocks_offset + BLOCKS_MAX * layout.block_len()),
        };
        file.write_all_at(&random.word().to_le_bytes(), at).expect("written");
    }
    let len = layout.blocks_offset + 3 * layout.block_len();
    match random.below(8) {
        0 => file.set_len(random.below(len)).expect("cut off"),
        1 => file.set_len(random.below(5000)).expect("cut off"),
        2 => file.set_len(1 << 62).or_else(|_| file.set_len(1 << 43)).expect("made longer"),
        _ => {}
    }
}

fn survives(count: Option<CountArg>, seed: u64, cases: u32) {
    // A place in which files may have any length.
    let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).expect("a folder");
    let folder = PrivateFolder::create(place.path()).expect("a folder");
    let profilee = program(count);
    let (_, layout) = profilee.plan.as_ref().expect("a plan");
    let mut random = Random(seed);
    let region = RegionFile::new(&folder, "0.region".into());
    let mut damaged = 0;
    for case in 0..cases {
        sound(&folder, layout, profilee, &mut random);
        damage(&folder, layout, &mut random);
        let mut troubles = Vec::new();
        let samples = Histogram::new(profilee.planned.shape);
        let cache = std::sync::Arc::new(PlanCache::new(false, Voice(Level::Quiet)));
        let (reading, names) = (reading(profilee), &mut Names::new(std::sync::Arc::clone(&cache)));
        let (finished, ..) =
            counted(Some(&region), &reading, Some(samples.into()), None, None, &mut troubles, names);
        assert!(troubles.is_empty(), "case {case}: {troubles:?}");
        let (finished, bytes) = finished.finish().unwrap_or_else(|error| panic!("case {case}: {error:#}"));
        gmon::read(&bytes).unwrap_or_else(|error| panic!("case {case}: {error}"));
        assert!(bytes.len() < 80 << 20, "case {case}: {}", bytes.len());
        let mut recorder = Recorder::new("program", "/bin/program", profilee.planned);
        recorder.add_first(&finished.profile, finished.placed.own, &Processes::one(1));
        damaged += u32::from(finished.account.damage.is_some());
        let names = &mut Names::new(std::sync::Arc::clone(&cache));
        for (pid, guest) in
            guests(&region, profilee, &Numbered::default(), |_| None, names, 100, &mut troubles)
        {
            assert!((1..=1 << 22).contains(&pid), "case {case}: {pid}");
            let guest = guest.settle();
            recorder.add(&guest.profile, guest.placed.own, &Processes::one(pid));
        }
        let recording = recorder.finish(Duration::ZERO);
        recording.check().unwrap_or_else(|error| panic!("case {case}: {error}"));
        let read = Recording::read(&recording.write()).unwrap_or_else(|error| panic!("case {case}: {error}"));
        assert!(read == recording, "case {case}");
        assert!(troubles.is_empty(), "case {case}: {troubles:?}");
    }
    // The damage is reported.
    assert!(damaged > cases / 10, "{damaged}");
}

/// The number of files to try. `GPROFINJECT_FUZZ_CASES` sets another: a profile of counts that do not fit has
/// 20 MB and takes time.
fn cases(usual: u32) -> u32 {
    std::env::var("GPROFINJECT_FUZZ_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

#[test]
fn every_damaged_region_gives_a_profile() {
    survives(None, 0x9e37_79b9_7f4a_7c15, cases(60));
}

#[test]
fn every_damaged_region_gives_a_profile_of_blocks() {
    survives(Some(CountArg::Blocks), 0x2545_f491_4f6c_dd1d, cases(20));
}

#[test]
fn processes_of_one_program_are_added_up() {
    let profilee = program(None);
    let counted = |numbers: std::ops::Range<u64>| {
        let mut profile = Profile::of_program(profilee.planned, 100);
        let place = |address| Place { module: PROGRAM, address };
        profile.arcs = numbers.clone().map(|n| Arc { from: place(n), to: place(2 * n), count: n }).collect();
        profile.own = numbers.map(|n| gmon::Arc { from: n, to: 2 * n, count: n }).collect();
        let module = profile.modules.first_mut().expect("the program");
        module.samples.add(Some(profilee.planned.shape.text.0));
        module.samples.add(None);
        module.counters.values = vec![u64::MAX, 1];
        Counted { profile, account: Account { lost_calls: 2, ..Account::default() } }
    };
    let mut sum = counted(5..15);
    sum.add(counted(10..20));
    assert_eq!(sum.profile.calls(), (5..15).sum::<u64>() + (10..20).sum::<u64>());
    sum.profile.settle();
    let counts: Vec<u64> = sum.profile.own.iter().map(|arc| arc.count).collect();
    assert_eq!(counts, [5, 6, 7, 8, 9, 20, 22, 24, 26, 28, 15, 16, 17, 18, 19]);
    assert_eq!(sum.profile.arcs.iter().map(|arc| arc.count).collect::<Vec<_>>(), counts);
    assert_eq!((sum.account.lost_calls, sum.profile.samples_inside()), (4, 2));
    assert_eq!(sum.profile.modules[0].samples.outside, 2);
    assert_eq!(sum.profile.modules[0].counters.values, [u64::MAX, 2]);
}

#[test]
fn a_sound_region_is_not_called_damaged() {
    let place = tempfile::tempdir().expect("a folder");
    let folder = PrivateFolder::create(place.path()).expect("a folder");
    let profilee = program(None);
    let (_, layout) = profilee.plan.as_ref().expect("a plan");
    sound(&folder, layout, profilee, &mut Random(7));
    let region = RegionFile::new(&folder, "0.region".into());
    let mut troubles = Vec::new();
    let cache = std::sync::Arc::new(PlanCache::new(false, Voice(Level::Quiet)));
    let names = &mut Names::new(std::sync::Arc::clone(&cache));
    let (finished, state, _) =
        counted(Some(&region), &reading(profilee), None, None, None, &mut troubles, names);
    assert_eq!((state, &finished.account.damage, finished.profile.threads), (AgentState::Armed, &None, 2));
    assert!(finished.profile.calls() > 0 && troubles.is_empty());
    let guests = guests(&region, profilee, &Numbered::default(), |_| None, names, 100, &mut troubles);
    assert_eq!(guests.iter().map(|(pid, _)| *pid).collect::<Vec<_>>(), [4242]);
}

#[test]
fn counts_that_time_makes_impossible_are_left_out() {
    /// All of them together are possible within the seconds of which clocks are not sure.
    const LARGE: u64 = 50_000_000;
    let place = tempfile::tempdir().expect("a folder");
    let folder = PrivateFolder::create(place.path()).expect("a folder");
    let profilee = program(None);
    let (_, layout) = profilee.plan.as_ref().expect("a plan");
    sound(&folder, layout, profilee, &mut Random(9));
    let file = folder.open_to_write("0.region").expect("opened");
    let entry = profilee.planned.plan.as_ref().map_or(0, |plan| plan.text.0);
    for n in 0..1000 {
        let words = [entry + n, if n < 500 { LARGE } else { u64::MAX }, n % 20];
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let at = layout.blocks_offset + segment_offset(layout.slot_bytes, 1) + n * 24;
        file.write_all_at(&bytes, at).expect("written");
    }
    let region = RegionFile::new(&folder, "0.region".into());
    let cache = std::sync::Arc::new(PlanCache::new(false, Voice(Level::Quiet)));
    let (names, troubles) = (&mut Names::new(std::sync::Arc::clone(&cache)), &mut Vec::new());
    let (finished, ..) = counted(Some(&region), &reading(profilee), None, None, None, troubles, names);
    assert!(troubles.is_empty(), "{troubles:?}");
    let (_, bytes) = finished.finish().expect("fits");
    let arcs = gmon::read(&bytes).expect("a profile").arcs;
    assert_eq!(arcs.iter().filter(|arc| arc.count == LARGE).count(), 500);
    assert!(arcs.iter().all(|arc| arc.count <= 2 * LARGE), "{arcs:?}");
}

fn profile_of_calls_is_kept(bytes: &[u8], baseline: &Baseline, read: Baseline) {
    assert_eq!(read.encode(), bytes);
    assert_eq!((read.lost_calls, read.bare_calls), (5, 6));
    assert_eq!(read.profile.arcs, baseline.profile.arcs);
    assert_eq!(read.profile.own, baseline.profile.own);
}

#[test]
fn a_baseline_is_read_back_or_refused() {
    let profilee = program(None);
    let mut profile = Profile::of_program(profilee.planned, 0);
    let place = |address| Place { module: PROGRAM, address };
    profile.arcs = (1..20).map(|n| Arc { from: place(n), to: place(2 * n), count: n }).collect();
    profile.own = (1..9).map(|n| gmon::Arc { from: n, to: 3 * n, count: n }).collect();
    let module = profile.modules.first_mut().expect("the program");
    module.counters.values = vec![7, 0, u64::MAX];
    module.samples.outside = 3;
    module.samples.add(Some(profilee.planned.shape.text.0));
    let baseline = Baseline { profile, lost_calls: 5, bare_calls: 6 };
    let bytes = baseline.encode();
    let libraries = Numbered::default();
    let decode = |bytes: &[u8]| Baseline::decode(bytes, profilee.planned, &libraries);
    profile_of_calls_is_kept(&bytes, &baseline, decode(&bytes).expect("undamaged"));
    for len in 0..bytes.len() {
        assert!(decode(&bytes[..len]).is_none(), "{len}");
    }
    let mut random = Random(0x5851_f42d_4c95_7f2d);
    for _ in 0..20_000 {
        let mut damaged = bytes.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(damaged.len() as u64) as usize;
            damaged[at] = random.word() as u8;
        }
        if let Some(read) = decode(&damaged) {
            assert!(read.encode().len() <= damaged.len());
        }
    }
}
