//! Compiles a library, loads it into the test, and reads the arguments of its functions while they are called.

use super::*;
use gprofinject_image::signatures::{DebugInfo, Exported, Signature, Signatures, Unclear};
use gprofinject_plan::fetches;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const CAPTURE: &str = include_str!("capture.c");

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}

/// A library in the test's own process. It stays there.
pub(super) struct Library {
    _folder: TempDir,
    handle: *mut c_void,
    bytes: Vec<u8>,
}

/// A value that a function has got, by its own words: its number, its bytes, and which bits of them count.
#[derive(Clone, Debug)]
pub(super) struct Noted {
    pub(super) argument: i32,
    pub(super) bytes: Vec<u8>,
    pub(super) mask: Vec<u8>,
}

/// What is read of a call, and what the function says itself.
#[derive(Clone, Debug, Default)]
pub(super) struct Call {
    arguments: Vec<Fetch>,
    results: Vec<Fetch>,
    pub(super) at_entry: Vec<u8>,
    pub(super) at_exit: Vec<u8>,
    pub(super) noted: Vec<Noted>,
}

thread_local! {
    static CALL: RefCell<Call> = RefCell::default();
}

/// One encoded value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decoded {
    Unreadable(u64),
    Scalar(u64),
    Text(Vec<u8>, bool),
    Raw(Vec<u8>),
}

impl Library {
    /// Compiles a source. Its first line includes `capture.c`. Returns `None` if the compiler is not there.
    pub(super) fn compile(
        test: &str,
        compiler: &str,
        options: &[&str],
        name: &str,
        source: &str,
    ) -> Option<Library> {
        if !gprofinject_skip::have(compiler) {
            gprofinject_skip::skipped(test, &format!("no {compiler}"));
            return None;
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("capture.c"), CAPTURE).expect("a file");
        std::fs::write(path("code.c"), "#define CAPTURE_CODE\n#include \"capture.c\"\n").expect("a file");
        std::fs::write(path(name), source).expect("a file");
        // The machine code in a file of its own, so that link-time names are those of C.
        run(Command::new("gcc").args(["-c", "-fPIC", "-O1", "-o", "code.o", "code.c"]), folder.path());
        let mut command = Command::new(compiler);
        command.args(["-g", "-shared", "-fPIC", "-w", "-o", "library.so", name, "code.o"]).args(options);
        run(&mut command, folder.path());
        let file = CString::new(path("library.so").into_os_string().into_encoded_bytes()).expect("a path");
        // SAFETY: the library has no constructors but those of its language's runtime.
        let handle = unsafe { dlopen(file.as_ptr(), 2) };
        if handle.is_null() {
            // SAFETY: dlopen has failed, so there is a message.
            panic!("{:?}", unsafe { CStr::from_ptr(dlerror()) });
        }
        let bytes = std::fs::read(path("library.so")).expect("a file");
        let library = Library { _folder: folder, handle, bytes };
        for (name, hook) in [
            ("on_entry", on_entry as *const () as u64),
            ("on_exit_", on_exit as *const () as u64),
            ("note", note as *const () as u64),
        ] {
            // SAFETY: these are variables of the library that hold such functions.
            unsafe { (library.symbol(name) as *mut u64).write(hook) };
        }
        Some(library)
    }

    /// Returns the address of a symbol.
    pub(super) fn symbol(&self, name: &str) -> u64 {
        let wanted = CString::new(name).expect("a name");
        // SAFETY: the library is loaded.
        let at = unsafe { dlsym(self.handle, wanted.as_ptr()) };
        assert!(!at.is_null(), "{name}");
        at as u64
    }

    pub(super) fn debug_info(&self) -> DebugInfo<'_> {
        DebugInfo::read(&self.bytes).expect("debug information")
    }

    pub(super) fn signatures<'s>(&self, info: &'s DebugInfo<'_>) -> Signatures<'s> {
        Signatures::new(info, Exported::read([self.bytes.as_slice()]))
    }

    /// Returns the link address of a function, exported or not.
    pub(super) fn link_address(&self, name: &str) -> u64 {
        use object::{Object, ObjectSymbol};
        let file = object::File::parse(&*self.bytes).expect("a library");
        let symbol = file.symbols().find(|symbol| symbol.name() == Ok(name));
        symbol.unwrap_or_else(|| panic!("{name}")).address()
    }

    /// Returns the names of all symbols.
    pub(super) fn names(&self) -> Vec<String> {
        use object::{Object, ObjectSymbol};
        let file = object::File::parse(&*self.bytes).expect("a library");
        file.symbols().filter_map(|symbol| symbol.name().ok().map(str::to_owned)).collect()
    }

    /// Returns the address of a function that may not be exported.
    pub(super) fn symbol_or_local(&self, name: &str) -> u64 {
        let bias = self.symbol("capture") - self.link_address("capture");
        bias + self.link_address(name)
    }

    /// Returns the signature of a function.
    pub(super) fn signature(&self, all: &mut Signatures<'_>, name: &str) -> Result<Signature, Unclear> {
        all.of(self.link_address(name), std::iter::once(name))
    }

    /// Calls a function `caller` without arguments, which calls the function with this signature by `capture`.
    pub(super) fn call(&self, signature: &Signature, caller: &str) -> Call {
        let values = signature.parameters.iter().map(|parameter| &parameter.value);
        let arguments = values.filter_map(fetches::fetch).collect();
        let results = signature.result.iter().filter_map(fetches::fetch).collect();
        self.call_with(arguments, results, caller)
    }

    /// The same with these fetches.
    pub(super) fn call_with(&self, arguments: Vec<Fetch>, results: Vec<Fetch>, caller: &str) -> Call {
        CALL.set(Call { arguments, results, ..Call::default() });
        // SAFETY: a function of the test's own library.
        unsafe { core::mem::transmute::<u64, extern "C" fn()>(self.symbol(caller))() };
        CALL.take()
    }
}

fn run(command: &mut Command, folder: &Path) {
    let done = command.current_dir(folder).output().expect("it starts");
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
}

fn read(fetches: &[Fetch], registers: &Registers) -> Vec<u8> {
    let mut out = [0xee; CALL_MAX];
    let len = fetch(fetches, registers, &mut out);
    assert!(out[len..].iter().all(|&byte| byte == 0xee), "beyond its end");
    out[..len].to_vec()
}

extern "C" fn on_entry(registers: &Registers) {
    CALL.with_borrow_mut(|call| call.at_entry = read(&call.arguments, registers));
}

extern "C" fn on_exit(registers: &Registers) {
    CALL.with_borrow_mut(|call| call.at_exit = read(&call.results, registers));
}

extern "C" fn note(argument: i32, bytes: *const u8, mask: *const u8, size: u64) {
    // SAFETY: the library gives the addresses of objects of this size.
    let copied = |from: *const u8| unsafe { std::slice::from_raw_parts(from, size as usize) }.to_vec();
    let noted = Noted { argument, bytes: copied(bytes), mask: copied(mask) };
    CALL.with_borrow_mut(|call| call.noted.push(noted));
}

/// Takes encoded values apart.
pub(super) fn decoded(mut bytes: &[u8]) -> Vec<Decoded> {
    let mut all = Vec::new();
    while let Some((tag, rest)) = bytes.split_first() {
        let word = || (u64::from_le_bytes(rest[..8].try_into().expect("8 bytes")), &rest[8..]);
        let (value, rest) = match *tag {
            UNREADABLE => (Decoded::Unreadable(word().0), word().1),
            SCALAR => (Decoded::Scalar(word().0), word().1),
            STRING => {
                let end = 2 + usize::from(rest[1]);
                assert!(rest[0] <= CUT);
                (Decoded::Text(rest[2..end].to_vec(), rest[0] == CUT), &rest[end..])
            }
            RAW => {
                let end = 1 + usize::from(rest[0]);
                (Decoded::Raw(rest[1..end].to_vec()), &rest[end..])
            }
            other => panic!("no value begins with {other}"),
        };
        all.push(value);
        bytes = rest;
    }
    all
}
