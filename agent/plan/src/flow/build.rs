//! Builds the [`Flow`] of a program: decodes all functions on several threads, and combines the results.

use crate::flow::branch::{Branch, NEAR};
use crate::flow::facts::{Flow, FunctionFlow};
use crate::flow::label;
use crate::flow::read::part::{Part, Wanted};
use crate::flow::read::unread;
use crate::flow::spread::{registers, returns};
use crate::flow::starts;
use crate::parallel;
use gprofinject_image::Image;

impl Flow {
    /// Reads the control flow of a program.
    /// With `exits`, exits of functions may be hooked. Without it, only leaf functions are examined for
    /// uses of their return addresses, because that takes a second decoding of large functions;
    /// [`FunctionFlow::odd_return`] is then unknown for all other functions.
    pub fn of(image: &Image, exits: bool) -> Flow {
        let count = image.functions.len();
        let bounds = even_bounds(image, parallel::parts(count));
        let ranges = bounds.windows(2).map(|w| w[0]..w[1]).collect();
        let wanted = Wanted { predecodes: true, exits };
        let parts = parallel::each(ranges, |functions| Part::decode(image, functions, wanted));
        let mut flow = Flow::default();
        flow.branches.reserve(parts.iter().map(|part| part.branches.len()).sum());
        flow.functions.reserve(count);
        let mut unread = Vec::new();
        for part in parts {
            unread.extend(part.unread);
            flow.branches.extend(part.branches);
            flow.functions.extend(part.functions);
            flow.taken.extend(part.taken);
            flow.indirect.extend(part.indirect);
            flow.uses_gs = flow.uses_gs.or(part.uses_gs);
            flow.results.extend(part.results);
        }
        let references = unread::references(image, &unread);
        flow.taken.extend(references.taken);
        flow.indirect.extend(references.indirect);
        flow.entered_unseen = references.entered;
        flow.called_unseen = references.called;
        flow.functions.resize(count, FunctionFlow { undecodable: true, ..Default::default() });
        // The parts are sorted already, so a stable sort only merges them.
        flow.branches.sort_by_key(|b| b.target);
        flow.first = first_branches(image, &flow.branches);
        returns::spread(image, &mut flow);
        flow.indirect.extend(image.details().landing_pads.iter().copied());
        flow.taken.sort_unstable();
        let is_taken = |address: &u64| flow.taken.binary_search(address).is_ok();
        let only_exported = image.details().only_exported.iter().copied();
        flow.only_exported = only_exported.filter(|address| !is_taken(address)).collect();
        for &pointer in &image.details().code_pointers {
            // A pointer to a function's start makes that address a taken one; a pointer into the function
            // is a label.
            match image.function_at(pointer) {
                Some(i) if image.functions[i].address == pointer => flow.taken.push(pointer),
                Some(i) if pointer - image.functions[i].address < NEAR => flow.indirect.push(pointer),
                _ => {}
            }
        }
        flow.taken.extend(image.details().exported.iter().copied());
        flow.taken.sort_unstable();
        // `label::entered` expects an address once for each reference to it.
        flow.indirect.extend(label::entered(image, &flow.taken));
        flow.taken.dedup();
        flow.indirect.sort_unstable();
        flow.indirect.dedup();
        if starts::check(image, &mut flow) {
            returns::spread(image, &mut flow);
        }
        registers::spread(image, &mut flow);
        flow
    }
}

/// Returns, for each function, the index of the first branch whose target is the function's start or a
/// higher address.
fn first_branches(image: &Image, branches: &[Branch]) -> Vec<usize> {
    let mut next = 0;
    let first = image.functions.iter().map(|f| {
        next += branches[next..].iter().take_while(|b| b.target < f.address).count();
        next
    });
    first.collect()
}

/// Divides the functions so that each part has about the same number of bytes. Returns the first function of
/// each part, and the number of functions.
fn even_bounds(image: &Image, parts: usize) -> Vec<usize> {
    let total: u64 = image.functions.iter().map(|f| f.size).sum();
    let mut bounds = vec![0];
    let mut seen = 0;
    for (i, f) in image.functions.iter().enumerate() {
        seen += f.size;
        if seen * parts as u64 >= total * bounds.len() as u64 && bounds.len() < parts {
            bounds.push(i + 1);
        }
    }
    bounds.push(image.functions.len());
    bounds
}
