//! Reports of functions that an interpreter or a virtual machine executes, of a run that was made up by hand.

use base64::prelude::{BASE64_STANDARD, Engine};
use gmon_run::{Function, GENERATED, Hits, LineSamples, Module, PYTHON, Program, Recording, Stack};
use serde_json::{Value, json};

use crate::support::Folder;
use crate::support::commands::{gmon, json as json_of, text};

const SOURCE: &str = "def main():\n    work()\n\ndef work():\n    return sum(range(9))\n";

/// Returns a run in which `main` of a.py calls `work`, which calls a C function, and likewise two functions of another virtual machine and one
/// of code that is in no file.
fn interpreted(folder: &Folder) -> Recording {
    let path = folder.file("a.py").display().to_string();
    let function = |name: &str, module, file: &str, line| Function {
        name: name.to_owned(),
        module,
        file: file.to_owned(),
        line,
        ..Function::default()
    };
    let module = |path: &str| Module { path: path.to_owned(), ..Module::default() };
    let stack = |parent, function, samples| Stack { parent, function: Some(function), samples, program: 0 };
    let hits = |function, samples| Hits { function, samples, ..Hits::default() };
    let line = |function, line, own, inclusive| LineSamples {
        function,
        line,
        own,
        inclusive,
        ..LineSamples::default()
    };
    Recording {
        // Long ago.
        start_unix_ns: 1_000_000_000,
        sample_period_ns: 1_000_000,
        programs: vec![Program { name: "python3".to_owned(), ..Program::default() }],
        modules: vec![module("/usr/bin/python3"), module(PYTHON), module(GENERATED)],
        functions: vec![
            function("main (a.py:1)", 1, &path, 1),
            function("work (a.py:4)", 1, &path, 4),
            function("builtin_sum", 0, "", 0),
            function("js::main", 2, "", 0),
            function("js::work", 2, "", 0),
            function("f (<string>:1)", 1, "<string>", 1),
        ],
        stacks: vec![
            stack(None, 0, 0),
            stack(Some(0), 1, 2),
            stack(Some(1), 2, 8),
            stack(None, 3, 0),
            stack(Some(3), 4, 5),
            stack(None, 5, 1),
        ],
        hits: vec![hits(1, 2), hits(2, 8), hits(4, 5), hits(5, 1)],
        lines: vec![line(0, 2, 0, 10), line(1, 5, 2, 10), line(5, 1, 1, 1)],
        ..Recording::default()
    }
}

fn folder(name: &str) -> Folder {
    let folder = Folder::new(name);
    folder.write("a.py", SOURCE.as_bytes());
    let run = interpreted(&folder);
    run.check().expect("a valid run");
    folder.write("gmon.pb.gz", &run.write());
    folder
}

/// Returns the data of the report for a browser, and what is said of it.
fn report(folder: &Folder) -> (Value, String) {
    let output = gmon(folder, &["html"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let page = std::fs::read_to_string(folder.file("gmon.html")).expect("the report");
    let (_, packed) = page.split_once("id=\"data\">").expect("data");
    let (packed, _) = packed.split_once("</script>").expect("the end of the data");
    let packed = BASE64_STANDARD.decode(packed).expect("Base64");
    let data = serde_json::from_reader(flate2::read::GzDecoder::new(&packed[..])).expect("JSON");
    (data, String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The functions that only call others are what a user looks for: they have no samples of their own.
#[test]
fn functions_that_only_call() {
    let folder = folder("interpreted-flat");
    let table = json_of(&folder, &["flat", "--json"]);
    let rows = table["rows"].as_array().expect("rows");
    let inclusive =
        |name: &str| rows.iter().find(|row| row["demangled"] == name).map(|row| row["inclusive_ns"].clone());
    assert_eq!(inclusive("js::main"), Some(json!(5_000_000)));
    assert_eq!(inclusive("main (a.py:1)"), Some(json!(10_000_000)));
    assert!(text(&folder, &["flat"]).contains("js::main"));
}

#[test]
fn lines_in_the_report_for_a_browser() {
    let folder = folder("interpreted-html");
    let (data, said) = report(&folder);
    let files = data["files"].as_array().expect("files");
    let path = folder.file("a.py").display().to_string();
    let file = files.iter().position(|file| *file == *path).expect("the file");
    let sources = data["sources"].as_array().expect("sources");
    let source = &sources[0];
    assert_eq!((&source["file"], &source["line"]), (&json!(file), &json!([1, 2, 3, 4, 5])));
    assert_eq!(source["text"], json!(SOURCE.lines().collect::<Vec<_>>()));
    assert_eq!(source["self"], json!([0, 0, 0, 0, 2_000_000]));
    assert_eq!(source["inclusive"], json!([0, 10_000_000, 0, 0, 10_000_000]));
    // The source is compared with the run, and not with the interpreter. What is in no file is not looked for.
    assert!(said.contains("a.py: newer than the run, so lines may have moved"), "{said}");
    assert!(!said.contains("program") && !said.contains("<string>"), "{said}");
}

/// callgrind's format has the time of each line itself.
#[test]
fn lines_in_exports() {
    let folder = folder("interpreted-export");
    let output = gmon(&folder, &["export", "--to", "callgrind", "-o", "out"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let out = std::fs::read_to_string(folder.file("out")).expect("the export");
    assert!(out.contains("fl=(1) ") && out.contains("\nfn=(2)\n0x0 5 2000000\n"), "{out}");
}
