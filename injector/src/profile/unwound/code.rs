//! What is at the addresses of a process that has ended: functions, exit labels, unwind tables.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::OnceLock;

use framehop::x86_64::UnwinderX86_64;
use framehop::{ExplicitModuleSectionInfo, Module, Unwinder};
use gprofinject_abi::plan::{INTERNED_LABELS, LABEL_LEN, LABELS_AT};
use gprofinject_image::frames::caller::Sections;

use crate::os::proc;
use crate::profile::elsewhere::{self, Names, Where};
use crate::profile::model::{Place, Profile};
use crate::profile::space::{Extent, Space};
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
    /// Its function, by the number in the tree. Memory without a file has none.
    pub(super) frame: Option<u32>,
    /// The function, if it is in a hooked module.
    pub(super) entry: Option<Place>,
    /// Whether unwind tables cover the file.
    pub(super) has_tables: bool,
    /// Whether it is where signal handlers return: it calls rt_sigreturn(2).
    pub(super) is_sigreturn: bool,
    /// Whether there is a call before it.
    pub(super) is_call: bool,
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
pub(super) struct Codes<'p, 'n> {
    profile: &'p Profile,
    space: Option<&'p Space>,
    extents: Vec<Extent>,
    maps: &'p Maps,
    names: &'p mut Names<'n>,
    unwinder: UnwinderX86_64<&'static [u8]>,
    /// The files whose tables the unwinder has, by the address at which they are loaded, and whether they have any.
    loaded: HashMap<(u64, usize), bool>,
    /// What was found out about return addresses, and about program counters.
    known: HashMap<u64, Return, Seed>,
    counters: HashMap<u64, Return, Seed>,
}

impl<'p, 'n> Codes<'p, 'n> {
    pub(super) fn new(
        profile: &'p Profile,
        space: Option<&'p Space>,
        maps: &'p Maps,
        names: &'p mut Names<'n>,
    ) -> Codes<'p, 'n> {
        Codes {
            profile,
            space,
            extents: space.map(Space::extents).unwrap_or_default(),
            maps,
            names,
            unwinder: UnwinderX86_64::new(),
            loaded: HashMap::new(),
            known: HashMap::default(),
            counters: HashMap::default(),
        }
    }

    /// Returns the unwinder, which has the tables of all code that was asked for.
    pub(super) fn unwinder(&self) -> &UnwinderX86_64<&'static [u8]> {
        &self.unwinder
    }

    /// Returns the function with this first address, by its number in the tree.
    pub(super) fn frame_of(&self, entry: Place, tree: &mut Tree) -> u32 {
        tree.frame(Frame::Hooked(self.whole(entry)))
    }

    /// Returns what a return address is.
    pub(super) fn returned(&mut self, address: u64, tree: &mut Tree) -> Return {
        if let Some(&known) = self.known.get(&address) {
            return known;
        }
        let label = self.extents.iter().find_map(|extent| {
            let number = extent.planned.returning(extent.in_arena(address)?)?;
            Some(Place { module: extent.module, address: extent.planned.entry(number)? })
        });
        let program = self.extents.first().and_then(|extent| extent.in_arena(address));
        let found = match label {
            Some(label) => Return::Label(label),
            None if program.is_some_and(is_interned) => Return::Interned,
            // Another function may begin after a call.
            None => self.find(address.wrapping_sub(1), 1, tree),
        };
        self.known.insert(address, found);
        found
    }

    /// Returns the code at a program counter, as far as it belongs to the program.
    pub(super) fn at(&mut self, pc: u64, tree: &mut Tree) -> Return {
        if let Some(&known) = self.counters.get(&pc) {
            return known;
        }
        let found = self.find(pc, 0, tree);
        self.counters.insert(pc, found);
        found
    }

    /// Returns the code at an address, or behind an instruction that contains it, so many bytes further on.
    fn find(&mut self, at: u64, behind: u64, tree: &mut Tree) -> Return {
        for index in 0..self.extents.len() {
            let extent = &self.extents[index];
            let link = match (extent.in_arena(at), extent.in_text(at)) {
                (Some(offset), _) => match extent.planned.text_address(shape::Place::Arena(offset)) {
                    Some(link) => link,
                    None => return Return::Unknown,
                },
                (None, Some(link)) => link,
                (None, None) => continue,
            };
            let (module, bias) = (extent.module, extent.bias);
            return Return::Code(self.hooked(Place { module, address: link }, bias, behind, tree));
        }
        self.in_file(at, behind, tree)
    }

    /// Returns the code behind a call site, if its module is still there.
    pub(super) fn of_site(&mut self, site: Place, tree: &mut Tree) -> Option<Code> {
        let extent = self.extents.iter().find(|extent| extent.module == site.module)?;
        let address = site.address.wrapping_add(extent.bias).wrapping_add(1);
        match self.returned(address, tree) {
            Return::Code(code) => Some(code),
            Return::Label(_) | Return::Interned | Return::Unknown => None,
        }
    }

    /// Returns the function that contains a place of a hooked module.
    pub(super) fn function_of(&self, place: Place) -> Option<Place> {
        let planned = self.profile.modules.get(place.module as usize)?.program;
        Some(self.whole(Place { address: planned.function_at(place.address)?.address, ..place }))
    }

    /// Returns the code at a place of a hooked module.
    fn hooked(&mut self, place: Place, bias: u64, behind: u64, tree: &mut Tree) -> Code {
        let planned = self.profile.modules[place.module as usize].program;
        let entry = planned.function_at(place.address).map(|function| function.address);
        let stub = planned.stub_at(place.address).map(|stub| stub.address);
        let start = entry.or(stub).unwrap_or(place.address);
        let frame = tree.frame(Frame::Hooked(self.whole(Place { address: start, ..place })));
        let target = (behind > 0).then(|| planned.call_target(place.address.wrapping_add(1))).flatten();
        Code {
            runtime: place.address.wrapping_add(bias).wrapping_add(behind),
            frame: Some(frame),
            entry: entry.map(|address| self.whole(Place { address, ..place })),
            has_tables: self.load(planned.subject, bias),
            is_sigreturn: is_sigreturn(planned.subject, place.address.wrapping_add(behind)),
            is_call: behind > 0,
            site: (behind > 0).then_some(place),
            calls: target.map(|address| Place { address, ..place }),
        }
    }

    /// Returns the function to which one belongs as a cold part.
    fn whole(&self, place: Place) -> Place {
        let planned = self.profile.modules[place.module as usize].program;
        let whole = planned.function_at(place.address).and_then(|function| planned.parent(&function));
        Place { address: whole.map_or(place.address, |whole| whole.address), ..place }
    }

    /// Returns the code at an address outside of what is hooked.
    fn in_file(&mut self, at: u64, behind: u64, tree: &mut Tree) -> Return {
        let nameless = Code {
            runtime: at.wrapping_add(behind),
            frame: None,
            entry: None,
            has_tables: false,
            is_sigreturn: false,
            is_call: false,
            site: None,
            calls: None,
        };
        let Some((file, offset)) = self.maps.place(at) else {
            let is_code = self.maps.iter().any(|mapped| (mapped.start..mapped.end).contains(&at));
            let is_own = elsewhere::of_memory(self.space, at) == Where::Agent;
            return if is_code && !is_own { Return::Code(nameless) } else { Return::Unknown };
        };
        if elsewhere::of_file(self.profile, &file, offset) == Where::Agent {
            return Return::Unknown;
        }
        let place = self.names.place(&file, offset);
        let frame = tree.frame(Frame::Other(place));
        let code = self.names.code(&file, offset);
        let has_tables = match &*file {
            VDSO => self.load_vdso(at.wrapping_sub(offset)),
            _ => code.is_some_and(|(subject, link)| self.load(subject, at.wrapping_sub(link))),
        };
        let is_sigreturn =
            code.is_some_and(|(subject, link)| is_sigreturn(subject, link.wrapping_add(behind)));
        Return::Code(Code { frame: Some(frame), has_tables, is_sigreturn, is_call: behind > 0, ..nameless })
    }

    /// Gives the unwinder the tables of the code that the kernel maps into each process, here at `start`. Returns whether there are any.
    fn load_vdso(&mut self, start: u64) -> bool {
        static OWN: OnceLock<Vec<u8>> = OnceLock::new();
        let bytes: &'static [u8] = OWN.get_or_init(|| proc::own_vdso().unwrap_or_default());
        let key = (start, bytes.as_ptr().addr());
        *self.loaded.entry(key).or_insert_with(|| {
            let module = module(bytes, 0..bytes.len() as u64, start);
            let has_tables = module.is_some();
            module.into_iter().for_each(|module| self.unwinder.add_module(module));
            has_tables
        })
    }

    /// Gives the unwinder the tables of a file, which is loaded with this bias. Returns whether there are any.
    fn load(&mut self, subject: &'static Subject<'static>, bias: u64) -> bool {
        let key = (bias, subject.bytes.as_ptr().addr());
        if let Some(&known) = self.loaded.get(&key) {
            return known;
        }
        let start = subject.code.iter().map(|segment| segment.address).min().unwrap_or(0);
        let end = subject.code.iter().map(|segment| segment.address.saturating_add(segment.len)).max();
        let module = module(subject.bytes, start..end.unwrap_or(0), bias);
        let has_tables = module.is_some();
        if let Some(module) = module {
            self.unwinder.add_module(module);
        }
        self.loaded.insert(key, has_tables);
        has_tables
    }
}

/// Whether the return address of a call of the agent is at an offset of a program's arena that is behind an interned label, or the label is.
fn is_interned(offset: u64) -> bool {
    offset.checked_sub(LABELS_AT as u64).is_some_and(|offset| offset < INTERNED_LABELS * LABEL_LEN as u64)
}

/// Whether the code at a link address is that which every C library gives to signal handlers as their return address. Unwinders know
/// it by its bytes, because its frame has no call: `mov rax, SYS_rt_sigreturn; syscall`.
fn is_sigreturn(subject: &Subject, address: u64) -> bool {
    const CODE: [u8; 9] = [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05];
    subject.image().and_then(|image| image.code_at(address, CODE.len() as u64)) == Some(&CODE)
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
