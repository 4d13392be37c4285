//! Writes the copies of counted functions into the arena.

use crate::blocks::code::{Site, Words, clock};
use crate::blocks::tables;
use crate::blocks::uncounted::Uncounted;
use crate::emit::emitter::Emitter;
use crate::emit::layout::Input;
use gprofinject_abi::plan::Frame;
use gprofinject_abi::region;
use std::collections::HashMap;

/// Writes the copies of counted functions, their unwind tables, and the patches that lead from the
/// originals to the copies.
pub(crate) fn write(e: &mut Emitter<'_, '_>) {
    let layout = e.layout;
    let Input { role, image, hooks, homes, copies, .. } = layout.input;
    if copies.units.is_empty() {
        return;
    }
    let base = e.address(layout.copies);
    let mut starts: HashMap<u64, usize> = HashMap::new();
    for (number, hook) in hooks.iter().enumerate() {
        starts.insert(image.functions[hook.function].address, number);
        starts.entry(hook.at).or_insert(number);
    }
    let elsewhere = |site: Option<u64>, target: u64| {
        let hooked = || starts.get(&target).map(|&number| e.thunks[number]);
        if let Some(thunk) = site.and_then(|site| layout.tails.of_site(site)).or_else(hooked) {
            return e.address(thunk);
        }
        let function = image.function_at(target);
        let copied = function.and_then(|f| copies.offset(image, f, target));
        copied.map_or(target, |offset| base.wrapping_add(offset.into()))
    };
    let counters = match role.is_library() {
        false => region::counters_offset(homes.bytes),
        // Where those of a library begin is known only in the process.
        true => 0,
    };
    let site = Site { base, counters, clock: clock(role), arena: layout.arena, arena_len: layout.len as u64 };
    let mut bytes = vec![0xcc; copies.len as usize];
    let (mut patches, mut words, mut uncounted) = (Vec::new(), Words::default(), Vec::new());
    for unit in &copies.units {
        match unit.write(image, &mut bytes, site, &elsewhere) {
            Ok(written) => {
                words.addresses.extend(written.addresses);
                words.text.extend(written.text);
                words.counters.extend(written.counters);
            }
            Err(reason) => uncounted.push((unit.function, reason)),
        }
        let patch = |(at, bytes): (u64, Vec<u8>)| layout.redirect(at, &bytes);
        let redirects = unit.redirects(base).map(|redirect| redirect.and_then(patch));
        match redirects.collect::<Option<Vec<_>>>() {
            Some(all) => patches.extend(all),
            None => uncounted.push((unit.function, Uncounted::NoRoom)),
        }
    }
    let moved = |from: usize, words: Vec<u32>| words.into_iter().map(move |word| from as u32 + word);
    e.out.uncounted.extend(uncounted);
    e.out.bias_fixups.extend(moved(layout.copies, words.addresses));
    e.out.patches.extend(patches);
    e.code.put(layout.copies, &bytes);
    e.code.record(|fixups| {
        fixups.text.to_mut().extend(moved(layout.copies, words.text));
        fixups.counters.to_mut().extend(moved(layout.copies, words.counters));
    });
    let tables_at = layout.copies + bytes.len().next_multiple_of(8);
    match tables::tables(image, copies, site, e.address(tables_at)) {
        Ok(tables) if tables_at + tables.bytes.len() <= layout.len => {
            e.code.put(tables_at, &tables.bytes);
            e.code.record(|fixups| {
                fixups.text.to_mut().extend(moved(tables_at, tables.text));
                fixups.wide_text.to_mut().extend(moved(tables_at, tables.wide_text));
            });
        }
        Ok(_) => {
            let all = copies.units.iter().map(|unit| (unit.function, Uncounted::Frames));
            e.out.uncounted.extend(all);
        }
        Err(failed) => e.out.uncounted.extend(failed.into_iter().map(|f| (f, Uncounted::Frames))),
    }
    e.out.frame_tables[Frame::Copied as usize] = tables_at as u32;
}
