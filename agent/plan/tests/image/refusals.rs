//! Files that cannot be read as programs, each with an error of its own.

use crate::build::{compile, folder};
use gprofinject_image::{Image, ImageError, NotExecutable};

fn error(bytes: &[u8]) -> ImageError {
    Image::read(bytes).expect_err("read")
}

fn program(test: &str, flags: &[&str]) -> Vec<u8> {
    let c = "int f(int x) { return x; } int main(void) { return f(0); }";
    std::fs::read(compile(&folder(test), "gcc", &[("a.c", c)], flags)).unwrap()
}

#[test]
fn other_files() {
    for bytes in [&b""[..], b"\x7fEL", b"#!/bin/sh\necho\n", b"MZ\0\0"] {
        assert_eq!(error(bytes), ImageError::NotElf);
    }
    assert_eq!(error(&program("object", &["-c"])), ImageError::NotExecutable(NotExecutable::Object));
    assert_eq!(error(&program("library", &["-shared", "-fPIC"])), ImageError::SharedLibrary);
    let named = ["-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libx.so", "-Wl,-e,f"];
    assert_eq!(error(&program("library-entry", &named)), ImageError::SharedLibrary);
}

#[test]
fn other_machines() {
    let good = program("machines", &["-O1"]);
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        error(&bytes)
    };
    assert_eq!(with(4, 1), ImageError::ThirtyTwoBit);
    assert_eq!(with(5, 2), ImageError::BigEndian);
    assert_eq!(with(16, 4), ImageError::NotExecutable(NotExecutable::Core));
    assert_eq!(with(18, 183), ImageError::OtherMachine("64-bit ARM".to_owned()));
    assert_eq!(
        with(18, 9).to_string(),
        "a program for machine number 9; only x86-64 programs can be profiled"
    );
    // A 32-bit ELF header is shorter than a 64-bit one.
    let mut small = good[..52].to_vec();
    small[4] = 1;
    assert_eq!(error(&small), ImageError::ThirtyTwoBit);
}

#[test]
fn damage_is_told_with_its_place() {
    let good = program("damage", &["-O1"]);
    // No program needs section headers to run.
    assert!(Image::read(&good[..good.len() - 1]).is_ok());
    assert!(matches!(error(&good[..0x1010]), ImageError::Truncated { what: "a segment", .. }));
    assert_eq!(
        error(&good[..20]).to_string(),
        "the file is truncated: the ELF header (64 bytes at offset 0x0) is not all there"
    );
    let mut bytes = good;
    bytes[56..58].fill(0);
    assert_eq!(
        error(&bytes).to_string(),
        "the file is damaged: the program header count at offset 0x38 is 0x0"
    );
}

#[test]
fn a_separate_debug_file_has_no_code() {
    let folder = folder("debug");
    let c = "int main(void) { return 0; }";
    let program = compile(&folder, "gcc", &[("a.c", c)], &["-g"]);
    let debug = folder.join("program.debug");
    let (from, to) = (program.to_str().unwrap(), debug.to_str().unwrap());
    crate::build::run("objcopy", &["--only-keep-debug", from, to]);
    assert_eq!(error(&std::fs::read(debug).unwrap()), ImageError::NoCode);
}
