//! What the addresses of the view of the whole process stand for.

use std::collections::{BTreeMap, HashMap};

use gmon_export::origins::{Module, Origins, VERSION};
use prost::Message;

use crate::profile::measured::module_of;
use crate::profile::model::{ModuleIndex, Place, Profile};
use crate::profile::whole::items::{Item, size};

/// Returns the bytes of [`Origins`]: the code at the address that was given to each item. `names` are the names of the
/// modules as functions have them behind the `@`.
pub(super) fn origins(profile: &Profile, names: &[String], items: &BTreeMap<Item, u64>) -> Vec<u8> {
    let modules = profile.modules.iter().zip(names).map(|(module, name)| {
        let module = module_of(profile, module);
        Module {
            path: module.name,
            name: name.clone(),
            build_id: module.build_id,
            start: module.start,
            limit: module.limit,
            offset: module.offset,
        }
    });
    let mut origins = Origins { version: VERSION, modules: modules.collect(), ..Origins::default() };
    let parts = parts(profile);
    // Modules of which no more than the file name is known.
    let mut others: HashMap<&str, u32> = HashMap::new();
    for (&item, &start) in items {
        match item {
            Item::Function(module, link) => {
                let size = size(profile, item);
                origins.push(start, size.max(1), module, link);
                if let Some(&Some((part, len))) = parts.get(&(module, link)) {
                    origins.push(start + size, len, module, part);
                }
            }
            Item::Code(module, link) => origins.push(start, 1, module, link),
            Item::Named(index) => {
                let Some(named) = profile.named.get(index).filter(|named| !named.module.is_empty()) else {
                    continue;
                };
                let module = *others.entry(&named.module).or_insert_with(|| {
                    let (path, name) = (named.module.clone(), named.module.clone());
                    origins.modules.push(Module { path, name, ..Module::default() });
                    origins.modules.len() as u32 - 1
                });
                origins.push(start, 1, module, 0);
            }
            Item::Outside | Item::Elsewhere => {}
        }
    }
    origins.encode_to_vec()
}

/// Returns the address and the size of the cold part of each function in one of whose cold parts there are records. If there
/// are several, they have the same addresses in the view, and nothing is known of them.
fn parts(profile: &Profile) -> HashMap<(ModuleIndex, u64), Option<(u64, u64)>> {
    let samples = (0..).zip(&profile.modules).flat_map(|(index, module)| {
        let addresses = module.samples.places().filter_map(|(place, _)| module.program.text_address(place));
        addresses.map(move |address| Place { module: index, address })
    });
    let calls = profile.arcs.iter().flat_map(|arc| [arc.from, arc.to]);
    let mut parts = HashMap::new();
    for place in samples.chain(calls) {
        let Some(module) = profile.modules.get(place.module as usize) else { continue };
        let Some(part) = module.program.function_at(place.address) else { continue };
        let Some(parent) = module.program.parent(part) else { continue };
        let own = Some((part.address, part.size));
        let known = parts.entry((place.module, parent.address)).or_insert(own);
        *known = known.filter(|_| *known == own);
    }
    parts
}
