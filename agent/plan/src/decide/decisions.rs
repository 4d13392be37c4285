//! Decides about all functions: which tactics are tried for which functions, and in which order.

use crate::decide::decider::{Decider, Way};
use crate::decide::hook::Hook;
use crate::decide::options::{Engine, Means};
use crate::decide::own_return::returns_otherwise;
use crate::decide::retpoline::is_retpoline;
use crate::decide::slide;
use crate::decide::verdict::{Earlier, Reason, Tactic};
use crate::flow::branch::NEAR;
use crate::flow::facts::Flow;
use crate::flow::falls;
use crate::parallel;
use gprofinject_image::{FunctionKind, Image};

/// The decision for each function of the image.
pub(crate) struct Decisions {
    /// The tactic or the reason for a refusal, in the order of the image's functions.
    pub verdicts: Vec<Result<Tactic, Reason>>,
    /// The hooks, in the order of the image's functions.
    pub hooks: Vec<Hook>,
}

/// Returns the reason for which the user leaves a function out, if there is one.
pub(crate) type LeftOut<'a> = dyn Fn(usize) -> Option<Reason> + Sync + 'a;

/// Decides about each function of the image. `left_out` returns the reason for which the user does not want a
/// function hooked, if there is one. `earlier` is what earlier attempts have shown.
///
/// Each thread decides about consecutive functions. A function that stays open because another thread
/// decides about the functions near it is decided at the end.
pub(crate) fn decide(
    image: &Image,
    flow: &Flow,
    left_out: &LeftOut,
    means: Means,
    earlier: &Earlier,
) -> Decisions {
    let given = (image, flow, earlier, means);
    let count = image.functions.len();
    let mut verdicts = vec![Err(Reason::NoRoom); count];
    let mut hooks: Vec<_> = (0..count).map(|_| None).collect();
    let mut padding_used = vec![0; count];
    // The agent redirects an empty function by a jump that reaches into the padding.
    for &i in earlier.failed.iter().filter(|(_, reason)| **reason == Reason::Agent).map(|(i, _)| i) {
        let f = &image.functions[i];
        padding_used[i] = f.limit.saturating_sub(f.address + f.size);
    }
    // Only a function without room nearby needs the state of all other functions.
    let part = count.div_ceil(parallel::parts(count)).max(1);
    let slices = verdicts.chunks_mut(part).zip(hooks.chunks_mut(part)).zip(padding_used.chunks_mut(part));
    let parts = (0..).step_by(part).zip(slices).map(|(first, ((verdicts, hooks), padding_used))| {
        Decider::new(given, first, verdicts, hooks, padding_used)
    });
    let with_cave: [Way; 3] = [|d, i| d.with_room(i), |d, i| d.short(i), |d, i| d.near(i, true)];
    let cut_short = parallel::each(parts.collect(), |mut part: Decider| {
        part.without_caves(left_out);
        let wanting = std::mem::take(&mut part.cut_short);
        part.look_for_caves();
        if !wanting.is_empty() {
            part.in_turn(wanting.into_iter(), &with_cave[..1]);
            part.look_for_caves();
        }
        part.in_turn(part.hooks.functions(), &with_cave[1..]);
        part.cut_short
    });
    let mut all = Decider::new(given, 0, &mut verdicts, &mut hooks, &mut padding_used);
    if (0..count).any(|i| all.is_open(i)) {
        all.look_for_caves();
        all.in_turn(cut_short.into_iter().flatten(), &with_cave);
        all.in_turn(0..count, &[|d, i| d.call_sites(i)]);
        // A goroutine's stack has no room for the words that sleds push.
        if !image.facts.go {
            slide::sleds(&mut all);
        }
    }
    for hook in hooks.iter().flatten() {
        verdicts[hook.function] = Ok(hook.tactic);
    }
    // `filter_map` reuses the memory, which `flatten` does not.
    #[expect(clippy::filter_map_identity)]
    let hooks = hooks.into_iter().filter_map(|hook| hook).collect();
    Decisions { verdicts, hooks }
}

/// Returns why a function cannot be hooked by any tactic, or `None` if tactics may be tried.
fn refuse(
    image: &Image,
    flow: &Flow,
    means: Means,
    earlier: &Earlier,
    i: usize,
    left_out: &LeftOut,
) -> Option<Reason> {
    let f = &image.functions[i];
    if matches!(f.kind, FunctionKind::Cold(_)) {
        return Some(Reason::ColdPart);
    }
    if f.kind == FunctionKind::Start {
        return Some(Reason::EntryPoint);
    }
    if let Some(reason) = left_out(i) {
        return Some(reason);
    }
    if flow.functions[i].contradicted {
        return Some(Reason::NoStart);
    }
    if falls::is_no_start(image, flow, i) {
        return Some(Reason::RunInto);
    }
    if f.size == 0 || image.code_at(f.address, f.size).is_none() {
        return Some(Reason::NoCode);
    }
    let relocations = &image.facts.text_relocations;
    let next = relocations.partition_point(|&r| r + 8 <= f.address);
    if relocations.get(next).is_some_and(|&r| r < f.address + NEAR) {
        return Some(Reason::TextRelocation);
    }
    if is_retpoline(image, i) {
        return Some(Reason::Retpoline);
    }
    let facts = &flow.functions[i];
    let has_no_exit =
        image.facts.runtime.is_some() || means.shadow_stack || facts.odd_return || returns_otherwise(f);
    if facts.table_loops && (has_no_exit || facts.calls_itself_too) {
        return Some(Reason::LoopsThroughTable);
    }
    let failed = earlier.failed.get(&i).copied();
    failed.filter(|reason| means.engine != Engine::FridaOrBuiltin || *reason != Reason::FridaNotRelocatable)
}

impl Decider<'_, '_, '_> {
    /// Refuses functions, and hooks those that need no cave.
    fn without_caves(&mut self, left_out: &LeftOut) {
        for i in self.hooks.functions() {
            let refused = refuse(self.image, self.flow, self.means, self.earlier, i, left_out);
            self.verdicts[i] = refused.map_or_else(|| self.with_room(i), Err);
        }
    }

    /// Tries each way for all functions that are still open before the next way, which costs more at run
    /// time.
    fn in_turn(&mut self, functions: impl Iterator<Item = usize> + Clone, ways: &[Way]) {
        for way in ways {
            for i in functions.clone() {
                if self.is_open(i) {
                    match way(self, i) {
                        Err(Reason::NoRoom) => {}
                        better => self.verdicts[i] = better,
                    }
                }
            }
        }
    }
}
