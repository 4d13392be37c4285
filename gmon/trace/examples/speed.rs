//! Measures how quickly events are encoded and read: `cargo run --release -p gmon-trace --example speed`.

use std::hint::black_box;
use std::time::Instant;

use gmon_trace::{CHUNK_HEADER, Chunk, Encoder, Event, Raw, State};

/// As many as the recorder puts into a chunk.
const PART: usize = 1 << 15;

/// Numbers without a pattern that zstd could find.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

/// Returns nested calls of 200 functions, some called more often than others, that take 20 to 2000 ticks.
fn events(count: usize, random: &mut Random) -> Vec<Event> {
    let (mut time, mut open, mut events) = (1_u64 << 50, Vec::new(), Vec::new());
    while events.len() < count {
        time += 20 + random.below(60) * random.below(34);
        if open.len() < 3 || open.len() < 12 && random.below(2) == 0 {
            let function = (random.below(15) * random.below(15)) as u32;
            open.push(function);
            events.push(Event::Enter { time, function });
        } else if let Some(function) = open.pop() {
            events.push(Event::Exit { time, function });
        }
    }
    events
}

fn main() -> std::io::Result<()> {
    let mut encoder = Encoder::new()?;
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let chunks: Vec<Chunk> = (0..200)
        .map(|n| Chunk::Events {
            process: 0,
            block: 1,
            first: n * PART as u64,
            before: State::default(),
            events: events(PART, &mut random),
        })
        .collect();
    let count = (chunks.len() * PART) as f64;
    let start = Instant::now();
    let encoded: Vec<Vec<u8>> = chunks.iter().filter_map(|chunk| encoder.encode(chunk).ok()).collect();
    let seconds = start.elapsed().as_secs_f64();
    let bytes: usize = encoded.iter().map(Vec::len).sum();
    println!(
        "encode: {:.1} million events/s, {:.2} bytes an event",
        count / seconds / 1e6,
        bytes as f64 / count
    );
    let start = Instant::now();
    for bytes in &encoded {
        if let Some(header) = Raw::of(bytes) {
            black_box(Chunk::decode(&header, &bytes[CHUNK_HEADER..]).is_ok());
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("decode: {:.1} million events/s", count / seconds / 1e6);
    Ok(())
}
