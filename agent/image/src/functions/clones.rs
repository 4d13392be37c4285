//! The names that compilers derive from a function's name for what they split off it or copy.

/// Returns the name of the function whose cold part has this name: `f` for `f.cold` and `f.cold.3`.
pub(crate) fn parent_name(name: &str) -> Option<&str> {
    if let Some(parent) = name.strip_suffix(".cold") {
        return Some(parent);
    }
    let name = numberless(name)?;
    name.strip_suffix(".cold.").or_else(|| name.strip_suffix(".__part."))
}

/// Returns the name without the number at its end, if it has one.
pub(crate) fn numberless(name: &str) -> Option<&str> {
    // Nearly every name ends here.
    if !name.as_bytes().last()?.is_ascii_digit() {
        return None;
    }
    Some(name.trim_end_matches(|letter: char| letter.is_ascii_digit()))
}
