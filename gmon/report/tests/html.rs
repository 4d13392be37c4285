//! `gmon html`: what is in its report, and whether a browser shows it.

#[path = "../../run/tests/support/mod.rs"]
mod example;
mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use base64::prelude::{BASE64_STANDARD, Engine};
use example::{CALLS, SELF_NS, example, synthetic};
use gmon::{Block, Format, Profile};
use gmon_run::{Module, Program, Recording};
use gprofinject_skip::{have, have_for, skipped};
use serde_json::{Value, json};
use support::Folder;

fn gmon(folder: &Folder, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gmon"));
    command.args(args).current_dir(&folder.0).output().expect("gmon runs")
}

/// Returns a report's data.
fn data(page: &[u8]) -> Value {
    let page = std::str::from_utf8(page).expect("UTF-8");
    let (_, packed) = page.split_once("id=\"data\">").expect("data");
    let (packed, _) = packed.split_once("</script>").expect("the end of the data");
    let packed = BASE64_STANDARD.decode(packed).expect("Base64");
    serde_json::from_reader(flate2::read::GzDecoder::new(&packed[..])).expect("JSON")
}

/// Writes a report, with no message but the one of where it is, and returns its data.
fn report(folder: &Folder, args: &[&str]) -> Value {
    let output = gmon(folder, &[&["html"], args].concat());
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(0), 0), "{said}");
    assert!(
        said.starts_with("gmon: wrote /") && said.contains("gmon.html (") && said.lines().count() == 1,
        "{said}"
    );
    data(&std::fs::read(folder.file("gmon.html")).expect("the report"))
}

/// The files of the tests that need node or a browser.
fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/html")
}

#[test]
fn measured_times() {
    let folder = Folder::new("html-measured");
    folder.write("gmon.pb.gz", &example(true).write());
    let data = report(&folder, &["gmon.pb.gz"]);
    let functions = &data["functions"];
    let index = |name: &str| {
        let names = functions["name"].as_array().expect("names");
        names.iter().position(|other| other == name).unwrap_or_else(|| panic!("no {name}: {names:?}"))
    };
    for (name, calls) in CALLS {
        assert_eq!(functions["calls"][index(name)], calls, "{name}");
    }
    for (name, ns) in SELF_NS {
        assert_eq!(functions["self"][index(name)], ns, "{name}");
    }
    let work = index("work");
    assert_eq!((&functions["primitive"][work], &functions["line"][work]), (&json!(2), &json!(5)));
    // Durations are those of the table, by function and by thread.
    let table = gmon(&folder, &["flat", "--json", "gmon.pb.gz"]).stdout;
    let table: Value = serde_json::from_slice(&table).expect("JSON");
    let rows = table["rows"].as_array().expect("rows");
    assert!(rows.iter().any(|row| row["max_ns"].as_u64() > Some(0)), "{rows:?}");
    for row in rows {
        let at = index(row["demangled"].as_str().expect("a name"));
        for (ours, column) in [("min", "min_ns"), ("p50", "p50_ns"), ("p99", "p99_ns"), ("max", "max_ns")] {
            // Of calls that have not returned, there is no duration.
            let all_open = row["open"] == row["calls"];
            let expected = if all_open { &Value::Null } else { &row[column] };
            assert_eq!(&functions[ours][at], expected, "{ours} of {row}");
            let by_thread = data["rows"][ours].as_array().expect("a column").len();
            assert_eq!(by_thread, data["rows"]["function"].as_array().expect("rows").len());
        }
    }
    // 900 samples of 4 ms.
    assert_eq!(functions["cpu"][work], 3_600_000_000_u64);
    // Two arcs have no caller; callers are differences.
    assert_eq!(data["arcs"]["caller"], json!([0, 0, 1, 1, 2]));
    assert_eq!(data["arcs"]["calls"], json!([1, 2, 10, 40, 2]));
    assert_eq!(data["nodes"]["parent"], json!([0, 1, 1, 0, 1, 1]));
    assert_eq!(data["nodes"]["function"], json!([1, 2, 3, 4, 4, 0]));
    assert_eq!(data["modules"][0], json!({"name": "prog", "path": "/usr/bin/prog", "buildId": "ab01ff"}));
    assert_eq!(data["time"], json!({"kind": "measured", "estimated": []}));
}

#[test]
fn counts_by_line_and_instruction() {
    let folder = Folder::new("html-counts");
    let source =
        "int twice(int n)\n{\n    return n + n;\n}\nint main(void)\n{\n    return twice(2) - 4;\n}\n";
    let program = folder.build("twice.c", source, &["-O0", "-fcf-protection=none"]);
    let names = gprofinject_image::gprof::parse(&std::fs::read(&program).expect("gcc's program"))
        .expect("an ELF file");
    let start = |name| names.functions().iter().find(|function| function.name == name).expect("it").start;
    let blocks = vec![Block { addr: start("twice"), count: 5 }];
    let profile = Profile { blocks, ..Profile::new(Format::LITTLE_64) };
    folder.write("gmon.out", &support::bytes(&profile));
    let program = program.display().to_string();
    let data = report(&folder, &[&program]);
    let sources = &data["sources"][0];
    let lines: Vec<_> = sources["line"].as_array().expect("lines").iter().map(|line| line.as_u64()).collect();
    let counts = &sources["count"];
    let at = |line: u64| lines.iter().position(|&other| other == Some(line)).expect("the line");
    assert_eq!((&counts[at(1)], &counts[at(3)], &counts[at(4)]), (&Value::Null, &json!(5), &json!(5)));
    assert_eq!(sources["text"][at(3)], "    return n + n;");
    let code = data["code"].as_array().expect("instructions");
    assert_eq!(code.len(), 1);
    assert_eq!((&code[0]["address"][0], &code[0]["count"][0]), (&json!(start("twice")), &json!(5)));
    assert_eq!(code[0]["text"][0], "push    %rbp");
    assert_eq!(data["functions"]["name"][code[0]["function"].as_u64().expect("an index") as usize], "twice");
    // Only names and numbers.
    let data = report(&folder, &[&program, "gmon.out", "--no-source"]);
    assert!(data["sources"].is_null() && data["code"].is_null());
    assert!(!data.to_string().contains("return n"));
}

#[test]
fn where_it_is_written() {
    let folder = Folder::new("html-output");
    folder.write("gmon.pb.gz", &example(false).write());
    let output = gmon(&folder, &["html", "gmon.pb.gz", "-o", "-"]);
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
    assert!(output.stdout.starts_with(b"<!doctype html>"));
    assert!(data(&output.stdout)["nodes"].is_null());
    let exported = gmon(&folder, &["export", "--to", "html", "gmon.pb.gz"]);
    assert!(exported.stdout == output.stdout, "{}", String::from_utf8_lossy(&exported.stderr));
    for (args, expected) in [
        (&["html", "gmon.pb.gz", "-o", "."][..], "gmon: .: Is a directory"),
        (&["html", "missing"], "gmon: missing: No such file"),
        (&["html", "gmon.pb.gz", "-o", "no/such/folder"], "gmon: no/such/folder: No such file"),
    ] {
        let output = gmon(&folder, args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.starts_with(expected), "{args:?}: {said}");
    }
    assert!(!folder.file("gmon.html").exists());
}

/// A run of a program that has called nothing.
fn nothing() -> Recording {
    Recording {
        programs: vec![Program { name: "prog".into(), ..Program::default() }],
        modules: vec![Module::default()],
        ..Recording::default()
    }
}

#[test]
fn nothing_measured() {
    let folder = Folder::new("html-nothing");
    folder.write("gmon.pb.gz", &nothing().write());
    let data = report(&folder, &["gmon.pb.gz"]);
    assert_eq!(data["functions"]["name"], json!([]));
    assert!(data["notes"][0].as_str().is_some_and(|note| note.contains("names no function")));
}

#[test]
fn what_the_page_computes() {
    if !have_for("html::what_the_page_computes", &["node"]) {
        return;
    }
    let output = Command::new("node").arg("--test").arg(scripts().join("logic.mjs")).output().expect("node");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn in_a_browser() {
    if !have_for("html::in_a_browser", &["node"]) {
        return;
    }
    if !["chromium", "chromium-browser", "google-chrome", "chrome"].iter().any(|name| have(name)) {
        return skipped("html::in_a_browser", "no chromium");
    }
    let folder = Folder::new("html-browser");
    let mut arguments = Vec::new();
    for (kind, name, measured) in [
        ("paths", "paths", example(true)),
        ("measured", "measured", example(false)),
        ("empty", "empty", nothing()),
        ("large", "large", synthetic(50_000, 300_000, 100_000)),
    ] {
        let file = format!("{name}.html");
        folder.write("gmon.pb.gz", &measured.write());
        let output = gmon(&folder, &["html", "gmon.pb.gz", "-o", &file]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let least = if kind == "large" { "=50000" } else { "" };
        arguments.push(format!("{kind}={file}{least}"));
    }
    // The time of a test depends on what else the machine does: tests/html.sh says how long loading takes.
    let mut browser = Command::new("node");
    browser.arg(scripts().join("report.mjs")).args(arguments).current_dir(&folder.0).env("PATIENCE", "60000");
    let output = browser.output().expect("node");
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    println!("{said}");
}
