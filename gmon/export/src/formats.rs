//! A run in the formats of other tools.
//!
//! A [`Run`] enters, and text or bytes leave. Each format has a file of its own, which says where its rules come from.

mod callgrind;
mod dot;
mod firefox;
mod folded;
mod gprof;
mod json;
mod names;
mod pprof;
mod speedscope;
mod svg;

use std::fmt;
use std::io::{self, Write};
use std::str::FromStr;

use crate::html::{self, Extras};
use crate::model::Run;

pub use crate::formats::gprof::{Pair, PairError, pair, rate_of_times};

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// Valgrind's, which KCachegrind, QCachegrind and callgrind_annotate read.
    Callgrind,
    /// Google's `profile.proto`, compressed with gzip, which `go tool pprof`, Pyroscope, Parca and Grafana read.
    Pprof,
    /// Lines `a;b;c NUMBER`, which flame graph tools read.
    Folded,
    /// Speedscope's own.
    Speedscope,
    /// The Firefox Profiler's.
    Firefox,
    /// Graphviz's: the call graph as a picture.
    Dot,
    /// A flame graph as a picture without a script.
    Svg,
    /// A page for a browser, which needs no network. [`crate::html`] can add source and disassembly.
    Html,
    /// The whole of what is known, for programs.
    Json,
}

impl Format {
    /// All formats, with the name of each.
    pub const ALL: [(&'static str, Format); 9] = [
        ("callgrind", Format::Callgrind),
        ("pprof", Format::Pprof),
        ("folded", Format::Folded),
        ("speedscope", Format::Speedscope),
        ("firefox", Format::Firefox),
        ("dot", Format::Dot),
        ("svg", Format::Svg),
        ("html", Format::Html),
        ("json", Format::Json),
    ];

    /// Whether the format consists of stacks, so that without call paths it has no more than callers.
    pub fn has_stacks(self) -> bool {
        match self {
            Format::Pprof | Format::Folded | Format::Speedscope | Format::Firefox => true,
            Format::Callgrind | Format::Dot | Format::Svg | Format::Html | Format::Json => false,
        }
    }

    /// Whether the format is text.
    pub fn is_text(self) -> bool {
        self != Format::Pprof
    }
}

/// The error for a name that is none of [`Format::ALL`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown format {0:?}, expected one of {names}", names = Format::ALL.map(|(name, _)| name).join(", "))]
pub struct UnknownFormat(String);

impl FromStr for Format {
    type Err = UnknownFormat;

    fn from_str(text: &str) -> Result<Format, UnknownFormat> {
        let found = Format::ALL.iter().find(|(name, _)| *name == text);
        found.map(|&(_, format)| format).ok_or_else(|| UnknownFormat(text.to_owned()))
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Format::ALL.iter().find(|(_, format)| format == self).map_or("", |&(name, _)| name);
        f.write_str(name)
    }
}

/// Writes a run in a format.
///
/// # Errors
/// `out` cannot be written to.
pub fn write(run: &Run, format: Format, out: &mut dyn Write) -> io::Result<()> {
    match format {
        Format::Callgrind => callgrind::write(run, out),
        Format::Pprof => pprof::write(run, out),
        Format::Folded => folded::write(run, out),
        Format::Speedscope => speedscope::write(run, out),
        Format::Firefox => firefox::write(run, out),
        Format::Dot => dot::write(run, out),
        Format::Svg => svg::write(run, out),
        Format::Html => html::write(run, &mut Extras::default(), out),
        Format::Json => json::write(run, out),
    }
}
