//! The frames of a run, wherever they come from.

use gmon_export::Run;

use crate::browse::flame::estimate::Estimate;
use crate::browse::flame::frame::{Frame, Of, Unit};
use crate::browse::flame::paths::Paths;

/// The frames of a run.
pub(crate) enum Tree {
    /// Recorded call paths.
    Paths(Paths),
    /// Estimated ones.
    Estimate(Estimate),
}

impl Tree {
    pub(crate) fn new(run: &Run) -> Tree {
        Paths::new(run).map_or_else(|| Tree::Estimate(Estimate::new(run)), Tree::Paths)
    }

    pub(crate) fn is_estimate(&self) -> bool {
        matches!(self, Tree::Estimate(_))
    }

    pub(crate) fn unit(&self) -> Unit {
        match self {
            Tree::Paths(paths) => paths.unit,
            Tree::Estimate(estimate) => estimate.unit,
        }
    }

    /// Returns the frame of everything.
    pub(crate) fn root(&self) -> Frame {
        match self {
            Tree::Paths(paths) => paths.root(),
            Tree::Estimate(estimate) => estimate.root(),
        }
    }

    /// Returns the frames below a frame, the widest first. `above` are those above it, the outermost first.
    pub(crate) fn children(&self, frame: &Frame, above: &[Of]) -> Vec<Frame> {
        match self {
            Tree::Paths(paths) => paths.children(frame),
            Tree::Estimate(estimate) => estimate.children(frame, above),
        }
    }
}
