//! What it takes to leave a process, in the run folder: whoever comes after a gprofinject that was killed reads it.
//!
//! The folder is ours ([`PrivateFolder`]), so the file is as well. It is checked all the same, since what it says is
//! written into a process, and sizes in it are sizes of tables of ours.

use crate::target::agent::engine::*;

const FILE: &str = "attached.json";
/// A million functions take a tenth of that.
const LONGEST: u64 = 1 << 30;
/// The end of what a process can map: addresses have 47 bits, the stack's end excluded.
const TOP: u64 = 1 << 47;
/// Code of a program spans no more: a direct call reaches 2 GiB.
const CODE_MAX: u64 = 1 << 32;
const IMAGE_MAX: u64 = 64 << 20;
const PATCHES_MAX: usize = 1 << 24;
const PATCH_MAX: u64 = 64;
const DETOUR_MAX: usize = 64;
const UNWINDER_MAX: usize = 1000;
const AUXILIARY_MAX: usize = 1000;

impl Attached {
    /// Nothing is written for a process that has its parent's record.
    pub(crate) fn save(&self) -> io::Result<()> {
        let Some(home) = &self.home else { return Ok(()) };
        home.replace(FILE, &serde_json::to_vec(self).map_err(io::Error::other)?)
    }

    /// What an injector has left; None: it had attached to nothing.
    pub(crate) fn load(folder: &PrivateFolder) -> Result<Option<Attached>> {
        if !folder.has(FILE) {
            return Ok(None);
        }
        let shown = folder.path().display();
        let text = folder.read(FILE, LONGEST).with_context(|| format!("{shown}/{FILE} cannot be read"))?;
        let attached: Attached =
            serde_json::from_slice(&text).with_context(|| format!("{shown}/{FILE} is damaged"))?;
        attached.is_sound().with_context(|| format!("{shown}/{FILE} is damaged"))?;
        // The process's mappings name the folder in this way now, whatever they did then.
        let folder_name = folder.path().to_string_lossy().into_owned();
        Ok(Some(Attached { folder: folder_name, home: Some(folder.clone()), ..attached }))
    }

    /// Every number is one that we could have written.
    pub(super) fn is_sound(&self) -> Result<()> {
        let fits = |range: &Range<u64>, most: u64| {
            range.start <= range.end && range.end <= TOP && range.end - range.start <= most
        };
        let is_address = |at: u64| at < TOP;
        let demand = |holds: bool, what: &str| if holds { Ok(()) } else { Err(anyhow!("{what}")) };
        demand(self.pid > 0, "process number")?;
        demand(fits(&self.image, IMAGE_MAX) && fits(&self.code, IMAGE_MAX), "the agent's place")?;
        demand(fits(&self.arena, CODE_MAX), "the thunks' place")?;
        let places = [self.order, self.stack, self.entry, self.instruction, self.shadows, self.mapped];
        demand(places.into_iter().chain(self.waiting).all(is_address), "an address")?;
        demand(self.auxiliary.len() <= AUXILIARY_MAX, "the auxiliary vector")?;
        demand(self.detours.len() <= DETOURS_MAX, "the number of library functions")?;
        let is_detour = |d: &Detoured| {
            is_address(d.at) && d.before.len() <= DETOUR_MAX && d.before.len() == d.after.len()
        };
        demand(self.detours.iter().all(is_detour), "a library function")?;
        demand(self.patched.len() <= PATCHES_MAX, "the number of patches")?;
        demand(self.patched.iter().all(|midst| fits(midst.addresses(), PATCH_MAX)), "a patch")?;
        let is_sorted = self.patched.is_sorted_by_key(|midst| midst.addresses().start);
        let ends = self.patched.first().zip(self.patched.last());
        let extent = ends.map_or(0..0, |(first, last)| first.addresses().start..last.addresses().end);
        demand(is_sorted && fits(&extent, CODE_MAX), "the order of patches")?;
        let is_function = |&(at, len): &(u64, u64)| is_address(at) && len <= CODE_MAX;
        let unwinder = self.unwinder.len() <= UNWINDER_MAX && self.unwinder.iter().all(is_function);
        demand(unwinder, "the unwinder")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> serde_json::Value {
        serde_json::json!({
            "pid": 7, "started": 1, "auxiliary": [[3, 64]], "image": {"start": 4096, "end": 8192},
            "code": {"start": 4096, "end": 8192}, "order": 4096, "stack": 8192, "entry": 4096, "instruction": 9,
            "arena": {"start": 65536, "end": 131072}, "words": [1, 2, 3, u64::MAX, 0, 0, 0], "shadows": 4096, "mapped": 4096,
            "waiting": [0, 0, 0], "detours": [{"at": 100, "before": [1, 2], "after": [3, 4]}],
            "patched": [{"addresses": {"start": 10, "end": 15}, "cave": false}], "unwinder": [[5, 6]],
            "paused": false, "folder": "/elsewhere"
        })
    }

    fn load(record: &serde_json::Value) -> Result<Option<Attached>> {
        let place = tempfile::tempdir().expect("a folder");
        let folder = PrivateFolder::create(place.path()).expect("a folder");
        folder.replace(FILE, record.to_string().as_bytes()).expect("written");
        let loaded = Attached::load(&folder)?;
        assert!(loaded.as_ref().is_some_and(|attached| Path::new(&attached.folder) == folder.path()));
        Ok(loaded)
    }

    #[test]
    fn a_record_is_read_back() {
        let attached = load(&record()).expect("sound").expect("there");
        assert_eq!((attached.pid, attached.detours.len(), attached.patched.len()), (7, 1, 1));
        let place = tempfile::tempdir().expect("a folder");
        let folder = PrivateFolder::create(place.path()).expect("a folder");
        assert!(Attached::load(&folder).expect("readable").is_none());
    }

    #[test]
    fn numbers_that_nobody_has_written_are_refused() {
        let long: Vec<u8> = vec![0; DETOUR_MAX + 1];
        let detour = serde_json::json!({"at": 0, "before": [], "after": []});
        let range = |start: u64, end: u64| serde_json::json!({"start": start, "end": end});
        let patch = |start: u64, end: u64| serde_json::json!({"addresses": range(start, end), "cave": true});
        for (field, value) in [
            ("pid", serde_json::json!(-1)),
            ("image", range(8192, 4096)),
            ("image", range(0, IMAGE_MAX + 1)),
            ("code", range(0, u64::MAX)),
            ("arena", range(0, CODE_MAX + 1)),
            ("order", serde_json::json!(u64::MAX)),
            ("mapped", serde_json::json!(TOP)),
            ("waiting", serde_json::json!([0, 0, TOP])),
            ("detours", serde_json::json!(vec![detour; DETOURS_MAX + 1])),
            ("detours", serde_json::json!([{"at": 0, "before": long, "after": long}])),
            ("detours", serde_json::json!([{"at": 0, "before": [1], "after": [1, 2]}])),
            ("patched", serde_json::json!([patch(0, 65)])),
            ("patched", serde_json::json!([patch(10, 11), patch(5, 6)])),
            // A bitmap of as many bits is made of it.
            ("patched", serde_json::json!([patch(0, 1), patch(TOP - 2, TOP - 1)])),
            ("unwinder", serde_json::json!([[0, u64::MAX]])),
        ] {
            let mut damaged = record();
            damaged[field] = value.clone();
            assert!(load(&damaged).is_err(), "{field} {value}");
        }
        for text in ["", "{}", "[]", "{\"pid\": 1e99}"] {
            assert!(serde_json::from_str::<Attached>(text).is_err());
        }
    }
}
