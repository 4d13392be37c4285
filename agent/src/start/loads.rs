//! Finds the libraries that are to be hooked: those that are loaded when the program starts, and those that are loaded later.
//!
//! For each library, the agent sends the injector a descriptor of its file and the places that are free. The injector
//! answers with a plan file that was made for these places, and [`library_plan`] carries it out. In a process that already
//! runs, the injector sends the plans without a question.
#![allow(unsafe_code, reason = "the headers of loaded libraries are read")]

use crate::os::files::{self, Descriptor};
use crate::os::kernel;
use crate::os::lookup::{self, LinkMap, Segments};
#[cfg(feature = "standalone")]
use crate::os::place::Place;
#[cfg(not(feature = "standalone"))]
use crate::os::stat;
#[cfg(not(feature = "standalone"))]
use crate::os::words;
use crate::program::agent::Agent;
use crate::program::libraries::{self, busy};
use crate::program::text;
use crate::start::asking::{self, AT_FDCWD, Unhooked, ask, has_path};
use crate::start::library_plan::{self, add, patches, question, write};
use crate::start::load_table::set_state;
use crate::start::pauses::DYNAMIC_LINKER;
#[cfg(not(feature = "standalone"))]
use crate::start::plan::TextRanges;
use crate::start::plan::{PatchedText, PlanFile};
use crate::start::refusal::Refusal;
use core::sync::atomic::{AtomicU64, Ordering};
use gprofinject_abi::ask::Question;
use gprofinject_abi::attach::LibraryOrder;
use gprofinject_abi::plan::Patch;
use gprofinject_abi::region::{Load, LoadRecord, Lost, Trouble};
use gprofinject_abi::shared::RegionRef;

/// Hooks musl's dynamic linker, which is the C library as well, before its first instruction. `name` is the path by which
/// the program names it.
///
/// # Errors
/// It is not hooked. Then nothing in the process may be: the threads that it makes would share the words of their parents.
#[cfg(feature = "standalone")]
pub(crate) fn hook_dynamic_linker(
    dynamic_linker: u64,
    name: *const u8,
    place: &Place,
) -> Result<(), Unhooked> {
    if !asking::begin(place) {
        return Err(Unhooked::Failed(Lost::Answer, kernel::EINVAL));
    }
    hook(&LinkMap::named(dynamic_linker, name))
}

/// Compares the dynamic linker's lists with the hooked libraries: hooks what is new, and notes what is gone. `at_start` is
/// whether the dynamic linker still loads the program, whose lists are then complete although it does not say so.
pub(crate) fn update(at_start: bool) {
    let dynamic_linker = DYNAMIC_LINKER.load(Ordering::Relaxed);
    if !lookup::all_objects(dynamic_linker, |_| {}) && !at_start {
        return;
    }
    UPDATES.fetch_add(1, Ordering::Relaxed);
    // The dynamic linker holds its lock, so no other thread is here, and nothing is loaded or unloaded meanwhile.
    let gone = (0..libraries::used()).filter_map(|index| Some((index, libraries::get(index)?)));
    for (index, library) in gone.filter(|(_, library)| library.is_loaded()) {
        let mut is_there = false;
        lookup::all_objects(dynamic_linker, |map| is_there |= map.bias == library.start);
        if !is_there {
            busy(|| library_plan::note_gone(index));
        }
    }
    lookup::all_objects(dynamic_linker, |map| {
        #[cfg(feature = "standalone")]
        note_code(map);
        if is_known(map) {
            return;
        }
        match asking::is_over().map_or_else(|| hook(map), Err) {
            Ok(()) => {}
            Err(Unhooked::NotWanted) => {}
            Err(Unhooked::Failed(why, errno)) => lose(map.name, why, errno),
        }
    });
}

/// Notes where the code of an object is that the dynamic linker has loaded.
#[cfg(feature = "standalone")]
fn note_code(map: &LinkMap) {
    // SAFETY: the bytes at the load bias of an object are its ELF header, if they look like it.
    unsafe {
        if lookup::is_header(map.bias)
            && let Some(segments) = lookup::segments_of(map.bias)
        {
            crate::os::loaded::add_code(segments.code);
        }
    }
}

/// Reports a library that is not hooked although nobody has decided that. `name` is its path, NUL-terminated, or null if all libraries
/// are meant.
pub(crate) fn lose(name: *const u8, why: Lost, errno: i32) {
    lose_in(Agent::get().region, name, why, errno);
}

/// The same, in this region file.
pub(crate) fn lose_in(region: RegionRef, name: *const u8, why: Lost, errno: i32) {
    let number = region.lost_libraries().fetch_add(1, Ordering::Relaxed);
    let Some([first, words @ ..]) = usize::try_from(number).ok().and_then(|number| region.lost().get(number))
    else {
        return;
    };
    // SAFETY: the dynamic linker's names are NUL-terminated.
    let byte = |n: usize| if name.is_null() { 0 } else { unsafe { *name.add(n) } };
    let mut len = 0;
    while byte(len) != 0 {
        len += 1;
    }
    let before = len.saturating_sub(words.len() * size_of::<u64>());
    for (n, word) in words.iter().enumerate() {
        let at = |k: usize| before + n * size_of::<u64>() + k;
        let bytes: [u8; 8] = core::array::from_fn(|k| if at(k) < len { byte(at(k)) } else { 0 });
        word.store(u64::from_le_bytes(bytes), Ordering::Relaxed);
    }
    let errno = u64::from(errno.unsigned_abs()) << 32;
    first.store(u64::from(why.code().0) | errno, Ordering::Release);
}

/// The objects about which the injector was asked, and the number of the update in which each was last seen: a hash table
/// by the load bias, of limited size. An object that is not in it is asked about again, which only takes time.
static ASKED: [[AtomicU64; 2]; 1024] = [const { [const { AtomicU64::new(0) }; 2] }; 1024];
/// One more than the number of updates: what no update has seen is zero in the table, which is also the load bias of some objects.
static UPDATES: AtomicU64 = AtomicU64::new(1);

/// Returns the entry of an object in that table.
fn asked(map: &LinkMap) -> &'static [AtomicU64; 2] {
    &ASKED[(map.bias >> 12) as usize % ASKED.len()]
}

/// Notes that nothing has to be done for an object that the next update will see.
pub(crate) fn note_asked(map: &LinkMap) {
    let [place, seen] = asked(map);
    place.store(map.bias, Ordering::Relaxed);
    seen.store(UPDATES.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Returns whether nothing has to be done for an object: it is the program or no file, or it is hooked, or the injector
/// does not want it.
fn is_known(map: &LinkMap) -> bool {
    if map.bias == Agent::get().program.load_bias || !has_path(map.name) {
        return true;
    }
    let at_its_place = (0..libraries::used())
        .filter_map(|index| Some((index, libraries::get(index)?)))
        .filter(|(_, library)| library.start == map.bias);
    for (index, library) in at_its_place {
        if !library.is_loaded() && file_of(map) == Some(library.file) {
            busy(|| library_plan::write_again(index, library));
        }
        if library.is_loaded() {
            return true;
        }
    }
    let [place, seen] = asked(map);
    let now = UPDATES.load(Ordering::Relaxed);
    // If the last update did not see it, this is another object at the same place.
    let was_seen = seen.swap(now, Ordering::Relaxed) == now - 1;
    place.swap(map.bias, Ordering::Relaxed) == map.bias && was_seen
}

/// The identity of a file that the process cannot open. No file has it, so such a library is asked about each time that it is loaded.
const UNKNOWN: files::Identity = files::Identity([0; 5]);

/// Returns the identity of the file from which an object was loaded, unless it was removed or cannot be reached.
fn file_of(map: &LinkMap) -> Option<files::Identity> {
    let fd = files::open_path(AT_FDCWD, map.name as u64).ok()?;
    let identity = files::identity(fd);
    files::close(fd);
    identity.ok()
}

/// Asks the injector about a library, and hooks it. If there is something else where its arena would be, the injector
/// finds another place; another thread may take that meanwhile.
fn hook(map: &LinkMap) -> Result<(), Unhooked> {
    const TRIES: usize = 10;
    for number in 1..TRIES {
        match hook_there(map, number > 1) {
            Err(Unhooked::Failed(_, kernel::EEXIST)) => {}
            done => return done,
        }
    }
    hook_there(map, true)
}

/// Asks the injector about a library, and hooks it with an arena where its plan has it, or if that `is_taken`, at the place that the
/// injector has found.
fn hook_there(map: &LinkMap, is_taken: bool) -> Result<(), Unhooked> {
    let failed = |why| move |errno| Unhooked::Failed(why, errno);
    // SAFETY: a library that the dynamic linker has loaded from a file begins with its ELF header, if its first segment has
    // link address 0. The bytes are compared before anything else is read.
    let Segments { headers, code: extent } = unsafe {
        if !lookup::is_header(map.bias) {
            return Err(Unhooked::Failed(Lost::Base, 0));
        }
        lookup::segments_of(map.bias).ok_or(Unhooked::NotWanted)?
    };
    let question = Question { name: asking::name(map), ..question(map.bias, is_taken) };
    // In another root folder, the file has another name or none. The injector then takes what is mapped.
    let library =
        files::open_path(AT_FDCWD, map.name as u64).map(|number| Descriptor { number, is_own: true });
    let identity = library.as_ref().map_or(Ok(UNKNOWN), |file| files::identity(file.number));
    if identity.is_ok_and(|identity| {
        asking::is_left_out(&identity, question.name, Agent::get().region, &Agent::get().orders)
    }) {
        return Err(Unhooked::NotWanted);
    }
    let file = library.as_ref().ok().map(|file| file.number);
    let (answer, files) = ask(&question, file.as_slice())?;
    let [plan, image] = files.map(|file| file.map(|number| Descriptor { number, is_own: true }));
    let identity = identity.map_err(failed(Lost::File))?;
    let Some(plan) = plan.filter(|_| answer.hooked != 0) else { return Err(Unhooked::NotWanted) };
    let file = PlanFile::open(plan.number).map_err(failed(Lost::Memory))?;
    file.note();
    let text = library.ok().zip(image).and_then(|(library, image)| patched_text(&library, image));
    let record = LoadRecord {
        plan: answer.plan,
        first_function: question.first_function,
        first_slot: question.first_slot,
        slot_bytes: answer.slot_bytes,
        bias: map.bias,
        lo: extent.0,
        hi: extent.1,
        ..LoadRecord::default()
    };
    let hooked = busy(|| {
        // Nothing is given out for a library whose text is not its file's.
        let patches = patches(&file, record.bias, (record.lo, record.hi))?;
        if text.is_none() && text::first_difference(patches, record.bias).is_some() {
            return Err(Refusal::new(Trouble::TextDiffers));
        }
        let index = add(&file, identity, headers, &question, &record)?;
        write(index, text.as_ref())
    });
    hooked.map_err(|refusal| match refusal.trouble {
        Trouble::TextDiffers => Unhooked::Failed(Lost::Text, 0),
        _ => Unhooked::Failed(Lost::Memory, refusal.errno),
    })
}

/// Returns the text with the patches in a library's image, if the library's own text is certainly that of the file of which the image
/// has a copy. The injector has found that the process has mapped the file to which `library` refers.
#[cfg(not(feature = "standalone"))]
fn patched_text(library: &Descriptor, image: Descriptor) -> Option<PatchedText> {
    let ranges = TextRanges::of(image.number, files::version_of(library.number).ok()?)?;
    // A debugger may have written breakpoints into the text, and a process that gprofinject will leave gets its own text back.
    (!words::is_attached() && stat::is_untraced()).then_some(PatchedText { file: image, ranges })
}

/// There is no such text for standalone programs.
#[cfg(feature = "standalone")]
fn patched_text(_: &Descriptor, _: Descriptor) -> Option<PatchedText> {
    None
}

/// Returns the numbers that are free for the next library of a process that already runs.
pub(crate) fn free() -> Question {
    question(0, false)
}

/// Prepares the hooks of a library of a process that already runs. `is_redirected` says whether there is anything else
/// in a range of addresses that the agent overwrites.
///
/// # Errors
/// Returns an errno if the library cannot be hooked.
pub(crate) fn load(
    order: &LibraryOrder,
    plan: i32,
    is_redirected: impl Fn(u64, u64) -> bool,
) -> Result<(), i32> {
    let file = PlanFile::open(plan)?;
    file.note();
    let question = question(order.start, false);
    let [lo, hi] = order.text;
    let record = LoadRecord {
        plan: order.plan,
        first_function: question.first_function,
        first_slot: question.first_slot,
        slot_bytes: order.slot_bytes,
        bias: order.start,
        lo,
        hi,
        ..LoadRecord::default()
    };
    let errno = |refusal: Refusal| if refusal.errno != 0 { refusal.errno } else { kernel::EINVAL };
    let is_redirected = |patch: &Patch| {
        let at = patch.address.wrapping_add(order.start);
        is_redirected(at, at + u64::from(patch.len))
    };
    if patches(&file, order.start, (lo, hi)).map_err(errno)?.iter().any(is_redirected) {
        return Err(kernel::EINVAL);
    }
    let [at, size, count] = order.headers;
    add(&file, files::Identity(order.file), (at, size, count), &question, &record).map_err(errno)?;
    Ok(())
}

/// Hooks the libraries that [`load`] has prepared and that the process has not unloaded since. All other threads are
/// stopped, and [`crate::start::pauses::check_settled`] has found nothing.
///
/// # Errors
/// musl's dynamic linker cannot be hooked; nothing else is then. The error is an errno.
pub(crate) fn arm() -> Result<(), i32> {
    let dynamic_linker = DYNAMIC_LINKER.load(Ordering::Relaxed);
    #[cfg(feature = "standalone")]
    if dynamic_linker != 0 {
        arm_dynamic_linker(dynamic_linker)?;
        lookup::all_objects(dynamic_linker, note_code);
    }
    for index in 0..libraries::used() {
        let Some(library) = libraries::get(index).filter(|library| !library.is_loaded()) else { continue };
        let mut name = core::ptr::null();
        lookup::all_objects(dynamic_linker, |map| {
            // In another root folder, the file may have no name. The injector has compared it, and the text is compared below.
            if map.bias == library.start && file_of(map).is_none_or(|file| file == library.file) {
                name = map.name;
            }
        });
        // If another library is there, the agent asks about it at the next change.
        if name.is_null() {
            set_state(index, Load::Refused);
        } else if text::first_difference(library.module.patches, library.module.bias).is_some() {
            set_state(index, Load::Refused);
            lose(name, Lost::Text, 0);
        } else if let Err(refusal) = busy(|| write(index, None)) {
            lose(name, Lost::Memory, refusal.errno);
        }
    }
    Ok(())
}

/// Hooks musl's dynamic linker, which is never unloaded.
#[cfg(feature = "standalone")]
fn arm_dynamic_linker(dynamic_linker: u64) -> Result<(), i32> {
    let is_it = |index: &u32| libraries::get(*index).is_some_and(|library| library.start == dynamic_linker);
    let index = (0..libraries::used()).find(is_it).ok_or(kernel::ENOENT)?;
    let library = libraries::get(index).filter(|library| !library.is_loaded());
    let differs =
        |library: &libraries::Library| text::first_difference(library.module.patches, library.module.bias);
    if library.and_then(differs).is_some() {
        return Err(kernel::EINVAL);
    }
    if library.is_some() { busy(|| write(index, None)).map_err(|refusal| refusal.errno) } else { Ok(()) }
}
