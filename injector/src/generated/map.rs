//! The file `/tmp/perf-PID.map`: a line for each function, as the kernel's `tools/perf/Documentation/jit-interface.txt` describes it.

use std::io::{self, BufRead, Read};

use crate::generated::table::Table;

/// The number of bytes of a line that are read; the rest of it is passed over.
const LINE: u64 = 4096;

/// Reads the lines `START SIZE NAME`, in which both numbers are hexadecimal. Other lines are left out. Returns whether there was room for
/// all functions.
///
/// # Errors
/// The file cannot be read.
pub(super) fn read(file: &mut impl BufRead, table: &mut Table) -> io::Result<bool> {
    let mut line = Vec::new();
    loop {
        line.clear();
        if file.take(LINE).read_until(b'\n', &mut line)? == 0 {
            return Ok(true);
        }
        if line.last() != Some(&b'\n') && line.len() as u64 == LINE {
            file.skip_until(b'\n')?;
        }
        let Some((start, len, name)) = parse(&line) else { continue };
        let Some(name) = table.name(name) else { return Ok(false) };
        if !table.add(0, start, len, name) {
            return Ok(false);
        }
    }
}

/// Returns the numbers and the name of a line.
fn parse(line: &[u8]) -> Option<(u64, u64, &[u8])> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut fields = line.splitn(3, |&byte| byte == b' ');
    let (start, len) = (number(fields.next()?)?, number(fields.next()?)?);
    fields.next().filter(|name| !name.is_empty()).map(|name| (start, len, name))
}

/// Returns a hexadecimal number. Java writes `0x` before it.
fn number(digits: &[u8]) -> Option<u64> {
    let digits = digits.strip_prefix(b"0x").unwrap_or(digits);
    let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
    u64::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines() {
        assert_eq!(
            parse(b"7f00 1a LazyCompile:*fib /a b.js:1\n"),
            Some((0x7f00, 0x1a, &b"LazyCompile:*fib /a b.js:1"[..]))
        );
        assert_eq!(parse(b"0x00007f00 0x10 Interpreter"), Some((0x7f00, 0x10, &b"Interpreter"[..])));
        for line in [
            "",
            "\n",
            "7f00",
            "7f00 10",
            "7f00 10 ",
            "7f00  10 x",
            "g 10 x",
            "+1 1 x",
            "-1 1 x",
            "10000000000000000 1 x",
        ] {
            assert_eq!(parse(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn lines_that_are_too_long_are_cut_off() {
        let text = format!("100 10 {}\n200 10 next\n{}", "n".repeat(100_000), "9".repeat(5000));
        let mut table = Table::default();
        assert!(read(&mut text.as_bytes(), &mut table).expect("read"));
        table.sort();
        let mut replay = table.replay();
        replay.go_to(0);
        let next = replay.at(0x200).and_then(|name| table.name_of(name));
        assert_eq!((table.len(), next.map(|name| &**name)), (2, Some("next")));
    }
}
