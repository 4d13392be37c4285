//! The sizes of the installed commands.

use gprofinject_tests::tool;
use object::{Object, ObjectSection};

gprofinject_tests::trials! {
    together: the_commands_are_small;
}

/// The largest size of an installed command, in bytes. The exports of `gprofinject --export` are half a megabyte of it: they read
/// source lines and inlined calls, and write seven formats.
const MOST: u64 = 7_700_000;

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
