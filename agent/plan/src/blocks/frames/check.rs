//! Checks whether the unwind information of a unit can be copied.

use crate::blocks::frames::program::Program;
use crate::blocks::steps::Steps;
use crate::blocks::uncounted::Uncounted;
use gprofinject_image::Image;

/// Checks that the unit's frame descriptions and exception tables can be copied, before their places are
/// known.
/// # Errors
/// Returns [`Uncounted::Frames`] if they cannot be copied.
pub(crate) fn check(image: &Image, steps: &Steps) -> Result<(), Uncounted> {
    for part in &steps.parts {
        for description in image.frames().descriptions(part.lo, part.hi).ok_or(Uncounted::Frames)? {
            let mut out = Program::default();
            out.rules(&description, part, &|_| 0).ok_or(Uncounted::Frames)?;
            if description.common.signal {
                return Err(Uncounted::Frames);
            }
            if description.lsda != 0 {
                let table = image.exception_table(&description).ok_or(Uncounted::Frames)?;
                if table.sites.iter().any(|s| s.pad != 0 && !steps.holds(s.pad)) {
                    return Err(Uncounted::Frames);
                }
            }
        }
    }
    Ok(())
}
