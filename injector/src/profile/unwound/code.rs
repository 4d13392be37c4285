//! What is at the addresses of a process that has ended: functions, exit labels, unwind tables.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;

use framehop::x86_64::{UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, Module, Unwinder};
use gprofinject_abi::plan::{INTERNED_LABELS, LABEL_LEN, LABELS_AT};
use gprofinject_image::frames::caller::Sections;
use gprofinject_image::frames::unwind::Cfas;

use crate::generated::Replay;
use crate::os::{proc, signal_frame};
use crate::profile::elsewhere::{self, Names, Where};
use crate::profile::generated::Generated;
use crate::profile::model::{PROGRAM, Place, Profile};
use crate::profile::space::Space;
use crate::profile::stacks::{Frame, Tree};
use crate::profile::totals::Seed;
use crate::program::subject::Subject;
use crate::sampling::maps::Maps;
use crate::store::shape;

/// The kernel's name of the code that it maps into each process.
const VDSO: &str = "[vdso]";

/// Code at an address.
#[derive(Clone, Copy, Debug)]
pub(super) struct Code {
    /// The runtime address of the instruction of the program, or behind its call: where it is without hooks.
    pub(super) runtime: u64,
    /// Its function, by the number in the tree.
    pub(super) frame: Option<u32>,
    /// The function, if it is in a hooked module.
    pub(super) entry: Option<Place>,
    /// Whether the process has made it at run time.
    pub(super) is_generated: bool,
    /// Whether it is the interpreter's function that executes Python functions.
    pub(super) is_interpreter: bool,
    /// Whether unwind tables cover the file.
    pub(super) has_tables: bool,
    /// Whether it is where signal handlers return, and calls rt_sigreturn(2).
    pub(super) is_restorer: bool,
    /// Whether there is a call before it, as far as its function shows.
    pub(super) is_call: bool,
    /// Whether the bytes before it are those of a call.
    pub(super) follows_call: bool,
    /// The place of that call, if it is in a hooked module, and the function that it calls directly.
    pub(super) site: Option<Place>,
    pub(super) calls: Option<Place>,
}

/// What a return address is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Return {
    Code(Code),
    /// The exit label of a function.
    Label(Place),
    /// An interned label, of which only the process knows what it stands for.
    Interned,
    /// No code, or gprofinject's own.
    Unknown,
}

/// The code of a process.
pub(super) struct Codes<'p> {
    profile: &'p Profile,
    space: Option<&'p Space>,
    maps: &'p Maps,
    names: &'p mut Names,
    unwinder: UnwinderX86_64<&'static [u8]>,
    /// The files whose tables the unwinder has, by the address at which they are loaded, and whether they have any.
    loaded: HashMap<(u64, usize), bool>,
    /// What was found out about return addresses, and about program counters.
    known: HashMap<u64, Return, Seed>,
    counters: HashMap<u64, Return, Seed>,
    generated: &'p Generated<'p>,
    /// The functions that the process has made until the time of the stack, once one of them was met.
    now: Option<Replay<'p>>,
    time: u64,
    /// Those that were met, by their names.
    made: HashMap<Option<u32>, u32>,
}

impl<'p> Codes<'p> {
    pub(super) fn new(
        profile: &'p Profile,
        space: Option<&'p Space>,
        maps: &'p Maps,
        names: &'p mut Names,
        generated: &'p Generated<'p>,
    ) -> Codes<'p> {
        Codes {
            profile,
            space,
            maps,
            names,
            unwinder: UnwinderX86_64::new(),
            loaded: HashMap::new(),
            known: HashMap::default(),
            counters: HashMap::default(),
            generated,
            now: None,
            time: 0,
            made: HashMap::new(),
        }
    }

    /// Goes on to a later time. Functions may be made at the addresses of others.
    pub(super) fn go_to(&mut self, time: u64) {
        self.time = time;
    }

    /// Returns the function at an address in memory without a file, by its number in the tree.
    fn made(&mut self, at: u64, tree: &mut Tree) -> u32 {
        let (generated, table) = (self.generated, self.generated.table());
        let now = self.now.get_or_insert_with(|| table.replay());
        now.go_to(self.time);
        let name = now.at(at);
        *self.made.entry(name).or_insert_with(|| tree.frame(Frame::Other(generated.place(name))))
    }

    /// Whether there is the same code at all times.
    fn is_lasting(&self, found: Return) -> bool {
        match found {
            Return::Code(code) => !code.is_generated || !self.generated.table().has_times(),
            Return::Label(_) | Return::Interned | Return::Unknown => true,
        }
    }

    /// Returns the unwinder, which has the tables of all code that was asked for.
    pub(super) fn unwinder(&self) -> &UnwinderX86_64<&'static [u8]> {
        &self.unwinder
    }

    /// Returns the function with this first address, by its number in the tree.
    pub(super) fn frame_of(&self, entry: Place, tree: &mut Tree) -> u32 {
        tree.frame(Frame::Hooked(self.function_of(entry).unwrap_or(entry)))
    }

    /// Returns what a return address is.
    pub(super) fn returned(&mut self, address: u64, tree: &mut Tree) -> Return {
        if let Some(&known) = self.known.get(&address) {
            return known;
        }
        let found = match self.in_arena(address) {
            Some(label) => label,
            // Another function may begin after a call.
            None => self.find(address.wrapping_sub(1), 1, tree),
        };
        if self.is_lasting(found) {
            self.known.insert(address, found);
        }
        found
    }

    /// Returns the code at a program counter, as far as it belongs to the program.
    pub(super) fn at(&mut self, pc: u64, tree: &mut Tree) -> Return {
        if let Some(&known) = self.counters.get(&pc) {
            return known;
        }
        let found = self.find(pc, 0, tree);
        if self.is_lasting(found) {
            self.counters.insert(pc, found);
        }
        found
    }

    /// Returns the function whose exit label is at an address.
    pub(super) fn label(&self, address: u64) -> Option<Place> {
        match self.in_arena(address)? {
            Return::Label(callee) => Some(callee),
            Return::Code(_) | Return::Interned | Return::Unknown => None,
        }
    }

    /// Returns the addresses of the function with this first one.
    pub(super) fn extent(&self, entry: Place) -> Option<Range<u64>> {
        let planned = self.profile.modules.get(entry.module as usize)?.program;
        let function = planned.function_at(entry.address)?;
        Some(function.address..function.address.saturating_add(function.size))
    }

    /// Returns the CFA of a function's frame, by the registers that it has at a call at this link address. Returns `None` if the function's
    /// unwind table does not tell it by the stack pointer or the frame pointer alone.
    pub(super) fn cfa(&mut self, function: Place, call: u64, registers: &UnwindRegsX86_64) -> Option<u64> {
        self.cfas(function)?.0.value(call, registers.sp(), registers.bp())
    }

    /// Returns the same where the frame is certainly not the outermost one of its stack.
    pub(super) fn inner_cfa(
        &mut self,
        function: Place,
        call: u64,
        registers: &UnwindRegsX86_64,
    ) -> Option<u64> {
        let (cfas, _) = self.cfas(function).filter(|(_, may_be_outermost)| !may_be_outermost)?;
        cfas.value(call, registers.sp(), registers.bp())
    }

    fn cfas(&mut self, function: Place) -> Option<&(Cfas, bool)> {
        let planned = self.profile.modules.get(function.module as usize)?.program;
        self.names.cfas(planned.subject, function.address)
    }

    /// Returns the exit label or the interned label that is at an address.
    fn in_arena(&self, address: u64) -> Option<Return> {
        let place = self.space?.place(address)?;
        let planned = self.profile.modules.get(place.module as usize)?.program;
        let shape::Place::Arena(offset) = planned.shape.place(place.address)? else { return None };
        match planned.returning(offset) {
            Some(number) => Some(Return::Label(Place { address: planned.entry(number)?, ..place })),
            None => (place.module == PROGRAM && is_interned(offset)).then_some(Return::Interned),
        }
    }

    /// Returns the code at an address, or behind an instruction that contains it, so many bytes further on.
    fn find(&mut self, at: u64, behind: u64, tree: &mut Tree) -> Return {
        let Some(space) = self.space else { return self.in_file(at, behind, tree) };
        let Some(place) = space.place(at) else { return self.in_file(at, behind, tree) };
        let planned = self.profile.modules[place.module as usize].program;
        let link = planned.shape.place(place.address).and_then(|place| planned.text_address(place));
        match (link, space.bias(place.module)) {
            (Some(address), Some(bias)) => {
                Return::Code(self.hooked(Place { address, ..place }, bias, behind, tree))
            }
            _ => Return::Unknown,
        }
    }

    /// Returns the code behind a call site, if its module is still there. A function's first address is none: it stands for calls of the
    /// function of which no more is known.
    pub(super) fn of_site(&mut self, site: Place, tree: &mut Tree) -> Option<Code> {
        if self.function_of(site) == Some(site) {
            return None;
        }
        let bias = self.space?.bias(site.module)?;
        match self.returned(site.address.wrapping_add(bias).wrapping_add(1), tree) {
            Return::Code(code) => Some(code),
            Return::Label(_) | Return::Interned | Return::Unknown => None,
        }
    }

    /// Returns the function that contains a place of a hooked module. A cold part belongs to its function.
    pub(super) fn function_of(&self, place: Place) -> Option<Place> {
        let planned = self.profile.modules.get(place.module as usize)?.program;
        let function = planned.function_at(place.address)?;
        let whole = planned.parent(&function).unwrap_or(function);
        Some(Place { address: whole.address, ..place })
    }

    /// Returns the code at a place of a hooked module.
    fn hooked(&mut self, place: Place, bias: u64, behind: u64, tree: &mut Tree) -> Code {
        let planned = self.profile.modules[place.module as usize].program;
        let entry = self.function_of(place);
        let start = entry.unwrap_or_else(|| {
            let stub = planned.stub_at(place.address).map(|stub| stub.address);
            Place { address: stub.unwrap_or(place.address), ..place }
        });
        let frame = tree.frame(Frame::Hooked(start));
        let target = (behind > 0).then(|| planned.call_target(place.address.wrapping_add(1))).flatten();
        Code {
            runtime: place.address.wrapping_add(bias).wrapping_add(behind),
            frame: Some(frame),
            entry,
            is_generated: false,
            is_interpreter: entry
                .and_then(|entry| planned.function_at(entry.address))
                .is_some_and(|function| is_interpreter(function.name)),
            has_tables: self.load_file(planned.subject, bias),
            is_restorer: is_restorer(planned.subject, place.address.wrapping_add(behind)),
            is_call: behind > 0,
            follows_call: behind > 0 && follows_call(planned.subject, place.address.wrapping_add(behind)),
            site: (behind > 0).then_some(place),
            calls: target.map(|address| Place { address, ..place }),
        }
    }

    /// Returns the code at an address outside of what is hooked.
    fn in_file(&mut self, at: u64, behind: u64, tree: &mut Tree) -> Return {
        let nameless = Code {
            runtime: at.wrapping_add(behind),
            frame: None,
            entry: None,
            is_generated: false,
            is_interpreter: false,
            has_tables: false,
            is_restorer: false,
            is_call: false,
            follows_call: false,
            site: None,
            calls: None,
        };
        let Some((file, offset)) = self.maps.place(at) else {
            let is_code = self.maps.iter().any(|mapped| (mapped.start..mapped.end).contains(&at));
            let is_own = elsewhere::of_memory(self.space, at) == Where::Agent;
            if !is_code || is_own {
                return Return::Unknown;
            }
            let frame = Some(self.made(at, tree));
            let is_call = behind > 0;
            return Return::Code(Code {
                frame,
                is_generated: true,
                is_call,
                follows_call: is_call,
                ..nameless
            });
        };
        match elsewhere::of_file(self.profile, &file, offset) {
            Where::Agent => return Return::Unknown,
            // Code that no plan covers, as the stubs of a PLT are.
            Where::Hooked(place) => {
                let bias = at.wrapping_sub(place.address);
                return Return::Code(self.hooked(place, bias, behind, tree));
            }
            Where::Other => {}
        }
        let (place, code) = self.names.code(&file, offset);
        let is_interpreter = is_interpreter(&place.function);
        let frame = tree.frame(Frame::Other(place));
        let has_tables = match (&*file, code) {
            (VDSO, _) => self.load(own_vdso(), 0..own_vdso().len() as u64, at.wrapping_sub(offset)),
            (_, Some((subject, link))) => self.load_file(subject, at.wrapping_sub(link)),
            (_, None) => false,
        };
        let is_restorer = code.is_some_and(|(subject, link)| is_restorer(subject, link.wrapping_add(behind)));
        let is_call = behind > 0;
        let follows_call =
            is_call && code.is_none_or(|(subject, link)| follows_call(subject, link.wrapping_add(behind)));
        Return::Code(Code {
            frame: Some(frame),
            is_interpreter,
            has_tables,
            is_restorer,
            is_call,
            follows_call,
            ..nameless
        })
    }

    /// Gives the unwinder the tables of a file, which is loaded with this bias. Returns whether there are any.
    fn load_file(&mut self, subject: &'static Subject<'static>, bias: u64) -> bool {
        let start = subject.code.iter().map(|segment| segment.address).min();
        let end = subject.code.iter().map(|segment| segment.address.saturating_add(segment.len)).max();
        self.load(subject.bytes, start.unwrap_or(0)..end.unwrap_or(0), bias)
    }

    /// The same for the bytes of a file with code at these link addresses.
    fn load(&mut self, bytes: &'static [u8], code: Range<u64>, bias: u64) -> bool {
        *self.loaded.entry((bias, bytes.as_ptr().addr())).or_insert_with(|| {
            let module = module(bytes, code, bias);
            let has_tables = module.is_some();
            module.into_iter().for_each(|module| self.unwinder.add_module(module));
            has_tables
        })
    }
}

/// Whether a function of this name executes Python functions. Compilers make several of one.
fn is_interpreter(name: &str) -> bool {
    name.split('.').next() == Some("_PyEval_EvalFrameDefault")
}

/// Returns the file that the kernel maps into each process.
fn own_vdso() -> &'static [u8] {
    static OWN: OnceLock<Vec<u8>> = OnceLock::new();
    OWN.get_or_init(|| proc::own_vdso().unwrap_or_default())
}

/// Whether the return address of a call of the agent is at an offset of a program's arena that is behind an interned label, or the label is.
fn is_interned(offset: u64) -> bool {
    offset.checked_sub(LABELS_AT as u64).is_some_and(|offset| offset < INTERNED_LABELS * LABEL_LEN as u64)
}

/// Whether the code at a link address is where signal handlers return.
fn is_restorer(subject: &Subject, address: u64) -> bool {
    let len = signal_frame::RESTORER.len() as u64;
    subject.image().and_then(|image| image.code_at(address, len)) == Some(&signal_frame::RESTORER)
}

/// Whether the bytes before a link address are those of a call: of a relative one, or of one of the lengths that an indirect one can have.
fn follows_call(subject: &Subject, address: u64) -> bool {
    const LONGEST: usize = 7;
    const RELATIVE: u8 = 0xe8;
    const INDIRECT: u8 = 0xff;
    let image = subject.image();
    let before = image.and_then(|image| image.code_at(address.wrapping_sub(LONGEST as u64), LONGEST as u64));
    let Some(before) = before else { return true };
    let at = |len: usize| LONGEST.checked_sub(len).and_then(|at| before.get(at)).copied().unwrap_or(0);
    let is_indirect = |len: usize| {
        at(len) == INDIRECT && indirect_call(at(len - 1), at(len.saturating_sub(2))) == Some(len)
    };
    at(5) == RELATIVE || [2, 3, 4, 6, 7].into_iter().any(is_indirect)
}

/// Returns the length of an indirect call with these bytes behind its opcode (ModRM, and SIB if it has one); `None` if it is none.
fn indirect_call(operand: u8, scale: u8) -> Option<usize> {
    const CALL: u8 = 2;
    /// Opcode and operand.
    const LEAST: usize = 2;
    let (kind, register) = (operand >> 6, operand & 7);
    let has_scale = kind != 3 && register == 4;
    let displacement = match kind {
        // Relative to the next instruction, or with a base of none.
        0 if register == 5 || has_scale && scale & 7 == 5 => 4,
        0 | 3 => 0,
        1 => 1,
        _ => 4,
    };
    (operand >> 3 & 7 == CALL).then_some(LEAST + usize::from(has_scale) + displacement)
}

/// Returns what the unwinder needs of a file with code at these link addresses.
fn module(bytes: &'static [u8], code: Range<u64>, bias: u64) -> Option<Module<&'static [u8]>> {
    let Sections { header, frames: (frames_at, frames) } = Sections::find(bytes)?;
    let range = |at: u64, bytes: &[u8]| Some(at..at.saturating_add(bytes.len() as u64));
    let sections = ExplicitModuleSectionInfo {
        eh_frame_svma: range(frames_at, frames),
        eh_frame: Some(frames),
        eh_frame_hdr_svma: header.and_then(|(at, bytes)| range(at, bytes)),
        eh_frame_hdr: header.map(|(_, bytes)| bytes),
        ..ExplicitModuleSectionInfo::default()
    };
    let (start, end) = (code.start.wrapping_add(bias), code.end.wrapping_add(bias));
    (start < end).then(|| Module::new(String::new(), start..end, bias, sections))
}

#[cfg(test)]
mod tests {
    use super::indirect_call;

    #[test]
    fn lengths_of_indirect_calls() {
        for (operand, scale, expected) in [
            // call rax; call [rax]; call [rip+..]; call [rax+1]; call [rax+..]
            (0xd0, 0, Some(2)),
            (0x10, 0, Some(2)),
            (0x15, 0, Some(6)),
            (0x50, 0, Some(3)),
            (0x90, 0, Some(6)),
            // call [rsp]; call [rax*8+..]; call [rsp+1]; call [rax+rcx+..]
            (0x14, 0x24, Some(3)),
            (0x14, 0xc5, Some(7)),
            (0x54, 0x24, Some(4)),
            (0x94, 0x08, Some(7)),
            // jmp rax; push [rax]
            (0xe0, 0, None),
            (0x30, 0, None),
        ] {
            assert_eq!(indirect_call(operand, scale), expected, "{operand:x} {scale:x}");
        }
    }
}
