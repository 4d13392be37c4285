//! Arguments of functions in four languages: where they are at the function's entry, by its signature, has the values that gdb
//! prints. Without optimisation, gdb is asked after the function's first instructions, which have copied the arguments to the
//! places that debug information names. Without one of the compilers, or without gdb, the rest still runs.

mod traced;

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use gprofinject_image::signatures::{
    DebugInfo, Exported, Parameter, Place, Pointee, Shape, Signature, Signatures, Type, Word,
};
use gprofinject_skip as skip;
use gprofinject_tests::compile;
use gprofinject_tests::elf::Program;

use self::traced::{
    lines_of_split_dwarf, of_missing_files, of_odd_types, of_references_to_strings, of_split_dwarf,
};

gprofinject_tests::trials! {
    together:
        in_c,
        in_cpp,
        in_rust,
        in_fortran,
        changed_by_gcc,
        changed_by_clang,
        changed_by_rustc,
        functions_of_strings,
        of_odd_types,
        of_references_to_strings,
        of_split_dwarf,
        of_missing_files,
        lines_of_split_dwarf;
}

/// A way to compile a program.
#[derive(Debug)]
struct Way {
    compiler: &'static str,
    options: &'static [&'static str],
    /// Whether the arguments that gdb knows are those at the entry.
    is_optimised: bool,
    /// The least number of values that have to be compared.
    enough: usize,
}

const fn way(
    compiler: &'static str,
    options: &'static [&'static str],
    is_optimised: bool,
    enough: usize,
) -> Way {
    Way { compiler, options, is_optimised, enough }
}

fn in_c() {
    let ways = [
        way("gcc", &["-g", "-O0", "-no-pie", "-std=gnu11"], false, 65),
        way("gcc", &["-g", "-O2", "-no-pie", "-std=gnu11"], true, 65),
        way("gcc", &["-gdwarf-4", "-O2", "-no-pie", "-std=gnu11"], true, 65),
        way("clang", &["-g", "-O0", "-no-pie", "-std=gnu11", "-w"], false, 65),
        way("clang", &["-gdwarf-4", "-O2", "-no-pie", "-std=gnu11", "-w"], true, 65),
    ];
    check("c.c", &ways);
}

fn in_cpp() {
    let ways = [
        way("g++", &["-g", "-O0", "-no-pie", "-std=c++17"], false, 170),
        way("g++", &["-g", "-O2", "-no-pie", "-std=c++17"], true, 40),
        way("clang++", &["-g", "-O0", "-no-pie", "-std=c++17"], false, 170),
        way("clang++", &["-g", "-O2", "-no-pie", "-std=c++17"], true, 35),
    ];
    check("cpp.cc", &ways);
}

fn in_rust() {
    const STATIC: &str = "-Crelocation-model=static";
    let ways = [
        way("rustc", &["--edition=2021", "-g", STATIC], false, 45),
        way("rustc", &["--edition=2021", "-g", "-O", STATIC], true, 10),
    ];
    check("rust.rs", &ways);
}

fn in_fortran() {
    let ways = [
        way("gfortran", &["-g", "-O0", "-no-pie"], false, 14),
        way("gfortran", &["-g", "-O2", "-fno-inline", "-no-pie"], true, 14),
    ];
    check("fortran.f90", &ways);
}

/// GCC gives a copy with other parameters another name.
fn changed_by_gcc() {
    let Some(known) = changed("changed.c", &way("gcc", &["-g", "-O2", "-no-pie"], true, 26)) else { return };
    for name in ["removed.", "constant.constprop", "without_result", "unchanged"] {
        assert!(known.iter().any(|function| function.symbol.starts_with(name)), "no {name}");
    }
    is_unread(&known, "reassigned", "n");
}

/// clang does not, and before version 17 does not say that a function has other parameters at all.
fn changed_by_clang() {
    let optimised = way("clang", &["-g", "-O2", "-no-pie", "-fno-inline"], true, 24);
    let Some(known) = changed("changed.c", &optimised) else { return };
    is_somewhere(&known, "flagged", "is_set");
    is_unread(&known, "reassigned", "n");
    is_unread(&known, "ignoring", "unused");
    is_unread(&known, "ignoring", "half");
    is_somewhere(&known, "ignoring", "on_stack");
}

fn changed_by_rustc() {
    let options = &["--edition=2021", "-g", "-O", "-Crelocation-model=static"];
    let Some(known) = changed("changed.rs", &way("rustc", options, true, 17)) else { return };
    let texts = known.iter().find(|function| function.symbol.contains("texts")).unwrap();
    let text = texts.signature.parameters.iter().find(|p| p.name.as_deref() == Some("text")).unwrap();
    assert!(matches!(text.value.ty.shape, Shape::Str(_)), "{text:?}");
    is_somewhere(&known, "texts", "is_up");
    // Only the length of the text arrives.
    is_unread(&known, "only_length", "text");
    is_unread(&known, "exported_length", "text");
    is_unread(&known, "exported_length", "_unused");
    is_somewhere(&known, "behind_object", "n");
    is_somewhere(&known, "behind_object", "last");
    let behind = known.iter().find(|function| function.symbol.contains("behind_object")).unwrap();
    let text = behind.signature.parameters.iter().find(|p| p.name.as_deref() == Some("text")).unwrap();
    assert!(matches!(text.value.place, Place::Pair(..)), "{text:?}");
}

/// What a constructor of `std::string` gets is no string yet, and what a function of its own gets may be none.
fn functions_of_strings() {
    let way = way("g++", &["-g", "-O0", "-no-pie", "-std=c++17"], false, 0);
    let Some((_folder, program)) = compiled("cpp.cc", &way) else { return };
    let functions = functions(&program);
    let is_string = |ty: &Type| matches!(ty.shape, Shape::Pointer(Pointee::String(_)));
    let mut own = 0;
    for function in functions.iter().filter(|function| function.symbol.contains("12basic_stringIc")) {
        for parameter in &function.signature.parameters {
            let is_this = parameter.name.as_deref() == Some("this");
            assert!(!is_this || !is_string(&parameter.value.ty), "{}", function.symbol);
            own += usize::from(is_this);
        }
    }
    let parameters = functions.iter().flat_map(|function| &function.signature.parameters);
    let others = parameters.filter(|parameter| is_string(&parameter.value.ty)).count();
    assert!(own >= 1 && others >= 1, "{own} functions of strings, {others} parameters");
}

/// Checks that nothing is shown of a parameter.
fn is_unread(functions: &[Function], symbol: &str, name: &str) {
    // A function of which nothing is shown at all has no signature.
    let function = functions.iter().find(|function| function.symbol.contains(symbol));
    let is_it = |parameter: &&Parameter| parameter.name.as_deref() == Some(name);
    let parameter = function.and_then(|function| function.signature.parameters.iter().find(is_it));
    assert!(parameter.is_none_or(|p| p.value.place == Place::Unread), "{symbol}: {parameter:?}");
}

/// Checks that a truth value is known, of which LLVM says that it is the lowest bit of a register.
fn is_somewhere(functions: &[Function], symbol: &str, name: &str) {
    let function = functions.iter().find(|function| function.symbol.contains(symbol)).unwrap();
    let is_it = |parameter: &&Parameter| parameter.name.as_deref() == Some(name);
    let parameter = function.signature.parameters.iter().find(is_it).unwrap();
    assert!(matches!(parameter.value.place, Place::Word(_)), "{symbol}: {parameter:?}");
}

/// Compares the arguments of functions with what the functions print themselves. Returns those that are known, or
/// `None` if the compiler is missing.
fn changed(source: &str, way: &Way) -> Option<Vec<Function>> {
    let (_folder, program) = compiled(source, way)?;
    let functions = functions(&program);
    if !skip::have_for(&format!("arguments::{source}"), &["gdb"]) {
        return Some(functions);
    }
    let printed = program.with_extension("printed");
    let output = gdb(&program, &functions, true, &printed);
    let printed = std::fs::read_to_string(&printed).unwrap();
    let mut compared = 0;
    // The program prints a line at the entry of each function, whether its arguments are known or not.
    let mut lines = printed.lines();
    for call in output.split("@entry ").skip(1) {
        let (number, values) = call.split_once('\n').unwrap();
        let function = &functions[number.parse::<usize>().unwrap()];
        if function.symbol == "main" {
            continue;
        }
        let name = |line: &str| function.symbol.contains(line.split(' ').next().unwrap_or("?"));
        let line = lines.find(|line| name(line));
        let line = line.unwrap_or_else(|| panic!("{}: no line left in {printed}", function.symbol));
        let values: Vec<&str> = values.lines().filter_map(|line| line.strip_prefix("@value ")).collect();
        for value in values {
            let words: Vec<&str> = value.split(' ').collect();
            let parameter = &function.signature.parameters[words[0].parse::<usize>().unwrap()];
            let first = u64::from_str_radix(words[1], 16).unwrap();
            let name = parameter.name.as_deref().unwrap_or_default();
            let Some(text) = line.split(' ').find_map(|part| part.strip_prefix(&format!("{name}="))) else {
                continue;
            };
            assert_eq!(
                said(&parameter.value.ty, text),
                masked(&parameter.value.ty, first),
                "{source} {way:?} {line}: {name}"
            );
            compared += 1;
        }
    }
    println!("{source} {}: {compared} values", way.compiler);
    assert!(compared >= way.enough, "{source} {way:?}: only {compared} values");
    Some(functions)
}

/// Returns the bits of a value that a program has printed: a number, hexadecimal floating point as C prints it, or, of Rust, the bits
/// of a floating-point number.
fn said(ty: &Type, text: &str) -> u64 {
    let bits = match text.strip_prefix("0x").map(|digits| digits.split_once('p')) {
        Some(None) => return u64::from_str_radix(&text[2..], 16).unwrap(),
        _ if ty.shape == Shape::Float && text.contains('p') => hexadecimal(text),
        _ => text.parse::<i128>().unwrap() as u64,
    };
    let is_single = ty.shape == Shape::Float && ty.size == 4;
    masked(ty, if is_single { (f64::from_bits(bits) as f32).to_bits().into() } else { bits })
}

/// Returns the bits of a number such as `-0x1.8p+1`.
fn hexadecimal(text: &str) -> u64 {
    let (sign, digits) = text.strip_prefix('-').map_or((1.0, text), |digits| (-1.0, digits));
    let (digits, exponent) = digits[2..].split_once('p').unwrap();
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let mantissa = u64::from_str_radix(&format!("{whole}{fraction}"), 16).unwrap() as f64;
    let exponent = exponent.parse::<i32>().unwrap() - 4 * fraction.len() as i32;
    (sign * mantissa * 2_f64.powi(exponent)).to_bits()
}

fn masked(ty: &Type, word: u64) -> u64 {
    let unused = 64 - 8 * ty.size.clamp(1, 8) as u32;
    word << unused >> unused
}

/// Compiles a program in a folder of its own. Returns `None` if the compiler is missing.
fn compiled(source: &str, way: &Way) -> Option<(tempfile::TempDir, PathBuf)> {
    if !skip::have_for(&format!("arguments::{source}"), &[way.compiler]) {
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join(source.split('.').next().unwrap());
    let mut command = Command::new(way.compiler);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("arguments").join(source);
    command.args(way.options).arg("-o").arg(&program).arg(path);
    if way.compiler == "gfortran" {
        // It writes a file for each module as well, by default to the current folder.
        command.arg("-J").arg(folder.path());
    }
    compile::compile(command).unwrap();
    Some((folder, program))
}

/// Compares the arguments of a program's functions in all ways whose compilers are there.
fn check(source: &str, ways: &[Way]) {
    for way in ways {
        let Some((_folder, program)) = compiled(source, way) else { continue };
        let functions = functions(&program);
        let known: usize = functions.iter().map(|function| function.signature.parameters.len()).sum();
        assert!(functions.len() > 2, "{source} {way:?}: {} functions", functions.len());
        if skip::have_for(&format!("arguments::{source}"), &["gdb"]) {
            let compared = compare(&program, way, &functions);
            println!("{source} {} {:?}: {compared} values of {known} parameters", way.compiler, way.options);
            assert!(compared >= way.enough, "{source} {way:?}: only {compared} values were compared");
        }
    }
}

/// A function that the program calls.
struct Function {
    address: u64,
    symbol: String,
    signature: Signature,
}

/// A function that has been entered, by its number.
struct Entered {
    function: usize,
    /// The words of the parameters that have places: the number of the parameter, and the first and the second word.
    values: Vec<(usize, u64, u64)>,
}

/// Compares all values that gdb knows, and returns their number.
fn compare(program: &Path, way: &Way, functions: &[Function]) -> usize {
    let context = format!("{} {:?}", way.compiler, way.options);
    let output = gdb(program, functions, way.is_optimised, Path::new("/dev/null"));
    let mut compared = 0;
    let mut entered: Option<Entered> = None;
    let mut is_asked = false;
    for line in output.lines() {
        if let Some(number) = line.strip_prefix("@entry ") {
            entered = Some(Entered { function: number.parse().unwrap(), values: Vec::new() });
            is_asked = false;
        } else if let Some(value) = line.strip_prefix("@value ") {
            let mut words = value.split(' ');
            let index = words.next().unwrap().parse().unwrap();
            let mut word = || u64::from_str_radix(words.next().unwrap(), 16).unwrap();
            let values = &mut entered.as_mut().expect("a function").values;
            values.push((index, word(), word()));
        } else if line.starts_with("@asked ") {
            is_asked = true;
        } else if let (Some((name, text)), Some(Entered { function, values }), true) =
            (line.split_once(" = "), &entered, is_asked)
        {
            let function = &functions[*function];
            let named = |parameter: &Parameter| parameter.name.as_deref() == Some(name);
            let Some(index) = function.signature.parameters.iter().position(named) else { continue };
            let Some(&(_, first, second)) = values.iter().find(|(known, ..)| *known == index) else {
                continue;
            };
            let parameter = &function.signature.parameters[index];
            if let Some(is_same) = is_same(&parameter.value.ty, first, second, text) {
                assert!(
                    is_same,
                    "{context} {}: {name} is {text}, and at the entry {first:#x} {second:#x} at {:?}",
                    function.symbol, parameter.value.place
                );
                compared += 1;
            }
        }
    }
    compared
}

/// Returns the functions of the program's own source that have a signature.
fn functions(path: &Path) -> Vec<Function> {
    let program = Program::read(path).unwrap();
    let bytes = std::fs::read(path).unwrap();
    let info = DebugInfo::read(&bytes).unwrap();
    let mut signatures = Signatures::new(&info, Exported::read([bytes.as_slice()]));
    let mut found = Vec::new();
    for function in program.functions() {
        let name = function.name();
        // The library of Rust has thousands.
        let is_own = !name.contains("std") && !name.contains("core") && !name.contains("alloc");
        // gfortran makes it, and says that `argv` is what it leads to.
        let is_own = is_own && (name != "main" || !path.ends_with("fortran"));
        let Ok(signature) = signatures.of(function.address, std::iter::once(name)) else { continue };
        if is_own && !signature.parameters.is_empty() {
            found.push(Function { address: function.address, symbol: name.to_owned(), signature });
        }
    }
    found
}

/// Runs the program in gdb, which prints the words that the signatures name, and then what it knows itself. `printed` is for what
/// the program prints.
fn gdb(program: &Path, functions: &[Function], is_optimised: bool, printed: &Path) -> String {
    let mut script = String::from(
        "set pagination off\nset width 0\nset height 0\nset confirm off\nset print pretty off\nset print address on\n\
         set breakpoint pending off\n",
    );
    for (number, function) in functions.iter().enumerate() {
        // gdb skips the first instructions at a function's name. Where it does not, there are none.
        if !is_optimised {
            writeln!(
                script,
                "break {}\ncommands\nsilent\nprintf \"@asked {number}\\n\"",
                quoted(&function.symbol)
            )
            .unwrap();
            script.push_str("info args\ncontinue\nend\n");
        }
        writeln!(script, "break *{:#x}\ncommands\nsilent\nset language c", function.address).unwrap();
        writeln!(script, "printf \"@entry {number}\\n\"").unwrap();
        for (index, parameter) in function.signature.parameters.iter().enumerate() {
            if let Some((first, second)) = expressions(parameter) {
                writeln!(script, "printf \"@value {index} %lx %lx\\n\", {first}, {second}").unwrap();
            }
        }
        script.push_str("set language auto\n");
        if is_optimised {
            writeln!(script, "printf \"@asked {number}\\n\"\ninfo args").unwrap();
        }
        script.push_str("continue\nend\n");
    }
    writeln!(script, "run > {}", printed.display()).unwrap();
    let path: PathBuf = program.with_extension("gdb");
    std::fs::write(&path, script).unwrap();
    let mut command = Command::new("gdb");
    command.args(["-nx", "-batch", "-x"]).arg(&path).arg(program);
    // debuginfod would be asked over the network.
    let output = command.env_remove("DEBUGINFOD_URLS").output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn quoted(symbol: &str) -> String {
    format!("'{symbol}'")
}

/// Returns expressions of gdb for the words of a value.
fn expressions(parameter: &Parameter) -> Option<(String, String)> {
    const INTEGERS: [&str; 7] = ["rdi", "rsi", "rdx", "rcx", "r8", "r9", "rax"];
    let word = |word: Word| match word {
        Word::Integer(number) => format!("(unsigned long)${}", INTEGERS[usize::from(number)]),
        Word::Vector(number) => format!("(unsigned long)$xmm{number}.v2_int64[0]"),
        Word::Stack(offset) => format!("*(unsigned long *)($rsp + {})", 8 + offset),
    };
    let none = "0ul".to_owned();
    match parameter.value.place {
        Place::Word(at) => Some((word(at), none)),
        Place::Stack(at) => Some((word(Word::Stack(at)), word(Word::Stack(at + 8)))),
        Place::Pair(low, high) => Some((word(low), word(high))),
        Place::Behind(at) => Some((format!("*(unsigned long *)({})", word(at)), none)),
        Place::Nowhere | Place::Unread => None,
    }
}

/// Compares a value with what gdb prints of it. Returns `None` for what is not compared, such as structures.
fn is_same(ty: &Type, first: u64, second: u64, text: &str) -> Option<bool> {
    if text.contains("<optimized out>") || text.contains("<error") {
        return None;
    }
    let token = text.split([' ', ':']).next().unwrap_or_default();
    let unused = 64 - 8 * (ty.size.clamp(1, 8) as u32);
    let unsigned = first << unused >> unused;
    let signed = (first << unused) as i64 >> unused;
    let number = || token.parse::<i128>().ok();
    match &ty.shape {
        Shape::Signed | Shape::Char if ty.size <= 8 => {
            Some(number()? == i128::from(signed) || number()? == i128::from(unsigned))
        }
        Shape::Unsigned if ty.size <= 8 => Some(number()? == i128::from(unsigned)),
        Shape::Bool => Some(matches!(text, "true" | ".TRUE.") == (unsigned != 0)),
        Shape::Float if ty.size == 2 => None,
        Shape::Float if ty.size == 4 => Some(token.parse::<f32>().ok()? == f32::from_bits(unsigned as u32)),
        Shape::Float if ty.size == 8 => Some(token.parse::<f64>().ok()? == f64::from_bits(unsigned)),
        Shape::Float => {
            // A long double: 64 bits of fraction with the first one, 15 of exponent.
            let exponent = (second & 0x7fff) as i32 - 0x3fff - 63;
            Some(token.parse::<f64>().ok()? == first as f64 * 2_f64.powi(exponent))
        }
        Shape::Enum(all) => {
            let value = if all.is_signed { signed } else { unsigned as i64 };
            let name = all.variants.iter().find(|(_, known)| *known == value).map(|(name, _)| &**name);
            Some(text.rsplit("::").next() == name)
        }
        Shape::Pointer(to) => {
            // `@0x1234: 5` is a reference; a type in parentheses may come first.
            let at = text.find("0x")?;
            let before = &text[..at];
            let is_address =
                before.is_empty() || before == "@" || before.ends_with(") ") || before.ends_with(") @");
            let digits = text[at + 2..].split(|c: char| !c.is_ascii_hexdigit()).next()?;
            // What a string of C++ prints is its text.
            let is_shown = !matches!(to, Pointee::String(_)) && is_address;
            is_shown.then(|| u64::from_str_radix(digits, 16) == Ok(first))
        }
        // The length of a string of Rust or Fortran.
        Shape::Str(_) => {
            let inner = text.strip_prefix(['"', '\''])?.strip_suffix(['"', '\''])?;
            Some(inner.len() as u64 == second)
        }
        _ => None,
    }
}
