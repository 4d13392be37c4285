//! What the code of a program does, found by decoding every function once: its branches, the addresses that
//! it takes, the registers that are free, and the functions that use their return address.
//!
//! An [`Image`](gprofinject_image::Image) enters, and [`facts::Flow`] leaves. This layer does not know what a
//! hook is; it only knows how many bytes a jump takes, because it notes which instructions one would
//! overwrite.
//!
//! ```text
//! build         makes the Flow
//! falls         where control runs on from one function into the next
//! padding       whether bytes only align functions
//! label         which labels control may enter because an instruction computes their addresses
//! system_calls  the system calls, their numbers, and the instructions around them
//! starts        which functions cannot begin where symbols and frame descriptions say
//! spread        what callers and callees mean for each other, over the whole program
//! read          one pass over the instructions of a function, or of code that is in no function
//! facts         the Flow: what is known of each function, and lookups
//! registers     which registers a function leaves alone
//! return_slot   what a function does with its return address
//! head, branch  the first instructions of a function; direct branches
//! ```
//!
//! Decoding is linear within a function's extent, as compilers emit code. A function with bytes that are no
//! instruction is marked [`facts::FunctionFlow::undecodable`]: the branches that were read in it still count
//! as possible branches, but nothing in it is ever patched. The same holds for code that belongs to no
//! function (`read::unread`).

pub(crate) mod branch;
pub(crate) mod build;
pub(crate) mod facts;
pub(crate) mod falls;
pub(crate) mod head;
pub(crate) mod label;
pub(crate) mod padding;
pub(crate) mod read;
pub(crate) mod registers;
pub(crate) mod return_slot;
pub(crate) mod spread;
pub(crate) mod starts;
pub(crate) mod system_calls;
