//! The HTML report: one file that a browser shows without a network.
//!
//! A [`Run`], and what goes with it ([`Extras`]), enter; a page leaves. `data` says what the page's script gets, which the other
//! modules here compute; the files `html/*.js`, `html/style.css` and `html/page.html` are the page itself, and `html/main.js` is
//! where its script begins.
//!
//! Names, paths and source lines are hostile: another user may have chosen them. They are in the file as Base64 of compressed
//! JSON only, and the script adds texts to the page as text. The page's content security policy forbids all requests, and all
//! scripts and styles but the page's own, which it names by their hashes.

mod data;
mod difference;
mod extras;
mod facts;
mod listings;
mod page;
mod paths;
mod reader;
mod shorter;
mod sources;
mod timeline;
mod values;

use std::io::{self, Write};

pub use crate::html::difference::write_difference;
pub use crate::html::extras::{Extras, Instruction, Listing, SourceLines, SourceReader};
pub use crate::html::listings::{Of, listings, listings_of};
pub use crate::html::reader::with_extras;
pub use crate::html::timeline::{Collector, Span, Timeline};
use crate::model::Run;

/// The parts of the script: each uses only those before it, until the last one starts them.
const SCRIPT: [&str; 17] = [
    include_str!("html/format.js"),
    include_str!("html/base.js"),
    include_str!("html/data.js"),
    include_str!("html/rows.js"),
    include_str!("html/icicle.js"),
    include_str!("html/ui.js"),
    include_str!("html/virtual.js"),
    include_str!("html/functions.js"),
    include_str!("html/graph.js"),
    include_str!("html/flame.js"),
    include_str!("html/paths.js"),
    include_str!("html/code.js"),
    include_str!("html/timeline.js"),
    include_str!("html/summary.js"),
    include_str!("html/values.js"),
    include_str!("html/theme.js"),
    include_str!("html/main.js"),
];

/// Writes the report.
///
/// # Errors
/// `out` cannot be written to.
pub fn write(run: &Run, extras: &mut Extras, out: &mut dyn Write) -> io::Result<()> {
    page::write(&run.program, &data::Data::new(run, extras), &SCRIPT, out)
}

#[cfg(test)]
mod tests;
