//! What traces have of calls: arguments of unusual types, and those of programs whose debug information is in .dwo files or in a package.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use gprofinject_image::debug::Lines;
use gprofinject_skip as skip;
use gprofinject_tests::place::{self, Place};
use gprofinject_tests::tool;
use gprofinject_tests::traced::{shown, traced};
use serde_json::Value;

/// A call in a trace: `(a=1, b=2) = 3`, and its arguments alone.
struct Call {
    function: String,
    arguments: String,
    result: Option<String>,
}

/// Runs commands in the folder of a test, where `$SOURCE` is a file of `tests/arguments`. Returns their output.
fn run(place: &Place, source: &str, line: &str) -> Result<String, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("arguments").join(source);
    let mut shell = Command::new("sh");
    shell.args(["-ec", line]).current_dir(place.folder.path()).env("SOURCE", path);
    let output = shell.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    if output.status.success() { Ok(text) } else { Err(format!("{line}: {text}")) }
}

/// Returns the calls of the program `prog` whose functions are in its own source.
fn calls(place: &Place, is_own: &dyn Fn(&str) -> bool) -> Vec<Call> {
    traced(place, &["-q", "--args", "auto", "--libs", "none"], &["./prog"], 0);
    let text = shown(place, "trace", &["--json"]);
    let value: Value = serde_json::from_str(&text).unwrap();
    let steps = value["steps"].as_array().unwrap().iter().filter(|step| step["event"] == "call");
    let of = |step: &Value| Call {
        function: step["demangled"].as_str().unwrap_or_default().to_owned(),
        arguments: step["arguments"].as_str().unwrap_or_default().to_owned(),
        result: step["result"].as_str().map(str::to_owned),
    };
    steps.map(of).filter(|call| is_own(&call.function)).collect()
}

/// Returns the calls without addresses, which differ between programs.
fn without_addresses(calls: &[Call]) -> Vec<String> {
    let text = |call: &Call| {
        let text = format!("{}({}) = {:?}", call.function, call.arguments, call.result);
        let mut parts = text.split("0x");
        let first = parts.next().unwrap().to_owned();
        parts.fold(first, |text, part| text + "@" + part.trim_start_matches(|c: char| c.is_ascii_hexdigit()))
    };
    calls.iter().map(text).collect()
}

/// Returns what the comments in a source say of its functions: `name(arguments) = result`, for one compiler.
fn expected(source: &str, compiler: &str) -> BTreeMap<String, (String, Option<String>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("arguments").join(source);
    let text = std::fs::read_to_string(path).unwrap();
    let mut all = BTreeMap::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("// ")) {
        let line = match line.split_once(": ") {
            Some(("gcc" | "clang", rest)) if !line.starts_with(compiler) => {
                let _ = rest;
                continue;
            }
            Some((_, rest)) if line.starts_with(compiler) => rest,
            _ => line,
        };
        let Some((name, rest)) = line.split_once('(') else { continue };
        let (arguments, result) = match rest.rsplit_once(") = ") {
            Some((arguments, result)) => (arguments, Some(result.to_owned())),
            None => match rest.strip_suffix(')') {
                Some(arguments) => (arguments, None),
                None => continue,
            },
        };
        all.insert(name.to_owned(), (arguments.to_owned(), result));
    }
    all
}

/// Splits arguments at the commas that are in no structure and no string.
fn split(arguments: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut is_text, mut start) = (Vec::new(), 0, false, 0);
    for (at, c) in arguments.char_indices() {
        match c {
            '"' => is_text = !is_text,
            '{' if !is_text => depth += 1,
            '}' if !is_text => depth -= 1,
            ',' if !is_text && depth == 0 => {
                parts.push(arguments[start..at].trim());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(arguments[start..].trim());
    parts
}

/// Checks the arguments that optimised code was called with. They are the expected ones, or `?`. Returns how many are expected.
fn compare(found: &str, wanted: &str) -> Option<usize> {
    let (found, wanted) = (split(found), split(wanted));
    let mut known = 0;
    // Less is known without optimisation.
    if wanted == ["?"] {
        return Some(known);
    }
    for (index, wanted) in wanted.iter().enumerate() {
        match found.get(index) {
            Some(&found) if found == *wanted => known += 1,
            // The rest is not known.
            Some(&"?") if index + 1 == found.len() => return Some(known),
            Some(found) if found.ends_with("=?") && found.split('=').next() == wanted.split('=').next() => {}
            _ => return None,
        }
    }
    (found.len() == wanted.len()).then_some(known)
}

/// All values are those in the comments of the source without optimisation, and these or `?` with it.
fn check_odd(source: &str, compiler: &str, build: &str, is_optimised: bool, enough: usize) {
    let place = Place::new();
    run(&place, source, build).unwrap();
    let expected = expected(source, compiler);
    assert!(expected.len() > 2, "{expected:?}");
    let own = |name: &str| name.rsplit("::").next().unwrap_or_default().to_owned();
    let calls = calls(&place, &|name| expected.contains_key(&own(name)));
    let mut known = 0;
    for (name, (arguments, result)) in &expected {
        let call = calls.iter().find(|call| own(&call.function) == *name);
        // A compiler may not support the type.
        let Some(call) = call else { continue };
        let context =
            format!("{build}: {name}({}) = {:?}, expected {arguments}", call.arguments, call.result);
        if is_optimised {
            known += compare(&call.arguments, arguments).unwrap_or_else(|| panic!("{context}"));
            let is_right =
                call.result.is_none() || call.result == *result || call.result.as_deref() == Some("?");
            assert!(is_right, "{context}, {result:?}");
        } else {
            assert_eq!((&call.arguments, &call.result), (arguments, result), "{context}");
            known += 1;
        }
    }
    println!("{build}: {known} are known");
    assert!(known >= enough, "{build}: only {known} are known: {:#?}", without_addresses(&calls));
}

pub(super) fn of_odd_types() {
    for (compiler, many) in [("gcc", 50), ("clang", 30)] {
        if !skip::have_for("arguments::of_odd_types", &[compiler]) {
            continue;
        }
        for standard in ["-gdwarf-4", "-gdwarf-5"] {
            for (level, enough) in [("-O0", 25), ("-O2", many)] {
                let build = format!("{compiler} {level} {standard} -std=gnu11 -w -o prog $SOURCE");
                check_odd("odd.c", compiler, &build, level == "-O2", enough);
            }
        }
    }
}

pub(super) fn of_references_to_strings() {
    if !skip::have_for("arguments::of_references_to_strings", &["rustc"]) {
        return;
    }
    for (options, enough) in [("-Copt-level=0", 3), ("-Copt-level=2", 4)] {
        let build = format!("rustc --edition=2021 -g {options} -o prog $SOURCE");
        check_odd("odd.rs", "rustc", &build, options == "-Copt-level=2", enough);
    }
}

/// How a program is built in a test of split DWARF.
struct Build {
    source: &'static str,
    /// The commands, of which the last words are the options for split DWARF.
    compile: String,
    split: &'static str,
    /// The commands that make packages of all .dwo files; where one fails, it does not support the version of DWARF.
    packages: &'static [&'static str],
    /// Whether a function is the program's own.
    is_own: fn(&str) -> bool,
}

fn builds() -> Vec<Build> {
    // LLVM 14's never ends with GCC's DWARF 5, and binutils 2.40's crashes.
    const PACKAGES: &[&str] =
        &["timeout 10 dwp -e prog -o prog.dwp", "timeout 10 llvm-dwp -e prog -o prog.dwp"];
    let mut all = Vec::new();
    for (compiler, source) in [("gcc", "odd.c"), ("clang", "odd.c"), ("g++", "cpp.cc"), ("clang++", "cpp.cc")]
    {
        for standard in ["-gdwarf-4", "-gdwarf-5"] {
            for level in ["-O0", "-O2"] {
                let types = if compiler == "g++" { "-fdebug-types-section" } else { "" };
                all.push(Build {
                    source,
                    compile: format!("{compiler} {level} -w {standard} {types} -o p.o -c $SOURCE $SPLIT; {compiler} -o prog p.o"),
                    split: "-gsplit-dwarf",
                    packages: PACKAGES,
                    is_own: |name| !name.starts_with("std::") && !name.contains("__gnu_cxx") && !name.starts_with('_'),
                });
            }
        }
    }
    for level in ["-Copt-level=0", "-Copt-level=2"] {
        all.push(Build {
            source: "odd.rs",
            compile: format!("rustc --edition=2021 -g {level} -o prog $SOURCE $SPLIT"),
            split: "-Csplit-debuginfo=unpacked",
            packages: &["rustc --edition=2021 -g -o prog $SOURCE -Csplit-debuginfo=packed"],
            is_own: |name| name.starts_with("odd::") || name.starts_with("prog::"),
        });
    }
    all
}

impl Build {
    fn make(&self, place: &Place, split: &str) {
        run(place, self.source, &self.compile.replace("$SPLIT", split)).unwrap();
    }

    /// Returns the calls without addresses.
    fn calls(&self, place: &Place) -> Vec<String> {
        let calls = calls(place, &self.is_own);
        assert!(calls.iter().filter(|call| !call.arguments.is_empty()).count() > 2, "{}", self.compile);
        without_addresses(&calls)
    }

    fn compiler(&self) -> &str {
        self.compile.split(' ').next().unwrap()
    }
}

/// Returns the .dwo files of a program.
fn dwo_files(place: &Place) -> Vec<PathBuf> {
    let files = std::fs::read_dir(place.folder.path()).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|extension| extension == "dwo")).collect()
}

/// A program with split DWARF has the arguments, and the inlined calls, that it has without. With a package of its .dwo files, or with
/// the program and its .dwo files in another folder, this is so too.
pub(super) fn of_split_dwarf() {
    for build in builds() {
        if !skip::have_for("arguments::of_split_dwarf", &[build.compiler()]) {
            continue;
        }
        let (whole, place) = (Place::new(), Place::new());
        build.make(&whole, "");
        build.make(&place, build.split);
        let expected = build.calls(&whole);
        assert!(!dwo_files(&place).is_empty(), "{}: no .dwo files", build.compile);
        assert_eq!(build.calls(&place), expected, "{}", build.compile);
        same_inlined(&build, &whole, &place);
        let moved = Place::new();
        for file in dwo_files(&place).into_iter().chain([place.path("prog")]) {
            std::fs::rename(&file, moved.path(file.file_name().unwrap().to_str().unwrap())).unwrap();
        }
        assert_eq!(build.calls(&moved), expected, "{}, moved", build.compile);
        for package in build.packages {
            let place = Place::new();
            build.make(&place, build.split);
            if let Err(why) = run(&place, build.source, package) {
                println!("{}: {why}", build.compile);
                continue;
            }
            dwo_files(&place).iter().for_each(|file| std::fs::remove_file(file).unwrap());
            // rustc makes the program again.
            let expected = if package.starts_with("rustc") && build.compile.contains("=2") {
                continue;
            } else {
                &expected
            };
            assert_eq!(build.calls(&place), *expected, "{}, {package}", build.compile);
            same_inlined(&build, &whole, &place);
        }
    }
}

/// Checks that the functions at each address of a function's code have the same names in both programs.
fn same_inlined(build: &Build, whole: &Place, split: &Place) {
    // Line tables are read again for each unit of a type, and are refused if that is too often.
    if build.compile.contains("-fdebug-types-section") {
        return;
    }
    let names = |place: &Place| {
        let path = place.path("prog");
        let bytes = std::fs::read(&path).unwrap();
        let lines = Lines::of(&bytes, &path, None).unwrap();
        let (mut all, mut inlined) = (Vec::new(), 0);
        for row in lines.rows() {
            let frames = lines.frames(row.start);
            inlined += usize::from(frames.len() > 1);
            assert_eq!(lines.inlined(row.start).len(), frames.len().saturating_sub(1));
            let location = |at: usize| lines.files()[at].rsplit('/').next().unwrap_or_default().to_owned();
            let frames = frames.into_iter().map(|frame| {
                (frame.name, frame.location.map(|location_of| (location(location_of.file), location_of.line)))
            });
            all.push(frames.collect::<Vec<_>>());
        }
        (all, inlined)
    };
    let ((expected, inlined), (found, _)) = (names(whole), names(split));
    let is_inlining = build.source == "cpp.cc" && build.compile.contains("-O2");
    assert!(inlined > 0 || !is_inlining, "{}", build.compile);
    assert_eq!(found, expected, "{}", build.compile);
}

/// Without the .dwo file, or with that of another build, each function says that it may have arguments, and a message says why.
pub(super) fn of_missing_files() {
    if !skip::have_for("arguments::of_missing_files", &["gcc"]) {
        return;
    }
    for standard in ["-gdwarf-4", "-gdwarf-5"] {
        let place = Place::new();
        let compile = format!("gcc -w {standard} -gsplit-dwarf -O1 -o p.o -c $SOURCE; gcc -o prog p.o");
        run(&place, "odd.c", &compile).unwrap();
        let [file] = dwo_files(&place).try_into().unwrap();
        let good = std::fs::read(&file).unwrap();
        let is_unknown = |what: &str| {
            let outcome = traced(&place, &["--args", "auto", "--libs", "none"], &["./prog"], 0);
            let said = outcome.stderr_text();
            assert_eq!(
                said.matches("of which 1 is missing or of another build, such as p.dwo:").count(),
                1,
                "{what}: {said}"
            );
            assert!(outcome.stdout_text().trim().parse::<i32>().is_ok(), "{what}: {}", outcome.stdout_text());
            for call in calls(&place, &|name| !name.starts_with('_')) {
                assert_eq!(
                    (call.arguments.as_str(), &call.result),
                    ("?", &None),
                    "{what}: {}",
                    call.function
                );
            }
        };
        std::fs::remove_file(&file).unwrap();
        is_unknown("nothing there");
        // A pipe, which nobody opens for writing.
        run(&place, "odd.c", "mkfifo p.dwo").unwrap();
        is_unknown("a pipe");
        std::fs::remove_file(&file).unwrap();
        run(&place, "c.c", &format!("gcc -w -std=gnu11 {standard} -gsplit-dwarf -o p.o -c $SOURCE")).unwrap();
        is_unknown("another build's");
        std::fs::write(&file, &good[..good.len() / 2]).unwrap();
        is_unknown("half of it");
        // Whatever is wrong in it, the program runs, and gprofinject says nothing of a panic.
        for at in (0..good.len()).step_by(good.len() / 25) {
            let mut damaged = good.clone();
            damaged[at..(at + 3).min(good.len())].fill(0xff);
            std::fs::write(&file, &damaged).unwrap();
            let outcome = traced(&place, &["-q", "--args", "auto", "--libs", "none"], &["./prog"], 0);
            assert!(outcome.stdout_text().trim().parse::<i32>().is_ok(), "{at}: {}", outcome.stdout_text());
        }
        std::fs::write(&file, &good).unwrap();
        assert!(
            calls(&place, &|name| name == "small")
                .iter()
                .all(|call| call.arguments == "b=true, c=GREEN, k='x'")
        );
    }
}

/// `gmon lines` counts the lines of inlined functions as without split DWARF.
pub(super) fn lines_of_split_dwarf() {
    for compiler in ["gcc", "clang"] {
        if !skip::have_for("arguments::lines_of_split_dwarf", &[compiler]) {
            continue;
        }
        for standard in ["-gdwarf-4", "-gdwarf-5"] {
            let counted = |split: &str| {
                let place = Place::new();
                let compile =
                    format!("{compiler} -O1 {standard} {split} -o p.o -c $SOURCE; {compiler} -o prog p.o");
                run(&place, "inlined.c", &compile).unwrap();
                let outcome = place.run(&["-q", "--count", "lines", "./prog"]);
                assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
                assert_eq!(dwo_files(&place).is_empty(), split.is_empty(), "{compile}");
                let mut command = Command::new(tool::gmon().unwrap());
                command.arg("lines").arg("prog").current_dir(place.folder.path());
                let outcome = place::finish(command);
                assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
                outcome.stdout_text()
            };
            let (expected, found) = (counted(""), counted("-gsplit-dwarf"));
            // The body of the loop: 0 + 1 + ... + 999, and 1 + 2 + ... + 1000.
            assert!(expected.contains("1000000"), "{expected}");
            assert_eq!(found, expected, "{compiler} {standard}");
        }
    }
}
