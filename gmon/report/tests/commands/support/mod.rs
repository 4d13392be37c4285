//! A tiny program, and gprof's flat profile of it.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod commands;
pub(crate) mod traces;
pub(crate) mod truth;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gmon::Program;

/// `even` is 3 bytes long, so `odd` starts at an odd address: gprof charges the bin of bytes 2 and 3 to
/// `odd`. `far` is in a chunk of its own, with another chunk in between.
const SOURCE: &str = r#"
asm(".text\n"
    ".p2align 12\n"
    ".globl even, odd, after, far, last\n"
    ".type even, @function\n" "even: nop; nop; ret\n" ".size even, .-even\n"
    ".type odd, @function\n" "odd: nop; nop; nop; ret\n" ".size odd, .-odd\n"
    ".p2align 4\n"
    ".type after, @function\n" "after: ret\n" ".skip 15, 0x90\n" ".size after, .-after\n"
    ".p2align 12\n"
    ".skip 4096, 0x90\n"
    ".type far, @function\n" "far: ret\n" ".skip 15, 0x90\n" ".size far, .-far\n"
    ".type last, @function\n" "last: ret\n" ".skip 15, 0x90\n" ".size last, .-last\n");
"#;

/// A new folder for each test.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    /// Creates a folder of the test that runs in this thread. Other tests may use the same name.
    pub(crate) fn new(name: &str) -> Folder {
        let test = std::thread::current().name().unwrap_or_default().replace("::", "-");
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test).join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).expect("a folder for the test");
        Folder(path)
    }

    /// Returns the path of a file in the folder.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file into the folder and returns its path.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.file(name);
        std::fs::write(&path, bytes).expect("a file for the test");
        path
    }

    /// Compiles the program with additional options.
    pub(crate) fn compile(&self, options: &[&str]) -> Compiled {
        let source = self.write("prog.c", SOURCE.as_bytes());
        let main = self.write("main.c", b"int main(void) { return 0; }\n");
        self.link(&[source, main], options)
    }

    /// Compiles the program without libc, so that it can be linked for i386 anywhere.
    pub(crate) fn compile_bare(&self, options: &[&str]) -> Compiled {
        let source = self.write("prog.c", SOURCE.as_bytes());
        let main = self.write("main.c", b"int main(void) { return 0; }\nvoid _start(void) { main(); }\n");
        self.link(&[source, main], &[&["-nostdlib", "-static"], options].concat())
    }

    /// Compiles a C or C++ program with debug information.
    pub(crate) fn build(&self, name: &str, source: &str, options: &[&str]) -> PathBuf {
        let file = self.write(name, source.as_bytes());
        let program = self.file(&format!("{name}.bin"));
        let compiler = if name.ends_with(".c") { "gcc" } else { "g++" };
        run(Command::new(compiler).arg("-g").args(options).arg(&file).arg("-o").arg(&program));
        program
    }

    fn link(&self, sources: &[PathBuf], options: &[&str]) -> Compiled {
        let path = self.file("prog");
        run(Command::new("gcc").args(["-O0", "-g"]).args(options).args(sources).arg("-o").arg(&path));
        let program = gprofinject_image::gprof::parse(&std::fs::read(&path).expect("gcc's program"))
            .expect("an ELF file");
        Compiled { path, program }
    }
}

/// The compiled program.
pub(crate) struct Compiled {
    pub(crate) path: PathBuf,
    pub(crate) program: Program,
}

impl Compiled {
    /// Returns the address of a function.
    pub(crate) fn address(&self, name: &str) -> u64 {
        let found = self.program.functions().iter().find(|function| function.name == name);
        found.unwrap_or_else(|| panic!("no function {name}")).start
    }

    /// Returns the addresses of all functions.
    pub(crate) fn starts(&self) -> impl Iterator<Item = u64> {
        self.program.functions().iter().map(|function| function.start)
    }

    /// Returns gprof's flat profile: the seconds and calls of each function.
    pub(crate) fn flat(&self, files: &[&Path]) -> BTreeMap<String, (f64, u64)> {
        let text = self.gprof(&["-b", "-p"], files);
        let mut flat = BTreeMap::new();
        for line in text.lines() {
            let words: Vec<_> = line.split_whitespace().collect();
            let [percent, _, seconds, rest @ .., name] = words.as_slice() else { continue };
            if percent.parse::<f64>().is_ok()
                && let Ok(seconds) = seconds.parse()
            {
                let calls = rest.first().map_or(0, |calls| calls.parse().expect("calls"));
                flat.insert((*name).to_owned(), (seconds, calls));
            }
        }
        flat
    }

    /// Returns what gprof prints. gprof must print no error message.
    pub(crate) fn gprof(&self, options: &[&str], files: &[&Path]) -> String {
        let output = run(Command::new("gprof").args(options).arg(&self.path).args(files));
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert_eq!(complaints, "", "gprof {options:?} {files:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

/// Runs a command that must succeed.
pub(crate) fn run(command: &mut Command) -> Output {
    let output = command.output().expect("the command is installed");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {stderr}", output.status);
    output
}

/// Returns a profile's file.
pub(crate) fn bytes(profile: &gmon::Profile) -> Vec<u8> {
    let mut bytes = Vec::new();
    gmon::write(profile, &mut bytes).expect("a profile that can be written");
    bytes
}
