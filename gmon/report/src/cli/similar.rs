//! Names that are similar to one that does not exist, for messages.

pub(crate) use gprofinject_image::names::similar::similar;
