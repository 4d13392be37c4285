//! The members of each report's JSON and their types, against `schemas.txt`: docs/json.md describes them, and whoever changes one has to
//! change the other, and `version` if a reader could be misled.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::process::Command;

use gmon::{Arc, Block, Format, HistogramBuilder, Profile};
use gmon_run::{KeptValue, LineSamples, OtherValues, Recording, ValueCounts, ValueKind, Values};
use serde_json::Value;

use crate::example::{counted, example, sampled};
use crate::support::{self, Folder, bytes};

/// The members and the types that were found, by the path to them.
type Members = BTreeMap<String, BTreeSet<&'static str>>;

fn add(members: &mut Members, path: &str, value: &Value) {
    let name = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "float",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    members.entry(path.to_owned()).or_default().insert(name);
    match value {
        Value::Array(items) => items.iter().for_each(|item| add(members, &format!("{path}[]"), item)),
        Value::Object(items) => {
            items.iter().for_each(|(key, item)| add(members, &format!("{path}.{key}"), item));
        }
        _ => {}
    }
}

#[test]
fn members_are_those_that_are_documented() {
    let folder = Folder::new("schemas");
    let mut measured = example(true);
    measured.rows[0].open = 1;
    measured.arcs[0].open = 1;
    measured.rows[1].counted = 1;
    measured.arcs[1].counted = 1;
    measured.clock.counted_below_ns = 100.0;
    folder.write("measured.pb.gz", &measured.write());
    let mut valued = measured.clone();
    valued.values = [ValueKind::Signed, ValueKind::Double, ValueKind::Text]
        .map(|kind| {
            let text = (kind == ValueKind::Text).then(|| "text".to_owned());
            let kept = vec![KeptValue { value: 3, count: 5, error: 1, text }];
            let others = OtherValues { count: 2, sum: -8, histogram: vec![1, 1], ..OtherValues::default() };
            Values {
                caller: Some(0),
                node: Some(1),
                name: "arg1".to_owned(),
                counts: ValueCounts { kind, kept, others, missing: 1 },
                ..Values::default()
            }
        })
        .to_vec();
    folder.write("valued.pb.gz", &valued.write());
    let mut waited = measured.clone();
    waited.threads.iter_mut().for_each(|thread| thread.ready_ns = Some(1));
    folder.write("waited.pb.gz", &waited.write());
    folder.write("counted.pb.gz", &counted().write());
    folder.write("sampled.pb.gz", &sampled().write());
    let line = LineSamples { line: 3, own: 1, inclusive: 4, ..LineSamples::default() };
    folder.write("python.pb.gz", &Recording { lines: vec![line], ..sampled() }.write());
    for rank in 0..2 {
        folder.write(&format!("gmon.rank{rank}.pb.gz"), &measured.write());
    }
    let mut profile = Profile::new(Format::LITTLE_64);
    profile.arcs = vec![Arc { from: 0x1100, to: 0x1234, count: 3 }];
    profile.blocks = vec![Block { addr: 0x1100, count: 3 }];
    let mut samples = HistogramBuilder::new(0x1000..0x2000, 100);
    samples.add(0x1234, 5);
    profile.histograms = samples.build().histograms;
    folder.write("gmon.out", &bytes(&profile));
    let of_trace = support::traces::folder("schemas-trace");
    std::fs::copy(of_trace.file("run.trace"), folder.file("run.trace")).expect("a trace");
    let budget = "[[budget]]\nfunction = '*'\ncalls = 10\n[[budget]]\nfunction = 'none'\noptional = true\ntime_percent = 1\n";
    folder.write("budget.toml", budget.as_bytes());
    let mut found = String::new();
    for args in [
        "flat --json measured.pb.gz",
        "flat --json counted.pb.gz",
        "flat --json sampled.pb.gz",
        "flat --json --by module measured.pb.gz",
        "flat --json --by program measured.pb.gz",
        "flat --json --by process measured.pb.gz",
        "flat --json --by thread measured.pb.gz",
        "flat --json --spread gmon.rank0.pb.gz gmon.rank1.pb.gz",
        "graph --json measured.pb.gz",
        "graph --json counted.pb.gz",
        "paths --json --threads measured.pb.gz",
        "paths --json sampled.pb.gz",
        "paths --waits --json --threads waited.pb.gz",
        "paths --slow --json measured.pb.gz",
        "values --json valued.pb.gz",
        "values --json --paths valued.pb.gz",
        "lines --json -m [Python] python.pb.gz",
        "diff --json measured.pb.gz counted.pb.gz --sort calls",
        "check --records --json gmon.out",
        "check --budget budget.toml --json measured.pb.gz",
        "trace --json run.trace",
        "trace --stats --json run.trace",
        "trace --values --paths --json run.trace",
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_gmon"))
            .args(args.split(' '))
            .current_dir(&folder.0)
            .output()
            .expect("gmon runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() <= Some(1) && !output.stdout.is_empty(), "{args}: {said}");
        let value: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let (schema, version) = (&value["schema"], &value["version"]);
        writeln!(found, "gmon {args}: {schema} {version}").expect("memory");
        let mut members = Members::new();
        add(&mut members, "", &value);
        for (path, types) in members.iter().filter(|(path, _)| !path.is_empty()) {
            let types: Vec<&str> = types.iter().copied().collect();
            writeln!(found, "    {path}: {}", types.join(" or ")).expect("memory");
        }
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/schemas.txt");
    if std::env::var_os("GMON_WRITE_SCHEMAS").is_some() {
        std::fs::write(path, &found).expect("the file");
    }
    let expected = std::fs::read_to_string(path).expect("the file");
    for (line, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(line, expected, "GMON_WRITE_SCHEMAS=1 writes {path} anew");
    }
    assert_eq!(found.lines().count(), expected.lines().count());
}
