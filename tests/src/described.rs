//! The functions of a file without symbols, as readelf prints its unwind information.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

/// A piece of code that has a description of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub end: u64,
    /// Whether its frame at the first instruction is that of a call: nothing but the return address. If not, it is a part of a
    /// function that the compiler has put elsewhere.
    pub is_function: bool,
}

/// Returns the pieces of a file by their link-time addresses. The procedure linkage table and the entry point, which nobody
/// calls, are left out.
///
/// # Errors
/// readelf is missing or fails, or prints something else.
pub fn pieces(file: &Path) -> Result<BTreeMap<u64, Piece>> {
    let output = Command::new("readelf")
        .args(["-hSW", "--debug-dump=frames-interp", "--"])
        .arg(file)
        // readelf warns about a debug file that is not installed, and has a status for that.
        .env("LC_ALL", "C")
        .output()
        .context("readelf")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let found = parse(&text).with_context(|| format!("readelf of {}", file.display()))?;
    ensure!(!found.is_empty(), "readelf describes no function of {}", file.display());
    Ok(found)
}

fn parse(text: &str) -> Result<BTreeMap<u64, Piece>> {
    let hex =
        |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).with_context(|| text.to_owned());
    let mut left_out = Vec::new();
    let mut found: BTreeMap<u64, Piece> = BTreeMap::new();
    let mut last = None;
    for line in text.lines() {
        let words: Vec<&str> = line.trim_start_matches(['[', ' ']).split_whitespace().collect();
        if let ["Entry", "point", "address:", entry] = words[..] {
            let entry = hex(entry)?;
            left_out.push(entry..entry + 1);
        } else if let [_, name, "PROGBITS", address, _, size, ..] = words[..]
            && name.starts_with(".plt")
        {
            let (address, size) = (hex(address)?, hex(size)?);
            left_out.push(address..address + size);
        } else if let Some((_, pc)) = line.split_once(" pc=") {
            // 00000030 0000000000000014 00000000 FDE cie=00000000 pc=0000000000001060..0000000000001082
            let (from, to) = pc.split_once("..").with_context(|| line.to_owned())?;
            let (from, end) = (hex(from)?, hex(to.trim())?);
            last = Some(from).filter(|_| from < end && !left_out.iter().any(|range| range.contains(&from)));
            // Without rows of its own, it has the one of its CIE.
            found.extend(last.map(|from| (from, Piece { end, is_function: true })));
        } else if let ([address, cfa, ..], Some(from)) = (&words[..], last)
            && u64::from_str_radix(address, 16).ok() == Some(from)
        {
            // 0000000000001060 rsp+8    u
            found.entry(from).and_modify(|piece| piece.is_function = *cfa == "rsp+8");
            last = None;
        }
    }
    Ok(found)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by a panic")]
mod tests {
    use super::*;

    #[test]
    fn what_readelf_prints() {
        let text = "\
  Entry point address:               0x1f0c0
  [13] .plt              PROGBITS        000000000001e020 01e020 000e90 10  AX  0   0 16
  [15] .text             PROGBITS        000000000001eef0 01eef0 28d57e 00  AX  0   0 16
00000018 0000000000000014 0000001c FDE cie=00000000 pc=000000000001f0c0..000000000001f0e2

00000048 0000000000000024 0000001c FDE cie=00000030 pc=000000000001e020..000000000001eeb0
   LOC           CFA      ra
000000000001e020 rsp+16   c-8

00000070 0000000000000014 00000044 FDE cie=00000030 pc=000000000001eef0..000000000001eff8

00000088 000000000000004c 0000005c FDE cie=00000030 pc=000000000001f1b0..000000000001f622
   LOC           CFA      rbx   ra
000000000001f1b0 rsp+8    u     c-8
000000000001f1b2 rsp+16   c-16  c-8

00000088 000000000000004c 0000005c FDE cie=00000030 pc=000000000001f700..000000000001f722
   LOC           CFA      rbx   ra
000000000001f700 rsp+64   c-16  c-8
";
        let piece = |end, is_function| Piece { end, is_function };
        let expected = [
            (0x1_eef0, piece(0x1_eff8, true)),
            (0x1_f1b0, piece(0x1_f622, true)),
            (0x1_f700, piece(0x1_f722, false)),
        ];
        assert_eq!(parse(text).unwrap(), BTreeMap::from(expected));
    }
}
