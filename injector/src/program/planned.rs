//! A planned program, and the answers about it that the other layers need.

use std::borrow::Cow;
use std::fs::File;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use gmon_trace::value::Signature;
use gprofinject_image::plt::{self, Stub};
use gprofinject_image::{Function, FunctionKind, Image};
use gprofinject_plan::{Hooks, Plan, Reason, Tactic, Verdict};

use crate::options::Measure;
use crate::os::sys;
use crate::program::arguments::{Kept, Known};
use crate::program::plan_cache::key::Key;
use crate::program::subject::Subject;
use crate::store::region::layout::LibraryHooks;
use crate::store::run_folder::PlanFile;
use crate::store::shape::{Place, Shape};

/// What was decided about a program.
pub(crate) struct Planned<'s, 'd> {
    pub(crate) subject: &'s Subject<'d>,
    /// The plan; `None` if there is no image or nothing to do.
    pub(crate) plan: Option<Plan>,
    pub(crate) shape: Shape,
    pub(crate) took: Duration,
    /// Why there is no plan although the program's kind would permit one.
    pub(crate) obstacle: Option<String>,
    /// Whether the plan was made in an earlier run.
    pub(crate) is_cached: bool,
    /// The key under which the plan may be kept for later runs.
    pub(crate) key: Option<Key>,
    /// Whether it is kept under that key.
    pub(crate) is_kept: bool,
    /// The file that an earlier run has kept, if there is one.
    pub(crate) file: Option<Arc<File>>,
    /// Whether basic blocks are counted.
    pub(crate) counts: bool,
    /// Whether copies of functions run in their place, because basic blocks are counted or the clock counts instructions.
    pub(crate) copies: bool,
    /// Whether there are hooks only because basic blocks are counted, so that arcs are not wanted.
    pub(crate) blocks_only: bool,
    /// What is measured of the durations of calls in a process that runs this program.
    pub(crate) measure: Option<Measure>,
    /// Which hooks the libraries of a process that runs this program get; `None` if none.
    pub(crate) libraries: Option<LibraryHooks>,
    /// How the arguments and results of its functions are read and shown, if they are traced.
    pub(crate) arguments: Option<Known>,
    /// Whether the user wants a view of the whole process, beside the program's own, if there is anything in it.
    pub(crate) wants_whole: bool,
    /// See [`Planned::stub_at`].
    pub(crate) stubs: OnceLock<Vec<Stub>>,
    /// See [`Planned::gprof`].
    pub(crate) gprof: OnceLock<Option<gmon::Program>>,
}

impl<'d> Planned<'_, 'd> {
    /// Whether the user wants libraries of a process that runs this program hooked.
    pub(crate) fn wants_libraries(&self) -> bool {
        self.libraries.is_some_and(|hooks| hooks.wanted)
    }

    /// The program's image, if it has one.
    pub(crate) fn image(&self) -> Option<&Image<'_>> {
        self.subject.image()
    }

    /// Returns why nothing is hooked: the program's kind does not permit it, or its code.
    pub(crate) fn unhookable(&self) -> Option<&str> {
        self.subject.kind.unhookable().or(self.obstacle.as_deref())
    }

    /// Returns the plan file in pieces, with the fetches for the arguments that are traced.
    pub(crate) fn pieces(&self) -> Vec<Cow<'_, [u8]>> {
        let fetches = self.arguments.as_ref().filter(|known| !known.fetches.is_empty());
        let mut table = fetches.map(|known| known.fetches.bytes()).unwrap_or_default();
        table.resize(table.len().next_multiple_of(size_of::<u64>()), 0);
        self.plan.as_ref().map(|plan| plan.encode(&table)).unwrap_or_default()
    }

    /// Returns the plan file, as it is given to processes.
    pub(crate) fn plan_file(&'static self) -> PlanFile {
        let is_whole = |_: &&Arc<File>| self.arguments.is_none() && sys::sees_itself();
        let file = self.file.as_ref().filter(is_whole).filter(|file| sys::maps_executable(file));
        file.map_or_else(|| PlanFile::Pieces(self.pieces()), |file| PlanFile::Kept(file.clone()))
    }

    /// Returns the file with the image, if an earlier run has kept one, whose text can be mapped in place of the module's.
    pub(crate) fn image_file(&self) -> Option<Arc<File>> {
        let has_text = self.plan.as_ref().is_some_and(Plan::has_patched_text);
        let file = self.file.as_ref().filter(|_| has_text);
        file.filter(|file| sys::maps_executable(file)).cloned()
    }

    /// Returns how the arguments and the result of a function, by its number, are shown.
    pub(crate) fn signature(&self, number: u32) -> Option<&Signature> {
        let all = &self.arguments.as_ref()?.signatures;
        let at = all.binary_search_by_key(&number, |(number, _)| *number).ok()?;
        all.get(at).map(|(_, signature)| signature)
    }

    /// Returns the values of a function, by its number, that are kept: those of its results, or of its arguments.
    pub(crate) fn kept(&self, number: u32, is_result: bool) -> Option<&[Kept]> {
        let [arguments, results] = self.arguments.as_ref()?.kept.get(&number)?;
        Some(if is_result { results } else { arguments })
    }

    /// Returns all functions that may be called, with their verdicts: everything except `.cold` parts.
    pub(crate) fn functions(&self) -> impl Iterator<Item = (&Function<'_>, Verdict)> {
        let all = self.subject.functions().iter().zip(self.all_verdicts());
        all.filter(|(function, _)| !matches!(function.kind, FunctionKind::Cold(_)))
    }

    /// Returns the verdict on each function of the file, and refusals behind them.
    fn all_verdicts(&self) -> impl Iterator<Item = Verdict> {
        let verdicts = self.plan.iter().flat_map(|plan| plan.verdicts.iter().copied());
        verdicts.chain(std::iter::repeat(Verdict::Refused(Reason::NoHooks)))
    }

    /// Returns the verdicts on the same functions without those that only the dynamic linker or the kernel jumps to, where no
    /// hook is missing.
    pub(crate) fn verdicts(&self) -> impl Iterator<Item = Verdict> {
        let callable = |kind| !matches!(kind, FunctionKind::Cold(_) | FunctionKind::Start);
        let all = self.subject.functions().kinds().zip(self.all_verdicts());
        all.filter(move |&(kind, _)| callable(kind)).map(|(_, verdict)| verdict)
    }

    /// The number of functions that may be called.
    pub(crate) fn found(&self) -> usize {
        self.verdicts().count()
    }

    /// The number of hooked functions.
    pub(crate) fn hooked(&self) -> usize {
        self.plan.as_ref().map_or(0, |plan| plan.records.len())
    }

    /// The number of functions that Frida's gum has to patch.
    pub(crate) fn frida(&self) -> usize {
        let verdicts = self.plan.iter().flat_map(|plan| plan.verdicts.iter());
        verdicts.filter(|verdict| **verdict == Verdict::Hooked(Tactic::Frida)).count()
    }

    /// Returns the name of the hooks in place.
    pub(crate) fn hooks(&self) -> &'static str {
        match &self.plan {
            Some(plan) if !plan.records.is_empty() => match plan.hooks {
                Hooks::Both => "both",
                Hooks::Entry => "entry",
            },
            _ => "none",
        }
    }

    /// Returns the function that contains a link address.
    pub(crate) fn function_at(&self, address: u64) -> Option<Function<'d>> {
        let functions = self.subject.functions();
        functions.function(functions.index_at(address)?)
    }

    /// Returns the stub of the program's PLT that contains a link address.
    pub(crate) fn stub_at(&self, address: u64) -> Option<&Stub> {
        plt::at(self.stubs.get_or_init(|| plt::stubs(self.subject.bytes)), address)
    }

    /// Returns the function to which a function belongs as a cold part, or `None` if it is none, or of an unknown function.
    pub(crate) fn parent(&self, function: &Function) -> Option<Function<'d>> {
        let functions = self.subject.functions();
        let parent = match (function.kind, self.image()) {
            (FunctionKind::Cold(_), Some(image)) => image.parent(functions.index_at(function.address)?),
            (FunctionKind::Cold(parent), None) => parent,
            _ => None,
        };
        functions.function(parent?)
    }

    /// Returns what gprof will know of the program: the symbols of the file that it has to be given, or
    /// `None` if there are none.
    pub(crate) fn gprof(&self) -> Option<&gmon::Program> {
        let parse = |bytes: &[u8]| {
            gprofinject_image::gprof::parse(bytes).ok().filter(|program| !program.functions().is_empty())
        };
        let read = || match self.subject.separate_file() {
            Some(file) => parse(&file.bytes),
            None => parse(self.subject.bytes),
        };
        self.gprof.get_or_init(read).as_ref()
    }

    /// Whether an address is in the function that begins at `start`.
    pub(crate) fn is_in(&self, address: u64, start: u64) -> bool {
        self.function_at(address).is_some_and(|function| function.address == start)
    }

    /// Returns the link address of the instruction of the program to which a sample at a place belongs, or `None` if it
    /// belongs to gprofinject. The jump at the start of a function is the function's: what a sample finds there is mostly
    /// the price of coming there, a mispredicted call or code that is not in the cache, as at the first instruction of a
    /// function that is not hooked.
    pub(crate) fn text_address(&self, place: Place) -> Option<u64> {
        match place {
            Place::Text(address) => Some(address),
            Place::Arena(offset) => {
                self.plan.as_ref()?.stands_for(self.image()?, u32::try_from(offset).ok()?)
            }
        }
    }

    /// Returns the link address of the instruction whose copy is at this offset of the arena.
    pub(crate) fn original(&self, offset: u64) -> Option<u64> {
        self.plan.as_ref()?.original(u32::try_from(offset).ok()?)
    }

    /// Returns the entry of a hooked function by its number.
    pub(crate) fn entry(&self, number: u32) -> Option<u64> {
        self.plan.as_ref()?.records.get(number as usize).map(|record| record.entry)
    }

    /// Returns the number of the function whose exit label is at an offset of the arena.
    pub(crate) fn returning(&self, offset: u64) -> Option<u32> {
        let records = &self.plan.as_ref()?.records;
        // Thunks are in the functions' order.
        let after = records.partition_point(|record| u64::from(record.thunk) <= offset);
        let number = after.checked_sub(1)?;
        let exit = records.get(number)?.exit;
        (exit != 0 && u64::from(exit) == offset).then_some(number as u32)
    }

    /// Returns the address from which a tail call comes: the only jump that can have made it, otherwise the
    /// caller's entry.
    pub(crate) fn tail_caller(&self, caller: u32, callee: u32) -> Option<u64> {
        let site = self.plan.as_ref()?.tail_site(caller, callee);
        site.or_else(|| self.entry(caller))
    }

    /// Returns the return address in the text for one that a call has left, which is in a copy if the
    /// function was copied.
    fn text_return(&self, return_address: u64) -> u64 {
        self.original(return_address.wrapping_sub(self.shape.arena)).unwrap_or(return_address)
    }

    /// Returns the target of the direct call that ends at a return address.
    pub(crate) fn call_target(&self, return_address: u64) -> Option<u64> {
        const CALL: u8 = 0xe8;
        let end = self.text_return(return_address);
        let [CALL, distance @ ..] = *self.image()?.code_at(end.wrapping_sub(5), 5)?.first_chunk::<5>()?
        else {
            return None;
        };
        Some(end.wrapping_add_signed(i32::from_le_bytes(distance).into()))
    }

    /// Returns the address of the call that has left this return address (a link address), if it is known.
    pub(crate) fn caller(&self, return_address: u64) -> Option<u64> {
        let return_address = self.text_return(return_address);
        // The address is inside the call instruction, because another function may begin after it.
        let site = return_address.wrapping_sub(1);
        let code = &self.image()?.code;
        let known = code.iter().any(|part| site.wrapping_sub(part.address) < part.bytes.len() as u64);
        known.then_some(site)
    }

    /// Returns the address that is charged as caller of functions that nobody in the program calls.
    pub(crate) fn root(&self) -> u64 {
        let Some(image) = self.image() else { return 0 };
        let start = image.functions.kinds().position(|kind| kind == FunctionKind::Start);
        start.and_then(|index| image.functions.address(index)).unwrap_or(image.entry)
    }
}
