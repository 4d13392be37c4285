//! A gmon.whole and its gmon.syms: the view of the whole process.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use gmon::Profile;
use gprofinject_image::debug::module_file;
use gprofinject_image::gprof;

use crate::estimate::estimate;
use crate::load::charge::{Symbol, Symbols, charge};
use crate::load::contract::{Detail, LoadError};
use crate::load::lines::{Places, add_lines};
use crate::load::program::lines_of;
use crate::model::{Module, Run, View};
use crate::origins::{OUTSIDE, Origins};

/// Returns what a gmon.whole says of a process. `symbols` is the gmon.syms that belongs to it.
///
/// # Errors
/// The symbols are not an ELF file, or belong to another profile.
pub fn process(symbols: &[u8], profile: &Profile, detail: Detail) -> Result<Run, LoadError> {
    let program = gprof::parse(symbols)?;
    if let Err(differ) = program.build_id.agree(profile.build_id) {
        return Err(LoadError::Build { profile: differ.other, program: differ.first });
    }
    // The first symbol covers all others, and the last one only says where they end.
    let functions = match program.functions() {
        [_, functions @ .., _] => functions,
        _ => return Err(LoadError::NoSymbols),
    };
    let end = program.functions().last().map_or(0, |last| last.start);
    let origins = Origins::read(symbols).unwrap_or_default();
    let mut run = Run {
        program: origins.modules.first().map(|module| module.name.clone()).unwrap_or_default(),
        view: View::Process,
        modules: origins.modules.iter().map(module).collect(),
        ..Run::default()
    };
    let list = functions.iter().map(|function| symbol(function, &origins)).collect();
    let hits = charge(&mut run, &Symbols { list, end }, profile);
    estimate(&mut run);

    // From here on, addresses are those of the modules.
    let mut samples: HashMap<u32, Vec<(u32, u64, f64)>> = HashMap::new();
    for hit in hits {
        if let Some((module, link)) = origins.find(hit.address).filter(|&(_, link)| link > 0) {
            samples.entry(module).or_default().push((hit.function, link, hit.hits));
        }
    }
    for arc in &mut run.arcs {
        let found = arc.site.and_then(|site| origins.find(site));
        arc.site = found.map(|(_, link)| link).filter(|&link| link > 0);
    }
    if detail == Detail::Lines {
        let files: Vec<_> = run.modules.iter().map(|m| (m.path.clone(), m.build_id.clone())).collect();
        let mut owners = BTreeSet::new();
        let mut places = Places::new(&mut run);
        for (index, (path, build_id)) in (0..).zip(files) {
            let path = Path::new(&path);
            let Some((bytes, owner)) = path.is_absolute().then(|| module_file(path, &build_id)).flatten()
            else {
                continue;
            };
            owners.insert(owner);
            if let Some(lines) = lines_of(path, &bytes) {
                let samples = samples.get(&index).map_or(&[][..], Vec::as_slice);
                add_lines(&mut places, index, &lines, samples);
            }
        }
        places.finish();
        run.owners = owners;
    }
    Ok(run)
}

fn symbol(function: &gmon::Function, origins: &Origins) -> Symbol {
    let range = origins.range_at(function.start);
    let (module, address, size) = match range {
        Some((module, link, len)) => (Some(module), link, if link == 0 { 0 } else { len }),
        None => (None, 0, 0),
    };
    let suffix =
        module.and_then(|module| origins.modules.get(module as usize)).map(|m| format!("@{}", m.name));
    let name =
        suffix.and_then(|suffix| function.name.strip_suffix(suffix.as_str())).unwrap_or(&function.name);
    Symbol {
        start: function.start,
        name: name.to_owned(),
        module,
        address,
        size,
        whole: None,
        is_outside: range.is_none() && function.name == OUTSIDE,
    }
}

fn module(module: &crate::origins::Module) -> Module {
    Module {
        path: module.path.clone(),
        build_id: module.build_id.clone(),
        start: module.start,
        limit: module.limit,
        offset: module.offset,
    }
}
