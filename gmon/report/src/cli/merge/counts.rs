//! The sum of gmon.out files.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use gmon::{Block, Merger, Profile};

use crate::cli::load;
use crate::cli::merge::program::Program;

/// The sum of gmon.out files up to now.
#[derive(Default)]
pub(super) struct Counts {
    merger: Merger,
    /// The first file with basic-block counts, and the addresses of all of them up to now, sorted.
    blocks: Option<(PathBuf, Vec<u64>)>,
}

impl Counts {
    /// Adds a profile without the program. Then it is not known what one file's count means at an address at
    /// which only another file has a record: the address may be within a basic block of the first file, or in a
    /// function that was not counted there.
    pub(super) fn add(&mut self, profile: Profile, file: &Path) -> Result<()> {
        let addresses = addresses(&profile.blocks);
        if !addresses.is_empty() {
            let (first, expected) = self.blocks.get_or_insert_with(|| (file.to_owned(), addresses.clone()));
            same(first, expected, file, &addresses)?;
        }
        self.merger.add(profile).with_context(|| file.display().to_string())
    }

    /// Adds a profile of this program, whose basic-block counts may begin at different addresses.
    pub(super) fn add_aligned(&mut self, profile: Profile, file: &Path, program: &Program) -> Result<()> {
        load::fits(&program.code, program.path, &profile, file)?;
        self.align(profile, file, program)
    }

    /// Adds the sum of the files that come after those of this one.
    pub(super) fn join(&mut self, later: Counts, program: Option<&Program>) -> Result<()> {
        match (&self.blocks, later.blocks) {
            (Some((_, ours)), Some((file, theirs))) if *ours != theirs => match program {
                Some(program) => self.align(later.merger.finish(), &file, program),
                None => same(Path::new(""), ours, &file, &theirs),
            },
            (None, Some(blocks)) => {
                self.blocks = Some(blocks);
                Ok(self.merger.join(later.merger)?)
            }
            _ => Ok(self.merger.join(later.merger)?),
        }
    }

    /// Adds a profile. If it has basic-block counts at other addresses than the sum, both are split first.
    fn align(&mut self, profile: Profile, file: &Path, program: &Program) -> Result<()> {
        let name = || file.display().to_string();
        let new = addresses(&profile.blocks);
        if new.is_empty() {
            return self.merger.add(profile).with_context(name);
        }
        let (_, known) = self.blocks.get_or_insert_with(|| (file.to_owned(), new.clone()));
        if *known == new {
            return self.merger.add(profile).with_context(name);
        }
        let mut both = [std::mem::take(&mut self.merger).finish(), profile];
        gmon_blocks::align(&mut both, &program.code);
        *known = both.iter().flat_map(|profile| addresses(&profile.blocks)).collect();
        known.sort_unstable();
        known.dedup();
        for profile in both {
            self.merger.add(profile).with_context(name)?;
        }
        Ok(())
    }

    /// Returns the bytes of the file with the sum.
    pub(super) fn bytes(self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        gmon::write(&self.merger.finish(), &mut bytes)?;
        Ok(bytes)
    }
}

/// Returns the addresses of blocks, which are sorted in a profile that was read or summed.
fn addresses(blocks: &[Block]) -> Vec<u64> {
    blocks.iter().map(|block| block.addr).collect()
}

/// Checks that a file has counts at the same addresses as the first one.
fn same(first: &Path, expected: &[u64], file: &Path, found: &[u64]) -> Result<()> {
    let Some(at) = first_difference(expected, found) else { return Ok(()) };
    bail!(
        "{}: block counts at other addresses than in {}, the first {at:#x} (a crash within a block, or other functions \
         counted); --program PROG lets them be summed",
        file.display(),
        first.display(),
    );
}

/// Returns the lowest address that is in only one of two sorted lists.
fn first_difference(a: &[u64], b: &[u64]) -> Option<u64> {
    let same = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    [a.get(same), b.get(same)].into_iter().flatten().min().copied()
}
