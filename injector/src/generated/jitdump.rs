//! jitdump files, as the kernel's `tools/perf/Documentation/jitdump-specification.txt` describes them: records of the functions that a
//! process has made, with their times and their code.

use std::collections::HashMap;
use std::io::{self, BufRead, Read};
use std::path::Path;

use crate::generated::table::Table;

/// The first four bytes, on a processor with this byte order.
const MAGIC: u32 = 0x4a69_5444;
/// Times are in ticks of the processor and not in nanoseconds of CLOCK_MONOTONIC.
const ARCH_TIMESTAMP: u64 = 1;
const LOAD: u32 = 0;
const MOVE: u32 = 1;
const CLOSE: u32 = 3;
/// The number of bytes of a name that are read.
const NAME: u64 = 4096;
/// The number of functions at most whose numbers are kept, so that they are known if they move.
const NUMBERS: usize = 1 << 20;

/// Whether a file has the name of the jitdump of a process, by the number that the process has for itself.
pub(crate) fn is_dump(file: &str, pid: Option<u32>) -> bool {
    let name = Path::new(file).file_name().and_then(|name| name.to_str()).filter(|_| file.starts_with('/'));
    let digits = name.and_then(|name| name.strip_prefix("jit-")?.strip_suffix(".dump"));
    let number = digits.filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    number
        .and_then(|digits| digits.parse::<u32>().ok())
        .is_some_and(|number| pid.is_none_or(|pid| pid == number))
}

/// Reads a jitdump file, up to where a record is cut off. Returns whether there was room for all functions.
///
/// # Errors
/// The file cannot be read.
pub(super) fn read(file: &mut impl BufRead, table: &mut Table) -> io::Result<bool> {
    match records(file, table) {
        // The process may have been killed while it wrote.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(true),
        result => result,
    }
}

fn records(file: &mut impl BufRead, table: &mut Table) -> io::Result<bool> {
    // { u32 magic, version, total_size, elf_mach, pad1, pid; u64 timestamp, flags }
    let (magic, _) = words(file)?;
    let (header, _) = words(file)?;
    for _ in 0..2 {
        words(file)?;
    }
    let flags = word(file)?;
    if magic != MAGIC {
        return Ok(true);
    }
    skip(file, u64::from(header).saturating_sub(40))?;
    let mut names = HashMap::new();
    loop {
        // { u32 id, total_size; u64 timestamp }
        let (id, size) = words(file)?;
        let time = word(file)?;
        let Some(size) = u64::from(size).checked_sub(16) else { return Ok(true) };
        let time = if flags & ARCH_TIMESTAMP == 0 { time } else { 0 };
        let mut body = file.take(size);
        let has_room = match id {
            LOAD => load(&mut body, time, table, &mut names),
            MOVE => moved(&mut body, time, table, &names),
            CLOSE => return Ok(true),
            _ => Ok(true),
        };
        let (has_room, left) = (
            match has_room {
                // A record that is shorter than it has to be.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof && body.limit() == 0 => true,
                has_room => has_room?,
            },
            body.limit(),
        );
        if !has_room {
            return Ok(false);
        }
        skip(file, left)?;
    }
}

/// Reads `{ u32 pid, tid; u64 vma, code_addr, code_size, code_index; char name[]; u8 code[] }`.
fn load(
    body: &mut impl BufRead,
    time: u64,
    table: &mut Table,
    names: &mut HashMap<u64, u32>,
) -> io::Result<bool> {
    words(body)?;
    let (_, address, len, number) = (word(body)?, word(body)?, word(body)?, word(body)?);
    let mut name = Vec::new();
    body.take(NAME).read_until(0, &mut name)?;
    let Some(name) = table.name(name.strip_suffix(b"\0").unwrap_or(&name)) else { return Ok(false) };
    if names.len() < NUMBERS {
        names.insert(number, name);
    }
    Ok(table.add(time, address, len, name))
}

/// Reads `{ u32 pid, tid; u64 vma, old_code_addr, new_code_addr, code_size, code_index }`.
fn moved(
    body: &mut impl BufRead,
    time: u64,
    table: &mut Table,
    names: &HashMap<u64, u32>,
) -> io::Result<bool> {
    words(body)?;
    let (_, _, address, len, number) = (word(body)?, word(body)?, word(body)?, word(body)?, word(body)?);
    Ok(names.get(&number).is_none_or(|&name| table.add(time, address, len, name)))
}

fn word(file: &mut impl Read) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Reads two numbers of 32 bits.
fn words(file: &mut impl Read) -> io::Result<(u32, u32)> {
    let word = word(file)?;
    Ok((word as u32, (word >> 32) as u32))
}

/// Passes over so many bytes, or up to the end of the file.
fn skip(file: &mut impl BufRead, bytes: u64) -> io::Result<()> {
    io::copy(&mut file.take(bytes), &mut io::sink()).map(drop)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    fn record(id: u32, time: u64, words: &[u64], rest: &[u8]) -> Vec<u8> {
        let size = 16 + 8 * words.len() as u32 + rest.len() as u32;
        let head = [u64::from(id) | u64::from(size) << 32, time];
        let mut bytes: Vec<u8> = head.iter().chain(words).flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(rest);
        bytes
    }

    fn loaded(time: u64, address: u64, len: u64, number: u64, name: &str) -> Vec<u8> {
        let rest = [name.as_bytes(), &[0], &vec![0xcc; len as usize]].concat();
        record(LOAD, time, &[7 | 8 << 32, address, address, len, number], &rest)
    }

    fn header(flags: u64) -> Vec<u8> {
        let words = [u64::from(MAGIC) | 1 << 32, 40 | 62 << 32, 7 << 32, 1, flags];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Returns a dump with functions that are made, moved and replaced.
    pub(in super::super) fn dump(flags: u64) -> Vec<u8> {
        [
            header(flags),
            loaded(10, 0x1000, 0x40, 1, "first"),
            record(2, 11, &[0x1000, 1, 0x1000, 5], b"a.c\0"),
            loaded(20, 0x1000, 0x20, 2, "second"),
            record(MOVE, 30, &[7 | 8 << 32, 0x1000, 0x1000, 0x2000, 0x20, 2], &[]),
            loaded(40, 0x1000, 0x10, 3, "third"),
            record(CLOSE, 50, &[], &[]),
            loaded(60, 0x1000, 0x10, 4, "behind the end"),
        ]
        .concat()
    }

    fn names_at(table: &Table, times: &[u64], address: u64) -> Vec<String> {
        let mut replay = table.replay();
        let name = |time: &u64| {
            replay.go_to(*time);
            let name = replay.at(address).and_then(|name| table.name_of(name));
            name.map_or(String::new(), |name| name.to_string())
        };
        times.iter().map(name).collect()
    }

    #[test]
    fn functions_have_their_times() {
        let mut table = Table::default();
        assert!(read(&mut &*dump(0), &mut table).expect("read"));
        table.sort();
        assert_eq!(
            names_at(&table, &[5, 10, 19, 20, 39, 40, 99], 0x1008),
            ["", "first", "first", "second", "second", "third", "third"]
        );
        assert_eq!(names_at(&table, &[29, 30], 0x2008), ["", "second"]);
        assert_eq!(names_at(&table, &[99], 0x1030), ["first"]);
        // Times of another clock: the last one remains.
        let mut table = Table::default();
        assert!(read(&mut &*dump(ARCH_TIMESTAMP), &mut table).expect("read"));
        table.sort();
        assert_eq!(names_at(&table, &[0], 0x1008), ["third"]);
    }

    #[test]
    fn cut_off_anywhere() {
        let dump = dump(0);
        for len in 0..dump.len() {
            let mut table = Table::default();
            assert!(read(&mut &dump[..len], &mut table).expect("read"), "{len}");
            assert!(table.len() <= 4);
        }
        let mut table = Table::default();
        assert!(read(&mut &[0; 400][..], &mut table).expect("read"));
        assert_eq!(table.len(), 0);
    }

    #[test]
    fn names_of_dumps() {
        for (file, pid, is_one) in [
            ("/tmp/jit-12.dump", Some(12), true),
            ("/tmp/jit-12.dump", None, true),
            ("/tmp/jit-12.dump", Some(1), false),
            ("jit-12.dump", None, false),
            ("/tmp/jit-.dump", None, false),
            ("/tmp/jit-+1.dump", None, false),
            ("/tmp/jit-99999999999.dump", None, false),
            ("/tmp/jit-12.dump (deleted)", None, false),
            ("/tmp/xjit-12.dump", None, false),
        ] {
            assert_eq!(is_dump(file, pid), is_one, "{file}");
        }
    }
}
