//! The real gprof reads the files that this crate writes, and prints the intended values.

use gmon::{Arc, Block, BuildId, Format, Histogram, HistogramBuilder, Profile, SECONDS, Unit};

use crate::support::{Compiled, Folder, bytes, run};

/// One sample per second, so that gprof's seconds are hits.
const RATE: u32 = 1;

fn builder(prog: &Compiled) -> HistogramBuilder {
    HistogramBuilder::new(prog.address("even")..prog.address("last") + 1, RATE)
}

fn profile(histograms: Vec<Histogram>) -> Profile {
    Profile { histograms, ..Profile::new(Format::LITTLE_64) }
}

#[test]
fn separate_chunks_and_gaps() {
    let folder = Folder::new("chunks");
    let prog = folder.compile(&[]);
    let mut samples = builder(&prog).functions(prog.starts());
    samples.add(prog.address("after"), 30);
    samples.add(prog.address("far") + 5, 40);
    samples.add(prog.address("last"), 2);
    let histograms = samples.build().histograms;
    assert_eq!(histograms.len(), 2);
    let file = folder.write("a.out", &bytes(&profile(histograms)));
    let flat = prog.flat(&[&file]);
    assert_eq!(flat["after"].0, 30.0);
    assert_eq!(flat["far"].0, 40.0);
    assert_eq!(flat["last"].0, 2.0);
    assert_eq!(flat.len(), 3);
}

#[test]
fn files_are_summed_by_gprof() {
    let folder = Folder::new("summed");
    let prog = folder.compile(&[]);
    let mut first = builder(&prog);
    first.add(prog.address("after"), 30);
    let mut second = builder(&prog);
    second.add(prog.address("after") + 4, 5);
    second.add(prog.address("far"), 40);
    let mut third = profile(builder(&prog).build().histograms);
    third.arcs.push(Arc { from: prog.address("main") + 1, to: prog.address("far"), count: 3 });
    let first = folder.write("1.out", &bytes(&profile(first.build().histograms)));
    let second = folder.write("2.out", &bytes(&profile(second.build().histograms)));
    let third = folder.write("3.out", &bytes(&third));
    let flat = prog.flat(&[&first, &second, &third]);
    assert_eq!(flat["after"], (35.0, 0));
    assert_eq!(flat["far"], (40.0, 3));
}

#[test]
fn counts_over_32_bits() {
    let folder = Folder::new("counts");
    let prog = folder.compile(&[]);
    let mut profile = profile(Vec::new());
    profile.arcs = vec![
        Arc { from: prog.address("main") + 4, to: prog.address("even"), count: 5_000_000_000 },
        Arc { from: prog.address("main") + 4, to: prog.address("far"), count: u64::from(u32::MAX) },
    ];
    let file = folder.write("a.out", &bytes(&profile));
    let flat = prog.flat(&[&file]);
    assert_eq!(flat["even"].1, 5_000_000_000);
    assert_eq!(flat["far"].1, u64::from(u32::MAX));
}

#[test]
fn bins_over_16_bits() {
    let folder = Folder::new("bins");
    let prog = folder.compile(&[]);
    let mut samples = builder(&prog);
    samples.add(prog.address("after"), 200_000);
    samples.add(prog.address("after") + 2, 65_535);
    samples.add(prog.address("far"), 65_536);
    let file = folder.write("a.out", &bytes(&profile(samples.build().histograms)));
    let flat = prog.flat(&[&file]);
    assert_eq!(flat["after"].0, 265_535.0);
    assert_eq!(flat["far"].0, 65_536.0);
}

/// The limit of a bin is that of gprof's sum, 32 bits.
#[test]
fn the_largest_bin() {
    let folder = Folder::new("largest");
    let prog = folder.compile(&[]);
    let low = prog.address("far");
    let bins = vec![u64::from(u32::MAX)];
    let histogram = Histogram { low, high: low + 2, rate: RATE, unit: SECONDS, bins };
    let file = folder.write("a.out", &bytes(&profile(vec![histogram])));
    assert_eq!(prog.flat(&[&file])["far"].0, f64::from(u32::MAX));
}

/// Only gprofinject uses the header's spare bytes: gprof prints the same with and without a build-id.
#[test]
fn the_build_id_is_nothing_to_gprof() {
    let folder = Folder::new("build-id");
    let prog = folder.compile(&["-Wl,--build-id=0xfedcba98765432100123456789abcdef01234567"]);
    let build_id = prog.program.build_id;
    assert_eq!(build_id.to_string(), "fedcba987654321001234567");
    let mut samples = builder(&prog);
    samples.add(prog.address("far"), 40);
    let mut profile = profile(samples.build().histograms);
    profile.arcs.push(Arc { from: prog.address("main") + 4, to: prog.address("far"), count: 7 });
    profile.blocks.push(Block { addr: prog.address("main"), count: 1 });
    let printed = |name: &str, build_id: BuildId| {
        let file = bytes(&Profile { build_id, ..profile.clone() });
        assert_eq!(gmon::read(&file).expect("our own file").build_id, build_id);
        let file = folder.write(name, &file);
        let options = [&["-b", "-l", "-p", "-q"][..], &["-l", "-z", "-A", "-x"], &["-l", "-C"]];
        options.map(|options| prog.gprof(options, &[&file]))
    };
    let with = printed("with.out", build_id);
    assert!(with[0].contains("far") && with[1].contains(" 0,1 -> "), "{with:?}");
    assert_eq!(with, printed("without.out", BuildId::UNKNOWN));
}

#[test]
fn nothing_at_all() {
    let folder = Folder::new("nothing");
    let prog = folder.compile(&[]);
    let file = folder.write("a.out", &bytes(&profile(Vec::new())));
    assert!(prog.flat(&[&file]).is_empty());
    let text = prog.gprof(&["-i"], &[&file]);
    assert!(text.contains("1 histogram record\n"), "{text}");
}

#[test]
fn a_function_at_an_odd_address_steals_a_byte() {
    let folder = Folder::new("odd");
    let prog = folder.compile(&[]);
    assert_eq!(prog.address("odd"), prog.address("even") + 3);

    // This is what gprof does by itself.
    let mut naive = builder(&prog);
    naive.add(prog.address("even") + 2, 7);
    let file = folder.write("naive.out", &bytes(&profile(naive.build().histograms)));
    assert_eq!(prog.flat(&[&file])["odd"].0, 7.0);

    let mut samples = builder(&prog).functions(prog.starts());
    for (offset, hits) in [(0, 1), (1, 2), (2, 4), (3, 8), (4, 16), (5, 32), (6, 64)] {
        samples.add(prog.address("even") + offset, hits);
    }
    let file = folder.write("a.out", &bytes(&profile(samples.build().histograms)));
    let flat = prog.flat(&[&file]);
    assert_eq!(flat["even"].0, 7.0);
    assert_eq!(flat["odd"].0, 120.0);
}

/// gprof has a message for "a symbol that covers several histogram records", but no option prints it.
#[test]
fn a_function_across_two_chunks() {
    let folder = Folder::new("across");
    let prog = folder.compile(&[]);
    // `after` extends to `far`.
    let mut samples = builder(&prog);
    samples.add(prog.address("after"), 3);
    samples.add(prog.address("far") - 1, 4);
    let mut profile = profile(samples.build().histograms);
    assert_eq!(profile.histograms.len(), 2);
    profile.arcs = vec![Arc { from: prog.address("main"), to: prog.address("after"), count: 1 }];
    let file = folder.write("a.out", &bytes(&profile));
    assert_eq!(prog.flat(&[&file])["after"], (7.0, 1));
    for options in [&["-b", "-q"][..], &["-b", "-c", "-q"], &["-b", "-l"], &["-A", "-x"], &["-b", "-q", "-z"]]
    {
        prog.gprof(options, &[&file]);
    }
}

#[test]
fn rate_and_unit_are_free() {
    let folder = Folder::new("rate");
    let prog = folder.compile(&[]);
    let misses = Unit { dimension: *b"misses\0\0\0\0\0\0\0\0\0", abbrev: b'm' };
    let text = prog.address("even")..prog.address("last");
    let mut samples = HistogramBuilder::new(text, 4000).unit(misses);
    samples.add(prog.address("far"), 4000);
    let file = folder.write("a.out", &bytes(&profile(samples.build().histograms)));
    let text = prog.gprof(&["-b", "-p"], &[&file]);
    assert!(text.contains("Each sample counts as 0.00025 misses."), "{text}");
    assert_eq!(prog.flat(&[&file])["far"].0, 1.0);
}

#[test]
fn call_graph() {
    let folder = Folder::new("graph");
    let prog = folder.compile(&[]);
    let mut samples = builder(&prog);
    samples.add(prog.address("far"), 10);
    let mut profile = profile(samples.build().histograms);
    profile.arcs = vec![
        Arc { from: prog.address("main") + 4, to: prog.address("far"), count: 3 },
        Arc { from: prog.address("after"), to: prog.address("far"), count: 1 },
    ];
    let file = folder.write("a.out", &bytes(&profile));
    let text = prog.gprof(&["-b", "-q"], &[&file]);
    let words: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(words.contains(&vec!["7.50", "0.00", "3/4", "main", "[2]"]), "{text}");
    assert!(words.contains(&vec!["2.50", "0.00", "1/4", "after", "[3]"]), "{text}");
}

#[test]
fn line_counts() {
    let folder = Folder::new("lines");
    let prog = folder.compile(&[]);
    let main = prog.address("main");
    let mut profile = profile(Vec::new());
    profile.arcs = vec![Arc { from: main, to: main, count: 1 }];
    profile.blocks = vec![Block { addr: main, count: 42 }];
    let file = folder.write("a.out", &bytes(&profile));
    let text = prog.gprof(&["-b", "-l", "-C"], &[&file]);
    assert!(text.contains("42 executions"), "{text}");
}

/// gprof reads 32-bit files of 32-bit programs with all kinds of records.
#[test]
fn a_32_bit_program() {
    let folder = Folder::new("i386");
    let prog = folder.compile_bare(&["-m32", "-fno-pic", "-no-pie"]);
    assert_eq!(prog.program.format, Format::LITTLE_32);
    let mut samples = builder(&prog);
    samples.add(prog.address("far"), 70_000);
    let main = prog.address("main");
    let profile = Profile {
        format: Format::LITTLE_32,
        histograms: samples.build().histograms,
        arcs: vec![Arc { from: main + 1, to: prog.address("far"), count: 5_000_000_000 }],
        blocks: vec![Block { addr: main, count: 5_000_000_000 }, Block { addr: main + 1, count: 1 }],
        build_id: prog.program.build_id,
    };
    let file = folder.write("a.out", &bytes(&profile));
    let text = prog.gprof(&["-i", "-l"], &[&file]);
    assert!(text.contains("2 histogram records\n"), "{text}");
    assert!(text.contains("2 call-graph records\n"), "{text}");
    assert!(text.contains("1 basic-block count record\n"), "{text}");
    assert_eq!(gmon::read(&bytes(&profile)).expect("our own file"), profile);

    let file = folder.write("b.out", &bytes(&Profile { blocks: Vec::new(), ..profile }));
    let flat = prog.flat(&[&file]);
    assert_eq!(flat["far"].0, 70_000.0);
    // gprof's counts have the width of the machine on which it runs.
    assert_eq!(flat["far"].1, 5_000_000_000);
}

/// A file that glibc and `gcc -pg` have made.
#[test]
fn a_file_of_glibc() {
    let folder = Folder::new("glibc");
    let source = folder.write(
        "pg.c",
        b"int f(int i) { return i + 1; }\nint main(void) { int s = 0; for (int i = 0; i < 1000; i++) s = f(s); return s != 1000; }\n",
    );
    let prog = folder.file("pg");
    run(std::process::Command::new("gcc").args(["-pg", "-O0"]).arg(source).arg("-o").arg(&prog));
    run(std::process::Command::new(&prog).current_dir(&folder.0));
    let file = std::fs::read(folder.file("gmon.out")).expect("glibc's file");
    let reading = gmon::ReadOptions::default().read(&file).expect("glibc's file");
    assert!(!reading.ambiguous_width);
    let calls: Vec<_> = reading.profile.arcs.iter().map(|arc| arc.count).collect();
    assert_eq!(calls, [1000]);
    assert_eq!(bytes(&reading.profile), file);
    let program =
        gprofinject_image::gprof::parse(&std::fs::read(&prog).expect("the program")).expect("an ELF file");
    let findings = gmon::check(&file, &Default::default(), Some(&program));
    assert!(findings.iter().all(|finding| finding.severity < gmon::Severity::Error), "{findings:?}");
}

/// gprof refuses or drops whatever `check` calls an error.
#[test]
fn check_agrees_with_gprof() {
    let folder = Folder::new("agrees");
    let prog = folder.compile(&[]);
    let low = prog.address("even");
    let far = prog.address("far");
    let good = bytes(&profile(builder(&prog).build().histograms));
    let refused = |name: &str, bytes: &[u8], says: &str| {
        let file = folder.write(name, bytes);
        let output =
            std::process::Command::new("gprof").args(["-b", "-p"]).arg(&prog.path).arg(&file).output();
        let text = String::from_utf8_lossy(&output.expect("gprof").stderr).into_owned();
        assert!(text.contains(says), "{name}: {text}");
        let findings = gmon::check(bytes, &Default::default(), Some(&prog.program));
        assert!(findings.iter().any(|finding| finding.severity == gmon::Severity::Error), "{name}");
    };
    refused("header.out", &good[..20], "gmon.out file is missing histogram");
    let second = |low: u64, high: u64, bins: u64| {
        let histogram = Histogram { low, high, rate: RATE, unit: SECONDS, bins: vec![0; bins as usize] };
        [&good, &bytes(&profile(vec![histogram]))[20..]].concat()
    };
    refused("overlap.out", &second(low + 2, low + 4, 1), "overlapping histogram records");
    refused("scales.out", &second(far, far + 8, 2), "different scales in histogram records");
    let mut glibc = good.clone();
    glibc.extend([2, 1, 0, 0, 0, 0, 0, 0, 0]);
    glibc.extend(low.to_le_bytes());
    glibc.extend(1u64.to_le_bytes());
    refused("blocks.out", &glibc, "");
    let mut dropped = profile(builder(&prog).build().histograms);
    dropped.arcs.push(Arc { from: 1, to: far, count: 9 });
    let file = folder.write("dropped.out", &bytes(&dropped));
    assert!(prog.flat(&[&file]).is_empty());
    refused("dropped.out", &bytes(&dropped), "");
}

/// Every kind of symbol of which gprof accepts some and leaves out others.
const SYMBOLS: &str = r#"
__asm__(".text\n"
".macro symbol name, type, binding\n \\binding \\name\n .type \\name, \\type\n\\name: nop\n nop\n .size \\name, 2\n .endm\n"
"symbol plain, @function, .local\n symbol shared, @function, .globl\n symbol faint, @function, .weak\n"
"symbol label, @notype, .local\n symbol marked, @notype, .globl\n"
"symbol table, @object, .local\n symbol shared_table, @object, .globl\n symbol faint_table, @object, .weak\n"
"symbol chosen, @gnu_indirect_function, .globl\n"
"symbol f.1, @function, .local\n symbol f.1.2, @function, .local\n symbol f.constprop.0, @function, .local\n"
"symbol f.clone.3, @function, .local\n symbol f.isra.0, @function, .local\n symbol f.part.1, @function, .local\n"
"symbol f.constprop.0.isra.0, @function, .local\n symbol f.llvm.77, @function, .local\n"
"symbol f.cold, @function, .local\n symbol g.part.1, @function, .globl\n symbol h$x, @function, .local\n"
"symbol i$x, @function, .globl\n symbol __gnu_compiled_c, @function, .local\n"
// Several names of one address.
".globl second\n .type second, @function\n .type _first, @function\n _first: second: nop\n"
".globl end_label\n .type third, @function\n third: end_label: nop\n"
".globl _fourth\n .globl fourth\n .type _fourth, @function\n .type fourth, @function\n _fourth: fourth: nop\n"
".data\n .weak faint_data\n faint_data: .quad 0\n .globl data\n data: .quad 0\n"
".section other, \"ax\"\n .type elsewhere, @function\n elsewhere: nop\n.text\n");
int main(void) { return 0; }
"#;

#[test]
fn the_symbols_that_gprof_takes() {
    let folder = Folder::new("symbols");
    for (name, flags) in [("pie.c", "-O1"), ("fixed.c", "-no-pie"), ("clones.c", "-DX")] {
        // Each order of the string table is another case: gprof reads on after names that end with a number.
        let source = SYMBOLS.replace("f.1.2", if name == "pie.c" { "f.1.2" } else { "zz.9" });
        let path = folder.build(name, &source, &[flags, "-w"]);
        let program = gprofinject_image::gprof::parse(&std::fs::read(&path).expect("the program"))
            .expect("an ELF file");
        let file = folder.write("empty.out", &bytes(&profile(Vec::new())));
        let arguments = ["-b", "-p", "-z", "--no-demangle"];
        let output = run(std::process::Command::new("gprof").args(arguments).arg(&path).arg(&file));
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let rows = text.lines().filter(|line| line.trim_start().starts_with("0.00"));
        let mut theirs: Vec<_> = rows.filter_map(|line| line.split_whitespace().last()).collect();
        let mut ours: Vec<_> = program.functions().iter().map(|function| function.name.as_str()).collect();
        theirs.sort_unstable();
        ours.sort_unstable();
        assert!(theirs.contains(&"plain") && !theirs.contains(&"f.isra.0"), "{text}");
        assert_eq!(ours, theirs, "{name}");
        let hidden: Vec<_> = program.hidden().iter().map(|hidden| hidden.function.name.as_str()).collect();
        assert!(hidden.contains(&"f.isra.0") && hidden.contains(&"h$x"), "{hidden:?}");
    }
}
