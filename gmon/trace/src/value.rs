//! Arguments and results: what they are, their bytes in a trace, and how they are shown.
//!
//! A [`Signature`] says of which kind a function's parameters and its result are. The bytes of an [`Event::Data`] are one
//! [`Encoded`] value for each parameter, or one for the result, in the order of the signature; a kind without a value
//! ([`ValueKind::has_value`]) has none. Both together are [`Value`]s.
//!
//! [`Event::Data`]: crate::Event::Data

mod encoded;
mod kind;
mod signature;
mod typed;

pub use encoded::{Encoded, Values};
pub use kind::{Field, Parameter, Signature, ValueKind};
pub use typed::{Arguments, Value};

pub(crate) use signature::{put_signature, signature};
