//! Arguments and results: their kinds, their bytes in a trace, and their text.
//!
//! A [`Signature`] has the kinds of a function's parameters and of its result. The bytes of an [`Event::Data`] are one
//! [`Encoded`] value for each parameter in the order of the signature, or one for the result; kinds without a value
//! ([`ValueKind::has_value`]) have no bytes. A [`Value`] combines a kind and an encoded value.
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
