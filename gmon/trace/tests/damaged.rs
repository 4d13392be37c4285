//! Damaged and hostile files: whatever is in one, reading it ends, calls nest, memory is bounded, and all that is whole is shown.

mod support;

use std::collections::{HashMap, HashSet};

use gmon_trace::{
    CHUNK_HEADER, Callee, Choice, Chunk, Error, Event, FILE_HEADER, Input, MAGIC, Open, OpenError, OpenKind,
    State, Statistics, Trace, What,
};
use support::*;

/// Numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next()) * limit.max(1) as u128) >> 64) as usize
    }
}

/// What was found in a file.
#[derive(Default)]
struct Found {
    /// The number of calls that begin, by function number.
    calls: HashMap<u32, u64>,
    steps: u64,
}

/// Reads everything, and checks what must be so of any file.
fn read(bytes: &[u8]) -> Option<Found> {
    let trace = match Trace::read(Input::Bytes(bytes.to_vec())) {
        Ok(trace) => trace,
        Err(OpenError::NoTrace | OpenError::Version(_)) => return None,
    };
    let mut found = Found::default();
    let mut statistics = Statistics::default();
    let mut open: HashMap<(u32, u32), Vec<(Callee, u32)>> = HashMap::new();
    let mut times: HashMap<u32, u64> = HashMap::new();
    let choice = Choice::default();
    let mut all = 0_u64;
    for step in trace.steps(&choice) {
        found.steps += 1;
        statistics.add(&trace, &step);
        let last = times.entry(step.buffer).or_default();
        assert!(*last <= step.time, "times of a thread decrease");
        *last = step.time;
        let stack = open.entry((step.buffer, step.chain)).or_default();
        match step.what {
            What::Begin(begun) => {
                *found.calls.entry(begun.function.number).or_default() += 1;
                all += u64::from(begun.kind != OpenKind::Inherited && begun.earlier.is_none());
                stack.push((begun.function, begun.depth));
            }
            What::Leaf(begun, ended) => {
                *found.calls.entry(begun.function.number).or_default() += 1;
                all += u64::from(begun.kind != OpenKind::Inherited);
                assert_eq!((begun.function, begun.depth), (ended.function, ended.depth));
                assert!(ended.ended >= step.time);
                *last = ended.ended;
            }
            What::End(ended) => {
                assert_eq!(stack.pop(), Some((ended.function, ended.depth)), "calls nest");
                assert_eq!(stack.last().map(|(function, _)| *function), ended.caller);
            }
            What::Mark(begun) => {
                *found.calls.entry(begun.function.number).or_default() += 1;
            }
            What::Orphan { .. } | What::Lost(_) | What::Missing(_) | What::Stack | What::TooDeep => {}
        }
    }
    assert!(open.values().all(Vec::is_empty), "every call ends");
    assert_eq!(statistics.calls, all);
    let sum: u64 = statistics.finish().iter().flat_map(|times| &times.thread.arcs).map(|arc| arc.calls).sum();
    assert_eq!(sum, all);
    Some(found)
}

/// Returns a file in which chunk `n` of those with events has 20 calls of function `n`, and the bytes of these chunks.
fn sample(random: &mut Random) -> (Vec<u8>, Vec<Vec<u8>>) {
    let mut chunks = vec![
        Chunk::Start { version: "1".into(), command: vec!["prog".into()], unix_ns: 5 },
        process(3, 2),
        functions(0..12),
        Chunk::Clock { process: 0, ticks: 0, unix_ns: 1000 },
    ];
    let mut parts = Vec::new();
    let mut next = [(0, 1000); 3];
    for number in 0..12_u32 {
        let block = number % 3;
        let (first, mut time) = next[block as usize];
        let mut list = Vec::new();
        if first == 0 {
            list.push(thread(100 + block));
        }
        let depth = 1 + random.below(5) as u32;
        for _ in 0..20 / depth {
            for _ in 0..depth {
                time += random.below(100) as u64;
                list.push(enter(time, number));
            }
            for _ in 0..depth {
                time += random.below(100) as u64;
                list.push(exit(time, number));
            }
        }
        for _ in 0..20 % depth {
            list.extend([enter(time, number), pause(2), exit(time + 5, number)]);
            time += 5;
        }
        let before = State { tid: 100 + block, ..State::default() };
        next[block as usize] = (first + list.len() as u64, time);
        let chunk = later(block, first, before, &list);
        parts.push(chunk.encode().expect("memory"));
        chunks.push(chunk);
    }
    chunks.push(Chunk::End { process: 0, ticks: 1 << 20 });
    (file(&chunks), parts)
}

/// Damages a file in one of several ways.
fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    let (at, len) = (random.below(bytes.len()), bytes.len());
    match random.below(6) {
        0 => (0..1 + random.below(4)).for_each(|_| {
            let at = random.below(len);
            bytes[at] ^= 1 << random.below(8);
        }),
        1 => bytes.truncate(at),
        2 => drop(bytes.drain(at..(at + 1 + random.below(200)).min(len))),
        3 => {
            // A piece of the file stands somewhere else too.
            let end = (at + 1 + random.below(600)).min(len);
            let piece = bytes[at..end].to_vec();
            let to = random.below(len);
            bytes.splice(to..to, piece);
        }
        4 => {
            let junk: Vec<u8> = (0..random.below(300)).map(|_| random.next() as u8).collect();
            bytes.splice(at..at, junk);
        }
        _ => {
            let end = (at + random.below(300)).min(len);
            bytes[at..end].fill(if random.below(2) == 0 { 0 } else { 0xff });
        }
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    let header = FILE_HEADER.len().min(bytes.len());
    bytes[header..].windows(part.len()).any(|window| window == part)
}

/// Of 10,000 damaged files, every chunk that is whole is shown.
#[test]
fn whole_chunks_are_shown() {
    let mut random = Random(0x1234_5678);
    let (original, parts) = sample(&mut random);
    let whole = read(&original).expect("a trace");
    assert_eq!((0..12).map(|number| whole.calls[&number]).collect::<Vec<_>>(), [20; 12]);
    let (mut shown, mut gone, mut refused) = (0, 0, 0);
    for _ in 0..10_000 {
        let mut bytes = original.clone();
        (0..1 + random.below(3)).for_each(|_| damage(&mut bytes, &mut random));
        let Some(found) = read(&bytes) else {
            // The beginning says that it is of another version, or nothing is left.
            let is_other = bytes.starts_with(&FILE_HEADER[..8]) && !bytes.starts_with(&FILE_HEADER[..12]);
            let is_any = parts.iter().any(|part| contains(&bytes, part));
            assert!(is_other || !is_any, "a trace is refused");
            refused += 1;
            continue;
        };
        for (number, part) in (0..).zip(&parts) {
            let calls = found.calls.get(&number).copied().unwrap_or(0);
            if contains(&bytes, part) {
                assert_eq!(calls, 20, "chunk {number} is whole");
                shown += 1;
            } else {
                assert_eq!(calls, 0, "chunk {number} is damaged");
                gone += 1;
            }
        }
    }
    println!("{shown} whole chunks, {gone} damaged ones, {refused} files refused");
    assert!(shown > 50_000 && gone > 10_000 && refused > 50);
}

/// What is damaged, and where.
#[test]
fn places_of_damage() {
    let chunk = |number| later(number, 0, State::default(), &[enter(10, number), exit(20, number)]);
    let parts: Vec<Vec<u8>> = (1..4).map(|n| chunk(n).encode().expect("memory")).collect();
    let base = [FILE_HEADER.to_vec(), process(0, 0).encode().expect("memory")].concat();
    let of = |bytes: Vec<u8>| Trace::read(Input::Bytes(bytes)).expect("a trace").damage;
    let at = base.len() as u64;
    let (first, second) = (parts[0].len() as u64, parts[1].len() as u64);

    assert_eq!(of([&base, &parts[0], &parts[1]].map(|part| part.as_slice()).concat()), []);
    let mut flipped = parts[1].clone();
    flipped[CHUNK_HEADER + 3] ^= 4;
    let damaged = of([&base, &parts[0], &flipped, &parts[2]].map(|part| part.as_slice()).concat());
    assert_eq!(damaged, [gmon_trace::Damage { offset: at + first, len: second, why: Error::Checksum }]);
    let cut = of([&base[..], &parts[0][..], &parts[1][..30]].concat());
    assert_eq!(cut, [gmon_trace::Damage { offset: at + first, len: 30, why: Error::CutOff }]);
    let junk = of([&base, b"junk".as_slice(), &parts[0]].concat());
    assert_eq!(junk, [gmon_trace::Damage { offset: at, len: 4, why: Error::NoChunk }]);
    assert_eq!(junk[0].to_string(), format!("4 bytes at offset {at}: there is no chunk"));
    // A kind of a later version is left out alone.
    let other = of([&base, packed(99, b"contents").as_slice(), &parts[0]].concat());
    assert_eq!(other.iter().map(|damage| damage.why).collect::<Vec<_>>(), [Error::Kind(99)]);
}

#[test]
fn files_that_are_no_traces() {
    let open = |bytes: &[u8]| Trace::read(Input::Bytes(bytes.to_vec())).map(|trace| trace.damage.len());
    assert_eq!(open(b""), Err(OpenError::NoTrace));
    assert_eq!(open(b"gmon\x01\0\0\0"), Err(OpenError::NoTrace));
    assert_eq!(open(&[0; 100_000]), Err(OpenError::NoTrace));
    assert_eq!(open(b"gpitrace\x07\0\0\0\0\0\0\0"), Err(OpenError::Version(7)));
    assert_eq!(open(&FILE_HEADER), Ok(0));
    // The beginning is damaged, and the rest is not.
    let mut bytes = file(&[process(0, 0)]);
    bytes[0] = b'x';
    assert_eq!(open(&bytes), Ok(1));
}

/// Returns a chunk with these contents, whatever they are.
fn packed(kind: u32, plain: &[u8]) -> Vec<u8> {
    let contents = zstd::bulk::compress(plain, 1).expect("memory");
    let words = [kind, contents.len() as u32, plain.len() as u32];
    let words: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&words);
    hasher.update(&contents);
    [&MAGIC[..], &words, &hasher.finalize().to_le_bytes(), &[0; 4], &contents].concat()
}

fn unpacked(chunk: &[u8]) -> (u32, Vec<u8>) {
    let word = |at: usize| u32::from_le_bytes(chunk[at..at + 4].try_into().expect("four bytes"));
    let plain = zstd::bulk::decompress(&chunk[CHUNK_HEADER..], word(12) as usize).expect("a chunk");
    (word(4), plain)
}

/// Contents that no recorder has written, with a right checksum.
#[test]
fn hostile_contents() {
    let mut random = Random(0xabcd_ef01);
    let (original, parts) = sample(&mut random);
    let first = original.windows(4).position(|window| *window == MAGIC).expect("a chunk");
    let mut chunks = Vec::new();
    let mut at = first;
    while at < original.len() {
        let stored = u32::from_le_bytes(original[at + 8..at + 12].try_into().expect("four bytes"));
        let end = at + CHUNK_HEADER + stored as usize;
        chunks.push(unpacked(&original[at..end]));
        at = end;
    }
    assert_eq!(chunks.len(), parts.len() + 5);
    let mut steps = 0;
    for _ in 0..5_000 {
        let mut bytes = FILE_HEADER.to_vec();
        for (kind, plain) in &chunks {
            let mut plain = plain.clone();
            if random.below(4) == 0 {
                damage(&mut plain, &mut random);
            }
            let kind = if random.below(50) == 0 { random.below(10) as u32 } else { *kind };
            bytes.extend(packed(kind, &plain));
        }
        steps += read(&bytes).expect("a trace").steps;
    }
    assert!(steps > 100_000);
}

/// Events in an order that makes no sense, and states that do not fit them.
#[test]
fn events_at_random() {
    let mut random = Random(0x5555_1234);
    for round in 0..3_000 {
        let mut chunks = vec![process(random.below(20) as u64, random.below(20) as u64), functions(0..3)];
        let mut first = 0_u64;
        for _ in 0..1 + random.below(6) {
            let count = random.below(60);
            let list: Vec<Event> = (0..count).map(|_| event(&mut random)).collect();
            let before = state(&mut random);
            chunks.push(later(random.below(2) as u32, first, before, &list));
            first += count as u64 + [0, 0, 0, 5][random.below(4)];
        }
        if random.below(2) == 0 {
            chunks.push(Chunk::End { process: 0, ticks: random.below(400) as u64 });
        }
        let bytes = file(&chunks);
        let found = read(&bytes).expect("a trace");
        assert!(found.steps > 0 || first < 200, "round {round}");
        parts_of_the_time(&bytes, &mut random);
    }
}

/// A part of the time has only what happens in it, and is as well nested.
fn parts_of_the_time(bytes: &[u8], random: &mut Random) {
    let trace = Trace::read(Input::Bytes(bytes.to_vec())).expect("a trace");
    let (from, to) = (random.below(200) as u64, 200 + random.below(200) as u64);
    let functions = Some(vec![false, true, false]).filter(|_| random.below(2) == 0);
    let choice = Choice { from: Some(from), to: Some(to), functions: functions.clone(), ..Choice::default() };
    let mut open: HashMap<(u32, u32), Vec<Callee>> = HashMap::new();
    for step in trace.steps(&choice) {
        let at = trace.elapsed(step.process, step.time);
        assert!((from..=to).contains(&at), "{at} is not from {from} to {to}");
        let stack = open.entry((step.buffer, step.chain)).or_default();
        match step.what {
            What::Begin(begun) => {
                assert!(functions.is_none() || !stack.is_empty() || begun.function.index == Some(1));
                stack.push(begun.function);
            }
            What::End(ended) => assert_eq!(stack.pop(), Some(ended.function)),
            _ => {}
        }
    }
    assert!(open.values().all(Vec::is_empty));
}

fn event(random: &mut Random) -> Event {
    let (time, function) = (random.below(400) as u64, random.below(4) as u32);
    let extreme = [0, u64::MAX, 1 << 63][random.below(3)];
    let time = if random.below(200) == 0 { extreme } else { time };
    match random.below(24) {
        0..=7 => enter(time, function),
        8 | 9 => jump(time, function),
        10..=15 => exit(time, function),
        16 => left(time, function),
        17 => chain(time, random.below(3) as u32),
        18 => pause(time / 50),
        19 => Event::Lost { count: time },
        20 => Event::Open { time, function },
        21 => Event::Inherited { time, function },
        22 => Event::Mark { time, function },
        _ if random.below(3) == 0 => thread(function),
        _ => Event::Data { bytes: vec![1; function as usize] },
    }
}

fn state(random: &mut Random) -> State {
    let mut chains = Vec::new();
    for _ in 0..random.below(3) {
        let kinds = [OpenKind::Call, OpenKind::Jump, OpenKind::Inherited];
        let open = (0..random.below(5)).map(|_| Open {
            function: random.below(4) as u32,
            time: random.below(400) as u64,
            kind: kinds[random.below(3)],
        });
        let open = open.collect();
        chains.push((random.below(3) as u32, random.below(3) as u64, open));
    }
    let (tid, chain, pauses) = (random.below(3) as u32, random.below(3) as u32, random.below(100) as u64);
    State { tid, chain, pauses, chains }
}

/// Chunks of a few kilobytes that become hundreds of megabytes are read one at a time, or not at all.
#[test]
fn bombs() {
    let bomb = |block: u8| {
        // Process 0, the block, first 0; tid 0, chain 0, no pauses, no stacks; 40 million events: Enter, no time, function 1.
        let mut plain = vec![0, block, 0, 0, 0, 0, 0];
        let mut count = 40_000_000_u64;
        while count >= 0x80 {
            plain.push(count as u8 | 0x80);
            count >>= 7;
        }
        plain.push(count as u8);
        plain.extend([1, 0, 1].repeat(40_000_000));
        packed(5, &plain)
    };
    let mut bytes = file(&[process(0, 0), functions(0..2)]);
    (1..6).for_each(|block| bytes.extend(bomb(block)));
    assert!(bytes.len() < 200_000, "{}", bytes.len());
    // Definitions are bounded too.
    bytes.extend(packed(3, &vec![0; 100 << 20]));
    let trace = Trace::read(Input::Bytes(bytes)).expect("a trace");
    let refused: HashSet<Error> = trace.damage.iter().map(|damage| damage.why).collect();
    assert_eq!(refused, HashSet::from([Error::TooLarge]));
    let choice = Choice::default();
    let mut steps = trace.steps(&choice);
    // As many calls begin and end as are followed, and it is said that there are more.
    assert_eq!(steps.by_ref().count(), 2 * (1 << 20) + 1);
    let damage: Vec<Error> = steps.damage().iter().map(|damage| damage.why).collect();
    assert_eq!(damage, [Error::TooLarge; 4]);
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("Linux");
    let kilobytes: u64 = line.split_whitespace().nth(1).and_then(|text| text.parse().ok()).expect("a number");
    println!("{} MB", kilobytes / 1024);
    assert!(kilobytes < 1 << 20, "{line}");
}
