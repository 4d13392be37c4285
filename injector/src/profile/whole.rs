//! The view of the whole process: one call graph of the program and its libraries, for gprof.
//!
//! A gmon.out has the addresses of one file, and gprof reads names from one file. Therefore this view is a pair of files.
//! The first is an ELF file that contains nothing but symbols, one for each function with counts or samples, at addresses
//! that are made up. The second is a gmon.out with these addresses. Functions do not share bins of the histogram there,
//! names that gprof would leave out do not occur, and functions of the same name in two modules are told apart.

mod items;
mod names;
mod ranges;
mod symbols;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use gmon::{Arc, BuildId, Format, HistogramBuilder};
use gmon_export::origins::{ELSEWHERE, OUTSIDE};

use crate::profile::collect::summed;
use crate::profile::model::{Place, Profile};
use crate::profile::whole::items::{Found, Item, Items};
use crate::profile::whole::names::Name;
use crate::store::output::Output;

/// The two files.
pub(crate) struct Whole {
    /// The ELF file with the symbols.
    pub(crate) symbols: Vec<u8>,
    /// The gmon.out.
    pub(crate) gmon: Vec<u8>,
}

impl Whole {
    /// Writes the files beside a profile, and returns their names in the order in which gprof takes them. If the profile
    /// went to a pipe or a descriptor, nothing is written.
    ///
    /// # Errors
    /// They cannot be written.
    pub(crate) fn write(&self, output: &Output, profile: &Path) -> Result<Option<[PathBuf; 2]>> {
        if output.is_stream() {
            return Ok(None);
        }
        let symbols = output.write_beside(profile, "syms", &self.symbols)?;
        Ok(Some([symbols, output.write_beside(profile, "whole", &self.gmon)?]))
    }
}

/// The address of the first function. Every function begins at a multiple of [`ALIGN`], and has room for its size.
const FIRST: u64 = 0x10_0000;
const _: () = assert!(FIRST >= symbols::BEFORE);
const ALIGN: u64 = 16;
/// The greatest room of one function, so that a damaged size does not use up the addresses.
const LARGEST: u64 = 1 << 28;

/// Returns the view of a process.
///
/// # Errors
/// The files cannot be represented.
pub(crate) fn encode(profile: &Profile) -> Result<Whole> {
    let mut items = Items::new(profile);
    let mut samples: Vec<(usize, u64, u64)> = Vec::new();
    let outside = profile.modules.first().map_or(0, |program| program.samples.outside);
    let mut elsewhere = outside.saturating_sub(profile.in_agent);
    for (index, named) in profile.named.iter().enumerate() {
        samples.push((items.index(Item::Named(index), 1), 0, named.samples));
        elsewhere = elsewhere.saturating_sub(named.samples);
    }
    for (index, module) in (0..).zip(&profile.modules) {
        if module.library.is_some() {
            // The program's samples outside of it include those in libraries.
            elsewhere = elsewhere.saturating_sub(module.samples.inside());
        }
        for (place, count) in module.samples.places() {
            let Some(address) = module.program.text_address(place) else { continue };
            let (item, offset) = items.place(Place { module: index, address });
            samples.push((item, offset, count));
        }
    }
    if elsewhere > 0 {
        samples.push((items.index(Item::Elsewhere, 1), 0, elsewhere));
    }
    let arcs = profile.arcs.iter().map(|arc| (items.place(arc.from), items.entry(arc.to), arc.count));
    let arcs: Vec<_> = arcs.collect();

    // Addresses are given out in the order of modules and addresses.
    let mut order: Vec<usize> = (0..items.all.len()).collect();
    order.sort_unstable_by_key(|&at| items.all.get(at).map(|found| found.item));
    let mut next = FIRST;
    let mut starts = vec![FIRST; items.all.len()];
    let mut placed = Vec::with_capacity(items.all.len());
    for at in order {
        let (Some(&found), Some(start)) = (items.all.get(at), starts.get_mut(at)) else { continue };
        let room = found.size.max(found.reach).clamp(1, LARGEST);
        *start = next;
        placed.push((found, next));
        next += room.next_multiple_of(ALIGN);
    }
    let place =
        |(item, offset): (usize, u64)| starts.get(item).map_or(next, |start| start + offset.min(LARGEST - 1));

    let modules = names::distinct(profile.modules.iter().map(|module| profile.name_of(module)));
    let names: Vec<Name> = placed.iter().map(|(found, _)| name(profile, &modules, found)).collect();
    let names = names::told_apart(&names, modules.first().map_or("", String::as_str));
    let addresses = placed.iter().map(|&(_, start)| start);
    let named = addresses.clone().zip(names.iter().map(String::as_str));
    let build_id = build_id(named.clone());
    let origins = ranges::origins(profile, &modules, &placed, items.parts());
    let symbols =
        symbols::encode(named, next, build_id, &origins).context("the symbols cannot be written")?;

    let mut builder = HistogramBuilder::new(FIRST..next, profile.rate).functions(addresses);
    samples.iter().for_each(|&(item, offset, count)| builder.add(place((item, offset)), count));
    let mut written = gmon::Profile::new(Format::LITTLE_64);
    written.build_id = BuildId::new(&build_id);
    written.arcs = summed(
        arcs.into_iter().map(|(from, to, count)| Arc { from: place(from), to: place(to), count }).collect(),
    );
    if profile.rate > 0 {
        written.histograms = builder.build().histograms;
    }
    crate::profile::gmon_out::fit(&mut written);
    let mut gmon = Vec::new();
    gmon::write(&written, &mut gmon).context("the profile does not fit into a gmon.out")?;
    Ok(Whole { symbols, gmon })
}

/// Returns a build-id for the file of symbols. It is the same for the same functions at the same addresses.
fn build_id<'n>(functions: impl Iterator<Item = (u64, &'n str)>) -> [u8; symbols::BUILD_ID] {
    let mut hasher = blake3::Hasher::new();
    for (address, name) in functions {
        hasher
            .update(&address.to_le_bytes())
            .update(&(name.len() as u64).to_le_bytes())
            .update(name.as_bytes());
    }
    let mut id = [0; symbols::BUILD_ID];
    hasher.finalize_xof().fill(&mut id);
    id
}

/// Returns the name of an item. `modules` are the names of the modules.
fn name<'p>(profile: &'p Profile, modules: &'p [String], found: &Found<'p>) -> Name<'p> {
    match found.item {
        Item::Outside => Name { function: OUTSIDE.into(), module: "" },
        Item::Elsewhere => Name { function: ELSEWHERE.into(), module: "" },
        Item::Named(index) => match profile.named.get(index) {
            Some(named) => Name { function: named.function.as_str().into(), module: &named.module },
            None => Name { function: ELSEWHERE.into(), module: "" },
        },
        Item::Code(index, address) | Item::Function(index, address) => {
            let Some(file) = modules.get(index as usize) else {
                return Name { function: OUTSIDE.into(), module: "" };
            };
            let function = match found.name {
                "" => format!("{file}+{address:#x}").into(),
                name => name.into(),
            };
            Name { function, module: file }
        }
    }
}
