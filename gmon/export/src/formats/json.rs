//! The model itself as JSON, for programs. Its members are those of [`Run`].

use std::io::{self, Write};

use crate::model::Run;

pub(crate) fn write(run: &Run, out: &mut dyn Write) -> io::Result<()> {
    serde_json::to_writer(gmon::EscapedJson(&mut *out), run)?;
    writeln!(out)
}
