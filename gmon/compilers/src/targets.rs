//! The blocks to which the indirect jumps of a function may lead.
//!
//! The addresses of tables are those that an instruction of the function computes, or reads with an index. A jump leads to the entries of
//! the tables whose addresses its own block has; where that has none, to those of any table, and to places to which data has pointers.

use std::collections::{BTreeMap, BTreeSet};

use gprofinject_image::{Image, JumpTable};
use iced_x86::{Instruction, OpKind, Register};

/// The blocks of a function to which its indirect jumps may lead. Blocks are named by their index.
#[derive(Default)]
pub(crate) struct Targets {
    all: BTreeSet<usize>,
    /// Those of the tables whose addresses are in a block, by the index of this block.
    by_block: BTreeMap<usize, BTreeSet<usize>>,
}

impl Targets {
    /// Reads the tables of the function that begins at `entry`. `blocks` are its blocks, sorted: the address of each, and its instructions.
    pub(crate) fn read<I: Iterator<Item = Instruction>>(
        image: &Image,
        entry: u64,
        blocks: impl Iterator<Item = (u64, I)>,
    ) -> Targets {
        let mut starts = Vec::new();
        let mut tables: Vec<(u64, usize)> = Vec::new();
        for (block, (start, instructions)) in blocks.enumerate() {
            starts.push(start);
            let addresses = instructions.filter_map(|instruction| address_in(&instruction));
            tables
                .extend(addresses.filter(|&address| !image.is_code(address)).map(|address| (address, block)));
        }
        tables.sort_unstable();
        tables.dedup();
        let mut targets = Targets::default();
        let pointers = &image.details().code_pointers;
        let is_pointed_to = |start: u64| start != entry && pointers.binary_search(&start).is_ok();
        targets.all.extend((0..starts.len()).filter(|&block| is_pointed_to(starts[block])));
        for (at, &(table, block)) in tables.iter().enumerate() {
            let next = tables[at..].iter().map(|&(next, _)| next).find(|&next| next > table);
            let found = blocks_of(image, table, next.unwrap_or(u64::MAX), &starts);
            targets.all.extend(&found);
            targets.by_block.entry(block).or_default().extend(found);
        }
        targets
    }

    /// Returns the number of blocks to which jumps lead.
    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the targets of the jump at the end of a block: those of the table that the block itself uses, or all.
    pub(crate) fn of(&self, block: usize) -> &BTreeSet<usize> {
        self.by_block.get(&block).filter(|found| !found.is_empty()).unwrap_or(&self.all)
    }
}

/// Returns the blocks to which the entries of a table lead, of those that begin at `starts`. The table ends where an entry leads elsewhere, or
/// at `next`.
fn blocks_of(image: &Image, table: u64, next: u64, starts: &[u64]) -> Vec<usize> {
    let read = |table: JumpTable| -> Vec<usize> {
        let entries = table.targets(image).enumerate().take_while(|&(index, _)| table.entry(index) < next);
        entries.map_while(|(_, target)| starts.binary_search(&target).ok()).collect()
    };
    let found = read(JumpTable::Distances(table));
    if found.is_empty() { read(JumpTable::Addresses(table)) } else { found }
}

/// Returns the address of data that an instruction computes, or that of a table that it reads with an index.
fn address_in(instruction: &Instruction) -> Option<u64> {
    let has_memory = instruction.op_kinds().any(|kind| kind == OpKind::Memory);
    let is_table = match instruction.memory_base() {
        Register::RIP => true,
        Register::None => instruction.memory_index() != Register::None,
        _ => false,
    };
    (has_memory && is_table).then(|| instruction.memory_displacement64())
}
