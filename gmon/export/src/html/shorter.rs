//! Names with less in them, for places with little room.

/// Returns a name with less of what is between brackets, or `None` if that is the name itself.
pub(crate) fn shorter(_name: &str) -> Option<String> {
    None
}
