//! A man page with everything that `--help` says, of the command and of its subcommands.

use std::io::{self, Write};

use clap::Command;
use clap_mangen::Man;

/// Writes the page of a command.
pub(crate) fn write(mut command: Command, out: &mut dyn Write) -> io::Result<()> {
    // Help and version are among the options from here on.
    command.build();
    let name = command.get_name().to_owned();
    let version = command.get_version().unwrap_or_default();
    let man = Man::new(command.clone())
        .title(name.to_uppercase())
        .section("1")
        .source(format!("{name} {version}"))
        .manual("User Commands");
    man.render_title(out)?;
    man.render_name_section(out)?;
    writeln!(out, ".SH SYNOPSIS")?;
    usage(&mut command, out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    let subcommands: Vec<Command> = command
        .get_subcommands()
        .filter(|sub| sub.get_name() != "help" && !sub.is_hide_set())
        .cloned()
        .collect();
    if !subcommands.is_empty() {
        writeln!(out, ".SH COMMANDS")?;
    }
    for mut subcommand in subcommands {
        writeln!(out, ".SS {name} {}", subcommand.get_name())?;
        if let Some(about) = subcommand.get_long_about().or(subcommand.get_about()) {
            writeln!(out, "{}", escaped(&about.to_string()))?;
        }
        usage(&mut subcommand, out)?;
        let mut options = Vec::new();
        Man::new(subcommand.clone()).render_options_section(&mut options)?;
        // The heading is that of the subcommand.
        let options = String::from_utf8_lossy(&options);
        write!(out, "{}", options.replace(".SH OPTIONS\n", ""))?;
        for (title, text) in sections(&subcommand) {
            writeln!(out, ".PP\n{}:", escaped(&title))?;
            literal(&text, out)?;
        }
    }
    for (title, text) in sections(&command) {
        writeln!(out, ".SH {}", escaped(&title.to_uppercase()))?;
        if text.starts_with(' ') { literal(&text, out)? } else { writeln!(out, "{}", escaped(&text))? }
    }
    Ok(())
}

/// Writes how a command is called.
fn usage(command: &mut Command, out: &mut dyn Write) -> io::Result<()> {
    const HEAD: &str = "Usage: ";
    let usage = command.render_usage().to_string();
    // Further lines are indented by the length of the first word.
    let lines = usage.trim_start_matches(HEAD).replace(&format!("\n{:len$}", "", len = HEAD.len()), "\n");
    literal(&lines, out)
}

/// Writes lines that stay as they are.
fn literal(text: &str, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, ".PP\n.nf")?;
    let indent = text.lines().filter(|line| !line.is_empty()).map(indent).min().unwrap_or(0);
    for line in text.lines() {
        writeln!(out, "{}", escaped(line.get(indent..).unwrap_or(line.trim_start())))?;
    }
    writeln!(out, ".fi")
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Returns the sections of the text after a command's long help, each with its title: paragraphs that begin with a title
/// and a colon.
fn sections(command: &Command) -> Vec<(String, String)> {
    let text = command.get_after_long_help().or(command.get_after_help());
    let text = text.map(ToString::to_string).unwrap_or_default();
    let section = |part: &str| {
        // A title alone on its line, or the first words of a paragraph.
        let titled = part.split_once(":\n").filter(|(title, _)| !title.contains('\n'));
        let (title, text) = titled.or_else(|| part.split_once(": ")).unwrap_or(("Notes", part));
        (title.to_owned(), text.trim_end().to_owned())
    };
    text.split("\n\n").filter(|part| !part.trim().is_empty()).map(section).collect()
}

/// Returns a text as troff prints it.
fn escaped(text: &str) -> String {
    let line = |line: &str| {
        let line = line.replace('\\', "\\e").replace('-', "\\-");
        // A line that begins with one of these is a request.
        if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    #[test]
    fn a_page_has_everything() {
        let sub = Command::new("sub")
            .about("Does a part.")
            .arg(Arg::new("deep").long("deep-option").help("Digs"))
            .after_long_help("Examples:\n  tool sub --deep-option x | sort\n");
        let command = Command::new("tool")
            .version("1.2")
            .about("Does it.")
            .arg(Arg::new("level").short('l').long("level").help("How much"))
            .subcommand(sub)
            .after_long_help("Examples:\n  tool -l 3\n  .\\x\n\nExit status: 0, or 'x'.");
        let mut page = Vec::new();
        write(command, &mut page).expect("memory");
        let page = String::from_utf8(page).expect("UTF-8");
        for text in [
            ".TH TOOL 1",
            "tool \\- Does it.",
            "\\-\\-level",
            "How much",
            "\\-\\-help",
            ".SS tool sub\nDoes a part.",
            "\\-\\-deep\\-option",
            ".nf\ntool sub \\-\\-deep\\-option x | sort\n.fi",
            ".SH EXAMPLES\n.PP\n.nf\ntool \\-l 3\n\\&.\\ex\n.fi",
            ".SH EXIT STATUS\n0, or 'x'.",
        ] {
            assert!(page.contains(text), "no {text:?}: {page}");
        }
        assert_eq!(page.matches(".SH OPTIONS").count(), 1);
    }
}
