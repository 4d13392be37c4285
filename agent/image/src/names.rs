//! Names of functions: what a compiler's suffix says, and how a mangled name reads in its language.
//!
//! Names from any symbol table enter, names and facts about them leave. Nothing here knows of files or addresses.

pub mod demangle;
mod short;
pub mod similar;
pub mod suffixes;
pub(crate) mod text;
mod unicode;

pub use short::{fit, short, short_with_parameters, unambiguous};
