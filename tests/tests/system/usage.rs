//! What both commands say of themselves: help with examples, man pages, completions.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gprofinject_skip as skip;
use gprofinject_tests::place::Place;
use gprofinject_tests::tool;

gprofinject_tests::trials! {
    together:
        each_option_is_in_the_man_page,
        man_pages_are_well_formed,
        examples_name_options_that_exist,
        bash_completes,
        zsh_and_fish_read_their_completions,
        nothing_is_coloured_that_is_read_by_a_program;
}

/// The commands, by name.
fn commands() -> [(&'static str, PathBuf); 2] {
    [("gprofinject", tool::gprofinject().unwrap().to_owned()), ("gmon", tool::gmon().unwrap())]
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn said(command: &Path, args: &[&str]) -> String {
    text(&Command::new(command).args(args).output().unwrap())
}

/// Returns the names of gmon's subcommands, as its help lists them.
fn subcommands(command: &Path) -> Vec<String> {
    let help = said(command, &["--help"]);
    let Some((_, list)) = help.split_once("\nCommands:\n") else { return Vec::new() };
    let names = list.lines().take_while(|line| !line.is_empty());
    let names = names.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: Vec<String> = names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect();
    names.into_iter().filter(|name| name != "help").collect()
}

/// Returns the help of a command, and of its subcommands with their names.
fn helps(command: &Path) -> Vec<(String, String)> {
    let mut helps = vec![(String::new(), said(command, &["--help"]))];
    for name in subcommands(command) {
        let help = said(command, &[&name, "--help"]);
        helps.push((name, help));
    }
    helps
}

/// Returns the long options that a help describes.
fn options(help: &str) -> BTreeSet<String> {
    let described = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let words = described.flat_map(|line| line.split([' ', ',', '=', '.']));
    let names = words.filter(|word| word.starts_with("--") && word.len() > 2);
    names.map(|name| name.trim_end_matches(|c: char| !c.is_alphanumeric()).to_owned()).collect()
}

fn each_option_is_in_the_man_page() {
    let mut count = 0;
    for (name, command) in commands() {
        let page = said(&command, &["--generate", "man"]);
        for (subcommand, help) in helps(&command) {
            // The part of the page about this command.
            let begin = match subcommand.as_str() {
                "" => ".SH OPTIONS".to_owned(),
                sub => format!(".SS {name} {sub}\n"),
            };
            let (_, part) = page.split_once(&begin).unwrap_or_else(|| panic!("no {begin:?} in the page of {name}"));
            let part = part.split("\n.SS ").next().unwrap();
            for option in options(&help) {
                count += 1;
                let escaped = option.replace('-', "\\-");
                assert!(part.contains(&escaped), "{name} {subcommand}: {option} is not in its man page");
            }
        }
        assert!(page.contains(".SH EXAMPLES") && page.contains(".SH EXIT STATUS"), "{name}");
    }
    assert!(count > 100, "{count} options of both commands");
}

/// troff's own reader finds nothing to complain about.
fn man_pages_are_well_formed() {
    if !skip::have("mandoc") {
        return skip::skipped("man_pages_are_well_formed", "no mandoc");
    }
    let place = Place::new();
    for (name, command) in commands() {
        let file = place.path(&format!("{name}.1"));
        fs::write(&file, said(&command, &["--generate", "man"])).unwrap();
        let lint = Command::new("mandoc").args(["-T", "lint", "-W", "error"]).arg(&file).output().unwrap();
        assert!(lint.status.success(), "{}", String::from_utf8_lossy(&lint.stdout));
        let shown = text(&Command::new("mandoc").args(["-T", "ascii"]).arg(&file).output().unwrap());
        // Bold letters are written twice.
        let plain: String = shown.split('\u{8}').map(|part| part.strip_suffix(|_| true).unwrap_or(part)).collect();
        assert!(plain.contains("--generate") || shown.contains("generate"), "{shown}");
    }
}

/// Every option that an example names is one of the command's, so that no example is out of date.
fn examples_name_options_that_exist() {
    for (name, command) in commands() {
        for (subcommand, help) in helps(&command) {
            let (_, examples) = help
                .split_once("\nExamples:\n")
                .unwrap_or_else(|| panic!("{name} {subcommand} --help has no examples"));
            let examples = examples.split("\n\n").next().unwrap();
            for line in examples.lines() {
                // A line may contain several commands.
                for part in line.split("&&").flat_map(|part| part.split(['|', '#', '>'])) {
                    check_example(name, part, line);
                }
            }
        }
    }
}

fn check_example(_: &str, part: &str, line: &str) {
    let words: Vec<&str> = part.split_whitespace().collect();
    for (name, command) in commands() {
        let Some(at) = words.iter().position(|word| *word == name) else { continue };
        let subcommand = words.get(at + 1).filter(|_| name == "gmon").filter(|word| !word.starts_with('-'));
        let help = match subcommand {
            Some(sub) => said(&command, &[sub, "--help"]),
            None => said(&command, &["--help"]),
        };
        let known = options(&help);
        for word in words[at..].iter().filter(|word| word.starts_with("--")) {
            let option = word.split('=').next().unwrap();
            assert!(known.contains(option), "{option} in the example {line:?}");
        }
    }
}

fn bash_completes() {
    let place = Place::new();
    for (name, command) in commands() {
        let file = place.path(name);
        fs::write(&file, said(&command, &["--generate", "complete-bash"])).unwrap();
        text(&Command::new("bash").arg("-n").arg(&file).output().unwrap());
        let complete = |words: &[&str]| {
            let last = words.last().unwrap();
            let before = words[words.len() - 2];
            let script = format!(
                "source ./{name} && complete -p {name} >/dev/null && COMP_WORDS=({}) COMP_CWORD={} && \
                 _{name} {name} '{last}' '{before}' && echo \"${{COMPREPLY[*]}}\"",
                words.iter().map(|word| format!("'{word}'")).collect::<Vec<_>>().join(" "),
                words.len() - 1,
            );
            let mut bash = Command::new("bash");
            bash.args(["-c", &script]).current_dir(place.folder.path());
            text(&bash.output().unwrap()).trim().to_owned()
        };
        if name == "gprofinject" {
            assert_eq!(complete(&["gprofinject", "--hook"]), "--hooks");
            assert_eq!(complete(&["gprofinject", "--hooks", ""]), "both entry none");
            assert_eq!(complete(&["gprofinject", "--ranks", "h"]), "host");
            assert_eq!(complete(&["gprofinject", "--ranks", "=", "h"]), "host");
            assert_eq!(complete(&["gprofinject", "--times", "--pat"]), "--paths");
            // What follows the program is its own; bash offers files then.
            for words in [
                &["gprofinject", "./prog", "--pa"][..],
                &["gprofinject", "--hooks", "both", "./prog", "-"],
                &["gprofinject", "--hooks", "=", "both", "./prog", "--hooks", "="],
                &["gprofinject", "--top", "=", "3", "--", "./prog", "--"],
                &["gprofinject", "--", "--pa"],
                &["gprofinject", "-o", "--times", "./prog", "--pa"],
            ] {
                assert_eq!(complete(words), "", "{words:?}");
            }
            assert!(complete(&["gprofinject", "--times", "ech"]).split(' ').any(|word| word == "echo"));
        } else {
            assert_eq!(complete(&["gmon", "mer"]), "merge");
            assert_eq!(complete(&["gmon", "flat", "--sort", "incl"]), "inclusive inclusive-raw");
            assert!(complete(&["gmon", "push", "--"]).contains("--token-file"));
        }
    }
}

fn zsh_and_fish_read_their_completions() {
    let place = Place::new();
    for (shell, check) in [("zsh", &["-n"][..]), ("fish", &["--no-execute"])] {
        if !skip::have(shell) {
            skip::skipped("zsh_and_fish_read_their_completions", &format!("no {shell}"));
            continue;
        }
        for (name, command) in commands() {
            let file = place.path(&format!("{name}.{shell}"));
            fs::write(&file, said(&command, &["--generate", &format!("complete-{shell}")])).unwrap();
            text(&Command::new(shell).args(check).arg(&file).output().unwrap());
        }
    }
    if skip::have("fish") {
        let script = "source gprofinject.fish; complete -C 'gprofinject --hooks '";
        let shown = text(&Command::new("fish").args(["-c", script]).current_dir(place.folder.path()).output().unwrap());
        for value in ["both", "entry", "none"] {
            assert!(shown.lines().any(|line| line.split('\t').next() == Some(value)), "{shown}");
        }
    }
}

/// Nothing that goes to a pipe has colours, whatever the terminal is.
fn nothing_is_coloured_that_is_read_by_a_program() {
    for (_, command) in commands() {
        for args in [&["--help"][..], &["-h"], &["--bogus"]] {
            let output = Command::new(&command).args(args).env("TERM", "xterm-256color").output().unwrap();
            assert!(![output.stdout, output.stderr].concat().contains(&0x1b), "{args:?}");
        }
    }
}
