//! Names with less in them, for places with little room.

use gprofinject_image::names::unambiguous;

/// Returns each name without its parameters, the arguments of templates and hashes, as far as that tells them apart, or `None` if
/// that is the name itself.
pub(crate) fn shorter<'n>(names: impl Iterator<Item = &'n str>) -> Vec<Option<String>> {
    let names: Vec<&str> = names.collect();
    let shown = unambiguous(&names).into_iter().zip(&names);
    shown.map(|(short, name)| (short != **name).then(|| short.into_owned())).collect()
}
