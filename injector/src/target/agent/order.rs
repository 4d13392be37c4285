//! The order to prepare.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use gprofinject_abi::attach::Order;
use zerocopy::FromZeros;

use crate::os::namespaces;
use crate::target::permitted;
use crate::target::process::Process;

/// Returns the order to prepare, by which the agent finds its files and its place in the process.
///
/// # Errors
/// The folder's name is too long for the order, or there are too many detours.
pub(super) fn preparation(
    process: &Process,
    folder: &Path,
    name: &str,
    descriptors: [i32; 2],
    detours: &[[u64; 2]],
    get_gr: u64,
) -> Result<Order> {
    /// AT_PHDR, AT_PHENT, AT_PHNUM, AT_BASE, AT_ENTRY and AT_HWCAP2.
    const WANTED: [u64; 6] = [3, 4, 5, 7, 9, 26];
    let mut order = Order {
        stack: process.stack,
        get_gr,
        refused: permitted::refused(&process.filters),
        outsider: namespaces::outsider(process.pid).into(),
        descriptors: descriptors.map(i64::from),
        detours_count: detours.len() as u64,
        ..Order::new_zeroed()
    };
    for (place, kind) in order.auxiliary.iter_mut().zip(WANTED) {
        *place = [kind, process.auxiliary(kind)];
    }
    order.detours.get_mut(..detours.len()).context("too many detours")?.copy_from_slice(detours);
    let place = folder.join(name);
    let place = place.as_os_str().as_bytes();
    let Some(room) = order.place.get_mut(..place.len()) else {
        bail!("the name of {} is too long", folder.display());
    };
    room.copy_from_slice(place);
    order.place_len = place.len() as u64;
    Ok(order)
}
