//! `gmon html`: what is in its report, and whether a browser shows it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use base64::prelude::{BASE64_STANDARD, Engine};
use gmon::{Block, Format, Profile};
use gmon_run::{Calls, Hits, KeptValue, Module, Program, Recording, Stack, ValueCounts, ValueKind, Values};
use gprofinject_skip::{have, have_for, skipped};
use serde_json::{Value, json};

use crate::example::{CALLS, SELF_NS, example, synthetic};
use crate::support::{self, Folder};

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
    // The sources of runs that were made by hand are nowhere.
    let lines: Vec<&str> = said.lines().filter(|line| !line.starts_with("gmon: source /src/")).collect();
    assert!(
        lines.len() == 1 && lines[0].starts_with("gmon: wrote /") && said.contains("gmon.html ("),
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
    // Of the example's processes, whose numbers and endings are those of the table.
    let table = gmon(&folder, &["flat", "--json", "--by", "process", "gmon.pb.gz"]).stdout;
    let table: Value = serde_json::from_slice(&table).expect("JSON");
    let processes = data["processes"]["rows"].as_array().expect("processes");
    assert_eq!(data["processes"]["leftOut"], table["left_out"]);
    assert_eq!(processes.len(), table["rows"].as_array().expect("rows").len());
    for row in table["rows"].as_array().expect("rows") {
        let process = processes.iter().find(|process| process["pid"] == row["pid"]).expect("the process");
        assert_eq!((&process["begin"], &process["self"]), (&row["begin_ns"], &row["self_ns"]), "{process}");
        let failure = match (row["exit_status"].as_u64(), row["signal"].as_u64()) {
            (Some(status), _) if status > 0 => json!(format!("exit status {status}")),
            (_, Some(signal)) => json!(format!("signal {signal}")),
            _ => Value::Null,
        };
        assert_eq!(process["failure"], failure);
    }
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
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0));
    assert!(said.starts_with("gmon: source /src/") && said.lines().count() == 1, "{said}");
    assert!(output.stdout.starts_with(b"<!doctype html>"));
    // Paths that were not recorded are estimates, without calls.
    let report = data(&output.stdout);
    assert_eq!(report["time"]["estimated"], json!(["paths"]));
    assert!(report["nodes"]["calls"].is_null() && !report["nodes"]["self"].is_null());
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

/// A run of two programs that share a library.
fn two_programs() -> Recording {
    let function = |name: &str, module| gmon_run::Function {
        name: name.into(),
        module,
        address: 0x10,
        ..gmon_run::Function::default()
    };
    let program =
        |name: &str, module| Program { name: name.into(), module, processes: 1, ..Program::default() };
    let calls = |program, caller, callee, calls| Calls { program, caller, callee, calls, ..Calls::default() };
    let hits = |program, function, samples| Hits { program, function, samples, ..Hits::default() };
    Recording {
        programs: vec![program("a", 0), program("b", 1)],
        modules: ["/bin/a", "/bin/b", "/lib/l.so"]
            .map(|name| Module { path: name.into(), ..Module::default() })
            .to_vec(),
        sample_period_ns: 1_000,
        functions: vec![
            function("main", 0),
            function("main", 1),
            function("shared", 2),
            function("alone", 2),
        ],
        calls: vec![
            calls(0, None, 0, 1),
            calls(0, Some(0), 2, 5),
            calls(1, None, 1, 1),
            calls(1, Some(1), 2, 7),
        ],
        hits: vec![hits(0, 2, 4), hits(1, 2, 2), hits(1, 1, 1), hits(1, 3, 1)],
        ..Recording::default()
    }
}

#[test]
fn programs_and_what_was_not_counted() {
    let folder = Folder::new("html-programs");
    folder.write("gmon.pb.gz", &two_programs().write());
    let data = report(&folder, &[]);
    assert_eq!(data["programs"][1]["name"], "b");
    let rows = &data["programRows"];
    assert_eq!(rows["program"], json!([0, 0, 1, 1, 1]));
    assert_eq!(rows["self"], json!([0, 4_000, 1_000, 2_000, 1_000]));
    assert_eq!(rows["inclusive"], json!([4_000, 4_000, 3_000, 2_000, 1_000]));
    assert_eq!(rows["calls"], json!([1, 5, 1, 7, null]));
    // A function that has samples and no calls is not hooked.
    assert_eq!(data["functions"]["calls"], json!([1, 1, 12, null]));
    assert_eq!(data["time"], json!({"kind": "sampled", "estimated": ["inclusive", "mean", "arcs", "paths"]}));
    // What is above `shared` is divided by calls: 5 of 12, and 7 of 12.
    assert_eq!(data["nodes"]["self"].as_array().map(Vec::len), Some(5));
    let sum: u64 = data["nodes"]["self"].as_array().into_iter().flatten().filter_map(Value::as_u64).sum();
    assert_eq!(sum, 8_000);
    let chosen = report(&folder, &["--program", "b"]);
    assert!(chosen["programRows"].is_null());
}

#[test]
fn sampled_stacks() {
    let folder = Folder::new("html-stacks");
    let mut run = two_programs();
    let stack = |program, parent, function, samples| Stack { program, parent, function, samples };
    run.stacks = vec![
        stack(0, None, Some(0), 0),
        stack(0, Some(0), Some(2), 4),
        stack(1, None, Some(1), 1),
        // `alone` is not hooked; one sample of `shared` has no stack.
        stack(1, Some(2), Some(3), 1),
        stack(1, Some(3), Some(2), 1),
    ];
    folder.write("gmon.pb.gz", &run.write());
    let data = report(&folder, &[]);
    assert_eq!(data["time"], json!({"kind": "sampled", "estimated": []}));
    assert_eq!(data["functions"]["inclusive"], json!([4_000, 3_000, 6_000, 2_000]));
    let rows = &data["programRows"];
    let of = |column: &str| rows[column].as_array().expect("a column").clone();
    let inclusive: Vec<_> = of("program").into_iter().zip(of("function")).zip(of("inclusive")).collect();
    for (program, function, ns) in [(0, 0, 4_000), (0, 2, 4_000), (1, 1, 3_000), (1, 2, 2_000), (1, 3, 2_000)]
    {
        assert!(inclusive.contains(&((json!(program), json!(function)), json!(ns))), "{inclusive:?}");
    }
    // The arcs from and to `alone` were not counted, nor was that of `shared` without a known caller.
    assert_eq!(data["arcs"]["calls"], json!([1, 1, null, 5, 7, null, null]));
    assert_eq!(data["arcs"]["inclusive"], json!([4_000, 3_000, 1_000, 4_000, 0, 2_000, 1_000]));
    let nodes = &data["nodes"];
    assert!(nodes["calls"].is_null());
    assert_eq!(nodes["function"], json!([1, 3, 2, 4, 3, 0, 3]));
    assert_eq!(nodes["self"], json!([0, 4_000, 1_000, 1_000, 1_000, 0, 1_000]));
    let facts = data["facts"].to_string();
    assert!(facts.contains("by sampled stacks; of \",{\"count\":1}"), "{facts}");
}

#[test]
fn a_time_line() {
    let folder = support::traces::folder("html-trace");
    let trace = gmon(&folder, &["trace", "--json", "run.trace"]).stdout;
    let trace: Value = serde_json::from_slice(&trace).expect("JSON");
    let start = trace["start_unix_ns"].as_u64().expect("a time");
    let program = trace["processes"][0]["program"].as_str().expect("a path").to_owned();
    let run = Recording {
        start_unix_ns: start - 10,
        duration_ns: 20,
        modules: vec![Module { path: program, ..Module::default() }],
        ..nothing()
    };
    folder.write("gmon.pb.gz", &run.write());
    let found = |args: &[&str]| {
        let output = gmon(&folder, &[&["html", "-o", "-"], args].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        data(&output.stdout)["timeline"].clone()
    };
    // The trace beside the run is that of the run.
    let timeline = found(&[]);
    let lane = &timeline["lanes"][0];
    let calls =
        trace["steps"].as_array().into_iter().flatten().filter(|step| step["event"] == "call").count();
    let lengths = |lane: &Value| lane["length"].as_array().map_or(0, Vec::len);
    let shown: usize = timeline["lanes"].as_array().into_iter().flatten().map(lengths).sum();
    assert!(shown > 3 && shown <= calls, "{shown} of {calls}");
    let names = timeline["names"].as_array().expect("names");
    let outermost = lane["function"][0].as_u64().and_then(|at| names.get(at as usize)).expect("a name");
    assert_eq!((outermost, &lane["depth"][0], &timeline["leftOut"]), (&json!("main"), &json!(0), &json!(0)));
    let text = gmon(&folder, &["trace", "run.trace"]).stdout;
    assert_eq!((gmon(&folder, &["trace"]).stdout, text.is_empty()), (text, false));
    // That of another run is not, unless the user says so.
    folder.write("gmon.pb.gz", &Recording { start_unix_ns: start + 1, ..run }.write());
    assert!(found(&[]).is_null());
    assert_eq!(found(&["--trace", "run.trace"]), timeline);
    let said = String::from_utf8_lossy(&gmon(&folder, &["trace"]).stderr).into_owned();
    assert!(
        said.contains("no NAME.trace of the run in gmon.pb.gz") && said.contains("gmon trace FILE"),
        "{said}"
    );
    let output = gmon(&folder, &["html", "--trace", "gmon.pb.gz"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(2) && said.contains("gmon.pb.gz"), "{said}");
}

#[test]
fn opened_in_the_browser() {
    let folder = Folder::new("html-open");
    folder.write("gmon.pb.gz", &example(false).write());
    folder.write("browser", b"#!/bin/sh\necho \"$1 $2\" >opened\n");
    let browser = folder.file("browser");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&browser, mode).expect("the mode is set");
    let open = |browser: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gmon"));
        command
            .args(["html", "--open"])
            .current_dir(&folder.0)
            .env("BROWSER", browser)
            .env_remove("SUDO_UID");
        let output = command.output().expect("gmon runs");
        assert_eq!(output.status.code(), Some(0));
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let page = folder.file("gmon.html").canonicalize().unwrap_or_else(|_| folder.file("gmon.html"));
    // The first one does not work.
    let said = open(&format!("/no/such/browser:{} --new", browser.display()));
    assert!(said.contains("gmon.html (") && said.trim_end().ends_with("kB)"), "{said}");
    let opened = std::fs::read_to_string(folder.file("opened")).expect("the browser ran");
    assert_eq!(opened, format!("--new {}\n", page.display()));
    // None is no error, and the path is printed.
    let said = open("/no/such/browser");
    assert!(said.contains("gmon.html (") && said.contains("/no/such/browser: No such file"), "{said}");
}

#[test]
fn two_runs_compared() {
    let folder = Folder::new("html-diff");
    folder.write("old.pb.gz", &example(true).write());
    let mut new = example(true);
    new.nodes[3].self_ns *= 2;
    new.rows[3].self_ns *= 2;
    folder.write("new.pb.gz", &new.write());
    let output = gmon(&folder, &["diff", "--sort", "self", "--html", "old.pb.gz", "new.pb.gz"]);
    // `work` takes twice as long.
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
    let page = data(&std::fs::read(folder.file("gmon-diff.html")).expect("the page"));
    let names = page["functions"]["name"].as_array().expect("names");
    let work = names.iter().position(|name| name == "work").expect("the function");
    let own = |side: &str| page["functions"][side]["self"][work].as_u64();
    assert_eq!((own("old"), own("new")), (Some(4_000_000_000), Some(8_000_000_000)));
    assert_eq!((&page["comparable"], &page["estimated"]), (&json!(true), &json!(false)));
    let sum = |side: &str| -> u64 {
        page["paths"][side].as_array().into_iter().flatten().filter_map(Value::as_u64).sum()
    };
    assert_eq!(sum("selfNew") - sum("selfOld"), example(true).nodes[3].self_ns);
    let output = gmon(&folder, &["diff", "--html=-", "old.pb.gz", "old.pb.gz"]);
    assert_eq!((output.status.code(), output.stdout.starts_with(b"<!doctype html>")), (Some(0), true));
}

#[test]
fn a_picture() {
    let folder = Folder::new("html-svg");
    folder.write("gmon.pb.gz", &example(true).write());
    let output = gmon(&folder, &["export", "--to", "svg", "gmon.pb.gz"]);
    let picture = String::from_utf8(output.stdout).expect("UTF-8");
    assert!(output.status.success() && picture.starts_with("<svg "), "{picture}");
    assert!(picture.contains("<title>parse(int)\nprog\n") && picture.contains(">parse</text>"), "{picture}");
}

/// Names and source lines that are markup.
fn hostile(folder: &Folder) -> Recording {
    let name = "</script><img src=x onerror=window.hacked=1>\u{202e}\u{2028}\u{7}\"'`${window.hacked=1}";
    let source = folder.file("evil.c");
    let lines = format!("int f()\n{{ return 1; }} // {}\n", name.replace('\u{7}', " "));
    std::fs::write(&source, lines).expect("the file is written");
    let mut run = example(true);
    run.programs[0].name = name.into();
    run.threads[0].name = name.into();
    run.modules[0].path = format!("/{name}");
    run.functions[0] = gmon_run::Function {
        name: name.into(),
        file: source.display().to_string(),
        line: 1,
        ..run.functions[0].clone()
    };
    run
}

/// Two arguments, one of which is a text that tries to be an element.
fn valued() -> Recording {
    let kept = |value, count, text: Option<&str>| KeptValue {
        value,
        count,
        error: 0,
        text: text.map(str::to_owned),
    };
    let of = |function, caller, node, name: &str, kind, kept| Values {
        function,
        caller: Some(caller),
        node: Some(node),
        name: name.to_owned(),
        counts: ValueCounts { kind, kept, ..ValueCounts::default() },
        ..Values::default()
    };
    let mut valued = example(true);
    let hostile = "<b onclick=1>\u{202e}";
    valued.values = vec![
        of(1, 0, 1, "n", ValueKind::Unsigned, vec![kept(3, 5, None), kept(8, 2, None)]),
        of(2, 1, 2, "text", ValueKind::Text, vec![kept(1, 1, Some(hostile)), kept(2, 1, Some("x"))]),
    ];
    valued
}

#[test]
fn values_of_arguments() {
    let folder = Folder::new("html-values");
    folder.write("gmon.pb.gz", &valued().write());
    let data = report(&folder, &["gmon.pb.gz"]);
    let output = gmon(&folder, &["values", "--json", "--paths", "gmon.pb.gz"]);
    let table: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let name = |index: &Value| data["functions"]["name"][index.as_u64().expect("an index") as usize].clone();
    let (page, rows) =
        (data["values"].as_array().expect("values"), table["values"].as_array().expect("values"));
    assert_eq!((page.len(), rows.len()), (2, 2));
    for (argument, row) in page.iter().zip(rows) {
        assert_eq!(
            (name(&argument["function"]), &argument["name"]),
            (row["demangled"].clone(), &row["argument"])
        );
        assert_eq!(argument["calls"], row["calls"]);
        let counts = |of: &Value| {
            of.as_array().expect("rows").iter().map(|row| row["calls"].clone()).collect::<Vec<_>>()
        };
        assert_eq!(counts(&argument["values"]), counts(&row["values"]));
        for by in ["callers", "paths"] {
            assert_eq!(counts(&argument[by]), counts(&row[by]), "{by}");
        }
        let path =
            |functions: &Value| functions.as_array().expect("a path").iter().map(name).collect::<Vec<_>>();
        let expected =
            row["paths"][0]["path"].as_array().expect("a path").iter().map(|of| of["demangled"].clone());
        assert_eq!(path(&argument["paths"][0]["functions"]), expected.collect::<Vec<_>>());
    }
    folder.write("gmon.pb.gz", &example(true).write());
    assert_eq!(report(&folder, &["gmon.pb.gz"])["values"], Value::Null);
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
        ("hostile", "hostile", hostile(&folder)),
        ("valued", "valued", valued()),
        ("large", "large", synthetic(50_000, 300_000, 100_000)),
        ("large", "large-estimate", synthetic(50_000, 300_000, 0)),
    ] {
        let file = format!("{name}.html");
        folder.write("gmon.pb.gz", &measured.write());
        let output = gmon(&folder, &["html", "gmon.pb.gz", "-o", &file]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let least = if kind == "large" { "=50000" } else { "" };
        arguments.push(format!("{kind}={file}{least}"));
    }
    let mut changed = hostile(&folder);
    changed.rows[3].self_ns *= 2;
    changed.nodes[3].self_ns *= 2;
    folder.write("new.pb.gz", &changed.write());
    folder.write("old.pb.gz", &hostile(&folder).write());
    let output =
        gmon(&folder, &["diff", "--sort", "self", "--html=difference.html", "old.pb.gz", "new.pb.gz"]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    arguments.push("difference=difference.html".to_owned());
    let traces = support::traces::folder("html-browser-trace");
    folder.write("run.trace", &std::fs::read(traces.file("run.trace")).expect("the trace"));
    folder.write("gmon.pb.gz", &example(true).write());
    let output = gmon(&folder, &["html", "gmon.pb.gz", "--trace", "run.trace", "-o", "traced.html"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    arguments.push("traced=traced.html".to_owned());
    // The time of a test depends on what else the machine does: tests/html.sh says how long loading takes.
    let mut browser = Command::new("node");
    browser.arg(scripts().join("report.mjs")).args(arguments).current_dir(&folder.0).env("PATIENCE", "60000");
    let output = browser.output().expect("node");
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    println!("{said}");
}
