//! What one module of a run may lack, while others can be shown.

use std::fmt;
use std::path::PathBuf;

use anyhow::{Result, anyhow};
use gprofinject_image::names::similar::similar;

use crate::cli::text::plain;

/// The number of names that a message has.
const NAMED: usize = 3;

/// Why there is nothing to show of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    /// Its file is gone, or was rebuilt. The text is the message.
    Module(String),
    /// It has no line information. `what` says where else there is none.
    Lines { path: PathBuf, what: &'static str },
    /// No function matches the user's patterns.
    Function { path: PathBuf, wanted: Vec<String>, similar: Vec<String> },
    /// No source file matches the user's patterns.
    File { path: PathBuf, wanted: String },
}

impl std::error::Error for Missing {}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Module(text) => write!(f, "{text}"),
            Missing::Lines { path, what } => {
                let path = path.display();
                write!(f, "{path}: no line information{what}; compile with -g, or give --debug-file")
            }
            Missing::Function { path, wanted, similar } => {
                write!(f, "{}: {}", path.display(), no_function(wanted, similar))
            }
            Missing::File { path, wanted } => {
                write!(f, "{}: no source file is called {wanted}", path.display())
            }
        }
    }
}

fn no_function(wanted: &[String], similar: &[String]) -> String {
    let wanted = wanted.join(" or ");
    match similar.is_empty() {
        true => format!("no function is called {wanted}"),
        false => format!("no function is called {wanted}; similar names: {}", similar.join(", ")),
    }
}

/// What the modules of a run lacked.
#[derive(Default)]
pub(crate) struct Lacking {
    all: Vec<Missing>,
}

impl Lacking {
    /// Adds what a module lacks. It is said now if nothing else is going to say it.
    pub(crate) fn add(&mut self, missing: Missing, is_only: bool) {
        if let Missing::Module(text) = &missing
            && !is_only
        {
            eprintln!("gmon: {}", plain(text));
        }
        self.all.push(missing);
    }

    /// Says at the end, when other modules were shown, of which there are no lines.
    pub(crate) fn complain(&self) {
        if let Some(names) = self.without_lines() {
            eprintln!("gmon: not shown, without line information: {}", plain(&names));
        }
    }

    /// Returns the error if nothing was shown of any module.
    ///
    /// # Errors
    /// Always.
    pub(crate) fn fail(self) -> Result<()> {
        if let [only] = self.all.as_slice() {
            return Err(only.clone().into());
        }
        let mut wanted = None;
        let mut near = Vec::new();
        let mut file = None;
        for missing in &self.all {
            match missing {
                Missing::Function { wanted: name, similar, .. } => {
                    wanted = Some(name);
                    near.extend(similar.iter().cloned());
                }
                Missing::File { wanted: name, .. } => file = Some(name),
                Missing::Module(_) | Missing::Lines { .. } => {}
            }
        }
        Err(match (wanted, file, self.without_lines()) {
            (Some(wanted), ..) => anyhow!(no_function(wanted, &similar(wanted, near.into_iter()))),
            (None, Some(file), _) => anyhow!("no source file is called {file}"),
            (None, None, Some(names)) => anyhow!("no line information in {names}; compile with -g"),
            (None, None, None) => anyhow!("none of the modules with counts is there as it was in the run"),
        })
    }

    /// Returns the names of the modules without line information.
    fn without_lines(&self) -> Option<String> {
        let name = |missing: &Missing| match missing {
            Missing::Lines { path, .. } => {
                Some(path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned())
            }
            _ => None,
        };
        let names: Vec<_> = self.all.iter().filter_map(name).collect();
        let more = names.len().saturating_sub(NAMED);
        match more {
            _ if names.is_empty() => None,
            0 => Some(names.join(", ")),
            more => Some(format!("{} and {more} more", names[..NAMED].join(", "))),
        }
    }
}
