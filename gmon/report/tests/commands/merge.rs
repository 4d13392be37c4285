//! `gmon merge` of many files: the same on any number of threads, as `gprof -s` has it, and of measured times.

use std::path::PathBuf;
use std::process::{Command, Output};

use gmon::{Arc, Block, Format, HistogramBuilder, Profile};
use gmon_run::{Recording, Thread};

use crate::example::example;
use crate::support::{self, Folder, bytes};

fn merge(folder: &Folder, args: &[&str], files: &[PathBuf]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gmon"));
    command.args(["merge", "-o", "sum"]).args(args).args(files).current_dir(&folder.0);
    command.output().expect("gmon runs")
}

/// Merges on several numbers of threads, and returns the bytes of the sum, which are always the same.
fn sum(folder: &Folder, args: &[&str], files: &[PathBuf]) -> Vec<u8> {
    let mut sums = Vec::new();
    for threads in ["1", "2", "3", "7", "64"] {
        let output = merge(folder, &[args, &["-j", threads]].concat(), files);
        assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stderr).as_ref()), (Some(0), ""));
        sums.push(std::fs::read(folder.file("sum")).expect("the sum"));
    }
    assert!(sums.iter().all(|sum| *sum == sums[0]), "one sum for any number of threads");
    sums.swap_remove(0)
}

/// Returns the message of a merge that fails, which is the same on any number of threads.
fn message(folder: &Folder, args: &[&str], files: &[PathBuf]) -> String {
    let mut messages = Vec::new();
    for threads in ["1", "2", "5"] {
        let output = merge(folder, &[args, &["-j", threads]].concat(), files);
        assert_eq!(output.status.code(), Some(2));
        messages.push(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    assert!(messages.iter().all(|message| *message == messages[0]), "{messages:?}");
    messages.swap_remove(0)
}

#[test]
fn as_gprof_sums_them() {
    let folder = Folder::new("merge-gprof");
    let prog = folder.compile(&[]);
    let files: Vec<PathBuf> = (0..40)
        .map(|run| {
            let mut samples = HistogramBuilder::new(prog.address("even")..prog.address("last") + 1, 100);
            samples.add(prog.address(["after", "far", "last"][run % 3]), run as u64);
            let arc = |from: &str, to: &str, count| Arc {
                from: prog.address(from) + 1,
                to: prog.address(to),
                count,
            };
            let arcs = vec![
                arc("main", "far", run as u64),
                arc("far", "last", 3),
                arc("main", "odd", 1 + run as u64 % 2),
            ];
            let histograms = samples.build().histograms;
            let profile = Profile { histograms, arcs, ..Profile::new(Format::LITTLE_64) };
            folder.write(&format!("gmon.out.rank{run}"), &bytes(&profile))
        })
        .collect();
    let ours = folder.write("ours", &sum(&folder, &[], &files));
    let mut gprof = Command::new("gprof");
    gprof.arg("-s").arg(&prog.path).args(&files).current_dir(&folder.0);
    support::run(&mut gprof);
    let theirs = folder.file("gmon.sum");
    for report in ["-p", "-q"] {
        let [ours, theirs] = [&ours, &theirs].map(|file| prog.gprof(&["-b", report], &[file]));
        assert!(ours.contains("far"), "{ours}");
        assert_eq!(ours, theirs);
    }
}

/// What fits only together, in whatever order it comes.
#[test]
fn the_first_file_that_does_not_fit() {
    let folder = Folder::new("merge-fit");
    let profile = |rate| {
        let mut samples = HistogramBuilder::new(0x1000..0x2000, rate);
        samples.add(0x1234, 5);
        Profile { histograms: samples.build().histograms, ..Profile::new(Format::LITTLE_64) }
    };
    let with_blocks =
        |addr| Profile { blocks: vec![Block { addr, count: 1 }], ..Profile::new(Format::LITTLE_64) };
    let good: Vec<PathBuf> =
        (0..20).map(|index| folder.write(&format!("{index}"), &bytes(&profile(250)))).collect();
    let rate = folder.write("rate", &bytes(&profile(100)));
    let [block, other_block] = [("block", 0x1000), ("other", 0x1008)]
        .map(|(name, addr)| folder.write(name, &bytes(&with_blocks(addr))));
    let times = folder.write("times", &example(true).write());
    let damaged = folder.write("damaged", &bytes(&profile(250))[..200]);
    let with = |more: &[(usize, &PathBuf)]| {
        let mut files = good.clone();
        more.iter().for_each(|(at, file)| files.insert(*at, (*file).clone()));
        files
    };
    for (files, expected) in [
        (with(&[(11, &rate)]), "rate: a rate of 100 per second after 250, expected one rate"),
        (with(&[(3, &block), (15, &other_block)]), "other: block counts at other addresses than in "),
        (with(&[(15, &times)]), "times: a gmon.pb.gz among gmon.out files"),
        (with(&[(0, &times)]), "0: no gmon.pb.gz, as the files before it are"),
        (with(&[(14, &damaged), (18, &rate)]), "damaged: "),
        (with(&[(2, &folder.file("missing"))]), "missing: No such file"),
        (with(&[(2, &folder.0)]), "/merge-fit: no gmon.out* in this folder, as sum is to be"),
    ] {
        let said = message(&folder, &[], &files);
        assert!(said.contains(expected) && said.lines().count() == 1, "{said}");
    }
    assert!(!folder.file("sum").exists());
}

/// A pipe can be read only once, so nothing is read twice if there is one.
#[test]
fn pipes() {
    let folder = Folder::new("merge-pipes");
    let mut profile = Profile::new(Format::LITTLE_64);
    profile.arcs = vec![Arc { from: 0x1100, to: 0x1200, count: 3 }];
    profile.histograms = HistogramBuilder::new(0x1000..0x2000, 100).build().histograms;
    folder.write("a", &bytes(&profile));
    let mut shell = Command::new("bash");
    shell
        .args(["-c", "\"$0\" merge -j 4 -o sum <(cat a) <(cat a) <(cat a) a"])
        .arg(env!("CARGO_BIN_EXE_gmon"));
    support::run(shell.current_dir(&folder.0));
    let sum = gmon::read(&std::fs::read(folder.file("sum")).expect("the sum")).expect("a profile");
    assert_eq!(sum.arcs[0].count, 12);
}

#[test]
fn measured_times() {
    let folder = Folder::new("merge-times");
    let run = |index: u32| {
        let mut run = example(true);
        run.start_unix_ns += u64::from(index) * 1_000_000_000;
        run.runs[0].id += u64::from(index);
        run.processes[0].run = run.runs[0].id;
        run.threads
            .iter_mut()
            .for_each(|thread| (thread.pid, thread.tid) = (100 + index, thread.tid + index));
        // A thread that only this run has.
        run.threads.push(Thread { name: format!("only {index}"), tid: 1, pid: index, ..Thread::default() });
        run
    };
    let runs: Vec<Recording> = (0..30).map(run).collect();
    let files: Vec<PathBuf> = runs
        .iter()
        .enumerate()
        .map(|(index, run)| folder.write(&format!("gmon.rank{index}.pb.gz"), &run.write()))
        .collect();

    let apart = Recording::read(&sum(&folder, &["--keep-threads"], &files)).expect("measured times");
    let mut expected = Recording::default();
    runs.iter().for_each(|run| expected.merge(run.clone().with_common_intervals()).expect("one rate"));
    assert_eq!(apart, expected);

    let by_name = Recording::read(&sum(&folder, &[], &files)).expect("measured times");
    let names: Vec<&str> = by_name.threads.iter().map(|thread| thread.name.as_str()).collect();
    let count = example(true).threads.len();
    assert_eq!(names.len(), count + 30, "{names:?}");
    // All sums by function are those of the threads apart.
    let calls = |of: &Recording| {
        let mut sums = std::collections::BTreeMap::new();
        for row in &of.rows {
            let sum = sums.entry(of.functions[row.function as usize].name.clone()).or_insert([0, 0, 0]);
            [sum[0], sum[1], sum[2]] = [sum[0] + row.calls, sum[1] + row.self_ns, sum[2] + row.inclusive_ns];
        }
        sums
    };
    assert_eq!(calls(&by_name), calls(&apart));
    let nodes = |of: &Recording| {
        let of_nodes = of.nodes.iter().fold([0, 0, 0], |sum: [u64; 3], node| {
            [sum[0] + node.calls, sum[1] + node.self_ns, sum[2] + node.samples]
        });
        (of_nodes, of.nodes_lost, of.duration_ns)
    };
    assert_eq!(nodes(&by_name), nodes(&apart));
    assert_eq!(by_name.nodes.len(), example(true).nodes.len());

    // A folder stands for its files. The sum itself is none of them, nor is what is of another kind.
    folder.write("gmon.out.rank1", b"gmon");
    for _ in 0..2 {
        let output = Command::new(env!("CARGO_BIN_EXE_gmon"))
            .args(["merge", "-o", "all.pb.gz", "."])
            .current_dir(&folder.0)
            .output()
            .expect("gmon runs");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
        let all = std::fs::read(folder.file("all.pb.gz")).expect("the sum");
        let all = Recording::read(&all).expect("measured times");
        assert_eq!((calls(&all), all.runs.len(), all.processes.len()), (calls(&by_name), 30, 60));
    }
    std::fs::remove_file(folder.file("gmon.out.rank1")).expect("a file");
    let said = message(&folder, &[], std::slice::from_ref(&folder.0));
    assert!(said.contains(": no gmon.out* in this folder, as sum is to be"), "{said}");

    let mut other = run(99);
    other.sample_period_ns += 1;
    let mut all = files.clone();
    all.insert(25, folder.write("other", &other.write()));
    let said = message(&folder, &[], &all);
    assert!(said.starts_with(&format!("gmon: {}: a sample for each ", all[25].display())), "{said}");
}
