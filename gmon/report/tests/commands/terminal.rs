//! Tables on a terminal: as wide as it is, with as many rows as it has lines, and in a pager. `script` is the terminal.

use std::process::{Command, Stdio};

use gprofinject_skip::{have, skipped};

use crate::example::{example, synthetic};
use crate::support::Folder;

/// Returns what a command prints on a terminal of that size, without colours. `setting` is of the environment.
fn on_terminal(folder: &Folder, size: (u32, u32), setting: &str, command: &str) -> String {
    let (columns, rows) = size;
    let gmon = env!("CARGO_BIN_EXE_gmon");
    let line =
        format!("stty cols {columns} rows {rows}; {setting} TERM=xterm '{gmon}' {command} --color never");
    let mut script = Command::new("script");
    script.args(["-qec", &line, "/dev/null"]).current_dir(&folder.0).stdin(Stdio::null());
    let output = script.output().expect("script runs");
    let text = String::from_utf8_lossy(&output.stdout).replace('\r', "");
    assert!(output.status.success(), "{command}: {text}");
    text
}

/// Returns the first line of the table, which has its headings.
fn headings(text: &str) -> &str {
    text.split_once("\n\n").and_then(|(_, table)| table.lines().next()).expect("a table")
}

#[test]
fn lines_are_as_wide_as_the_terminal() {
    if !have("script") {
        return skipped("terminal::lines_are_as_wide_as_the_terminal", "no script");
    }
    let folder = Folder::new("terminal-width");
    let mut run = example(true);
    run.functions[2].name = "_ZN9synthetic20a_rather_long_one_ofE".to_owned() + &"i".repeat(40);
    run.functions[3].name = format!("{}_the_end", "name_".repeat(60));
    folder.write("gmon.pb.gz", &run.write());
    for command in [
        "flat",
        "flat --by module",
        "flat --by thread --raw",
        "flat --by program",
        "flat --by process",
        "graph",
        "paths",
    ] {
        for columns in [40, 60, 80, 120, 200] {
            let shown = on_terminal(&folder, (columns, 100), "PAGER=cat", command);
            let widest = shown.lines().map(|line| line.chars().count()).max();
            assert!(widest <= Some(columns as usize), "{command}: {columns}\n{shown}");
            assert!(shown.contains("total") || ["graph", "paths"].contains(&command), "{command}: {shown}");
            if matches!(command, "flat" | "graph" | "paths") {
                assert!(
                    shown.contains("_the_end") && shown.contains("parse"),
                    "{command}: {columns}\n{shown}"
                );
            }
        }
    }
    let flat = |columns| on_terminal(&folder, (columns, 100), "PAGER=cat", "flat");
    assert_eq!(headings(&flat(40)).split_whitespace().collect::<Vec<_>>(), ["self", "calls", "function"]);
    // The column by which rows are sorted stays, and counts become short if that keeps a column.
    let sorted = |columns, by: &str| {
        let shown = on_terminal(&folder, (columns, 100), "PAGER=cat", &format!("flat --sort {by}"));
        headings(&shown).split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    for by in ["self", "inclusive", "mean", "max", "p99", "cpu", "primitive"] {
        assert!(sorted(40, by).iter().any(|heading| heading == by), "{by}: {:?}", sorted(40, by));
        assert!(sorted(60, by).iter().any(|heading| heading == "self"), "{by}: {:?}", sorted(60, by));
    }
    assert!(headings(&flat(80)).contains(" self ") && !headings(&flat(80)).contains(" p50 "));
    assert!(headings(&flat(300)).contains(" p50 ") && headings(&flat(300)).contains(" primitive "));
}

/// A table ends where the screen does, unless the user wants all of it, and says how much is left out.
#[test]
fn rows_fit_on_the_screen() {
    if !have("script") {
        return skipped("terminal::rows_fit_on_the_screen", "no script");
    }
    let folder = Folder::new("terminal-rows");
    folder.write("gmon.pb.gz", &synthetic(300, 600, 0).write());
    let rows = |args: &str| on_terminal(&folder, (120, 20), "PAGER=cat", args).lines().count();
    let shown = on_terminal(&folder, (120, 20), "PAGER=cat", "flat");
    assert!(shown.lines().count() <= 19 && shown.contains(" functions more; -n 0 shows all\n"), "{shown}");
    assert!(rows("flat -n 0") > 300 && rows("flat -n 30") > 30 && rows("flat -n 30") < 45);
    // Of a call graph, there are as many entries as fit, but some even if few do.
    let graph = on_terminal(&folder, (120, 60), "PAGER=cat", "graph");
    assert!(graph.lines().count() <= 59 && graph.contains(" entries more; -n 0 shows all\n"), "{graph}");
    assert!(rows("graph") >= 5 * 3 && rows("graph -n 0") > 900 && rows("graph -f '*'") > 900);
    // A pager gets the whole text, and less is asked to leave what fits.
    let paged = on_terminal(&folder, (120, 20), "GMON_PAGER='sed s/^/page:/' PAGER=false", "flat -n 0");
    assert!(paged.lines().count() > 300 && paged.lines().all(|line| line.starts_with("page:")), "{paged}");
    let plain = on_terminal(&folder, (120, 20), "GMON_PAGER= PAGER=false", "flat");
    assert_eq!(plain, shown);
}
