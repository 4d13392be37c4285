//! Whether bytes only align functions.

use crate::flow::facts::Flow;
use gprofinject_image::Image;
use gprofinject_image::x86::is_padding_instruction;
use iced_x86::{Decoder, DecoderOptions};

/// Returns whether the bytes of `lo..hi`, after a function that has room up to `limit`, are padding: nops
/// and breakpoints to which nothing jumps, or zeros that nothing reads.
pub(crate) fn is_padding(image: &Image, flow: &Flow, lo: u64, hi: u64, limit: u64) -> bool {
    if lo >= hi || hi > limit || image.function_at(lo).is_some_and(|i| image.functions[i].size > 0) {
        return false;
    }
    // The last nop may reach beyond `hi`.
    let Some(bytes) = image.code_at(lo, limit - lo) else { return false };
    let unused = || flow.branches_to(lo, hi).is_empty() && flow.indirect_in(lo, hi).is_empty();
    // Some linkers align with zeros.
    if bytes.len() < 16 && bytes.iter().all(|&b| b == 0) {
        return unused() && !flow.is_taken_in(lo, limit);
    }
    let mut decoder = Decoder::with_ip(64, bytes, lo, DecoderOptions::NONE);
    while decoder.ip() < hi {
        let i = decoder.decode();
        if !is_padding_instruction(&i) {
            return false;
        }
    }
    unused()
}

/// Returns whether the bytes of `lo..hi`, after function `index`, which has room up to `limit`, are
/// padding that may be overwritten: control does not run on from the function into them.
pub(crate) fn is_free_padding(
    image: &Image,
    flow: &Flow,
    index: usize,
    lo: u64,
    hi: u64,
    limit: u64,
) -> bool {
    let f = &flow.functions[index];
    !(f.runs_on || f.ends_in_call || f.undecodable) && is_padding(image, flow, lo, hi, limit)
}

impl Flow {
    /// Returns whether all bytes between function `index` and the end of the room that it has are padding that may be
    /// overwritten.
    pub fn has_free_padding(&self, image: &Image, index: usize) -> bool {
        let f = &image.functions[index];
        is_free_padding(image, self, index, f.address + f.size, f.limit, f.limit)
    }
}
