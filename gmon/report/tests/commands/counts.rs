//! `gmon lines` and `gmon asm` of recordings: which modules they show, how they find their files, and which options go together.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gmon_run::{Block, Function, Hits, Module, Program, Recording};
use gprofinject_image::debug::Lines;
use gprofinject_image::instructions::Code;
use object::Object;
use serde_json::Value;

use crate::support::{Folder, run};

/// A program that is started, one that it starts, a library of both without debug information, and one that nobody counted.
const SOURCE: &str = "namespace n { template <class T> struct s { static T add(T a) { return a + 1; } }; }\n\
                      extern \"C\" int twice(int x)\n{\n    return n::s<int>::add(x) + n::s<int>::add(x);\n}\n";
const MAIN: &str = "extern \"C\" int main(void) { return 0; }\n";

struct Case {
    folder: Folder,
    recording: Recording,
}

/// Compiles a module, and returns it as a recording has it. Each has a build-id of its own, or none.
fn module(folder: &Folder, name: &str, source: &str, id: Option<&str>, options: &[&str]) -> Module {
    let id =
        id.map_or("-Wl,--build-id=none".to_owned(), |id| format!("-Wl,--build-id=0x{id}{}", "00".repeat(12)));
    let built = folder.build(&format!("{name}.cc"), source, &[options, &["-O0", &id]].concat());
    let path = folder.file(name);
    std::fs::rename(built, &path).expect("a name");
    let bytes = std::fs::read(&path).expect("a module");
    let file = object::File::parse(&*bytes).expect("an ELF file");
    let build_id = file.build_id().expect("a good note").unwrap_or_default().to_vec();
    let digest = if build_id.is_empty() { Module::digest_of(&bytes) } else { 0 };
    Module {
        path: path.to_string_lossy().into_owned(),
        build_id,
        digest,
        limit: 1 << 30,
        ..Module::default()
    }
}

impl Case {
    fn new(name: &str) -> Case {
        let folder = Folder::new(name);
        let both = format!("{SOURCE}{MAIN}");
        let shared = ["-shared", "-fPIC"];
        let modules = vec![
            module(&folder, "liba.so", SOURCE, Some("aaaaaaaa"), &[&shared[..], &["-g0"]].concat()),
            module(&folder, "tool", &both, None, &[]),
            module(&folder, "unused.so", SOURCE, Some("bbbbbbbb"), &shared),
            module(&folder, "made", &both, Some("cccccccc"), &[]),
            module(&folder, "libz.so", SOURCE, Some("dddddddd"), &shared),
        ];
        let program = |name: &str, module| Program {
            name: name.to_owned(),
            module,
            processes: 1,
            ..Program::default()
        };
        let programs = vec![program("tool", 1), program("made", 3)];
        let mut case = Case { folder, recording: Recording { programs, modules, ..Recording::default() } };
        for (program, module, executions) in
            [(0, 1, 3), (1, 3, 5), (0, 0, 7), (1, 0, 70), (0, 4, 1), (1, 4, 2)]
        {
            let block = Block { program, module, address: case.twice(module), executions };
            case.recording.blocks.push(block);
        }
        case.write();
        case
    }

    fn write(&self) {
        self.folder.write("gmon.pb.gz", &self.recording.write());
    }

    fn code(&self, module: u32) -> Code {
        let bytes = std::fs::read(&self.recording.modules[module as usize].path).expect("a module");
        Code::parse(&bytes).expect("code")
    }

    /// Returns the address of the function `twice` of a module.
    fn twice(&self, module: u32) -> u64 {
        let code = self.code(module);
        code.functions().iter().find(|function| function.name == "twice").expect("twice").start
    }

    fn gmon(&self, line: &str) -> Output {
        let mut gmon = Command::new(env!("CARGO_BIN_EXE_gmon"));
        gmon.args(line.split(' ')).current_dir(&self.folder.0).output().expect("gmon runs")
    }

    /// Runs a command that succeeds, and returns what it prints and what it says.
    fn shown(&self, line: &str) -> (String, String) {
        let output = self.gmon(line);
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        let (shown, said) = (text(output.stdout), text(output.stderr));
        assert_eq!(output.status.code(), Some(0), "{line}: {said}");
        (shown, said)
    }

    fn json(&self, line: &str) -> Value {
        let (shown, _) = self.shown(&format!("{line} --json"));
        serde_json::from_str(&shown).unwrap_or_else(|error| panic!("{line}: {error}: {shown}"))
    }

    /// Returns the message of a command that fails. It is one line, and nothing else is printed.
    fn refused(&self, line: &str) -> String {
        let output = self.gmon(line);
        let said = String::from_utf8(output.stderr).expect("UTF-8");
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{line}: {said}");
        assert!(said.starts_with("gmon: ") && said.lines().count() == 1, "{line}: {said}");
        said
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.file(name)
    }
}

/// Returns the file names of a report's modules, and the instructions that they have executed.
fn executed(report: &Value) -> Vec<(String, u64)> {
    let modules = report["modules"].as_array().expect("modules").iter();
    let name = |module: &Value| {
        module["program"].as_str().and_then(|path| path.rsplit('/').next()).map(str::to_owned)
    };
    modules
        .map(|module| (name(module).expect("a name"), module["total"]["ie"].as_u64().expect("a sum")))
        .collect()
}

fn names(report: &Value) -> Vec<String> {
    executed(report).into_iter().map(|(name, _)| name).collect()
}

/// Programs come first, then libraries by name, each under its heading.
#[test]
fn all_modules_of_a_run() {
    let case = Case::new("counts-all");
    let report = case.json("lines --by function");
    assert_eq!(names(&report), ["tool", "made", "liba.so", "libz.so"], "{report}");
    assert_eq!((&report["schema"], &report["version"]), (&"gmon-lines-by-function".into(), &1.into()));
    let of = |report: &Value, index: usize| executed(report)[index].1;
    // The library's counts are those of both programs.
    assert_eq!(of(&report, 2) / 77, of(&report, 0) / 3);
    let (text, said) = case.shown("lines --by function");
    let headings: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("== ")).collect();
    let expected =
        ["tool", "made", "liba.so", "libz.so"].map(|name| format!("{} ==", case.path(name).display()));
    assert_eq!((headings, said.as_str()), (expected.iter().map(String::as_str).collect(), ""));
    // A library without debug information has no lines, and is named once.
    let (text, said) = case.shown("lines");
    assert!(text.contains("libz.so ==") && !text.contains("liba.so =="), "{text}");
    assert_eq!(said, "gmon: not shown, without line information: liba.so\n");
    assert_eq!(names(&case.json("lines --by function --program made")), ["made", "liba.so", "libz.so"]);
    for (module, program) in [(0, "tool"), (2, "libz.so")] {
        let report = case.json("asm");
        let path = report["modules"].as_array().and_then(|modules| {
            modules.iter().find(|m| m["program"].as_str().is_some_and(|p| p.ends_with(program)))
        });
        assert!(path.is_some_and(|module| module["functions"].is_array()), "{module}");
    }
}

/// A module is selected by its name, and by its file, of which there may be a copy elsewhere.
#[test]
fn one_module_of_a_run() {
    let case = Case::new("counts-one");
    let all = case.json("lines --by function");
    let z = executed(&all).pop().expect("a module");
    assert_eq!(executed(&case.json("lines --by function -m libz.so")), std::slice::from_ref(&z));
    assert_eq!(executed(&case.json("lines --by function ./libz.so")), std::slice::from_ref(&z));
    std::fs::rename(case.path("libz.so"), case.path("copy")).expect("a move");
    assert_eq!(executed(&case.json("lines --by function copy gmon.pb.gz")), [("copy".to_owned(), z.1)]);
    // Without a heading, because there is one.
    let (text, _) = case.shown("lines copy");
    std::fs::copy(case.path("copy"), case.path("libz.so")).expect("a copy");
    assert!(text.starts_with(&case.path("libz.so.cc").display().to_string()), "{text}");
    // A program that is named is that program alone, without its libraries.
    assert_eq!(names(&case.json("lines --by function made")), ["made"]);
    assert!(case.refused("lines unused.so").contains("no counts of basic blocks of unused.so"));
    let said = case.refused("lines -m nobody");
    assert!(said.ends_with("is called nobody; there are liba.so, libz.so, made, tool\n"), "{said}");
    assert!(case.refused("lines -f twise").contains("no function is called twise; similar names: twice"));
    assert!(case.refused("lines -F nobody.c").contains("no source file is called nobody.c"));
    assert!(
        case.refused("lines -m liba.so").contains("liba.so: no line information, nor a separate debug file")
    );
    assert!(
        case.refused("lines --debug-file made").contains("--debug-file: of one module, but 4 have counts")
    );
    assert!(case.refused("lines --program nobody").contains("there are made, tool"));
}

/// Modules that are gone, or are not what they were, are named, and the others are shown.
#[test]
fn modules_that_have_changed() {
    let case = Case::new("counts-changed");
    let only = |report: &Value| names(report);
    let both = format!("{SOURCE}{MAIN}int more;\n");
    std::fs::remove_file(case.path("liba.so")).expect("a file");
    module(&case.folder, "made", &both, Some("cccccccd"), &[]);
    module(&case.folder, "tool", &both, None, &["-O1"]);
    let (_, said) = case.shown("asm");
    let expected =
        ["tool: rebuilt since the run", "made: rebuilt since the run", "liba.so: is no longer there"];
    assert!(
        said.lines().zip(expected).all(|(line, words)| line.contains(words)) && said.lines().count() == 3,
        "{said}"
    );
    assert_eq!(only(&case.json("lines --by function")), ["libz.so"]);
    assert!(case.refused("asm -m made").contains("made: rebuilt since the run"));
    assert!(case.refused("asm made").contains("rebuilt since the run"));
    std::fs::remove_file(case.path("libz.so")).expect("a file");
    let output = case.gmon("lines --json");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{said}");
    assert!(
        said.ends_with("gmon: none of the modules with counts is there as it was in the run\n"),
        "{said}"
    );
    // What is not a file is not waited for.
    run(Command::new("mkfifo").arg(case.path("libz.so")));
    assert!(case.refused("asm -m libz.so").contains("libz.so: is no file any more"));
}

/// A program that crashed within a basic block has counts at other addresses than one that did not.
#[test]
fn counts_of_several_programs_at_different_addresses() {
    let mut case = Case::new("counts-crash");
    let (library, start) = (4, case.twice(4));
    let code = case.code(library);
    let crash = code.instructions(start).nth(2).expect("an instruction").ip();
    case.recording.blocks.retain(|block| block.module != library);
    for (program, address, executions) in [(0, start, 10), (1, start, 3), (1, crash, 2)] {
        case.recording.blocks.push(Block { program, module: library, address, executions });
    }
    case.write();
    let report = case.json("asm -f twice -m libz.so");
    let instructions = report["modules"][0]["functions"][0]["instructions"].as_array().expect("instructions");
    let count = |at: usize| instructions[at]["count"].as_u64();
    assert_eq!([count(0), count(1), count(2)], [Some(13), Some(13), Some(12)], "{report}");
}

/// What was not counted is blank, in contrast to what never ran, and names are short.
#[test]
fn blanks_and_names() {
    let mut case = Case::new("counts-blanks");
    case.recording.blocks.retain(|block| block.module == 4);
    let code = case.code(4);
    let add = code.functions().iter().find(|function| function.name.contains("add")).expect("add").start;
    case.recording.blocks.retain(|block| block.address != add);
    case.write();
    let (text, _) = case.shown("lines --by function");
    let row = |name: &str| text.lines().find(|line| line.ends_with(&format!("  {name}"))).map(str::trim);
    assert_eq!(row("n::s<...>::add"), Some("n::s<...>::add"), "{text}");
    assert!(row("twice").is_some_and(|row| row.starts_with(|c: char| c.is_ascii_digit())), "{text}");
    assert!(case.shown("lines --by function --full-names").0.contains("  n::s<int>::add(int)\n"));
    assert!(case.shown("lines --by function --no-demangle").0.contains("  _ZN1n1sIiE3addEi\n"));
    assert!(case.shown("asm -f *add*").0.starts_with("n::s<...>::add: not counted\n"));
    assert!(case.shown("asm").0.contains("n::s<...>::add"), "the target of a call");
    let (listing, _) = case.shown("lines");
    let margins: Vec<_> = listing.lines().skip(1).take(5).map(|line| &line[..14]).collect();
    assert_eq!(margins[0].trim(), "", "{listing}");
    assert_eq!(margins[3].trim(), "3", "{listing}");
    assert!(!listing.contains('?') && !case.shown("lines --coverage").0.contains('?'));
}

/// The tracefile contains all modules.
#[test]
fn lcov_of_several_modules() {
    let case = Case::new("counts-lcov");
    let (trace, _) = case.shown("lines --lcov -");
    let files: Vec<_> = trace.lines().filter_map(|line| line.strip_prefix("SF:")).collect();
    let expected = ["tool.cc", "made.cc", "libz.so.cc"].map(|name| case.path(name).display().to_string());
    assert_eq!(files, expected);
    let (table, _) = case.shown("lines --coverage");
    assert_eq!(case.shown("lines --lcov cov.info").0, "");
    assert_eq!(std::fs::read_to_string(case.path("cov.info")).expect("a tracefile"), trace);
    assert_eq!(case.shown("lines --lcov again.info --coverage").0, table);
    assert_eq!(std::fs::read_to_string(case.path("again.info")).expect("a tracefile"), trace);
    // The file does not change if there is nothing to write.
    case.refused("lines --lcov cov.info -f nobody");
    assert_eq!(std::fs::read_to_string(case.path("cov.info")).expect("a tracefile"), trace);
}

#[test]
fn options_that_do_not_go_together() {
    let case = Case::new("counts-options");
    for (line, words) in [
        ("lines --by file --coverage", "--coverage and --by are different reports"),
        ("lines --by file --lcov x", "--lcov and --by are different reports"),
        ("lines --coverage --lcov -", "--coverage and --lcov - would both be written to standard output"),
        ("lines --lcov x --json", "--json: --lcov writes lcov's format"),
        ("lines --coverage -a", "--apart: with --coverage, no source is shown"),
        ("lines --by function -b", "--all-counts: with --by, no source is shown"),
        ("lines --lcov x -i", "--instructions: with --lcov, no source is shown"),
        ("lines --by file -s x", "--source-dir: with --by, no source is shown"),
        ("lines --by file --substitute-path a=b", "--substitute-path: with --by, no source is shown"),
        ("lines -n 3", "-n: only with --by function or --by file"),
        ("lines --coverage --sort name", "--sort: only with --by function or --by file"),
        ("lines --by file --sort address", "--sort address: files have none"),
        ("asm --sort count", "--sort: only with --blocks"),
        ("asm -n 3", "-n: only with --blocks"),
        ("asm --blocks --syntax att", "--syntax: --blocks prints no instructions"),
        ("functions", "functions: this is `gmon lines --by function` now"),
        ("files --json x", "files: this is `gmon lines --by file` now"),
        ("coverage", "coverage: this is `gmon lines --coverage` now"),
        ("instructions prog", "instructions: this is `gmon asm` now"),
        ("blocks", "blocks: this is `gmon asm --blocks` now"),
    ] {
        let said = case.refused(line);
        assert!(said.contains(words), "{line}: {said}");
    }
    assert!(!case.path("x").exists());
}

/// A recording without counts says how to make one with some.
#[test]
fn nothing_was_counted() {
    let mut case = Case::new("counts-nothing");
    case.recording.blocks.clear();
    case.write();
    for line in ["lines", "asm", "lines --lcov -", "lines --by file tool"] {
        let said = case.refused(line);
        assert!(
            said.contains("gmon.pb.gz: no counts of basic blocks") && said.contains("--count lines"),
            "{said}"
        );
    }
    let lines = |name: &str| Lines::parse(&std::fs::read(Path::new(&case.path(name))).expect("a module"));
    assert!(lines("libz.so").is_ok() && lines("liba.so").is_err(), "the test's own modules");
}

/// Lines and instructions of a run without counts have the times of its samples.
#[test]
fn samples_in_place_of_counts() {
    let mut case = Case::new("counts-sampled");
    case.recording.blocks.clear();
    case.recording.sample_period_ns = 1_000_000;
    for (index, (program, module, samples)) in [(0, 1, 3), (1, 3, 5), (0, 4, 2)].into_iter().enumerate() {
        let address = case.twice(module);
        let name = "twice".to_owned();
        case.recording.functions.push(Function { name, module, address, size: 1, ..Function::default() });
        let hits = Hits { program, function: index as u32, address, samples };
        case.recording.hits.push(hits);
    }
    case.write();
    let asm = case.json("asm");
    let names: Vec<&str> = asm["modules"]
        .as_array()
        .expect("modules")
        .iter()
        .filter_map(|module| module["program"].as_str()?.rsplit('/').next())
        .collect();
    assert_eq!(names, ["tool", "made", "libz.so"]);
    let function = &asm["modules"][1]["functions"][0];
    assert_eq!((&function["name"], &function["self_ns"]), (&"twice".into(), &5_000_000.into()));
    let instruction = &function["instructions"][0];
    assert_eq!(instruction["address"], case.twice(3));
    assert_eq!((&instruction["count"], &instruction["self_ns"]), (&Value::Null, &5_000_000.into()));
    // Of a function that the user names, all instructions are shown, whether or not they have samples.
    let (text, _) = case.shown("asm -m made -f main");
    assert!(text.contains("main:") && text.contains("ret"), "{text}");
    let line = case.json("lines -m made")["modules"][0]["files"][0]["lines"].clone();
    assert_eq!((line.as_array().map(Vec::len), &line[0]["self_ns"]), (Some(1), &5_000_000.into()));
    let number = line[0]["line"].to_string();
    let (text, said) = case.shown("lines made");
    let row = text.lines().find(|line| line.starts_with("100.00  5.000 ms")).expect("a line with samples");
    assert!(row.split_whitespace().nth(3) == Some(&number) && row.ends_with('{'), "{text}");
    assert!(
        text.contains("5.000 ms, 100.00% of the samples of the module") && said.is_empty(),
        "{text}{said}"
    );
    let (text, _) = case.shown("lines --program tool -m tool");
    assert!(text.contains("100.00  3.000 ms"), "{text}");
    // Everything else is about counts.
    for line in ["lines --by function", "lines --coverage", "asm --blocks", "lines --by file made"] {
        assert!(case.refused(line).contains("no counts of basic blocks in it"), "{line}");
    }
    assert!(case.refused("lines --apart").contains("--apart: basic blocks were not counted"));
    assert!(case.refused("asm unused.so").contains("of unused.so"));
}
