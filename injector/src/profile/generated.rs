//! Names the code that a process has made at run time: samples in it, frames of stacks, and calls out of it.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use gmon_run::Module;

use crate::generated::{Origin, Replay, Table};
use crate::os::say::Voice;
use crate::profile::model::{GENERATED, NOWHERE, PROGRAM, Place, Profile, UnhookedPlace};
use crate::sampling::histogram::{ALWAYS, Elsewhere};
use crate::sampling::maps::Maps;

/// The module of all such code, and the name of a function that has none.
pub(crate) const NAME: &str = gmon_run::GENERATED;

/// The code that a process has made at run time. What the process says of it is read when it is needed first.
pub(crate) struct Generated<'r> {
    origin: Option<&'r Origin>,
    dumps: Vec<Arc<str>>,
    /// The code that the process has mapped, as far as it is known.
    maps: &'r Maps,
    voice: Voice,
    table: OnceCell<Table>,
    module: Arc<Module>,
}

impl<'r> Generated<'r> {
    /// Returns the code of a process; without an `origin`, its functions have no names. `files` are those that may be its jitdumps.
    pub(crate) fn of(
        origin: Option<&'r Origin>,
        files: &[Arc<str>],
        maps: &'r Maps,
        voice: Voice,
    ) -> Generated<'r> {
        let mapped = maps.iter().map(|mapped| &mapped.file);
        let mut dumps: Vec<Arc<str>> = Vec::new();
        for file in files.iter().chain(mapped) {
            if origin.is_some_and(|origin| origin.is_dump(file)) && !dumps.contains(file) {
                dumps.push(Arc::clone(file));
            }
        }
        let module = Arc::new(Module { path: NAME.to_owned(), ..Module::default() });
        Generated { origin, dumps, maps, voice, table: OnceCell::new(), module }
    }

    /// Returns the functions.
    pub(crate) fn table(&self) -> &Table {
        self.table.get_or_init(|| match self.origin {
            Some(origin) => origin.read(&self.dumps, self.voice),
            None => Table::default(),
        })
    }

    /// Returns the functions as they were at last.
    fn at_last(&self) -> Replay<'_> {
        let mut replay = self.table().replay();
        replay.go_to(ALWAYS);
        replay
    }

    /// Returns a function, by the index of its name, without samples.
    pub(crate) fn place(&self, name: Option<u32>) -> UnhookedPlace {
        let function = name.and_then(|name| self.table().name_of(name)).map_or(NAME, |name| name);
        let module = Arc::clone(&self.module);
        UnhookedPlace { module, function: function.to_owned(), start: 0, size: 0, address: 0, samples: 0 }
    }

    /// Returns the functions with samples. `is_other` tells whether the code at an address is the process's own. Samples where nothing is
    /// mapped are in code only if the process says so.
    pub(crate) fn sampled(
        &self,
        elsewhere: &Elsewhere,
        is_other: impl Fn(u64) -> bool,
    ) -> Vec<UnhookedPlace> {
        let mut sums: BTreeMap<Option<u32>, u64> = BTreeMap::new();
        let mut add = |name: Option<u32>, count: u64| {
            let sum = sums.entry(name).or_default();
            *sum = sum.saturating_add(count);
        };
        let memory = || elsewhere.memory.iter().filter(|((_, address), _)| is_other(*address));
        let unmapped = || elsewhere.unmapped.iter().filter(|(address, _)| is_other(**address));
        if memory().next().is_none() && unmapped().next().is_none() {
            return Vec::new();
        }
        // They are sorted by time.
        let mut replay = self.table().replay();
        let mut early = Vec::new();
        for (&(time, address), &count) in memory() {
            replay.go_to(time);
            match replay.at(address) {
                None => early.push((address, count)),
                name => add(name, count),
            }
        }
        replay.go_to(ALWAYS);
        // A process may say of a function only when it has run it for a while.
        early.into_iter().for_each(|(address, count)| add(replay.at(address), count));
        for (&address, &count) in unmapped() {
            if let Some(name) = replay.at(address) {
                add(Some(name), count);
            }
        }
        sums.into_iter().map(|(name, samples)| UnhookedPlace { samples, ..self.place(name) }).collect()
    }

    /// Names the functions that have called hooked ones. Of calls that come neither from memory without a file nor from a function of
    /// which the process says so, the caller is not known.
    pub(crate) fn name_callers(&self, profile: &mut Profile) {
        if profile.arcs.iter().all(|arc| arc.from.module != GENERATED) {
            return;
        }
        let Some(program) = profile.modules.first().map(|module| module.program) else { return };
        let root = Place { module: PROGRAM, address: program.root() };
        let replay = self.at_last();
        let is_known = self.maps.iter().next().is_some();
        let mut arcs = std::mem::take(&mut profile.arcs);
        for arc in arcs.iter_mut().filter(|arc| arc.from.module == GENERATED) {
            // The call is before its return address.
            let call = arc.from.address.wrapping_sub(1);
            let is_memory = self.maps.is_memory(call);
            let name = if is_memory || !is_known { replay.at(call) } else { None };
            let name = name.and_then(|name| self.table().name_of(name));
            arc.from = match name {
                Some(name) => profile.generated.place(name),
                None if is_memory => profile.generated.place(&NAME.into()),
                None if arc.to.module == PROGRAM => root,
                None => Place { module: NOWHERE, ..Place::NOWHERE },
            };
        }
        profile.arcs = arcs;
        profile.sum_arcs();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::say::Level;
    use crate::sampling::maps::Mapped;

    #[test]
    fn without_a_map_there_is_one_line() {
        let maps = Maps::default();
        let generated = Generated::of(None, &[], &maps, Voice(Level::Quiet));
        let mut elsewhere = Elsewhere::default();
        (0..5000).for_each(|n| elsewhere.add_memory(ALWAYS, 0x1000 + 8 * n, 2));
        elsewhere.add_unmapped(0x10, 7);
        let [place] = &generated.sampled(&elsewhere, |address| address != 0x1000)[..] else {
            panic!("one line")
        };
        assert_eq!((&*place.module.path, &*place.function, place.samples), (NAME, NAME, 9998));
        assert!(generated.sampled(&elsewhere, |_| false).is_empty());
    }

    #[test]
    fn only_the_processs_own_dumps_are_read() {
        let mut maps = Maps::default();
        let own = std::process::id();
        let name = format!("/tmp/jit-{own}.dump");
        maps.add(Mapped { start: 0x1000, end: 0x2000, offset: 0, file: (&*name).into() });
        let origin = Origin::of(own as i32);
        let files = ["/tmp/jit-1.dump".into(), (&*name).into()];
        let generated = Generated::of(Some(&origin), &files, &maps, Voice(Level::Quiet));
        assert_eq!(generated.dumps, [name.into()]);
    }
}
