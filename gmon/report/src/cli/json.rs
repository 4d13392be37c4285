//! `gmon check --records --json`: prints one object, one record at a time, so that it may be large.

use std::io::{self, Write};

use gmon::{BlockForm, BuildId, Endian, Place, Program, Reading};
use serde_json::{Value, json};

/// Returns the function's name, or `null` without a program or if gprof finds none.
fn name(program: Option<&Program>, address: u64) -> Value {
    match program.map(|program| program.place(address)) {
        None | Some(Place::Nowhere) => Value::Null,
        Some(Place::In(function) | Place::Behind(function)) => json!(function.name),
    }
}

/// Writes the object. Addresses, counts and hits are numbers of up to 64 bits.
///
/// # Errors
/// `out` cannot be written to.
pub(crate) fn write(out: &mut impl Write, reading: &Reading, program: Option<&Program>) -> io::Result<()> {
    let profile = &reading.profile;
    let (endian, width) = (profile.format.endian, 8 * profile.format.width.bytes());
    let endian = if endian == Endian::Little { "little" } else { "big" };
    let blocks = if reading.block_form == BlockForm::Glibc { "glibc" } else { "gprof" };
    write!(
        out,
        "{{\"schema\":\"gmon-records\",\"version\":1,\"build_id\":{},\"endian\":\"{endian}\",\"width\":{width},\"ambiguous_width\":{},\"block_form\":\"{blocks}\",\
         \"records\":{}",
        build_id(profile.build_id),
        reading.ambiguous_width,
        reading.records,
    )?;
    array(out, "histograms", &profile.histograms, |histogram| {
        let bins = histogram.bins.iter().enumerate().filter(|&(_, &hits)| hits > 0);
        let bins = bins.map(|(index, hits)| {
            let address = histogram.bin_address(index);
            json!({"address": address, "function": name(program, address), "hits": hits})
        });
        json!({
            "low": histogram.low,
            "high": histogram.high,
            "bins": histogram.bins.len(),
            "rate": histogram.rate,
            "dimension": text(&histogram.unit.dimension),
            "abbrev": text(&[histogram.unit.abbrev]),
            "hits": bins.collect::<Vec<_>>(),
        })
    })?;
    array(out, "arcs", &profile.arcs, |arc| {
        json!({
            "from": arc.from,
            "to": arc.to,
            "count": arc.count,
            "caller": name(program, arc.from),
            "function": name(program, arc.to),
        })
    })?;
    array(
        out,
        "blocks",
        &profile.blocks,
        |block| json!({"address": block.addr, "count": block.count, "function": name(program, block.addr)}),
    )?;
    writeln!(out, "}}")
}

/// Returns the build-id's first bytes in hexadecimal, or `null` if the file has none.
pub(crate) fn build_id(id: BuildId) -> Value {
    if id.is_known() { json!(id.to_string()) } else { Value::Null }
}

/// Returns the text up to the first zero byte. Bytes that are not UTF-8 are replaced.
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.split(|&byte| byte == 0).next().unwrap_or_default()).into_owned()
}

/// Writes `,"key":[...]`, with one item on a line.
pub(crate) fn array<T>(
    out: &mut impl Write,
    key: &str,
    items: &[T],
    value: impl Fn(&T) -> Value,
) -> io::Result<()> {
    write!(out, ",\n\"{key}\":[")?;
    for (index, item) in items.iter().enumerate() {
        write!(out, "{}{}", if index == 0 { "\n" } else { ",\n" }, value(item))?;
    }
    write!(out, "]")
}
