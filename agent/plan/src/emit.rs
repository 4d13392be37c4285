//! Writes the machine code of a plan: the arena with its thunks, and the patches that lead there.
//!
//! ```text
//! arena:  ArenaHeader | jump to the exits' slow path | unwind tables | ends of sleds
//!         | thunks, in the functions' order | stubs to the slow paths | thunks of tail calls
//!         | unwind table of the bodies
//!         | copies of counted functions | their unwind tables
//! ```
//!
//! The thunks of neighbours lie beside each other; what is rarely run lies apart from them.

pub mod code;
mod copies;
pub(crate) mod patch;
mod tail;
mod wish;

pub(crate) use patch::short;

use crate::blocks::{self, Copies, Uncounted};
use crate::cfi::Tables;
use crate::image::{Image, ImageKind};
use crate::moved::Bodies;
use crate::relocate::{Relocated, Unmovable, copied, leading_nops, relocate};
use crate::slots::{Home, Homes};
use crate::tactic::sled::{self, Chain};
use crate::tactic::{Hook, JUMP, Reason, Tactic};
use crate::tails::Tail;
use crate::template::{Kind, LINE, Second, Template};
use crate::unwinder::Led;
use code::{Code, RESTORE, STUB, Values};
use gprofinject_abi::plan::{
    ArenaHeader, ENTRY_ONLY, EXIT_JUMPS, FRAMED, Frame, FunctionRecord, LEAF, LOOPS, Patch, TailRecord,
};
use gprofinject_abi::region::{PAGE, Slot, round_up};
use std::collections::HashMap;
use std::mem::offset_of;
use std::ops::Range;
use tail::Tails;
pub use wish::Wish;

/// Free space left between the arena and the image.
const GUARD: u64 = 0x1_0000;
/// Nothing is mapped below (vm.mmap_min_addr).
const LOWEST: u64 = 0x2_0000;
/// Where an ET_EXEC has no room below, the arena leaves this much to the heap behind the image.
const HEAP: u64 = 1 << 29;
/// Bytes of a function's stubs: a second look (see [`Template::second_look`]), two of [`Code::stub`], and
/// [`Code::restore`].
const STUBS: usize = SECOND_LOOK + 2 * STUB + RESTORE;
const SECOND_LOOK: usize = 21;
/// Bytes of `cmp dword [rsp], label; je body`.
const LOOP_CHECK: usize = 13;
/// Bytes of `lea r11, [body]; lea r10, [helper]; jmp [header]`.
const LEAD: usize = 20;

/// What emission yields.
#[derive(Debug, Default)]
pub struct Emitted {
    pub code: Code,
    pub records: Vec<FunctionRecord>,
    pub tails: Vec<TailRecord>,
    pub patches: Vec<Patch>,
    pub bias_fixups: Vec<u32>,
    pub half_bias_fixups: Vec<u32>,
    /// Arena offsets of the unwind tables, by [`gprofinject_abi::plan::Frame`].
    pub frame_tables: [u32; 6],
    /// See [`gprofinject_abi::plan::PlanHeader`].
    pub stubs: u32,
    pub stub_len: u32,
    pub tail_code: u32,
    /// Sorted: arena offset from which on the bytes belong to the function with that number.
    pub owners: Vec<(u32, u32)>,
    /// What of the arena is used: the rest stays zero.
    pub used: Vec<Range<usize>>,
    /// Sorted: code that stands elsewhere now, but for the first instruction of each function: link address,
    /// length, arena offset. Either a single instruction, length 1, or several that were copied as they are.
    pub moved: Vec<(u64, u32, u32)>,
    /// Functions that could not be moved after all.
    pub failed: Vec<(usize, Reason)>,
    /// Arena offset of the copies of counted functions; where there are none, the arena's length.
    pub copies: u32,
    /// Functions that could not be copied after all.
    pub uncounted: Vec<(usize, Uncounted)>,
}

/// Emits `hooks`; `wishes` and `homes` are in their order, and so are the function numbers.
pub(crate) fn emit(
    image: &Image,
    hooks: &[Hook],
    wishes: &[Wish],
    homes: &Homes,
    tails: &[Tail],
    led: &[Led],
    copies: &Copies,
) -> Emitted {
    let kinds = wishes.iter().enumerate().map(|(number, wish)| wish.kind(homes.of(number))).collect();
    let mut e = Emitter::new(image, hooks, wishes, kinds, tails, led.len() * LEAD, copies);
    for (number, hook) in hooks.iter().enumerate() {
        let lead = if led.iter().any(|l| l.number == number) { LEAD } else { 0 };
        e.function(hook, number as u32, wishes[number], homes.of(number), lead);
    }
    for led in led {
        e.lead(led);
    }
    let mut first = 0;
    for (i, tail) in tails.iter().enumerate() {
        if tails[first].callee != tail.callee {
            first = i;
        }
        let offset = homes.of(tail.callee as usize).tails() + (i - first) as u32 * size_of::<Slot>() as u32;
        e.tail_call(i, tail, Home { offset, ..Home::default() });
    }
    e.copies(hooks, homes);
    e.finish()
}

/// Bytes that the copies of counted functions take, with their unwind tables. These are as long wherever they are.
fn copies_len(image: &Image, copies: &Copies) -> u64 {
    if copies.units.is_empty() {
        return 0;
    }
    let near = image.lo.wrapping_sub(GUARD + u64::from(copies.len));
    let tables = blocks::tables(image, copies, near, near).map_or(0, |tables| tables.len() as u64);
    u64::from(copies.len).next_multiple_of(8) + tables
}

/// Where the arena goes.
fn place(image: &Image, len: u64) -> u64 {
    let below = image.lo.wrapping_sub(GUARD + len);
    match image.kind {
        ImageKind::Pie => below,
        ImageKind::Exec if image.lo > LOWEST + GUARD + len => below,
        ImageKind::Exec => round_up(image.hi, PAGE) + HEAP,
    }
}

/// Where the relocated calls of functions that are hooked at their call sites lead: five bytes each from
/// `first` on.
fn moved_calls(hooks: &[Hook], first: usize) -> HashMap<u64, usize> {
    let relocated = |site: u64| {
        let after = hooks.partition_point(|h| h.at <= site);
        after.checked_sub(1).is_some_and(|n| site < hooks[n].at + hooks[n].relocated)
    };
    let by_site = hooks.iter().filter(|h| h.tactic == Tactic::CallSites);
    let sites = by_site.flat_map(|h| &h.retargets).map(|r| r.branch.site).filter(|&site| relocated(site));
    sites.zip((first..).step_by(JUMP as usize)).collect()
}

struct Emitter<'a, 'd> {
    image: &'a Image<'d>,
    out: Emitted,
    /// By [`Kind::index`]; empty where no function is of that kind.
    templates: Vec<Template>,
    /// Arena offsets of the jumps to the slow path of exits, by [`crate::template::ExitWay`].
    exits: [usize; 3],
    /// Next free byte of the thunks.
    next: usize,
    /// First byte of the stubs.
    stubs: usize,
    /// The kind of each function's thunk.
    kinds: Vec<Kind>,
    /// By [`Second`].
    second_looks: [Template; Second::ALL.len()],
    tails: Tails,
    /// Relocated calls of functions that are hooked at their call sites, and the jumps that they lead to.
    moved_calls: HashMap<u64, usize>,
    /// Each with the arena offset of the code behind its head's jump.
    chains: Vec<(usize, Chain)>,
    /// Arena offset of each function's thunk.
    thunks: Vec<usize>,
    /// The bodies that move the stack pointer, and where their unwind table goes.
    bodies: Bodies,
    bodies_at: usize,
    /// The counted functions, and the arena offset of their copies.
    copies: &'a Copies,
    copies_at: usize,
}

impl<'a, 'd> Emitter<'a, 'd> {
    fn new(
        image: &'a Image<'d>,
        hooks: &[Hook],
        wishes: &[Wish],
        kinds: Vec<Kind>,
        tails: &[Tail],
        leads: usize,
        copies: &'a Copies,
    ) -> Emitter<'a, 'd> {
        let mut templates = vec![Template::default(); Kind::COUNT];
        for &kind in &kinds {
            let template = &mut templates[kind.index()];
            if template.bytes.is_empty() {
                *template = Template::thunk(kind);
            }
        }
        let header = size_of::<ArenaHeader>();
        let rooms = hooks.iter().zip(wishes).map(|(hook, wish)| wish.room(hook));
        let fixed = kinds.iter().map(|kind: &Kind| templates[kind.index()].bytes.len());
        let thunks = rooms.sum::<usize>() + fixed.sum::<usize>() + leads;
        let chains = sled::chains(hooks);
        let ends: usize = chains.iter().map(|c| sled::code_len(c.sleds.len()) + LINE).sum();
        let unwind = (header + EXIT_JUMPS).next_multiple_of(LINE);
        let unwind_len = Tables::new(0, 0, 0).map_or(0, |t| t.bytes.len());
        let stubs = (unwind + unwind_len + LINE + ends + thunks).next_multiple_of(64);
        let tails_at = (stubs + hooks.len() * STUBS).next_multiple_of(64);
        let call_jumps = tails_at + tails.len() * tail::pitch();
        let moved_calls = moved_calls(hooks, call_jumps);
        let tail_stubs = call_jumps + moved_calls.len() * JUMP as usize;
        let bodies_at = (tail_stubs + tails.len() * tail::STUBS).next_multiple_of(8);
        let bodies: usize = hooks.iter().map(|h| Bodies::most(h.relocated as usize)).sum();
        let caves = hooks.iter().map(|h| 1 + h.retargets.len()).sum();
        let copies_at = round_up((bodies_at + Bodies::others(caves) + bodies) as u64, PAGE);
        let len = copies_at + round_up(copies_len(image, copies), PAGE);
        let mut e = Emitter {
            image,
            out: Emitted {
                code: Code {
                    arena: place(image, len),
                    bytes: vec![0; len as usize],
                    tls_fixups: Vec::with_capacity(hooks.len() * 3 + tails.len() * 2),
                },
                records: Vec::with_capacity(hooks.len()),
                patches: Vec::with_capacity(hooks.len() + tails.len()),
                owners: Vec::with_capacity(hooks.len() * 2 + tails.len()),
                ..Default::default()
            },
            templates,
            exits: [header; 3],
            next: 0,
            stubs,
            kinds,
            second_looks: Second::ALL.map(|second| Template::second_look(second, SECOND_LOOK)),
            tails: Tails::new(tails_at, tail_stubs, tails, !copies.units.is_empty()),
            moved_calls,
            chains: Vec::new(),
            thunks: Vec::with_capacity(hooks.len()),
            bodies: Bodies::default(),
            bodies_at,
            copies,
            copies_at: copies_at as usize,
        };
        e.exits = e.out.code.exits(header);
        e.unwind_tables(unwind);
        e.next = unwind + unwind_len;
        e.place_sleds(chains);
        e
    }

    /// An arena too large for them (2 GiB) is out of reach of its program anyway.
    fn unwind_tables(&mut self, at: usize) {
        let shadows = self.address(offset_of!(ArenaHeader, shadows));
        let Some(tables) = Tables::new(self.copies_at as u32, at as u32, shadows) else { return };
        self.out.code.put(at, &tables.bytes);
        self.out.bias_fixups.extend(tables.addresses.iter().map(|a| at as u32 + a));
        for (frame, start) in tables.starts {
            self.out.frame_tables[frame as usize] = at as u32 + start;
        }
    }

    /// Their code needs the thunks' addresses, and the patches theirs.
    fn place_sleds(&mut self, chains: Vec<Chain>) {
        for chain in chains {
            let at = self.next.next_multiple_of(LINE);
            for (depth, &number) in std::iter::once(&chain.head).chain(&chain.sleds).enumerate() {
                self.out.owners.push(((at + sled::level(depth)) as u32, number as u32));
            }
            self.next = at + sled::code_len(chain.sleds.len());
            self.chains.push((at, chain));
        }
    }

    fn fill_sleds(&mut self) {
        for (at, chain) in &self.chains {
            let numbers = std::iter::once(&chain.head).chain(&chain.sleds);
            let thunks: Vec<u64> = numbers.map(|&n| self.address(self.thunks[n])).collect();
            let code = sled::code(self.address(*at), &thunks);
            self.out.code.put(*at, &code);
        }
    }

    /// Where the function's jump leads: to its thunk, or first to the end of a sled.
    fn landing(&self, number: u32, thunk: usize) -> usize {
        let chain = self.chains.binary_search_by_key(&(number as usize), |(_, chain)| chain.head);
        chain.map_or(thunk, |n| self.chains[n].0)
    }

    fn address(&self, offset: usize) -> u64 {
        self.out.code.address(offset)
    }

    /// `lead` bytes are left free at the start of the body.
    fn function(&mut self, hook: &Hook, number: u32, wish: Wish, home: Home, lead: usize) {
        let kind = self.kinds[number as usize];
        let check = wish.is_checked();
        let template = &self.templates[kind.index()];
        let checking = if check { LOOP_CHECK } else { 0 };
        let start = template.place(self.next, checking);
        self.thunks.push(start);
        let at = start + checking;
        let body = at + template.bytes.len();
        let (resume, exit) = (template.resume, template.exit);
        let (popped, pushed) = match wish.both {
            true => ((at - start) as u32 + template.popped, template.bytes.len() as u32 - template.pushed),
            false => (0, 0),
        };
        if check {
            self.loop_check(start, at + exit as usize, body);
        }
        let f = &self.image.functions[hook.function];
        let entry = f.address;
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let mut record = FunctionRecord {
            entry,
            exit: if wish.both { at as u32 + exit } else { 0 },
            slots: home.offset,
            mask: home.mask,
            multiplier: home.multiplier,
            shift: home.shift as u8,
            popped: popped as u8,
            pushed: pushed as u8,
            flags: flag(!wish.both, ENTRY_ONLY) | flag(wish.loops, LOOPS) | flag(wish.leaf, LEAF),
            resume: if kind.second == Second::Free {
                (self.stubs + number as usize * STUBS + STUBS - RESTORE) as u32
            } else {
                at as u32 + resume
            },
            body: body as u32,
            size: u32::try_from(f.size).unwrap_or(u32::MAX),
            slot_count: home.count,
            thunk: start as u32,
        };
        let moved = body + lead;
        match self.body(hook, wish, moved) {
            Ok(relocated) => {
                let patches = self.patches(hook, self.landing(number, start), moved, &relocated);
                match patches {
                    Some(patches) => self.out.patches.extend(patches),
                    None => self.out.failed.push((hook.function, Reason::Overlap)),
                }
                // What an empty body leads to, the thunk leads to itself.
                let rest = relocated.rest.filter(|_| lead == 0);
                let goal = rest.map_or(body, |rest| rest.wrapping_sub(self.out.code.arena) as usize);
                self.thunk(at, goal, number, home, kind);
                for r in &hook.retargets {
                    if let Some(&jump) = self.moved_calls.get(&r.branch.site) {
                        self.out.code.jump(jump, start);
                    }
                }
                self.out.code.put(moved, &relocated.bytes);
                if let Some(word) = relocated.return_address {
                    self.out.bias_fixups.push(moved as u32 + word);
                }
                if wish.movable && !self.is_copied(hook.function) {
                    self.moved_as_is(hook, moved as u32);
                }
                let later = relocated.map.iter().filter(|(from, _)| *from > 0);
                let later = later.map(|&(from, to)| (hook.at + u64::from(from), 1, moved as u32 + to));
                self.out.moved.extend(later);
                self.next = moved + relocated.bytes.len();
                self.caves(hook);
                if !relocated.frames.is_empty() {
                    record.flags |= FRAMED;
                    self.bodies.add(body, lead, self.next, &relocated.frames);
                }
            }
            Err(_) => {
                self.out.failed.push((hook.function, Reason::NotRelocatable));
                record.exit = 0;
            }
        }
        self.out.owners.push((start as u32, number));
        self.out.records.push(record);
    }

    /// Where the instructions of a body are that were copied. Leading nops were not: who is at one goes on behind.
    fn moved_as_is(&mut self, hook: &Hook, body: u32) {
        let nops = self.image.code_at(hook.at, hook.relocated).map_or(0, leading_nops) as u32;
        self.out.moved.extend((1..nops).map(|n| (hook.at + u64::from(n), 1, body)));
        let first = nops.max(1);
        if hook.relocated as u32 > first {
            self.out.moved.push((
                hook.at + u64::from(first),
                hook.relocated as u32 - first,
                body + first - nops,
            ));
        }
    }

    /// The way through the agent, at the start of a function's body.
    fn lead(&mut self, led: &Led) {
        let at = self.out.records[led.number].body as usize;
        let helper = self.out.records[led.helper].body as usize;
        let code = &mut self.out.code;
        code.put(at, &[0x4c, 0x8d, 0x1d]);
        code.branch(at + 3, at + LEAD);
        code.put(at + 7, &[0x4c, 0x8d, 0x15]);
        code.branch(at + 10, helper);
        code.jump_through(at + 14, led.gate);
    }

    /// Before the thunk of a function whose own indirect jumps may lead back to its start: where the return
    /// slot holds its exit label it has been entered already, and what lies below rsp may be in use.
    ///
    /// ```text
    ///   cmp  dword [rsp], exit label  ; the lower half
    ///   je   body
    /// ```
    fn loop_check(&mut self, at: usize, exit: usize, body: usize) {
        let label = self.address(exit) as u32;
        let code = &mut self.out.code;
        code.put(at, &[0x81, 0x3c, 0x24]);
        code.word(at + 3, label);
        code.put(at + 7, &[0x0f, 0x84]);
        code.branch(at + 9, body);
        self.out.half_bias_fixups.push(at as u32 + 3);
    }

    fn body(&self, hook: &Hook, wish: Wish, body: usize) -> Result<Relocated, Unmovable> {
        // A word that a relocated call pushes wants its alignment, which only costs a few bytes.
        let to = self.address(body);
        if let Some(start) = self.copies.start(hook.function) {
            return Ok(copied(&[], self.address(self.copies_at + start as usize), to));
        }
        let bytes = self.image.code_at(hook.at, hook.relocated).ok_or(Unmovable("no code"))?;
        if wish.movable {
            // Where all of it is nops (a call that was taken out, room for a patch) nothing is left.
            let nops = leading_nops(bytes);
            let all = if nops == bytes.len() { self.nops_behind(hook) } else { nops };
            return Ok(copied(bytes.get(nops..).unwrap_or_default(), hook.at + all as u64, to));
        }
        let elsewhere = |site: u64| {
            let tail = self.tails.moved(site);
            tail.or_else(|| self.moved_calls.get(&site).copied()).map(|at| self.address(at))
        };
        relocate(bytes, hook.at, to, self.image.functions[hook.function].address, &elsewhere)
    }

    /// Bytes from the hook's place on that do nothing, those behind the relocated ones included.
    fn nops_behind(&self, hook: &Hook) -> usize {
        let f = &self.image.functions[hook.function];
        self.image.code_at(hook.at, f.address + f.size - hook.at).map_or(0, leading_nops)
    }

    fn thunk(&mut self, at: usize, body: usize, number: u32, home: Home, kind: Kind) {
        let template = &self.templates[kind.index()];
        let look = self.stubs + number as usize * STUBS;
        let (miss, outside) = (look + SECOND_LOOK, look + SECOND_LOOK + STUB);
        let first = if kind.hashed { look } else { miss };
        let code = &mut self.out.code;
        let (site, exit) = (0, self.exits[kind.exit_way() as usize]);
        code.fill(template, at, &Values { home, number, site, miss: first, outside, exit, body });
        if kind.hashed {
            // The arc may stand one behind its home. Falls through to the stub behind it if it does not.
            let resume = at + template.resume as usize;
            let second_look = &self.second_looks[kind.second as usize];
            code.fill(second_look, look, &Values { home, body: resume, ..Values::default() });
        }
        let word =
            if kind.both { offset_of!(ArenaHeader, miss) } else { offset_of!(ArenaHeader, miss_entry) };
        code.stub(miss, number, word, kind.second, kind.both);
        code.stub(outside, number, offset_of!(ArenaHeader, window), kind.second, kind.both);
        if kind.second == Second::Free {
            code.restore(outside + STUB, at + template.resume as usize, kind.both);
        }
    }

    fn is_copied(&self, function: usize) -> bool {
        self.copies.unit_with(self.image, function).is_some()
    }

    fn finish(mut self) -> Emitted {
        let table = self.bodies.table(self.bodies_at as u32);
        let end = self.bodies_at + table.len();
        self.out.code.put(self.bodies_at, &table);
        self.out.frame_tables[Frame::Moved as usize] = self.bodies_at as u32;
        if self.copies.units.is_empty() {
            // Less than there was room for.
            self.out.code.bytes.truncate(round_up(end as u64, PAGE) as usize);
            self.copies_at = self.out.code.bytes.len();
        }
        self.out.copies = self.copies_at as u32;
        let all = self.out.code.bytes.len();
        self.out.used = vec![0..self.next, self.stubs..end.next_multiple_of(8).min(all)];
        if self.copies_at < all {
            self.out.used.push(self.copies_at..all);
        }
        (self.out.stubs, self.out.stub_len) = (self.stubs as u32, STUBS as u32);
        self.out.tail_code = self.tails.start() as u32;
        self.fill_sleds();
        self.out.owners.push((self.next as u32, u32::MAX));
        for number in 0..self.out.records.len() {
            self.out.owners.push(((self.stubs + number * STUBS) as u32, number as u32));
        }
        // Sorted runs, which a stable sort takes advantage of.
        self.out.owners.sort();
        self.out
    }
}
