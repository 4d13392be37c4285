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
mod extras;
mod facts;
mod listings;
mod paths;
mod shorter;
mod sources;
mod timeline;

use std::io::{self, Write};

use base64::prelude::{BASE64_STANDARD, Engine};
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

pub use crate::html::extras::{Extras, Instruction, Listing, SourceLines, SourceReader};
pub use crate::html::listings::{Of, listings, listings_of};
pub use crate::html::timeline::{Collector, Span, Timeline};
use crate::model::Run;

/// The page without its contents, which stand at names in double braces.
const PAGE: &str = include_str!("html/page.html");
const STYLE: &str = include_str!("html/style.css");
/// The parts of the script: each uses only those before it, until the last one starts them.
const SCRIPT: [&str; 14] = [
    include_str!("html/format.js"),
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
    include_str!("html/main.js"),
];

/// Writes the report.
///
/// # Errors
/// `out` cannot be written to.
pub fn write(run: &Run, extras: &mut Extras, out: &mut dyn Write) -> io::Result<()> {
    let packed = pack(&data::Data::new(run, extras))?;
    let script = format!("\"use strict\";\n{}", SCRIPT.join("\n"));
    let policy = policy(&script, STYLE);
    let mut rest = PAGE;
    while let Some((before, after)) = rest.split_once("{{") {
        out.write_all(before.as_bytes())?;
        let (name, after) = after.split_once("}}").unwrap_or((after, ""));
        match name {
            "policy" => out.write_all(policy.as_bytes())?,
            "title" => out.write_all(escaped(&run.program).as_bytes())?,
            "style" => out.write_all(STYLE.as_bytes())?,
            "data" => out.write_all(packed.as_bytes())?,
            _ => out.write_all(script.as_bytes())?,
        }
        rest = after;
    }
    out.write_all(rest.as_bytes())
}

/// Returns the data as the page contains them: JSON, compressed with gzip, in Base64.
fn pack(data: &data::Data) -> io::Result<String> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    serde_json::to_writer(io::BufWriter::with_capacity(1 << 16, &mut packed), data)?;
    Ok(BASE64_STANDARD.encode(packed.finish()?))
}

/// Returns the policy that lets the page run its own script and style, and nothing else.
fn policy(script: &str, style: &str) -> String {
    let hash = |text: &str| format!("'sha256-{}'", BASE64_STANDARD.encode(Sha256::digest(text)));
    format!(
        "default-src 'none'; script-src {}; style-src {}; img-src data:; base-uri 'none'; form-action 'none'",
        hash(script),
        hash(style),
    )
}

/// Returns a text for use as the text of an element.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests;
