//! docs/reference.md is made of what both commands say of their options: the help, which clap prints by their definitions.
//!
//! `GPROFINJECT_WRITE_REFERENCE=1 cargo test --release -p gprofinject-tests --test system reference::` writes it anew.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;

use gprofinject_tests::tool;

gprofinject_tests::trials! {
    together:
        the_reference_is_that_of_the_commands,
        help_becomes_a_list;
}

/// The beginning of the page.
const HEAD: &str = "\
# Options

All options of `gprofinject` and `gmon`, as their help has them. A test makes this page of the commands (`tests/tests/system/reference.rs`),
so change the definitions of the options and not this page. The [guide](guide.md) says which of them a task needs; links lead to the pages
that explain them.

";

/// The pages that explain an option of gprofinject.
const EXPLAINED: [(&str, &str); 38] = [
    ("--output", "output.md"),
    ("--hooks", "program.md#who-is-the-caller"),
    ("--rate", "samples.md"),
    ("--sampler", "samples.md"),
    ("--engine", "frida.md"),
    ("--libs", "libraries.md"),
    ("--count", "blocks.md"),
    ("--values", "values.md"),
    ("--times", "times.md"),
    ("--paths", "times.md"),
    ("--min-time", "times.md#short-calls"),
    ("--trace", "trace.md"),
    ("--trace-depth", "trace.md"),
    ("--trace-min-time", "trace.md"),
    ("--trace-size", "trace.md"),
    ("--trace-trigger", "trace.md"),
    ("--trace-full", "trace.md"),
    ("--args", "trace.md#arguments-and-results"),
    ("--slow", "slow.md"),
    ("--slow-top", "slow.md"),
    ("--slow-above", "slow.md"),
    ("--clock", "instructions.md"),
    ("--no-follow", "program.md#children-and-executed-programs"),
    ("--python", "samples.md#python"),
    ("--per-process", "program.md#children-and-executed-programs"),
    ("--ranks", "fleets.md"),
    ("--no-cache", "program.md#kept-plans"),
    ("--list", "output.md#--list"),
    ("--recover", "attach.md#a-gprofinject-that-was-killed"),
    ("--pid", "attach.md"),
    ("--disable", "attach.md#functions-switched-off-and-on"),
    ("--enable", "attach.md#functions-switched-off-and-on"),
    ("--top", "reports.md#the-live-view"),
    ("--plain", "reports.md#the-live-view"),
    ("--stats", "output.md#--stats"),
    ("--export", "reports.md#exports"),
    ("--open", "reports.md#the-report-for-a-browser"),
    ("--generate", "install.md"),
];

/// An option or an argument, as the help describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Described {
    /// `-o, --output <FILE>`
    form: String,
    /// What it does, its values and its default.
    text: String,
}

impl Described {
    /// Returns the long name, `--output`, or the form of an argument.
    fn name(&self) -> &str {
        let long = self.form.find("--").map_or(self.form.as_str(), |at| &self.form[at..]);
        long.split([' ', '=', '[', '.']).next().filter(|name| !name.is_empty()).unwrap_or(&self.form)
    }
}

/// The help of a command.
#[derive(Debug, Default)]
struct Help {
    about: String,
    usage: Vec<String>,
    options: Vec<Described>,
}

impl Help {
    fn read(text: &str) -> Help {
        let mut help = Help::default();
        let mut section = "";
        let mut about = Vec::new();
        for line in text.lines() {
            let is_title = !line.starts_with(' ') && line.ends_with(':');
            if let Some(usage) = line.strip_prefix("Usage: ") {
                section = "Usage:";
                help.usage.push(usage.to_owned());
            } else if is_title {
                section = line;
            } else {
                match section {
                    "" => about.push(line),
                    "Usage:" if !line.is_empty() => help.usage.push(line.trim().to_owned()),
                    "Arguments:" | "Options:" => help.add(line),
                    _ => {}
                }
            }
        }
        help.about = about.join("\n").trim().to_owned();
        for option in &mut help.options {
            option.text = prose(&option.text);
        }
        help
    }

    /// Adds a line of the list of options.
    fn add(&mut self, line: &str) {
        let indent = line.len() - line.trim_start().len();
        if (2..10).contains(&indent) && line.trim_start().starts_with(['-', '[', '<']) {
            self.options.push(Described { form: line.trim().to_owned(), text: String::new() });
        } else if let Some(option) = self.options.last_mut() {
            option.text += line.trim();
            option.text.push('\n');
        }
    }
}

/// Returns what a help says of an option in one line, with the values behind the sentence.
fn prose(text: &str) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut is_open = false;
    for line in text.lines() {
        let is_note = line.starts_with("[default: ") || line.starts_with("[possible values: ");
        if let Some(value) = line.strip_prefix("- ") {
            let (name, meaning) = value.split_once(':').map_or((value, ""), |(name, text)| (name, text.trim()));
            parts.push(if meaning.is_empty() { format!("`{name}`") } else { format!("`{name}`: {meaning}") });
            is_open = true;
        } else if line.is_empty() || line == "Possible values:" || !is_open || is_note {
            is_open = !line.is_empty() && line != "Possible values:";
            parts.extend(is_open.then(|| line.to_owned()));
        } else if let Some(part) = parts.last_mut() {
            part.push(' ');
            part.push_str(line);
        }
    }
    let mut values = Vec::new();
    let mut said = String::new();
    for part in parts {
        if let Some(listed) = part.strip_prefix("[possible values: ") {
            values.extend(listed.trim_end_matches(']').split(", ").map(|value| format!("`{value}`")));
        } else if part.starts_with('`') {
            values.push(part);
        } else {
            said += if said.is_empty() { "" } else { " " };
            said += &escaped(&part);
        }
    }
    if !values.is_empty() {
        said += &format!(" ({})", values.join("; "));
    }
    said
}

/// Returns a text as Markdown shows it. What stands between backticks is code already.
fn escaped(text: &str) -> String {
    let parts = text.split('`').enumerate().map(|(number, part)| match number % 2 {
        0 => part.replace('*', "\\*").replace('<', "&lt;"),
        _ => part.to_owned(),
    });
    parts.collect::<Vec<_>>().join("`")
}

fn help(command: &Path, subcommand: Option<&str>) -> Help {
    let mut command = Command::new(command);
    let output = command.args(subcommand).arg("--help").env_remove("COLUMNS").output().unwrap();
    assert!(output.status.success());
    Help::read(&String::from_utf8(output.stdout).unwrap())
}

/// Returns the names of gmon's subcommands.
fn subcommands(gmon: &Path) -> Vec<String> {
    let output = Command::new(gmon).arg("--help").output().unwrap();
    let help = String::from_utf8(output.stdout).unwrap();
    let (_, list) = help.split_once("\nCommands:\n").unwrap();
    let names = list.lines().take_while(|line| !line.is_empty());
    let names = names.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next());
    names.filter(|name| *name != "help").map(str::to_owned).collect()
}

fn write_usage(page: &mut String, usage: &[String]) {
    for line in usage {
        writeln!(page, "    {line}").unwrap();
    }
    page.push('\n');
}

fn write_list(page: &mut String, options: &[Described], explained: &[(&str, &str)]) {
    for option in options {
        let see = explained.iter().find(|(name, _)| *name == option.name());
        let form = see.map_or_else(|| format!("`{}`", option.form), |(_, page)| format!("[`{}`]({page})", option.form));
        writeln!(page, "- {form}: {}", option.text).unwrap();
    }
    page.push('\n');
}

/// Returns the page.
fn reference() -> String {
    let mut page = HEAD.to_owned();
    let is_own = |option: &Described| !["--help", "--version"].contains(&option.name());
    let gprofinject = help(tool::gprofinject().unwrap(), None);
    writeln!(page, "## gprofinject\n").unwrap();
    write_usage(&mut page, &gprofinject.usage);
    let options: Vec<Described> = gprofinject.options.into_iter().filter(is_own).collect();
    for (name, _) in EXPLAINED {
        assert!(options.iter().any(|option| option.name() == name), "there is no {name}");
    }
    write_list(&mut page, &options, &EXPLAINED);
    let gmon = tool::gmon().unwrap();
    let names = subcommands(&gmon);
    let helps: Vec<Help> = names.iter().map(|name| help(&gmon, Some(name))).collect();
    // An option that several commands have, with the same words, is described once.
    let mut users: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for option in helps.iter().flat_map(|help| &help.options) {
        *users.entry((&option.form, &option.text)).or_default() += 1;
    }
    let is_shared = |option: &Described| users[&(option.form.as_str(), option.text.as_str())] > 1;
    writeln!(page, "## gmon\n").unwrap();
    write_usage(&mut page, &help(&gmon, None).usage);
    writeln!(page, "Options that several commands have, each with the same meaning:\n").unwrap();
    let mut shared: Vec<Described> = Vec::new();
    for option in helps.iter().flat_map(|help| &help.options).filter(|option| is_shared(option) && is_own(option)) {
        if !shared.contains(option) {
            shared.push(option.clone());
        }
    }
    shared.sort_by_key(|option| option.name().to_owned());
    write_list(&mut page, &shared, &[]);
    for (name, help) in names.iter().zip(&helps) {
        writeln!(page, "### gmon {name}\n").unwrap();
        writeln!(page, "{}.\n", escaped(&help.about.replace('\n', " ")).trim_end_matches('.')).unwrap();
        write_usage(&mut page, &help.usage);
        let own = help.options.iter().filter(|option| is_own(option));
        let (shared, own): (Vec<&Described>, Vec<&Described>) = own.partition(|option| is_shared(option));
        if !own.is_empty() {
            write_list(&mut page, &own.into_iter().cloned().collect::<Vec<_>>(), &[]);
        }
        let shared: Vec<String> = shared.iter().map(|option| format!("`{}`", option.name())).collect();
        if !shared.is_empty() {
            writeln!(page, "Shared: {}.\n", shared.join(", ")).unwrap();
        }
    }
    page.truncate(page.trim_end().len());
    page.push('\n');
    page
}

fn the_reference_is_that_of_the_commands() {
    let found = reference();
    let path = tool::folder().join("../docs/reference.md");
    if std::env::var_os("GPROFINJECT_WRITE_REFERENCE").is_some() {
        fs::write(&path, &found).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    for (line, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(line, expected, "GPROFINJECT_WRITE_REFERENCE=1 writes docs/reference.md anew");
    }
    assert_eq!(found.lines().count(), expected.lines().count());
}

fn help_becomes_a_list() {
    let text = "\
Does it

Usage: tool [OPTIONS]
       tool --all

Options:
  -o, --output <FILE>
          Where to write a*b,
          or what | means [default: x]

      --full <WHAT>
          What happens

          Possible values:
          - wait: The thread
            waits
          - drop
          
          [default: wait]

      --kind <A|B>
          Which one
          
          [possible values: a, b]

Examples:
  tool -o x
";
    let help = Help::read(text);
    assert_eq!((help.about.as_str(), help.usage.len()), ("Does it", 2));
    let found: Vec<(&str, &str)> = help.options.iter().map(|o| (o.name(), o.text.as_str())).collect();
    let expected = [
        ("--output", "Where to write a\\*b, or what | means [default: x]"),
        ("--full", "What happens [default: wait] (`wait`: The thread waits; `drop`)"),
        ("--kind", "Which one (`a`; `b`)"),
    ];
    assert_eq!(found, expected);
}
