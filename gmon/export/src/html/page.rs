//! The file around a page's data and script.

use std::io::{self, Write};

use base64::prelude::{BASE64_STANDARD, Engine};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::markup::escaped;

/// The page without its contents, which stand at names in double braces.
pub(crate) const PAGE: &str = include_str!("page.html");
pub(crate) const STYLE: &str = include_str!("style.css");
/// Writes a page. The parts of the script use only those before them.
///
/// # Errors
/// `out` cannot be written to.
pub(crate) fn write(
    title: &str,
    data: &impl Serialize,
    script: &[&str],
    out: &mut dyn Write,
) -> io::Result<()> {
    let packed = pack(data)?;
    let script = format!("\"use strict\";\n{}", script.join("\n"));
    let policy = policy(&script, STYLE);
    let mut rest = PAGE;
    while let Some((before, after)) = rest.split_once("{{") {
        out.write_all(before.as_bytes())?;
        let (name, after) = after.split_once("}}").unwrap_or((after, ""));
        match name {
            "policy" => out.write_all(policy.as_bytes())?,
            "title" => out.write_all(escaped(title).as_bytes())?,
            "style" => out.write_all(STYLE.as_bytes())?,
            "data" => out.write_all(packed.as_bytes())?,
            _ => out.write_all(script.as_bytes())?,
        }
        rest = after;
    }
    out.write_all(rest.as_bytes())
}

/// Returns the data as the page contains them: JSON, compressed with gzip, in Base64.
fn pack(data: &impl Serialize) -> io::Result<String> {
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
