//! The samples of CPU time by source line.

/// The samples of CPU time of a line of a function, as far as its interpreter knows lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineSamples {
    /// The index of the program.
    pub program: u32,
    /// The index of the function.
    pub function: u32,
    /// The number of the line in the function's file, from 1 on.
    pub line: u32,
    /// The samples in the function itself while it executed the line.
    pub own: u64,
    /// The samples with the line anywhere on their stacks: in the function itself, and in what it has called there. A sample counts once also if a
    /// recursive function executes the line several times.
    pub inclusive: u64,
    /// Those of the inclusive ones that another function further in has as well, on the same line of the same file: a line's samples are the
    /// sum of `inclusive - nested` of its functions.
    pub nested: u64,
}

impl LineSamples {
    /// Adds the samples of the same line.
    pub(crate) fn add(&mut self, other: &LineSamples) {
        self.own = self.own.saturating_add(other.own);
        self.inclusive = self.inclusive.saturating_add(other.inclusive);
        self.nested = self.nested.saturating_add(other.nested);
    }
}
