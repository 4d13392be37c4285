//! Redirects branches within a module of which only calls from outside are counted.

use crate::decide::shortcuts::Shortcut;
use crate::emit::emitter::Emitter;
use crate::x86::jump::near;

/// Lets the branches lead to the bodies of functions. Where another patch is in the way, a branch stays as it is.
pub(crate) fn write(e: &mut Emitter<'_, '_>) {
    let layout = e.layout;
    let mut taken: Vec<(u64, u64)> =
        e.out.patches.iter().map(|patch| (patch.address, patch.address + u64::from(patch.len))).collect();
    taken.sort_unstable();
    let is_free = |lo: u64, hi: u64| {
        let before = taken[..taken.partition_point(|&(start, _)| start < hi)].last();
        before.is_none_or(|&(_, end)| end <= lo)
    };
    for &Shortcut { branch, callee, relocated } in layout.input.shortcuts {
        let Some(record) = e.out.records.get(callee as usize) else { continue };
        let body = record.body as usize + layout.begin_len(callee as usize);
        if relocated {
            if let Some(&jump) = layout.moved_calls.get(&branch.site) {
                e.code.jump(jump, body);
            }
        } else if is_free(branch.end() - 4, branch.end()) {
            let bytes = near(branch.end(), e.address(body));
            let patch = bytes.and_then(|bytes| layout.arena_patch(branch.end() - 4, &bytes, 0));
            e.out.patches.extend(patch);
        }
    }
}
