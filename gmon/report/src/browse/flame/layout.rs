//! Where frames are: each below its caller, as wide as its share of it. Frames narrower than a column are left out, so the work
//! depends on the size of the terminal and not on that of the run.

use crate::browse::flame::frame::Frame;
use crate::browse::flame::paths::Paths;

/// A frame in its place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bar {
    pub(crate) frame: Frame,
    /// The first column, and the number of columns.
    pub(crate) x: u16,
    pub(crate) width: u16,
    /// The index of the caller's bar in the level above.
    pub(crate) parent: usize,
}

/// The bars of each level, from the left to the right.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    pub(crate) levels: Vec<Vec<Bar>>,
    width: u16,
    /// Whether all levels are there.
    is_whole: bool,
}

/// The flame graph as it is shown.
pub(crate) struct Flame {
    pub(crate) paths: Paths,
    /// The frames above the one that fills the width, and that one itself last.
    pub(crate) zoom: Vec<Frame>,
    pub(crate) layout: Layout,
    /// The selected bar: its level and its index there.
    pub(crate) selected: (usize, usize),
    /// The first level that is shown.
    first: usize,
    /// The number of levels that fit.
    page: usize,
}

impl Flame {
    pub(crate) fn new(paths: Paths) -> Flame {
        let root = paths.root();
        Flame { paths, zoom: vec![root], layout: Layout::default(), selected: (0, 0), first: 0, page: 0 }
    }

    /// Lays the frames out for a size. Returns the levels to show.
    pub(crate) fn lay_out(&mut self, width: u16, page: usize) -> std::ops::Range<usize> {
        self.page = page.max(1);
        if self.layout.width != width {
            let path = self.path();
            self.layout = self.begin(width);
            self.select(&path);
        }
        let (level, _) = self.selected;
        if level < self.first {
            self.first = level;
        } else if level >= self.first + self.page {
            self.first = level + 1 - self.page;
        }
        self.extend(self.first + page);
        self.first..(self.first + page).min(self.layout.levels.len())
    }

    /// Returns the selected bar.
    pub(crate) fn chosen(&self) -> Option<&Bar> {
        self.layout.levels.get(self.selected.0)?.get(self.selected.1)
    }

    /// Goes to the caller of the selected frame.
    pub(crate) fn up(&mut self) {
        if let (level @ 1.., Some(chosen)) = (self.selected.0, self.chosen()) {
            self.selected = (level - 1, chosen.parent);
        }
    }

    /// Goes to the widest callee of the selected frame. Returns whether there is one.
    pub(crate) fn down(&mut self) -> bool {
        let (level, index) = self.selected;
        self.extend(level + 2);
        let below = self.layout.levels.get(level + 1);
        match below.and_then(|below| below.iter().position(|below| below.parent == index)) {
            Some(first) => {
                self.selected = (level + 1, first);
                true
            }
            None => false,
        }
    }

    /// Goes to the next frame of the level, or to the one before.
    pub(crate) fn aside(&mut self, is_right: bool) {
        let (level, index) = self.selected;
        let last = self.layout.levels.get(level).map_or(0, |level| level.len().saturating_sub(1));
        let next = if is_right { (index + 1).min(last) } else { index.saturating_sub(1) };
        self.selected = (level, next);
    }

    /// Goes up or down by as many levels as fit.
    pub(crate) fn page(&mut self, is_down: bool) {
        for _ in 0..self.page.saturating_sub(1).max(1) {
            match is_down {
                true if !self.down() => break,
                true => {}
                false => self.up(),
            }
        }
    }

    /// Goes to the frame of everything.
    pub(crate) fn home(&mut self) {
        self.selected = (0, 0);
    }

    /// Lets the selected frame fill the width.
    pub(crate) fn zoom_in(&mut self) {
        let path = self.path();
        if !path.is_empty() {
            self.zoom = path;
            self.layout = self.begin(self.layout.width);
            self.selected = (self.zoom.len() - 1, 0);
            self.extend(self.zoom.len());
        }
    }

    /// Lets the caller of the frame that fills the width fill it. Returns whether there is one.
    pub(crate) fn zoom_out(&mut self) -> bool {
        if self.zoom.len() < 2 {
            return false;
        }
        let path = std::mem::take(&mut self.zoom);
        self.zoom = path[..path.len() - 1].to_vec();
        self.layout = self.begin(self.layout.width);
        self.select(&path);
        true
    }

    /// Returns the frames from that of everything to the selected one.
    pub(crate) fn path(&self) -> Vec<Frame> {
        self.path_to(self.selected.0, self.selected.1)
    }

    fn path_to(&self, level: usize, index: usize) -> Vec<Frame> {
        let mut path = Vec::new();
        let mut at = index;
        for level in self.layout.levels.iter().take(level + 1).rev() {
            let Some(found) = level.get(at) else { return Vec::new() };
            path.push(found.frame);
            at = found.parent;
        }
        path.reverse();
        path
    }

    /// Selects the last frame of a path that is wide enough to be shown.
    fn select(&mut self, path: &[Frame]) {
        self.selected = (0, 0);
        for (level, wanted) in path.iter().enumerate().skip(1) {
            self.extend(level + 1);
            let is_it = |found: &Bar| {
                found.parent == self.selected.1
                    && (found.frame.of, found.frame.node) == (wanted.of, wanted.node)
            };
            match self.layout.levels.get(level).and_then(|bars| bars.iter().position(is_it)) {
                Some(index) => self.selected = (level, index),
                None => break,
            }
        }
    }

    /// Returns the layout down to the frame that fills the width.
    fn begin(&self, width: u16) -> Layout {
        let level = |&frame: &Frame| vec![Bar { frame, x: 0, width, parent: 0 }];
        Layout { levels: self.zoom.iter().map(level).collect(), width, is_whole: false }
    }

    /// Adds levels until there are that many, or no more frames.
    fn extend(&mut self, levels: usize) {
        while !self.layout.is_whole && self.layout.levels.len() < levels {
            let level = self.below();
            self.layout.is_whole = level.is_empty();
            if !level.is_empty() {
                self.layout.levels.push(level);
            }
        }
    }

    /// Returns the bars below the last level.
    fn below(&self) -> Vec<Bar> {
        let mut bars = Vec::new();
        let Some(level) = self.layout.levels.len().checked_sub(1) else { return bars };
        for (parent, above) in self.layout.levels[level].iter().enumerate() {
            if above.frame.weight <= 0.0 {
                continue;
            }
            let mut at = 0.0;
            for frame in self.paths.children(&above.frame) {
                let column = |weight: f64| {
                    (weight / above.frame.weight * f64::from(above.width)).round().min(above.width.into())
                        as u16
                };
                let (start, end) = (column(at), column(at + frame.weight));
                at += frame.weight;
                if end > start {
                    bars.push(Bar { frame, x: above.x + start, width: end - start, parent });
                }
            }
        }
        bars
    }
}

#[cfg(test)]
mod tests {
    use gmon_export::{Node, Run};

    use super::*;
    use crate::browse::flame::frame::Of;

    fn flame() -> Flame {
        let node =
            |parent, function, self_ns| Node { parent, function: Some(function), self_ns, ..Node::default() };
        let run = Run {
            nodes: vec![
                node(None, 0, 10),
                node(Some(0), 1, 60),
                node(Some(0), 2, 29),
                node(Some(2), 3, 0),
                node(Some(1), 4, 1),
            ],
            ..Run::default()
        };
        Flame::new(Paths::new(&run))
    }

    fn places(flame: &Flame) -> Vec<Vec<(Of, u16, u16)>> {
        let place = |found: &Bar| (found.frame.of, found.x, found.width);
        flame.layout.levels.iter().map(|level| level.iter().map(place).collect()).collect()
    }

    #[test]
    fn widths_are_shares() {
        let mut flame = flame();
        assert_eq!(flame.lay_out(100, 10), 0..4);
        let of = Of::Function;
        let expected = vec![
            vec![(Of::All, 0, 100)],
            vec![(of(0), 0, 100)],
            vec![(of(1), 0, 61), (of(2), 61, 29)],
            vec![(of(4), 0, 1)],
        ];
        assert_eq!(places(&flame), expected);
        // Levels are laid out as they are needed, and narrow frames are left out.
        assert_eq!(flame.lay_out(20, 2), 0..2);
        assert_eq!(flame.lay_out(20, 10), 0..3);
        assert_eq!(flame.lay_out(0, 10).end, 1);
    }

    #[test]
    fn a_walk() {
        let mut flame = flame();
        flame.lay_out(100, 2);
        assert!(flame.down() && flame.down());
        flame.aside(true);
        assert_eq!(flame.chosen().map(|found| found.frame.of), Some(Of::Function(2)));
        flame.aside(true);
        assert!(!flame.down());
        assert_eq!(flame.lay_out(100, 2), 1..3);
        flame.zoom_in();
        flame.lay_out(100, 2);
        assert_eq!((flame.zoom.len(), flame.selected), (3, (2, 0)));
        assert_eq!(places(&flame)[2], [(Of::Function(2), 0, 100)]);
        // A new width keeps what is selected.
        flame.lay_out(50, 2);
        assert_eq!(flame.chosen().map(|found| found.frame.of), Some(Of::Function(2)));
        assert!(flame.zoom_out());
        flame.lay_out(50, 5);
        assert_eq!(flame.chosen().map(|found| found.frame.of), Some(Of::Function(2)));
        assert!(flame.zoom_out() && !flame.zoom_out());
        flame.up();
        flame.up();
        flame.up();
        assert_eq!(flame.selected, (0, 0));
    }

    #[test]
    fn a_deep_path_is_laid_out_as_far_as_it_is_shown() {
        let nodes = (0..100_000_u32).map(|index| Node {
            parent: index.checked_sub(1),
            function: Some(0),
            self_ns: u64::from(index == 99_999),
            ..Node::default()
        });
        let mut flame = Flame::new(Paths::new(&Run { nodes: nodes.collect(), ..Run::default() }));
        flame.lay_out(80, 20);
        assert_eq!(flame.layout.levels.len(), 20);
        for _ in 0..10 {
            flame.page(true);
        }
        assert_eq!(flame.lay_out(80, 20).end, 191);
    }
}
