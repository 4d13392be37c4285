//! What each thread of a process has counted.

use std::collections::BTreeMap;
use std::io;

use crate::profile::model::Arc;
use crate::profile::space::Space;
use crate::store::region::read::{Owner, Region};

/// Returns the calls that each thread has made, in the view of the whole process. Baselines are not subtracted.
///
/// # Errors
/// The file cannot be read.
pub(crate) fn of_process(region: &Region, space: &Space) -> io::Result<BTreeMap<Owner, Vec<Arc>>> {
    /// A process can write any number of pairs into its file.
    const MOST: usize = 1 << 21;
    let mut threads: BTreeMap<Owner, Vec<Arc>> = BTreeMap::new();
    let mut left = MOST;
    let homes = space.homes();
    region.thread_counters(
        || homes.finder(),
        |owner, counter| {
            if let Some(arc) = space.counted(&counter).whole.filter(|_| left > 0) {
                left -= 1;
                threads.entry(owner).or_default().push(arc);
            }
        },
    )?;
    Ok(threads)
}
