//! The order to prepare, as the agent reads it.

use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Result, bail};
use gprofinject_abi::attach::{Order, PLACE_MAX};

use crate::target::process::Process;

/// Returns the bytes of the order to prepare, as the agent reads them from memory.
pub(super) fn order_bytes(
    process: &Process,
    folder: &Path,
    name: &str,
    descriptors: [i32; 2],
    detours: &[[u64; 2]],
    get_gr: u64,
) -> Result<Vec<u8>> {
    const WANTED: [u64; 5] = [3, 4, 5, 7, 9];
    let mut bytes = vec![0; size_of::<Order>()];
    let mut put = |offset: usize, word: u64| bytes[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
    put(offset_of!(Order, stack), process.stack);
    put(offset_of!(Order, get_gr), get_gr);
    for (n, kind) in WANTED.into_iter().enumerate() {
        put(offset_of!(Order, auxiliary) + 16 * n, kind);
        put(offset_of!(Order, auxiliary) + 16 * n + 8, process.auxiliary(kind));
    }
    for (n, [at, copy]) in detours.iter().enumerate() {
        put(offset_of!(Order, detours) + 16 * n, *at);
        put(offset_of!(Order, detours) + 16 * n + 8, *copy);
    }
    put(offset_of!(Order, detours_count), detours.len() as u64);
    for (n, descriptor) in descriptors.into_iter().enumerate() {
        put(offset_of!(Order, descriptors) + 8 * n, i64::from(descriptor) as u64);
    }
    let place = folder.join(name);
    let place = place.as_os_str().as_bytes();
    put(offset_of!(Order, place_len), place.len() as u64);
    if place.len() > PLACE_MAX {
        bail!("the name of {} is too long", folder.display());
    }
    let at = offset_of!(Order, place);
    bytes[at..at + place.len()].copy_from_slice(place);
    Ok(bytes)
}
