//! The record of an attachment in the run folder. If a gprofinject is killed, the next one reads it to leave
//! the process.
//!
//! The folder is private ([`PrivateFolder`]), so the file should be one that gprofinject has written. It is
//! checked nevertheless, as hostile input: what it says is written to a process, and sizes in it become sizes
//! of tables.

use std::io;
use std::ops::Range;

use anyhow::{Context, Result, bail};
use gprofinject_abi::REGION_SUFFIX;
use gprofinject_abi::attach::DETOURS_MAX;
use gprofinject_abi::region::LOADS_MAX;

use crate::store::private_folder::PrivateFolder;
use crate::target::agent::arenas::Arenas;
use crate::target::agent::attachment::{Attachment, Detoured, Guest, Image, Stage};

const FILE: &str = "attached.json";
/// The longest record in bytes. A program with a million functions needs a tenth of that.
const LONGEST: u64 = 1 << 30;
/// The end of the addresses that a process can map: they have 47 bits.
const TOP: u64 = 1 << 47;
/// The longest range of a program's code in bytes: a direct call reaches 2 GiB.
const CODE_MAX: u64 = 1 << 32;
const IMAGE_MAX: u64 = 64 << 20;
const PATCHES_MAX: usize = 1 << 24;
/// The greatest length in bytes of a patch with the instructions behind it that were relocated.
const PATCH_MAX: u64 = 4096;
const DETOUR_MAX: usize = 64;
const UNWINDER_MAX: usize = 1000;
const CALLS_MAX: usize = 1 << 24;
const AUXILIARY_MAX: usize = 1000;

impl Attachment {
    /// Writes the record to the run folder. A record that was read from the folder of the process's parent is
    /// not written.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn save(&self) -> io::Result<()> {
        let Some(home) = &self.home else { return Ok(()) };
        home.replace(FILE, &serde_json::to_vec(self).map_err(io::Error::other)?)
    }

    /// Reads the record in a run folder. Returns `None` if gprofinject had not attached to a process.
    ///
    /// # Errors
    /// The record cannot be read, or contains numbers that gprofinject cannot have written.
    pub(crate) fn load(folder: &PrivateFolder) -> Result<Option<Attachment>> {
        if !folder.has(FILE) {
            return Ok(None);
        }
        let shown = folder.path().display();
        let text = folder.read(FILE, LONGEST).with_context(|| format!("{shown}/{FILE} cannot be read"))?;
        let attachment: Attachment =
            serde_json::from_slice(&text).with_context(|| format!("{shown}/{FILE} is damaged"))?;
        attachment.check().with_context(|| format!("{shown}/{FILE} is damaged"))?;
        // The process's mappings show the folder by this name now, whatever it was then.
        let folder_name = folder.path().to_string_lossy().into_owned();
        Ok(Some(Attachment { folder: folder_name, home: Some(folder.clone()), ..attachment }))
    }

    /// Checks that gprofinject can have written every number.
    fn check(&self) -> Result<()> {
        demand(self.pid > 0, "process number")?;
        demand(is_address(self.instruction), "an address")?;
        let Arenas { program, libraries } = &self.arenas;
        let are_sorted = libraries.is_sorted_by(|one, next| one.end <= next.start);
        let of_libraries =
            libraries.len() <= LOADS_MAX && are_sorted && libraries.iter().all(|arena| fits(arena, CODE_MAX));
        demand(fits(program, CODE_MAX) && of_libraries, "the thunks' place")?;
        demand(is_region(&self.region), "the name of a file")?;
        demand(self.auxiliary.len() <= AUXILIARY_MAX, "the auxiliary vector")?;
        demand(self.patches.len() <= PATCHES_MAX, "the number of patches")?;
        demand(self.patches.iter().all(|patch| fits(patch.addresses(), PATCH_MAX)), "a patch")?;
        let is_sorted = self.patches.is_sorted_by_key(|patch| patch.addresses().start);
        let ends = self.patches.first().zip(self.patches.last());
        let extent = ends.map_or(0..0, |(first, last)| first.addresses().start..last.addresses().end);
        demand(is_sorted && fits(&extent, CODE_MAX), "the order of patches")?;
        let is_function = |&(at, len): &(u64, u64)| is_address(at) && len <= CODE_MAX;
        let unwinder = self.unwinder.len() <= UNWINDER_MAX && self.unwinder.iter().all(is_function);
        demand(unwinder, "the unwinder")?;
        let are_calls = |&(from, to): &(u64, u64)| self.arenas.contains(from) && is_address(from.max(to));
        demand(self.go.as_ref().is_none_or(|go| fits(&go.preemption, CODE_MAX)), "Go's preemption")?;
        demand(self.calls.len() <= CALLS_MAX && self.calls.iter().all(are_calls), "a system call")?;
        match &self.stage {
            Stage::Outside | Stage::Left => Ok(()),
            Stage::Started { image, .. } => image.check(),
            Stage::Mapped { image, detours, mapped } => {
                image.check()?;
                check_detours(detours)?;
                demand(mapped.is_none_or(is_address), "an address")
            }
            Stage::Prepared(guest) | Stage::Armed(guest) | Stage::Paused(guest) => guest.check(),
        }
    }
}

impl Image {
    fn check(&self) -> Result<()> {
        demand(fits(&self.memory, IMAGE_MAX) && fits(&self.code, IMAGE_MAX), "the agent's place")?;
        demand([self.order, self.stack, self.entry].into_iter().all(is_address), "an address")
    }
}

impl Guest {
    /// Checks that gprofinject or the agent can have written every number.
    ///
    /// # Errors
    /// An address or a length is out of bounds. The error names it.
    pub(super) fn check(&self) -> Result<()> {
        self.image.check()?;
        check_detours(&self.detours)?;
        let landing =
            self.landing.iter().flat_map(|landing| [landing.word, landing.code.start, landing.code.end]);
        let records = [self.records.start, self.records.end];
        let mut addresses = landing.chain(self.shadows).chain([self.mapped]).chain(records);
        demand(addresses.all(is_address), "an address")
    }
}

fn check_detours(detours: &[Detoured]) -> Result<()> {
    demand(detours.len() <= DETOURS_MAX, "the number of library functions")?;
    let is_sound =
        |d: &Detoured| is_address(d.at) && d.before.len() <= DETOUR_MAX && d.before.len() == d.after.len();
    demand(detours.iter().all(is_sound), "a library function")
}

fn demand(holds: bool, what: &'static str) -> Result<()> {
    if !holds {
        bail!(what);
    }
    Ok(())
}

fn fits(range: &Range<u64>, most: u64) -> bool {
    range.start <= range.end && range.end <= TOP && range.end - range.start <= most
}

fn is_address(at: u64) -> bool {
    at < TOP
}

/// Whether a name can be that of a region file: it has no folder.
fn is_region(name: &str) -> bool {
    let name = name.strip_suffix(REGION_SUFFIX).unwrap_or_default();
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn guest() -> serde_json::Value {
        serde_json::json!({
            "image": image(), "detours": [{"at": 100, "before": [1, 2], "after": [3, 4]}],
            "words": [1, 2, 3, u64::MAX, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0], "shadows": 4096, "mapped": 4096, "landing": null,
            "records": {"start": 4096, "end": 8192}
        })
    }

    fn image() -> serde_json::Value {
        let range = serde_json::json!({"start": 4096, "end": 8192});
        serde_json::json!({"memory": range, "code": range, "order": 4096, "stack": 8192, "entry": 4096})
    }

    fn record(stage: serde_json::Value) -> serde_json::Value {
        serde_json::json!({
            "pid": 7, "started": 1, "auxiliary": [[3, 64]], "instruction": 9,
            "arenas": {"program": {"start": 65536, "end": 131072}, "libraries": [{"start": 131072, "end": 135168}]},
            "patches": [{"addresses": {"start": 10, "end": 15}, "cave": false, "stays": false}], "unwinder": [[5, 6]],
            "is_standalone": true, "calls": [[65600, 100]], "go": null,
            "folder": "/elsewhere", "region": "0.region", "stage": stage
        })
    }

    fn load(record: &serde_json::Value) -> Result<Option<Attachment>> {
        let place = tempfile::tempdir().expect("a folder");
        let folder = PrivateFolder::create(place.path()).expect("a folder");
        folder.replace(FILE, record.to_string().as_bytes()).expect("written");
        let loaded = Attachment::load(&folder)?;
        assert!(loaded.as_ref().is_some_and(|attachment| Path::new(&attachment.folder) == folder.path()));
        Ok(loaded)
    }

    #[test]
    fn a_record_is_read_back() {
        let stages = [
            serde_json::json!("Left"),
            serde_json::json!({"Mapped": {"image": image(), "detours": [], "mapped": null}}),
            serde_json::json!({"Prepared": guest()}),
            serde_json::json!({"Armed": guest()}),
            serde_json::json!({"Paused": guest()}),
        ];
        for stage in stages {
            let written = record(stage);
            let read = load(&written).expect("sound").expect("there");
            let mut again = serde_json::to_value(&read).expect("a record");
            again["folder"] = "/elsewhere".into();
            assert_eq!(again, written);
        }
        let armed = load(&record(serde_json::json!({"Armed": guest()}))).expect("sound").expect("there");
        assert_eq!((armed.pid, armed.detours().len(), armed.patches.len()), (7, 1, 1));
        assert!(!armed.is_paused() && armed.guest().is_some());
        let place = tempfile::tempdir().expect("a folder");
        let folder = PrivateFolder::create(place.path()).expect("a folder");
        assert!(Attachment::load(&folder).expect("readable").is_none());
    }

    #[test]
    fn numbers_that_nobody_has_written_are_refused() {
        let long: Vec<u8> = vec![0; DETOUR_MAX + 1];
        let detour = serde_json::json!({"at": 0, "before": [], "after": []});
        let range = |start: u64, end: u64| serde_json::json!({"start": start, "end": end});
        let patch = |start: u64, end: u64| serde_json::json!({"addresses": range(start, end), "cave": true, "stays": false});
        for (field, value) in [
            ("/pid", serde_json::json!(-1)),
            ("/arenas/program", range(0, CODE_MAX + 1)),
            ("/arenas/libraries/0", range(0, CODE_MAX + 1)),
            ("/region", serde_json::json!("../0.region")),
            ("/region", serde_json::json!(".region")),
            ("/region", serde_json::json!("0.plan")),
            ("/instruction", serde_json::json!(TOP)),
            ("/patches", serde_json::json!([patch(0, 4097)])),
            ("/patches", serde_json::json!([patch(10, 11), patch(5, 6)])),
            // The table of overwritten addresses would have one bit for each address in between.
            ("/patches", serde_json::json!([patch(0, 1), patch(TOP - 2, TOP - 1)])),
            ("/unwinder", serde_json::json!([[0, u64::MAX]])),
            ("/calls", serde_json::json!([[65535, 100]])),
            ("/calls", serde_json::json!([[65600, TOP]])),
            ("/stage/Armed/records", range(0, TOP)),
            ("/stage", serde_json::json!({"Armed": {}})),
            ("/stage", serde_json::json!("Armed")),
            ("/stage", serde_json::json!({"Mapped": {"image": image(), "detours": [], "mapped": TOP}})),
            ("/stage/Armed/image/memory", range(8192, 4096)),
            ("/stage/Armed/image/memory", range(0, IMAGE_MAX + 1)),
            ("/stage/Armed/image/code", range(0, u64::MAX)),
            ("/stage/Armed/image/order", serde_json::json!(u64::MAX)),
            ("/stage/Armed/mapped", serde_json::json!(TOP)),
            ("/stage/Armed/shadows", serde_json::json!(TOP)),
            ("/stage/Armed/landing", serde_json::json!({"word": 8, "code": range(0, TOP)})),
            ("/stage/Armed/detours", serde_json::json!(vec![detour; DETOURS_MAX + 1])),
            ("/stage/Armed/detours", serde_json::json!([{"at": 0, "before": long, "after": long}])),
            ("/stage/Armed/detours", serde_json::json!([{"at": 0, "before": [1], "after": [1, 2]}])),
        ] {
            let mut damaged = record(serde_json::json!({"Armed": guest()}));
            *damaged.pointer_mut(field).expect("a field") = value.clone();
            assert!(load(&damaged).is_err(), "{field} {value}");
        }
        for text in ["", "{}", "[]", "{\"pid\": 1e99}"] {
            assert!(serde_json::from_str::<Attachment>(text).is_err());
        }
    }
}
