//! The plan for a program, and the answers that the rest needs from it.

use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use gprofinject_image::{Function, FunctionKind, Image};
use gprofinject_plan::{Hooks, Options, Plan, Reason, Tactic, Verdict};

use crate::args::{EngineArg, HooksArg};
use crate::filters::Filters;
use crate::histogram::{Place, Shape};
use crate::plan_cache::{Key, PlanCache, Question};
use crate::subject::Subject;

/// What was decided about a program.
pub(crate) struct Planned<'s, 'd> {
    pub(crate) subject: &'s Subject<'d>,
    /// None: no image, or nothing to be done.
    pub(crate) plan: Option<Plan>,
    pub(crate) shape: Shape,
    pub(crate) took: Duration,
    /// The plan was made in an earlier run.
    pub(crate) is_cached: bool,
    /// Where the plan may be kept for later runs, if it is not.
    pub(crate) key: Option<Key>,
    /// Blocks are counted.
    pub(crate) counts: bool,
    /// There are hooks only because blocks are counted: their arcs are not wanted.
    pub(crate) blocks_only: bool,
    /// See [`Planned::gprof`].
    gprof: OnceLock<Option<gmon::Program>>,
}

/// Plans, or finds the plan in the cache. Where nothing is to be hooked, or can be, there is a plan only if the agent is
/// wanted all the same, for its timers.
pub(crate) fn make<'s, 'd>(
    subject: &'s Subject<'d>,
    hooks: Option<HooksArg>,
    engine: EngineArg,
    filters: &Filters,
    agent_wanted: bool,
    cache: &PlanCache,
) -> Planned<'s, 'd> {
    let start = Instant::now();
    let counts = filters.count().is_some();
    let blocks_only = counts && hooks == Some(HooksArg::None);
    let hooks = if blocks_only { Some(HooksArg::Entry) } else { hooks };
    // Where nothing is said, counting shall cost no more than it must.
    let entry = hooks == Some(HooksArg::Entry) || counts && hooks.is_none();
    let nothing = hooks == Some(HooksArg::None) || subject.unhookable.is_some();
    let lines = filters.asks_for_files().then(|| subject.lines());
    let counted = |function: &Function| {
        let (lo, hi) = (function.address, function.address + function.size);
        let in_files = |lines: &Option<gprofinject_image::debug::Lines>| {
            lines.as_ref().is_some_and(|lines| files(lines, lo, hi).any(|file| filters.counts_file(file)))
        };
        lines.as_ref().is_none_or(in_files)
    };
    let selected = |function: &Function| !nothing && filters.select(function.names(), function.size);
    let insist = hooks.is_some() && !blocks_only;
    let hooks = if entry { Hooks::Entry } else { Hooks::Both };
    let image = subject.image.as_ref().filter(|_| agent_wanted || !nothing);
    let counted = counts.then_some(&counted as &dyn Fn(&Function) -> bool);
    let options = Options { hooks, engine: engine.engine(), selected: &selected, insist, counted };
    let key =
        image.and_then(|image| cache.key(&Question { subject, image, options: &options, hookless: nothing }));
    let cached = key.zip(image).and_then(|(key, image)| cache.find(&key, image));
    let is_cached = cached.is_some();
    let mut plan = cached.or_else(|| image.map(|image| Plan::new(image, &options)));
    if let Some(plan) = plan.as_mut().filter(|_| nothing) {
        (plan.downgrade, plan.caution) = (None, None);
        for verdict in plan.verdicts.iter_mut().filter(|v| **v == Verdict::Refused(Reason::NotSelected)) {
            *verdict = Verdict::Refused(Reason::NoHooks);
        }
    }
    let shape = match &plan {
        Some(plan) => {
            let starts =
                subject.functions().iter().map(|function| function.address.wrapping_sub(plan.text.0));
            let owners = plan.arena_owners.iter().map(|&(start, _)| u64::from(start));
            Shape {
                text: plan.text,
                arena: plan.arena,
                arena_len: plan.arena_len,
                text_shift: widest_bins(starts),
                arena_shift: widest_bins(owners),
            }
        }
        None => Shape { text: text_extents(subject), ..Shape::default() },
    };
    Planned {
        subject,
        plan,
        shape,
        took: start.elapsed(),
        is_cached,
        key: key.filter(|_| !is_cached),
        counts,
        blocks_only,
        gprof: OnceLock::new(),
    }
}

/// Binary logarithm of the most bytes, up to 16, that a bin can cover without those of two owners.
fn widest_bins(starts: impl Iterator<Item = u64>) -> u32 {
    const MOST: u32 = 4;
    starts.map(u64::trailing_zeros).fold(MOST, u32::min)
}

/// The source files of the code in a range, some of them several times.
fn files(lines: &gprofinject_image::debug::Lines, lo: u64, hi: u64) -> impl Iterator<Item = &Path> {
    let rows = lines.rows();
    let from = rows.partition_point(|row| row.end <= lo);
    let inside = rows[from..].iter().take_while(move |row| row.start < hi);
    inside.filter_map(|row| lines.files().get(row.location?.file).map(Path::new))
}

/// Extents of the functions, or of all code where none are known.
fn text_extents(subject: &Subject) -> (u64, u64) {
    let functions = subject.functions();
    if let (Some(first), Some(end)) =
        (functions.first(), functions.iter().map(|function| function.address + function.size).max())
    {
        return (first.address, end);
    }
    let lo = subject.code.iter().map(|segment| segment.address).min().unwrap_or(0);
    let ends = subject.code.iter().map(|segment| segment.address.saturating_add(segment.len));
    (lo, ends.max().unwrap_or(0))
}

impl Planned<'_, '_> {
    pub(crate) fn image(&self) -> Option<&Image<'_>> {
        self.subject.image.as_ref()
    }

    /// All that may be called, with their verdicts: everything but `.cold` parts.
    pub(crate) fn functions(&self) -> impl Iterator<Item = (&Function<'_>, Verdict)> {
        let functions = self.subject.functions();
        let verdicts = self.plan.iter().flat_map(|plan| plan.verdicts.iter().copied());
        let none = std::iter::repeat(Verdict::Refused(Reason::NoHooks));
        functions
            .iter()
            .zip(verdicts.chain(none))
            .filter(|(function, _)| !matches!(function.kind, FunctionKind::Cold(_)))
    }

    /// The same without what only the dynamic linker or the kernel jumps to: no hook is missing there.
    pub(crate) fn callable(&self) -> impl Iterator<Item = (&Function<'_>, Verdict)> {
        self.functions().filter(|(function, _)| function.kind != FunctionKind::Start)
    }

    pub(crate) fn found(&self) -> usize {
        self.callable().count()
    }

    pub(crate) fn hooked(&self) -> usize {
        self.plan.as_ref().map_or(0, |plan| plan.records.len())
    }

    /// Functions that Frida's gum is to patch.
    pub(crate) fn frida(&self) -> usize {
        let verdicts = self.plan.iter().flat_map(|plan| &plan.verdicts);
        verdicts.filter(|verdict| **verdict == Verdict::Hooked(Tactic::Frida)).count()
    }

    /// The name of the hooks in place.
    pub(crate) fn hooks(&self) -> &'static str {
        match &self.plan {
            Some(plan) if !plan.records.is_empty() => match plan.hooks {
                Hooks::Both => "both",
                Hooks::Entry => "entry",
            },
            _ => "none",
        }
    }

    /// The function that contains a link address.
    pub(crate) fn function_at(&self, address: u64) -> Option<&Function<'_>> {
        let functions = self.subject.functions();
        let after = functions.partition_point(|function| function.address <= address);
        let function = functions.get(after.checked_sub(1)?)?;
        (address - function.address < function.size).then_some(function)
    }

    /// What gprof will know of the program: the symbols of the file that it is to be given. None: there are none.
    pub(crate) fn gprof(&self) -> Option<&gmon::Program> {
        let parse = |bytes: &[u8]| {
            gprofinject_image::gprof::parse(bytes).ok().filter(|program| !program.functions().is_empty())
        };
        let read = || match self.subject.debug_file {
            Some(file) => parse(&file.bytes),
            None => parse(self.subject.bytes),
        };
        self.gprof.get_or_init(read).as_ref()
    }

    /// Whether an address is in the function that begins at `start`.
    pub(crate) fn is_in(&self, address: u64, start: u64) -> bool {
        self.function_at(address).is_some_and(|function| function.address == start)
    }

    /// The link address of the text that a place stands for.
    pub(crate) fn text_address(&self, place: Place) -> Option<u64> {
        match place {
            Place::Text(address) => Some(address),
            Place::Arena(offset) => self.original(offset).or_else(|| self.arena_owner(offset)),
        }
    }

    /// The instruction whose copy is at this offset of the arena.
    pub(crate) fn original(&self, offset: u64) -> Option<u64> {
        self.plan.as_ref()?.original(u32::try_from(offset).ok()?)
    }

    /// Entry of the function that owns these bytes of the arena.
    fn arena_owner(&self, offset: u64) -> Option<u64> {
        let owners = &self.plan.as_ref()?.arena_owners;
        let offset = u32::try_from(offset).ok()?;
        let after = owners.partition_point(|&(start, _)| start <= offset);
        self.entry(owners.get(after.checked_sub(1)?)?.1)
    }

    /// Entry of a hooked function by number.
    pub(crate) fn entry(&self, number: u32) -> Option<u64> {
        self.plan.as_ref()?.records.get(number as usize).map(|record| record.entry)
    }

    /// Where a tail call comes from: the only jump that can have made it, else the caller's entry.
    pub(crate) fn tail_caller(&self, caller: u32, callee: u32) -> Option<u64> {
        let site = self.plan.as_ref()?.tail_site(caller, callee);
        site.or_else(|| self.entry(caller))
    }

    /// The return address in the text for one that a call has left, which is in a copy if the function was copied.
    fn text_return(&self, return_address: u64) -> u64 {
        self.original(return_address.wrapping_sub(self.shape.arena)).unwrap_or(return_address)
    }

    /// The target of the direct call that ends at a return address.
    pub(crate) fn call_target(&self, return_address: u64) -> Option<u64> {
        const CALL: u8 = 0xe8;
        let end = self.text_return(return_address);
        let [CALL, distance @ ..] = *self.image()?.code_at(end.wrapping_sub(5), 5)?.first_chunk::<5>()?
        else {
            return None;
        };
        Some(end.wrapping_add_signed(i32::from_le_bytes(distance).into()))
    }

    /// Where a call comes from that left this return address (a link address), if it is known.
    pub(crate) fn caller(&self, return_address: u64) -> Option<u64> {
        let return_address = self.text_return(return_address);
        // Inside the call instruction: behind it another function may begin.
        let site = return_address.wrapping_sub(1);
        let code = &self.image()?.code;
        let known = code.iter().any(|part| site.wrapping_sub(part.address) < part.bytes.len() as u64);
        known.then_some(site)
    }

    /// Who calls what nobody in the program calls.
    pub(crate) fn root(&self) -> u64 {
        let Some(image) = self.image() else { return 0 };
        let start = image.functions.iter().find(|function| function.kind == FunctionKind::Start);
        start.map_or(image.entry, |function| function.address)
    }
}
