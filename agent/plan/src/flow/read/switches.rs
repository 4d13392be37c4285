//! Finds out whether all indirect jumps of a function are those of a `switch` and therefore stay in the function.
//!
//! The bounds of the index are not followed, so the number of a table's entries is not known. The entries at the start of the table
//! must lead into the function. The first one that does not is taken for the end of the table, unless it leads to the cold
//! part or to the first instruction of a function: then it may be an entry, by which hand-written code makes a tail call. A
//! table of functions, by which a function may make a tail call, begins with an entry that leads out of the function, or to its
//! first instruction.

use crate::flow::read::jumps;
use gprofinject_image::{Function, FunctionKind, Image, JumpTable};
use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, OpKind};

/// Returns whether every indirect jump of the function is that of a `switch`. `tables` has the addresses of data that the
/// function computes or jumps through.
pub(crate) fn stay(
    image: &Image,
    f: &Function,
    tables: &[u64],
    factory: &mut InstructionInfoFactory,
) -> bool {
    let Some(bytes) = image.code_at(f.address, f.size) else { return false };
    let mut labels = Vec::new();
    for &table in tables {
        if Contents::read(image, f, JumpTable::Distances(table), &mut labels) == Contents::Outside {
            return false;
        }
    }
    for instruction in &mut Decoder::with_ip(64, bytes, f.address, DecoderOptions::NONE) {
        if instruction.is_invalid() {
            return false;
        }
        if instruction.op0_kind() == OpKind::NearBranch64 {
            labels.push(instruction.near_branch_target());
        }
    }
    labels.sort_unstable();
    let is_inside = |&table: &JumpTable| Contents::read(image, f, table, &mut Vec::new()) == Contents::Inside;
    jumps::each(image, f, &labels, factory, |_, tables| !tables.is_empty() && tables.iter().all(is_inside))
}

/// What a table of jump targets contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contents {
    /// Its entries lead into the function.
    Inside,
    /// Some entry leads to code outside of the function.
    Outside,
    /// It is no table of jump targets.
    None,
}

impl Contents {
    /// Reads a table, and adds the addresses to which it leads to `labels`.
    fn read(image: &Image, f: &Function, table: JumpTable, labels: &mut Vec<u64>) -> Contents {
        let is_inside = |target: &u64| (f.address + 1..f.address + f.size).contains(target);
        let mut targets = table.targets(image);
        let Some(first) = targets.next() else { return Contents::None };
        if !is_inside(&first) {
            return if image.is_code(first) { Contents::Outside } else { Contents::None };
        }
        labels.push(first);
        for target in targets {
            if is_inside(&target) {
                labels.push(target);
                continue;
            }
            // Compilers let impossible cases lead to the function's end.
            if target == f.address + f.size {
                continue;
            }
            let may_be_entry = |i: usize| {
                let function = &image.functions[i];
                matches!(function.kind, FunctionKind::Cold(_)) || function.address == target
            };
            return if image.function_at(target).is_some_and(may_be_entry) {
                Contents::Outside
            } else {
                Contents::Inside
            };
        }
        Contents::Inside
    }
}

#[cfg(test)]
mod tests;
