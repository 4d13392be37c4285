//! Whether a patch fits, and how many bytes have to be relocated for it.

use crate::decide::start::Start;
use crate::decide::verdict::Reason;
use crate::flow::branch::NEAR;
use crate::flow::facts::Flow;
use crate::flow::padding::is_free_padding;
use gprofinject_image::Image;

/// Returns which bytes have to be relocated for a patch of `patch` bytes at the start of function `i`, and
/// whether the patch reaches into the padding after the function. `padding_used` is the number of bytes of
/// that padding that are already in use. With `over_call`, the relocated instructions may end with a call.
/// # Errors
/// The patch does not fit; the error is the reason.
pub(crate) fn fit(
    image: &Image,
    flow: &Flow,
    i: usize,
    start: &Start,
    patch: u64,
    over_call: bool,
    padding_used: u64,
) -> Result<(Fit, bool), Reason> {
    if start.steps.is_empty() {
        return Err(Reason::NotDecodable);
    }
    let mut padded = false;
    let mut relocated = 0;
    let mut called = false;
    for step in &start.steps {
        if relocated >= patch || called {
            break;
        }
        if step.call && !over_call {
            return Err(Reason::NoRoom);
        }
        called = step.call;
        relocated = step.end;
    }
    if relocated < patch {
        if called {
            return Err(Reason::NoRoom); // the return address would be overwritten
        }
        if relocated < start.end {
            return Err(Reason::NotDecodable);
        }
        let end = start.hook + start.end + padding_used;
        let want = start.hook + patch;
        if want > image.functions[i].limit || end > start.hook + start.end && end < want {
            return Err(Reason::NoRoom);
        }
        if !is_free_padding(image, flow, i, start.hook + start.end, want, image.functions[i].limit) {
            return Err(Reason::NoRoom);
        }
        padded = true;
    }
    if start.fixed.iter().any(|&t| t < patch) {
        return Err(Reason::JumpedInto);
    }
    // Short branches back into the overwritten bytes are best relocated as well.
    let mut wanted = relocated;
    for (t, b) in &start.soft {
        if *t < patch && b.width == 1 && b.site >= start.hook && b.end() <= start.hook + NEAR {
            wanted = wanted.max(b.end() - start.hook);
        }
    }
    if wanted > relocated && !called {
        let until = start.steps.iter().take_while(|s| s.offset < wanted).last();
        let calls = start.steps.iter().any(|s| s.offset < wanted && s.call);
        if !calls && until.is_some_and(|s| s.end == wanted) {
            relocated = wanted;
        }
    }
    Ok((Fit { relocated, over_call: called }, padded))
}

/// A patch that fits.
pub(crate) struct Fit {
    /// Bytes that must be relocated.
    pub(super) relocated: u64,
    /// Whether the relocated instructions end with a call.
    pub(super) over_call: bool,
}
