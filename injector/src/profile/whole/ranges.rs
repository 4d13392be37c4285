//! What the addresses of the view of the whole process stand for.

use std::collections::HashMap;

use gmon_export::origins::{Module, Origins, VERSION};
use prost::Message;

use crate::profile::measured::module_of;
use crate::profile::model::{ModuleIndex, Profile};
use crate::profile::whole::items::{Found, Item};

/// Returns the bytes of [`Origins`]: the code at the address that was given to each item. `names` are the names of the
/// modules as functions have them behind the `@`.
/// `items` are sorted, each with its address, and `parts` are those of [`Items::parts`](crate::profile::whole::items::Items::parts).
pub(super) fn origins(
    profile: &Profile,
    names: &[String],
    items: &[(Found, u64)],
    parts: &HashMap<(ModuleIndex, u64), Option<(u64, u64)>>,
) -> Vec<u8> {
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
    // Modules of which no more than the file name is known.
    let mut others: HashMap<&str, u32> = HashMap::new();
    for &(found, start) in items {
        match found.item {
            Item::Function(module, link) => {
                let size = found.size;
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
