//! What is wrong with the command line, in one line, and a tip in another.

use clap::error::ErrorKind;
use gprofinject_usage::Mistake;

/// Returns the lines to print for what clap says of a mistake.
pub(crate) fn lines(error: &clap::Error) -> Vec<String> {
    let mut mistake = Mistake::of(error, "gprofinject");
    match mistake.kind {
        ErrorKind::MissingRequiredArgument if mistake.message.contains("<PROGRAM>") => {
            "no program named".clone_into(&mut mistake.message);
            mistake.tip = Some("gprofinject ./prog profiles ./prog".to_owned());
        }
        // A similar option ends with a quote.
        ErrorKind::UnknownArgument => {
            if let Some(tip) = mistake.tip.as_mut().filter(|tip| tip.ends_with("options")) {
                tip.push_str("; those of the program come after its name");
            }
        }
        _ => {}
    }
    mistake.lines().collect()
}

#[cfg(test)]
mod tests {
    use crate::cli::args::Args;

    fn said(words: &[&str]) -> Vec<String> {
        let error = Args::typed([&["gprofinject"], words].concat()).expect_err("a mistake");
        super::lines(&error)
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
