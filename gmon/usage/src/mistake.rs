//! What is wrong with a command line, in one line, and a tip in another.

use clap::error::ErrorKind;

/// A mistake on the command line, for a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    pub kind: ErrorKind,
    /// What is wrong.
    pub message: String,
    /// What helps; `None` if the message says it.
    pub tip: Option<String>,
}

impl Mistake {
    /// Returns what clap says of a mistake. `command` are the words of the command whose `--help` shows all options.
    ///
    /// clap's text is a message in one line or several, tips, the usage and where to find the help. The usage has a line for each form
    /// of the command, among which few people find what they need; if it has one only, that is the tip where arguments are missing.
    pub fn of(error: &clap::Error, command: &str) -> Mistake {
        let rendered = error.render().to_string();
        let text = rendered.strip_prefix("error: ").unwrap_or(&rendered);
        let mut message: Vec<&str> = Vec::new();
        let mut tips: Vec<&str> = Vec::new();
        let mut lines = text.lines().map(str::trim).peekable();
        let mut usage = None;
        while let Some(line) = lines.next() {
            if let Some(form) = line.strip_prefix("Usage: ") {
                usage = Some(form).filter(|_| lines.peek().is_none_or(|next| next.is_empty()));
                break;
            }
            if line.starts_with("For more information") {
                break;
            }
            match line.strip_prefix("tip: ") {
                // A word that begins like an option is hardly ever meant to be another argument.
                Some(tip) if tip.starts_with("to pass ") => {}
                Some(tip) => tips.push(tip),
                None if line.is_empty() || !tips.is_empty() => {}
                None => message.push(line),
            }
        }
        let mut message = message.join(" ");
        let help = format!("{command} --help shows all options");
        let tip = match (tips.first(), error.kind()) {
            // What is similar to a single letter is chance.
            (_, ErrorKind::UnknownArgument) if is_letter_with_two_dashes(&message) => {
                Some(format!("options of one letter have one dash; {help}"))
            }
            (Some(tip), _) => Some((*tip).to_owned()),
            (None, ErrorKind::MissingRequiredArgument) => {
                if let Some((_, missing)) = message.split_once("not provided: ") {
                    message = format!("missing: {missing}");
                }
                Some(usage.map_or(help, str::to_owned))
            }
            (None, ErrorKind::TooFewValues | ErrorKind::WrongNumberOfValues) if usage.is_some() => {
                usage.map(str::to_owned)
            }
            (None, ErrorKind::InvalidSubcommand) => Some(format!("{command} --help lists the commands")),
            (None, ErrorKind::UnknownArgument) => Some(help),
            // What has a remedy names it.
            (None, _) if message.contains(": ") || message.contains('[') => None,
            (None, _) => Some(help),
        };
        Mistake { kind: error.kind(), message, tip }
    }

    /// Returns the lines to print.
    pub fn lines(self) -> impl Iterator<Item = String> {
        std::iter::once(self.message).chain(self.tip.map(|tip| format!("tip: {tip}")))
    }
}

/// Returns whether a message is about an option like `--n`.
fn is_letter_with_two_dashes(message: &str) -> bool {
    let option = message.split('\'').nth(1).and_then(|quoted| quoted.strip_prefix("--"));
    option.is_some_and(|letters| letters.chars().count() == 1)
}
