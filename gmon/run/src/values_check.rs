//! The check of the indexes of values.

use crate::check::Invalid;
use crate::values::Values;

impl Values {
    /// Checks the indexes of the values with this index, in a recording with so many programs, functions and nodes.
    ///
    /// # Errors
    /// One leads nowhere.
    pub(crate) fn check(
        &self,
        index: usize,
        programs: usize,
        functions: usize,
        nodes: usize,
    ) -> Result<(), Invalid> {
        let within = |field, value, limit| Invalid::unless_within(("values", index), field, value, limit);
        within("program", self.program, programs)?;
        within("function", self.function, functions)?;
        within("caller", self.caller.unwrap_or(self.function), functions)?;
        self.node.map_or(Ok(()), |node| within("node", node, nodes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_indexes_are_found() {
        let of = Values { program: 1, function: 1, caller: Some(0), ..Values::default() };
        of.check(0, 2, 2, 0).expect("valid");
        assert!(Values { caller: Some(2), ..of.clone() }.check(0, 2, 2, 0).is_err());
        let with_node = Values { node: Some(1), ..of.clone() };
        assert!(with_node.check(0, 2, 2, 2).is_ok() && with_node.check(0, 2, 2, 1).is_err());
        assert!(of.check(0, 1, 2, 0).is_err() && of.check(0, 2, 1, 0).is_err());
    }
}
