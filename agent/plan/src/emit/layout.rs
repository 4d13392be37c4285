//! The places of everything in the arena. All of them are known before anything is written.

use crate::blocks::code::Site;
use crate::blocks::copies::Copies;
use crate::blocks::tables;
use crate::decide::hook::{Hook, Retarget, relocates};
use crate::decide::shortcuts::Shortcut;
use crate::decide::stack_copiers;
use crate::decide::system_calls::Redirected;
use crate::decide::tails::Tail;
use crate::decide::thunk_spec::ThunkSpec;
use crate::decide::uncalled::Uncalled;
use crate::decide::unwinder::ThroughAgent;
use crate::decide::verdict::Tactic;
use crate::emit::bodies::Bodies;
use crate::emit::cfi::Tables;
use crate::emit::code::{JUMP_THROUGH, RESTORE, STUB};
use crate::emit::homes::Homes;
use crate::emit::sleds::Chain;
use crate::emit::tails::Tails;
use crate::emit::thunk::Inside;
use crate::emit::{code, place, sleds, system_call, tails, thunk};
use crate::parallel;
use crate::x86::jump::JUMP;
use crate::x86::template::kind::{Kind, Measured, Role, Second};
use crate::x86::template::{LINE, Template};
use gprofinject_abi::plan::{
    ArenaHeader, BEGIN_LEN, EXIT_JUMPS, INTERNED_LABELS, LABEL_LEN, LABELS_AT, OUTER_BEGIN_LEN,
};
use gprofinject_abi::region::{PAGE, round_up};
use gprofinject_image::Image;
use std::collections::HashMap;
use std::ops::Range;

/// Bytes of a function's stubs: a second look (see [`Template::second_look`]), two of
/// [`code::Writer::stub`], and one of [`code::Writer::restore`].
pub(crate) const STUBS: usize = SECOND_LOOK + 2 * STUB + RESTORE;
/// Bytes of a second look.
pub(crate) const SECOND_LOOK: usize = 21;

/// Bytes of `lea r11, [body]`.
pub(crate) const LEA_LEN: usize = 7;

/// Returns the number of bytes of `lea r11, [body]; lea r10, [helper]; jmp [header]`, in which the second instruction is
/// absent if there is no helper.
pub(crate) fn gate_jump(through_agent: &ThroughAgent) -> usize {
    LEA_LEN * if through_agent.helper.is_some() { 2 } else { 1 } + JUMP_THROUGH
}

/// The input of emission. Function numbers are indices of hooks.
#[derive(Clone, Copy)]
pub(crate) struct Input<'a, 'd> {
    /// What the image is for a process.
    pub(crate) role: Role,
    /// The program.
    pub(crate) image: &'a Image<'d>,
    /// The hooked functions, in the order of their addresses.
    pub(crate) hooks: &'a [Hook],
    /// The requirements of each hook's thunk.
    pub(crate) specs: &'a [ThunkSpec],
    /// The home slots of each hook.
    pub(crate) homes: &'a Homes,
    /// The tail calls that get a thunk, sorted by callee.
    pub(crate) tails: &'a [Tail],
    /// The exit labels that thunks compare with their return slot.
    pub(crate) uncalled: &'a Uncalled,
    /// Functions whose bodies begin with a jump through the agent.
    pub(crate) through_agent: &'a [ThroughAgent],
    /// The system calls that lead to the agent.
    pub(crate) system_calls: &'a [Redirected],
    /// Which calls are measured.
    pub(crate) measured: Measured,
    /// See [`Options::arena`](crate::Options::arena).
    pub(crate) arena: Option<u64>,
    /// The copies of counted functions.
    pub(crate) copies: &'a Copies,
    /// Whether only calls from outside of the module are counted.
    pub(crate) outermost: bool,
    /// The branches that then lead past thunks.
    pub(crate) shortcuts: &'a [Shortcut],
}

/// The places of everything in the arena, as arena offsets.
pub(crate) struct Layout<'a, 'd> {
    /// The input of emission.
    pub(super) input: Input<'a, 'd>,
    /// Address of the arena.
    pub(super) arena: u64,
    /// Bytes of the arena, at most.
    pub(super) len: usize,
    /// The thunks' templates, by [`Kind::index`]. The template of a kind that no function has is empty.
    pub(super) templates: Vec<Template>,
    /// The kind of each function's thunk.
    pub(super) kinds: Vec<Kind>,
    /// The checks for calls from inside, if only those from outside are counted.
    inside: Option<Inside>,
    /// The templates of second looks, by [`Second`].
    pub(super) second_looks: [Template; Second::ALL.len()],
    /// The jumps to the slow path of exits, by [`crate::x86::template::kind::ExitWay`].
    pub(super) exits: [usize; 3],
    /// The unwind tables of thunks.
    pub(super) unwind: usize,
    /// The chains of sleds, each with the offset of the code that its head's jump leads to.
    pub(super) chains: Vec<(usize, Chain)>,
    /// The thunks, divided into parts: the numbers of the functions in each part, and the room for it.
    pub(super) parts: Vec<(Range<usize>, Range<usize>)>,
    /// The first byte of the stubs.
    pub(super) stubs: usize,
    /// The thunks and stubs of tail calls.
    pub(super) tails: Tails,
    /// For each relocated branch that has to lead elsewhere, by its address: the offset of a jump to its
    /// new target.
    pub(super) moved_calls: HashMap<u64, usize>,
    /// The code of the system calls that lead to the agent.
    pub(super) system_calls: usize,
    /// The unwind table of the bodies that move the stack pointer.
    pub(super) bodies: usize,
    /// The copies of counted functions.
    pub(super) copies: usize,
}

impl<'a, 'd> Layout<'a, 'd> {
    /// Assigns all places.
    pub(super) fn new(input: Input<'a, 'd>) -> Layout<'a, 'd> {
        let Input { image, hooks, specs, homes, tails, copies, .. } = input;
        let kinds: Vec<Kind> =
            specs.iter().enumerate().map(|(number, spec)| thunk::kind(*spec, homes.of(number))).collect();
        let templates = templates(&kinds, input.role, input.measured);
        let inside = input.outermost.then(Inside::new);
        let header = size_of::<ArenaHeader>();
        let unwind =
            (labels(input.role).map_or(header + EXIT_JUMPS, |labels| labels.end)).next_multiple_of(LINE);
        let unwind_len = Tables::new(0, 0, 0).map_or(0, |t| t.bytes.len());
        let (chains, thunks) = place_sleds(sleds::chains(hooks), unwind + unwind_len);
        let room = |number: usize| {
            let before = begin_len(input.measured, specs[number]) + gate_of(input.through_agent, number);
            let check = inside.as_ref().map(|inside| inside.of(specs[number], kinds[number].second));
            let checks = thunk::checks(input.uncalled, number, check);
            let template = &templates[kinds[number].index()];
            checks + thunk::room(specs[number], &hooks[number]) + template.bytes.len() + before
        };
        let parts = parts(hooks.len(), thunks, room);
        let stubs = parts.last().map_or(thunks, |(_, room)| room.end).next_multiple_of(64);
        let tails_at = (stubs + hooks.len() * STUBS).next_multiple_of(64);
        let call_jumps = tails_at + tails.len() * tails::pitch();
        let moved_calls = moved_calls(hooks, input.shortcuts, call_jumps);
        let system_calls_at = (call_jumps + moved_calls.len() * JUMP as usize).next_multiple_of(LINE);
        let tail_stubs = system_calls_at + input.system_calls.iter().map(system_call::room).sum::<usize>();
        let bodies = (tail_stubs + tails.len() * tails::STUBS).next_multiple_of(8);
        let bodies_len: usize = hooks.iter().map(|h| Bodies::most(h.relocated as usize)).sum();
        let caves = hooks.iter().map(|h| 1 + h.retargets.len()).sum();
        let copies_at = round_up((bodies + Bodies::others(caves) + bodies_len) as u64, PAGE);
        let len = copies_at + round_up(copies_len(image, copies), PAGE);
        Layout {
            input,
            arena: input.arena.unwrap_or_else(|| place::place(image, input.role, hooks, len)),
            len: len as usize,
            templates,
            kinds,
            inside,
            second_looks: Second::ALL.map(|second| Template::second_look(second, SECOND_LOOK)),
            exits: code::exits(header),
            unwind,
            chains,
            parts,
            stubs,
            tails: Tails::new(tails_at, tail_stubs, tails, !copies.units.is_empty()),
            moved_calls,
            system_calls: system_calls_at,
            bodies,
            copies: copies_at as usize,
        }
    }

    /// Returns the address at an offset.
    pub(super) fn address(&self, offset: usize) -> u64 {
        self.arena.wrapping_add(offset as u64)
    }

    /// Returns whether the code of a function and all of the arena reach each other.
    pub(super) fn reaches(&self, hook: &Hook) -> bool {
        place::reaches(self.arena, self.len as u64, self.input.image, hook)
    }

    /// Returns the check for calls from inside with which the thunk of a function begins, if there is one.
    pub(super) fn inside(&self, number: usize) -> Option<&Template> {
        Some(self.inside.as_ref()?.of(self.input.specs[number], self.kinds[number].second))
    }

    /// Returns the number of bytes of the checks with which the thunk of a function begins.
    pub(super) fn checks(&self, number: usize) -> usize {
        thunk::checks(self.input.uncalled, number, self.inside(number))
    }

    /// Returns the range of the stubs of these functions.
    pub(super) fn stubs_of(&self, numbers: &Range<usize>) -> Range<usize> {
        self.stubs + numbers.start * STUBS..self.stubs + numbers.end * STUBS
    }

    /// Returns the target of the function's jump: its thunk, or the code of a sled that comes before the
    /// thunk.
    pub(super) fn landing(&self, number: u32, thunk: usize) -> usize {
        let chain = self.chains.binary_search_by_key(&(number as usize), |(_, chain)| chain.head);
        chain.map_or(thunk, |n| self.chains[n].0)
    }

    /// Returns the number of bytes at the start of each function's body that tell the agent that a call begins.
    pub(super) fn begin_len(&self, number: usize) -> usize {
        begin_len(self.input.measured, self.input.specs[number])
    }

    /// Returns the number of bytes of the jump through the agent with which the function's body begins, or 0 if it does
    /// not begin with one.
    pub(super) fn gate_of(&self, number: usize) -> usize {
        gate_of(self.input.through_agent, number)
    }

    /// Returns whether the patches of a function stay while hooks are paused, because frames that were hooked before depend on
    /// its call through the agent.
    pub(super) fn stays(&self, number: usize) -> bool {
        let gate = self.input.through_agent.iter().find(|f| f.number == number).map(|f| f.gate);
        gate.is_some_and(|gate| gate == stack_copiers::GATE || self.input.role.is_standalone())
    }

    /// Returns whether a function (by its index in the image) is copied, itself or as a part of another
    /// one.
    pub(super) fn is_copied(&self, function: usize) -> bool {
        self.input.copies.unit_with(self.input.image, function).is_some()
    }
}

/// Returns the range of the labels of interned frames. Those in the program's arena serve the libraries as well.
pub(super) fn labels(role: Role) -> Option<Range<usize>> {
    const { assert!(size_of::<ArenaHeader>() + EXIT_JUMPS <= LABELS_AT && LABELS_AT.is_multiple_of(LABEL_LEN)) };
    (!role.is_library()).then(|| LABELS_AT..LABELS_AT + INTERNED_LABELS as usize * LABEL_LEN)
}

/// Returns the number of bytes at the start of a function's body that tell the agent that a call begins, or 0 if calls are not
/// measured.
fn begin_len(measured: Measured, spec: ThunkSpec) -> usize {
    match measured {
        Measured::None => 0,
        Measured::Chosen if !spec.told.begins => 0,
        Measured::All | Measured::Long | Measured::Chosen => BEGIN_LEN as usize,
        Measured::Outer => OUTER_BEGIN_LEN as usize,
    }
}

/// Returns the number of bytes of a function's jump through the agent, or 0 if the list does not contain the function.
fn gate_of(list: &[ThroughAgent], number: usize) -> usize {
    list.iter().find(|l| l.number == number).map_or(0, gate_jump)
}

/// Makes the templates of all kinds that some function has.
fn templates(kinds: &[Kind], role: Role, measured: Measured) -> Vec<Template> {
    let len = kinds.iter().map(|kind| kind.index() + 1).max().unwrap_or(0);
    let mut templates = vec![Template::empty(role); len];
    for &kind in kinds {
        let template = &mut templates[kind.index()];
        if template.bytes.is_empty() {
            *template = Template::thunk(kind, role, measured);
        }
    }
    templates
}

/// Assigns places to the ends of sleds, from `next` on. Returns the places, and the first offset after
/// them.
fn place_sleds(chains: Vec<Chain>, mut next: usize) -> (Vec<(usize, Chain)>, usize) {
    let place = |chain: Chain| {
        let at = next.next_multiple_of(LINE);
        next = at + sleds::code_len(chain.sleds.len());
        (at, chain)
    };
    let placed = chains.into_iter().map(place).collect();
    (placed, next)
}

/// Divides the thunks of `count` functions, from `next` on, into parts. `room` returns the maximum size of
/// a thunk.
fn parts(count: usize, mut next: usize, room: impl Fn(usize) -> usize) -> Vec<(Range<usize>, Range<usize>)> {
    let parts = parallel::parts(count);
    let bound = |n: usize| count * n / parts;
    let place = |n: usize| {
        let numbers = bound(n)..bound(n + 1);
        let from = next;
        next += numbers.clone().map(&room).sum::<usize>();
        (numbers, from..next)
    };
    (0..parts).map(place).collect()
}

/// Returns the size of the copies with their unwind tables, in bytes. The size of the tables does not
/// depend on their place.
fn copies_len(image: &Image, copies: &Copies) -> u64 {
    if copies.units.is_empty() {
        return 0;
    }
    let near = image.lo.wrapping_sub(place::GUARD + u64::from(copies.len));
    let site = Site { base: near, ..Site::default() };
    let tables = tables::tables(image, copies, site, near).map_or(0, |tables| tables.bytes.len() as u64);
    u64::from(copies.len).next_multiple_of(8) + tables
}

/// Assigns places to the jumps for relocated branches that have to lead elsewhere: branches to functions
/// that are hooked at their call sites, jumps into code that another function's hook relocates, and jumps that lead past thunks. Each
/// takes five bytes, from `first` on.
fn moved_calls(hooks: &[Hook], shortcuts: &[Shortcut], first: usize) -> HashMap<u64, usize> {
    let is_moved = |h: &Hook, r: &Retarget| match h.tactic {
        Tactic::CallSites => relocates(hooks, r.branch.site),
        _ => r.moved,
    };
    let sites = hooks.iter().flat_map(|h| h.retargets.iter().filter(move |r| is_moved(h, r)));
    let sites = sites.map(|r| r.branch.site);
    let sites = sites.chain(shortcuts.iter().filter(|s| s.relocated).map(|s| s.branch.site));
    sites.zip((first..).step_by(JUMP as usize)).collect()
}
