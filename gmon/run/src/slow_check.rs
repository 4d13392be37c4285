//! The rules that the indexes of slow calls obey.

use crate::check::Invalid;
use crate::slow::Slow;

impl Slow {
    /// Checks the indexes. The last two arguments are the lengths of the tables of programs and functions.
    pub(crate) fn check(&self, programs: usize, functions: usize) -> Result<(), Invalid> {
        let within =
            |table, index, field, value, limit| Invalid::unless_within((table, index), field, value, limit);
        let mut root = None;
        for (index, node) in self.nodes.iter().enumerate() {
            if let Some(function) = node.function {
                within("slow node", index, "function", function, functions)?;
            }
            match (node.parent, root) {
                (None, _) if node.function.is_none() => return Err(Invalid::Tree { index }),
                (None, _) => root = Some(index),
                (Some(parent), Some(root)) if (root..index).contains(&(parent as usize)) => {}
                (Some(_), _) => return Err(Invalid::Tree { index }),
            }
        }
        let begins = |index, node: u32| {
            let is_root = self.nodes.get(node as usize).is_some_and(|node| node.parent.is_none());
            is_root.then_some(()).ok_or(Invalid::NoTree { index })
        };
        for (index, typical) in self.typical.iter().enumerate() {
            within("typical call", index, "program", typical.program, programs)?;
            begins(index, typical.node)?;
        }
        for (index, call) in self.calls.iter().enumerate() {
            within("slow call", index, "function", call.typical, self.typical.len())?;
            begins(index, call.node)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slow::tests::slow;

    #[test]
    fn good_indexes() {
        let mut slow = slow();
        slow.check(2, 2).expect("valid");
        let mut sum = slow.clone();
        sum.append(slow.clone(), |program| (program == 1).then_some(0), |function| 1 - function);
        sum.check(2, 2).expect("valid");
        slow.keep_slowest(1);
        slow.check(2, 2).expect("valid");
    }

    #[test]
    fn wrong_indexes_are_found() {
        type Change = fn(&mut Slow);
        let changes: [Change; 9] = [
            |slow| slow.typical[0].program = 2,
            |slow| slow.typical[0].node = 1,
            |slow| slow.typical[0].node = 99,
            |slow| slow.calls[0].typical = 2,
            |slow| slow.calls[0].node = 5,
            |slow| slow.nodes[6].function = Some(2),
            |slow| slow.nodes[0].function = None,
            |slow| slow.nodes[6].parent = Some(6),
            // A parent in the tree before.
            |slow| slow.nodes[6].parent = Some(1),
        ];
        for (number, change) in changes.iter().enumerate() {
            let mut wrong = slow();
            change(&mut wrong);
            assert!(wrong.check(2, 2).is_err(), "{number}");
        }
    }
}
