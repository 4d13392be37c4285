//! Whether the samples of lines can be those of a run.

use crate::check::Invalid;
use crate::lines::LineSamples;

impl LineSamples {
    /// Checks what has this index, in a recording with so many programs and functions.
    ///
    /// # Errors
    /// An index leads nowhere, or the numbers contradict each other.
    pub(crate) fn check(&self, index: usize, programs: usize, functions: usize) -> Result<(), Invalid> {
        let within = |field, value, limit| Invalid::unless_within(("line", index), field, value, limit);
        within("program", self.program, programs)?;
        within("function", self.function, functions)?;
        let is_valid = self.line > 0 && self.own <= self.inclusive && self.nested <= self.inclusive;
        is_valid.then_some(()).ok_or(Invalid::Line { index })
    }
}
