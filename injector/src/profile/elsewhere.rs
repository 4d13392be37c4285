//! Finds out to which code samples outside of the program belong: to libraries that are hooked, or by the names of
//! functions to other files.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use gmon_run::Module;
use gprofinject_abi::{AGENT_FILE, FRIDA_FILE};
use gprofinject_image::frames::caller::Sections;
use gprofinject_image::frames::unwind::Cfas;
use gprofinject_image::headers::ExecutableSegment;
use gprofinject_image::plt::{self, Stub};

use crate::os::say::Voice;
use crate::profile::file;
use crate::profile::generated::Generated;
use crate::profile::model::{Place, Profile, UnhookedPlace};
use crate::profile::space::Space;
use crate::profile::totals::Seed;
use crate::program::plan_cache::PlanCache;
use crate::program::profilee::{self, Identity};
use crate::program::subject::Subject;
use crate::store::private_folder;

/// The number of bytes of a `syscall` instruction. The kernel reports a sample in a system call behind it.
const SYSCALL: u64 = 2;

/// A place in a mapped file: its name as in the process's mappings, and an offset.
pub(crate) type InFile = (Arc<str>, u64);

/// Distributes the samples of a process. `space` is its address space, if it was hooked. `names` keeps what was read of files.
/// `own_call` is the `syscall` instruction, in whichever function that is, by which gprofinject has had the process make system
/// calls. It is the first one of the C library, which no function uses often.
pub(crate) fn distribute(
    profile: &mut Profile,
    space: Option<&Space>,
    names: &mut Names,
    own_call: Option<&InFile>,
    generated: &Generated,
) {
    let is_own_call = |file: &Arc<str>, offset: u64| {
        own_call.is_some_and(|(own, at)| own == file && (*at..=at + SYSCALL).contains(&offset))
    };
    let Some(program) = profile.modules.first() else { return };
    let elsewhere = program.samples.elsewhere.clone();
    let memory = elsewhere.memory.iter().map(|(&(_, address), &count)| (address, count));
    let unmapped = elsewhere.unmapped.iter().map(|(&address, &count)| (address, count));
    for (address, count) in memory.chain(unmapped) {
        match of_memory(space, address) {
            Where::Agent => profile.in_agent = profile.in_agent.saturating_add(count),
            Where::Hooked(place) => {
                profile.add_samples(place, count);
            }
            Where::Other => {}
        }
    }
    let is_other = |address| of_memory(space, address) == Where::Other;
    profile.unhooked.extend(generated.sampled(&elsewhere, is_other));
    for ((file, offset), &count) in &elsewhere.files {
        let found = if is_own_call(file, *offset) { Where::Agent } else { of_file(profile, file, *offset) };
        let mut path = Arc::clone(file);
        match found {
            Where::Agent => {
                profile.in_agent = profile.in_agent.saturating_add(count);
                continue;
            }
            Where::Hooked(place) if profile.add_samples(place, count) => continue,
            Where::Hooked(place) => {
                // The place is outside of the code that was planned, as the stubs of a PLT are. The mapped file may be the image that
                // gprofinject has made of the library, so the library's own file is looked up.
                let library = profile.modules.get(place.module as usize).and_then(|module| module.library);
                if let Some(path_of) = library.and_then(|library| library.binary.to_str()) {
                    path = path_of.into();
                }
            }
            Where::Other => {}
        }
        profile.unhooked.push(UnhookedPlace { samples: count, ..names.place(&path, *offset) });
    }
}

/// What a sample outside of the program belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    /// The agent's library.
    Agent,
    /// A library that is hooked, or what hooks it.
    Hooked(Place),
    Other,
}

/// Returns what a sample in memory without a file, or with one that is not known, belongs to.
pub(crate) fn of_memory(space: Option<&Space>, address: u64) -> Where {
    let Some(space) = space else { return Where::Other };
    match space.agent.contains(&address) {
        true => Where::Agent,
        false => space.in_library(address).map_or(Where::Other, Where::Hooked),
    }
}

/// Returns what a sample in a mapped file belongs to.
pub(crate) fn of_file(profile: &Profile, file: &str, offset: u64) -> Where {
    if is_agent(file) {
        return Where::Agent;
    }
    let mut modules = profile.modules.iter().zip(0..);
    let found = modules.find(|(module, _)| module.library.is_some_and(|library| library.is_mapped_as(file)));
    let place = found.and_then(|(module, index)| {
        let address = link_address(&module.program.subject.code, offset)?;
        Some(Place { module: index, address })
    });
    // A process that begins has mapped the file of a plan before it has said so.
    let other = if is_kept(file) { Where::Agent } else { Where::Other };
    place.map_or(other, Where::Hooked)
}

/// Whether a mapped file has the name of a kept plan or arena: a hash.
fn is_kept(file: &str) -> bool {
    let name = file_name(file.trim_end_matches(" (deleted)"));
    let stem = name.strip_suffix(".plan").or_else(|| name.strip_suffix(".arena"));
    stem.is_some_and(|stem| {
        stem.len() == 2 * blake3::OUT_LEN && stem.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// Whether a mapped file is one of the agent's libraries in a run folder.
fn is_agent(file: &str) -> bool {
    let mut names = file.trim_end_matches(" (deleted)").rsplit('/');
    let (name, folder) = (names.next(), names.next());
    matches!(name, Some(AGENT_FILE | FRIDA_FILE))
        && folder.is_some_and(|folder| folder.starts_with(private_folder::PREFIX))
}

/// Returns the link address of the code at an offset of a file.
fn link_address(code: &[ExecutableSegment], offset: u64) -> Option<u64> {
    let segment =
        code.iter().find(|segment| offset >= segment.offset && offset - segment.offset < segment.len)?;
    Some(segment.address + (offset - segment.offset))
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(path)
}

/// The functions of the files in which samples are. One of these serves all processes of a run.
pub(crate) struct Names {
    /// What earlier runs have found out about files.
    cache: Arc<PlanCache>,
    /// By path. A file that was replaced since is read again.
    files: HashMap<Arc<str>, (Option<Identity>, Option<Functions>)>,
    /// The CFAs in functions, by where the bytes of their file are in this process and by link address, as far as they were asked for and
    /// are known.
    cfas: HashMap<(usize, u64), Option<(Cfas, bool)>, Seed>,
}

/// The functions of a file, and the stubs of its PLT once they are needed.
struct Functions {
    subject: &'static Subject<'static>,
    /// What recordings have of the file.
    module: Arc<Module>,
    stubs: OnceCell<Vec<Stub>>,
}

impl Names {
    /// No file was read yet.
    pub(crate) fn new(cache: Arc<PlanCache>) -> Names {
        Names { cache, files: HashMap::new(), cfas: HashMap::default() }
    }

    /// Returns who says what there is to say.
    pub(crate) fn voice(&self) -> Voice {
        self.cache.voice()
    }

    /// Returns the place at an offset of a file, without samples.
    fn place(&mut self, file: &Arc<str>, offset: u64) -> UnhookedPlace {
        self.code(file, offset).0
    }

    /// Returns the same, with what is known of the file and the link address, if there is code.
    pub(crate) fn code(
        &mut self,
        file: &Arc<str>,
        offset: u64,
    ) -> (UnhookedPlace, Option<(&'static Subject<'static>, u64)>) {
        let Some(functions) = self.functions(file) else { return (unknown(file, offset), None) };
        match link_address(&functions.subject.code, offset) {
            Some(address) => (functions.at(address), Some((functions.subject, address))),
            // It is no ELF file: a runtime has put code into it that only the runtime knows, as Lisp systems do.
            None if functions.subject.code.is_empty() => (nameless(file, file_name(file).to_owned()), None),
            None => (unknown(file, offset), None),
        }
    }

    /// Returns [`Sections::cfas`] of the function of a file that begins at a link address.
    pub(crate) fn cfas(
        &mut self,
        subject: &'static Subject<'static>,
        function: u64,
    ) -> Option<&(Cfas, bool)> {
        /// A large program has hundreds of thousands of functions.
        const MOST: usize = 1 << 16;
        if self.cfas.len() >= MOST {
            self.cfas.clear();
        }
        let key = (subject.bytes.as_ptr().addr(), function);
        let cfas = || Sections::find(subject.bytes)?.cfas(function);
        self.cfas.entry(key).or_insert_with(cfas).as_ref()
    }

    fn functions(&mut self, file: &Arc<str>) -> Option<&Functions> {
        /// Processes can map any number of files.
        const MOST: usize = 1000;
        let now = Some(Path::new(&**file)).filter(|path| path.is_absolute()).and_then(profilee::identity);
        if self.files.get(file).is_none_or(|(then, _)| *then != now) {
            if self.files.len() >= MOST {
                self.files.clear();
            }
            self.files.insert(Arc::clone(file), (now, Functions::read(file, &self.cache)));
        }
        self.files.get(file).and_then(|(_, functions)| functions.as_ref())
    }
}

/// Returns a place of which no more than this is known.
fn unknown(file: &str, offset: u64) -> UnhookedPlace {
    match file {
        _ if file.starts_with('/') => nameless(file, format!("{}+{offset:#x}", file_name(file))),
        // Other names of its own, such as [vdso].
        _ => nameless(file, file.to_owned()),
    }
}

/// Returns a place in a file that is known by a name alone.
fn nameless(file: &str, function: String) -> UnhookedPlace {
    let module = Arc::new(Module { path: file.to_owned(), ..Module::default() });
    UnhookedPlace { module, function, start: 0, size: 0, address: 0, samples: 0 }
}

impl Functions {
    /// Reads a file that the process has mapped. Of another user's files, nothing is read.
    fn read(file: &str, cache: &PlanCache) -> Option<Functions> {
        let path = Some(Path::new(file)).filter(|path| path.is_absolute())?;
        let subject = cache.names_of(path)?;
        let first = subject.code.first().map_or(0, |segment| segment.address);
        let module = Arc::new(file::module(file, subject, (first, first)));
        Some(Functions { subject, module, stubs: OnceCell::new() })
    }

    /// Returns the place of code at a link address.
    fn at(&self, address: u64) -> UnhookedPlace {
        let (function, start, size) = self.function_at(address).unwrap_or_else(|| {
            let stubs = self.stubs.get_or_init(|| plt::stubs(self.subject.bytes));
            match plt::at(stubs, address) {
                Some(stub) => (stub.name.clone(), stub.address, stub.size),
                None => (String::new(), address, 0),
            }
        });
        UnhookedPlace { module: Arc::clone(&self.module), function, start, size, address, samples: 0 }
    }

    /// Returns the name, the link address and the size of the function at an address. A cold part belongs to its function.
    fn function_at(&self, address: u64) -> Option<(String, u64, u64)> {
        let image = self.subject.image()?;
        let owner = image.functions.function(image.owner(image.function_at(address)?))?;
        Some((owner.name.to_owned(), owner.address, owner.size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::say::Level;

    /// A long run may see a library replaced.
    #[test]
    fn a_replaced_file_is_read_again() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("library.so");
        let path: Arc<str> = file.to_str().expect("a name").into();
        let cache = Arc::new(PlanCache::new(false, Voice(Level::Quiet)));
        let mut names = Names::new(Arc::clone(&cache));
        for name in ["first", "second"] {
            let source = folder.path().join("library.c");
            std::fs::write(&source, format!("int {name}(int x) {{ return x * 3; }}\n")).expect("written");
            let _ = std::fs::remove_file(&file);
            let mut compiler = std::process::Command::new("gcc");
            let compiled = compiler.args(["-O1", "-fPIC", "-shared", "-o"]).args([&file, &source]).status();
            assert!(compiled.expect("gcc").success());
            let functions = Functions::read(&path, &cache).expect("readable");
            let all = functions.subject.functions();
            let function = all.iter().find(|function| function.name == name).expect("there");
            let segment = functions.subject.code.first().expect("code");
            let offset = function.address - segment.address + segment.offset;
            for _ in 0..2 {
                assert_eq!(names.place(&path, offset).function, name);
            }
        }
    }
}
