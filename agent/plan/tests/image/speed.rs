//! Measures how long reading takes. The test prints the times and asserts nothing about them: `cargo test
//! --release --test image speed -- --nocapture`.

use crate::build::{check, folder};
use gprofinject_image::Image;
use std::fmt::Write;
use std::process::Command;
use std::time::Instant;

#[test]
fn speed() {
    let count: u32 = if cfg!(debug_assertions) { 6_000 } else { 60_000 };
    let mut text = String::from(".text\n.globl _start\n_start: nop\n");
    for number in 0..count {
        // The names are as long as those of C++. Every fourth function is local, and every eighth has a cold
        // part.
        let name = format!("_ZN7project6module9component8Class{number:05}6methodERKSsiPKcjb");
        let bind = if number % 4 == 0 { ".local" } else { ".globl" };
        let _ = write!(
            text,
            "{bind} {name}\n.type {name},@function\n{name}: .cfi_startproc\npush %rbx\n.cfi_def_cfa_offset 16\n\
             .cfi_offset 3,-16\nnop\nnop\npop %rbx\n.cfi_def_cfa_offset 8\nret\n.cfi_endproc\n.size {name},.-{name}\n\
             .balign 16\n.data\n.quad {name}\n.text\n"
        );
        if number % 8 == 0 {
            let _ = write!(
                text,
                ".section .text.unlikely,\"ax\"\n.type {name}.cold,@function\n{name}.cold: .cfi_startproc\n\
                 .cfi_def_cfa_offset 16\nnop\n.cfi_endproc\n.size {name}.cold,.-{name}.cold\n.text\n"
            );
        }
    }
    let folder = folder("speed");
    let (source, program) = (folder.join("a.s"), folder.join("program"));
    std::fs::write(&source, text).unwrap();
    for flags in [&["-no-pie", "-static"][..], &["-static-pie"]] {
        let status = Command::new("gcc")
            .args(["-nostdlib", "-o"])
            .args([&program, &source])
            .args(flags)
            .status()
            .unwrap();
        assert!(status.success());
        let bytes = std::fs::read(&program).unwrap();
        let mut best = f64::MAX;
        let mut functions = 0;
        for _ in 0..10 {
            let start = Instant::now();
            let image = Image::read(&bytes).unwrap();
            best = best.min(start.elapsed().as_secs_f64());
            functions = image.functions.len();
            assert!(image.details().code_pointers.len() >= count as usize);
        }
        check(&Image::read(&bytes).unwrap());
        let each = best * 1e9 / functions as f64;
        eprintln!("{flags:?}: {functions} functions in {:.2} ms, {each:.0} ns each", best * 1e3);
    }
}
