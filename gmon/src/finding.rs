//! What `check` finds in a file.

use std::fmt;

use crate::build_id::BuildId;
use crate::format::Format;
use crate::profile::{Arc, Unit};
use crate::records::ReadError;
use crate::words::counted;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// A fact worth knowing.
    Note,
    /// gprof reads the file, but something is odd or less exact.
    Warning,
    /// gprof refuses the file, or silently loses counts.
    Error,
}

/// A problem and how bad it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    pub severity: Severity,
    pub problem: Problem,
}

/// A kind of problem: the number of times it occurs, and its first place.
#[derive(Clone, Debug, PartialEq)]
pub enum Problem {
    /// The format that was found.
    Format(Format),
    /// The program's build, as the file names it.
    BuildId(BuildId),
    /// The bytes make sense in both widths, and are read as 64-bit.
    AmbiguousWidth,
    /// The bytes from `offset` on are not a record.
    Unreadable(ReadError),
    /// There are bytes after the last record that are not a record.
    Trailing {
        bytes: u64,
        error: ReadError,
    },
    /// gprof refuses to print a flat profile.
    NoHistogram,
    /// gprof refuses to print a call graph (`-q`); the flat profile is not affected.
    NoArcs,
    /// gprof computes with a bin width of 0/0.
    EmptyHistogram {
        offset: u64,
        low: u64,
    },
    /// gprof refuses ranges that overlap without being equal.
    Overlap {
        offset: u64,
        range: (u64, u64),
        other: (u64, u64),
    },
    /// gprof refuses a second scale.
    Scales {
        offset: u64,
        first: f64,
        other: f64,
    },
    /// gprof refuses a second unit.
    Units {
        offset: u64,
        first: Unit,
        other: Unit,
    },
    /// gprof silently uses the first rate.
    Rates {
        offset: u64,
        first: u32,
        other: u32,
    },
    /// gprof divides by the rate.
    RateZero {
        offset: u64,
    },
    /// gprof's unit has 2 bytes.
    NarrowBins {
        offset: u64,
        width: f64,
    },
    /// gprof rounds the start down.
    OddStart {
        offset: u64,
        low: u64,
    },
    /// A histogram after arcs or blocks.
    Order {
        offset: u64,
    },
    /// gprof cannot read `u64 n`.
    GlibcBlocks {
        offset: u64,
    },
    ZeroArcs {
        arcs: u64,
        first: Arc,
    },
    /// This is normal if basic blocks were counted.
    ZeroBlocks {
        blocks: u64,
        first: u64,
    },
    /// Usually these are arcs to functions that were never sampled.
    ArcsOutsideHistograms {
        arcs: u64,
        first: Arc,
    },
    /// The program is of another kind than the file.
    ProgramFormat {
        program: Format,
        file: Format,
    },
    /// The program has been rebuilt since, so the addresses mean other functions.
    Build {
        program: BuildId,
        file: BuildId,
    },
    /// gprof prints "no symbols".
    NoFunctions,
    /// gprof drops them silently.
    DroppedArcs {
        arcs: u64,
        calls: u64,
        first: Arc,
    },
    /// gprof charges them to the preceding function.
    ArcsBetweenFunctions {
        arcs: u64,
        calls: u64,
        first: Arc,
    },
    /// gprof drops them or charges them to the wrong function.
    BlocksOutsideProgram {
        blocks: u64,
        first: u64,
    },
    /// gprof drops them silently.
    DroppedHits {
        hits: u64,
        first: u64,
    },
}

impl Problem {
    /// Returns how bad the problem is.
    pub fn severity(&self) -> Severity {
        match self {
            Problem::Format(_)
            | Problem::BuildId(_)
            | Problem::NoArcs
            | Problem::ZeroBlocks { .. }
            | Problem::ArcsOutsideHistograms { .. } => Severity::Note,
            Problem::AmbiguousWidth
            | Problem::EmptyHistogram { .. }
            | Problem::Rates { .. }
            | Problem::OddStart { .. }
            | Problem::Order { .. }
            | Problem::ZeroArcs { .. }
            | Problem::ArcsBetweenFunctions { .. }
            | Problem::BlocksOutsideProgram { .. } => Severity::Warning,
            Problem::Unreadable(_)
            | Problem::Trailing { .. }
            | Problem::NoHistogram
            | Problem::Overlap { .. }
            | Problem::Scales { .. }
            | Problem::Units { .. }
            | Problem::RateZero { .. }
            | Problem::NarrowBins { .. }
            | Problem::GlibcBlocks { .. }
            | Problem::ProgramFormat { .. }
            | Problem::Build { .. }
            | Problem::NoFunctions
            | Problem::DroppedArcs { .. }
            | Problem::DroppedHits { .. } => Severity::Error,
        }
    }
}

impl From<Problem> for Finding {
    fn from(problem: Problem) -> Finding {
        Finding { severity: problem.severity(), problem }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        })
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.severity, self.problem)
    }
}

/// Formats as `the first FROM -> TO, COUNT calls`.
struct First<'a>(&'a Arc);

impl fmt::Display for First<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let calls = counted(self.0.count, "call", "calls");
        write!(f, "the first {:#x} -> {:#x}, {calls}", self.0.from, self.0.to)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Format(format) => write!(f, "{format} file"),
            Problem::BuildId(id) => write!(f, "of the program with build-id {id}.."),
            Problem::AmbiguousWidth => {
                f.write_str("makes sense as a 32-bit file too, read as 64-bit; --width decides")
            }
            Problem::Unreadable(error) => write!(f, "{error}"),
            Problem::Trailing { bytes, error } => {
                write!(f, "{} after the last whole record: {error}", counted(*bytes, "byte", "bytes"))
            }
            Problem::NoHistogram => f.write_str("no histogram; gprof wants one even without samples"),
            Problem::NoArcs => f.write_str("no arc; gprof has no call graph to print"),
            Problem::EmptyHistogram { offset, low } => {
                write!(f, "histogram at {low:#x} has no bins, at offset {offset}")
            }
            Problem::Overlap { offset, range, other } => write!(
                f,
                "histogram {:#x}..{:#x} overlaps {:#x}..{:#x}, at offset {offset}, expected equal or separate \
                 ranges; gmon merge joins them",
                range.0, range.1, other.0, other.1
            ),
            Problem::Scales { offset, first, other } => {
                write!(f, "histogram bins of {other} bytes, at offset {offset}, expected {first} as before")
            }
            Problem::Units { offset, first, other } => {
                write!(f, "histogram in {other}, at offset {offset}, expected {first} as before")
            }
            Problem::Rates { offset, first, other } => write!(
                f,
                "histogram rate {other}, at offset {offset}, expected {first} as before, which gprof uses for all"
            ),
            Problem::RateZero { offset } => {
                write!(f, "histogram rate 0, at offset {offset}, expected at least 1")
            }
            Problem::NarrowBins { offset, width } => {
                write!(f, "histogram bins of {width} bytes, at offset {offset}, expected at least 2")
            }
            Problem::OddStart { offset, low } => {
                write!(f, "histogram starts at odd {low:#x}, at offset {offset}; gprof rounds it down")
            }
            Problem::Order { offset } => {
                write!(f, "histogram after other records, at offset {offset}, expected histograms first")
            }
            Problem::GlibcBlocks { offset } => write!(
                f,
                "basic blocks with glibc's 64-bit number, at offset {offset}, expected 32 bits; gprof cannot \
                 read them, gmon merge repairs them"
            ),
            Problem::ZeroArcs { arcs, first } => {
                write!(f, "{} nothing, {}", counted(*arcs, "arc counts", "arcs count"), First(first))
            }
            Problem::ZeroBlocks { blocks, first } => {
                let blocks = counted(*blocks, "basic block", "basic blocks");
                write!(f, "{blocks} never ran, the first {first:#x}")
            }
            Problem::ArcsOutsideHistograms { arcs, first } => {
                let arcs = counted(*arcs, "arc begins or ends", "arcs begin or end");
                write!(f, "{arcs} outside the histograms, {}", First(first))
            }
            Problem::ProgramFormat { program, file } => {
                write!(f, "the program is {program}, expected {file} as the file")
            }
            Problem::Build { program, file } => write!(
                f,
                "the program has build-id {program}.., expected {file}.. as the file; it was rebuilt"
            ),
            Problem::NoFunctions => {
                f.write_str("the program has no function symbols (stripped?); gprof needs them")
            }
            Problem::DroppedArcs { arcs, calls, first } => write!(
                f,
                "{} with {} no function; gprof drops them silently; {}",
                counted(*arcs, "arc", "arcs"),
                counted(*calls, "call hits", "calls hit"),
                First(first)
            ),
            Problem::ArcsBetweenFunctions { arcs, calls, first } => write!(
                f,
                "{} with {} behind a function's end; gprof charges that function; {}",
                counted(*arcs, "arc", "arcs"),
                counted(*calls, "call lies", "calls lie"),
                First(first)
            ),
            Problem::BlocksOutsideProgram { blocks, first } => {
                let blocks = counted(*blocks, "basic block lies", "basic blocks lie");
                write!(f, "{blocks} outside the program's functions, the first {first:#x}")
            }
            Problem::DroppedHits { hits, first } => {
                write!(
                    f,
                    "{} outside the program's functions, the first at {first:#x}",
                    counted(*hits, "histogram hit lies", "histogram hits lie")
                )
            }
        }
    }
}
