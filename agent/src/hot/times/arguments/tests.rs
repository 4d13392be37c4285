//! Tests of the executor with fetches that follow from debug information, in libraries that the test itself loads.

use super::*;

mod library;
mod random;
mod strings;
mod written;
