//! The parameters and results of functions: what debug information says of their types, and where the calling convention puts them.
//!
//! The debug information of a file enters; for the address of a function, a [`Signature`] leaves. Only what is certain leaves: see
//! [`Unclear`] and [`Rest`]. This layer does not know how values are read or shown.
//!
//! ```text
//! index                       which entry is that of a function
//! c_family, rust, fortran     a function -> its signature, by the rules of its language
//! located                     the same for one whose parameters the compiler has changed
//! collect, convention         whether a parameter is where it should be
//! subprogram, entry           what debug information says of a function, and of the places of its parameters
//! types, aggregates           types
//! assign, classes, model      the System V ABI: classes, registers, the stack
//! units                       units, and entries in them
//! info, split, sections       the sections of a file, and of the files of split DWARF
//! ```

mod aggregates;
mod assign;
mod c_family;
mod classes;
mod collect;
mod convention;
mod entry;
mod fortran;
mod index;
mod info;
mod located;
mod model;
mod rust;
mod sections;
mod split;
mod subprogram;
mod types;
pub(crate) mod units;

pub use crate::signatures::convention::Unclear;
pub use crate::signatures::index::{Exported, Signatures};
pub use crate::signatures::info::DebugInfo;
pub use crate::signatures::model::{
    Enum, FIELDS_MAX, Field, Parameter, Passing, Place, Pointee, Rest, Shape, Signature, StrOrder,
    StringLayout, Struct, Type, Value, Word,
};
pub use crate::signatures::sections::DebugInfoError;
pub use crate::signatures::split::MissingUnits;
