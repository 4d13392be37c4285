//! What is wrong with the command line, in one line, and a tip in another.

/// Where the help is.
const HELP: &str = "gprofinject --help shows all options";

/// Returns the lines to print for what clap says of a mistake. Its text is a message in one line or several, tips, the usage and where to
/// find the help. The usage has a line for each form of the command, among which few people find what they need.
pub(crate) fn lines(rendered: &str) -> Vec<String> {
    let text = rendered.strip_prefix("error: ").unwrap_or(rendered);
    let mut message: Vec<&str> = Vec::new();
    let mut tips: Vec<&str> = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with("Usage:") || line.starts_with("For more information") {
            break;
        }
        match line.strip_prefix("tip: ") {
            // The program's own arguments follow it; before it there is nothing to be passed on.
            Some(tip) if tip.starts_with("to pass ") => {}
            Some(tip) => tips.push(tip),
            None if line.is_empty() || !tips.is_empty() => {}
            None => message.push(line),
        }
    }
    let mut message = message.join(" ");
    if message.contains("required arguments were not provided") && message.contains("<PROGRAM>") {
        "no program named".clone_into(&mut message);
        tips.insert(0, "gprofinject ./prog profiles ./prog");
    }
    let is_unknown = message.starts_with("unexpected argument");
    let tip = match tips.first() {
        Some(tip) => Some((*tip).to_owned()),
        None if is_unknown => Some(format!("{HELP}; those of the program come after its name")),
        // What has a remedy names it.
        None if message.contains(": ") || message.contains('[') => None,
        None => Some(HELP.to_owned()),
    };
    std::iter::once(message).chain(tip.map(|tip| format!("tip: {tip}"))).collect()
}

#[cfg(test)]
mod tests {
    use crate::cli::args::Args;

    fn said(words: &[&str]) -> Vec<String> {
        let error = Args::typed([&["gprofinject"], words].concat()).expect_err("a mistake");
        super::lines(&error.render().to_string())
    }

    #[test]
    fn one_line_and_a_tip() {
        for (words, expected) in [
            (
                &["--trac", "p"][..],
                &["unexpected argument '--trac' found", "tip: a similar argument exists: '--trace'"][..],
            ),
            (
                &["--bogus", "p"],
                &[
                    "unexpected argument '--bogus' found",
                    "tip: gprofinject --help shows all options; those of the program come after its name",
                ],
            ),
            (&[], &["no program named", "tip: gprofinject ./prog profiles ./prog"]),
            (&["-I", "x"], &["no program named", "tip: gprofinject ./prog profiles ./prog"]),
            (
                &["--hooks", "entr", "p"],
                &[
                    "invalid value 'entr' for '--hooks <WHAT>' [possible values: both, entry, none]",
                    "tip: a similar value exists: 'entry'",
                ],
            ),
            (
                &["--top=9999", "p"],
                &["invalid value '9999' for '--top[=<SECONDS>]': name a number of seconds from 0.1 to 3600"],
            ),
            (
                &["--pid", "1", "p"],
                &["--pid PID is for a process that already runs: leave out either it or PROGRAM"],
            ),
        ] {
            assert_eq!(said(words), expected, "{words:?}");
        }
    }

    #[test]
    fn no_mistake_is_answered_by_the_usage() {
        for words in [
            &["-q", "-v", "p"][..],
            &["--min-size", "x", "p"],
            &["--rate", "100001", "p"],
            &["--pid", "1", "--dump", "--reset"],
            &["--generate", "man", "p"],
            &["--export", "dot=f,xls=g", "p"],
            &["--libs"],
            &["--file", "f", "p"],
        ] {
            let said = said(words);
            assert!(matches!(said.len(), 1 | 2), "{said:?}");
            assert!(said.iter().all(|line| !line.contains("Usage") && !line.contains('\n')), "{said:?}");
        }
    }
}
