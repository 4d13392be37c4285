//! The sizes of the installed commands.

use gprofinject_tests::tool;
use object::{Object, ObjectSection};

gprofinject_tests::trials! {
    together: the_commands_are_small;
}

/// The largest size of an installed command, in bytes. Of gprofinject, ratatui and crossterm, which draw the live view, take
/// 0.4 MB. A build of the whole workspace makes gprofinject 130 KB larger than one of it alone: gmon needs a formatter of iced-x86,
/// cargo enables it for all, and iced's encoder, which gprofinject uses, then shows instructions in its errors.
/// zstd, which compresses traces, and what is known of the C library's prototypes and of types take 0.7 MB. What keeps the slowest calls takes
/// 0.2 MB. gmon makes the exports of `gprofinject --export`, which would take 1.1 MB.
const MOST: u64 = 10_200_000;

fn the_commands_are_small() {
    for command in [tool::gprofinject().unwrap().to_owned(), tool::gmon().unwrap()] {
        let bytes = std::fs::read(&command).unwrap();
        let size = bytes.len() as u64;
        assert!(size < MOST, "{} has {size} bytes, and may have {MOST}", command.display());
        let file = object::File::parse(&*bytes).unwrap();
        let debug: Vec<&str> = file.sections().filter_map(|s| s.name().ok()).filter(|n| n.starts_with(".debug")).collect();
        assert!(debug.is_empty() && file.symbols().next().is_none(), "{} has symbols: {debug:?}", command.display());
    }
}
