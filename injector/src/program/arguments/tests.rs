use std::path::PathBuf;
use std::process::Command;

use gmon_trace::value::Field;
use gprofinject_abi::args::{Fetches, Op};
use gprofinject_image::Image;
use gprofinject_skip::{have, skipped};
use tempfile::TempDir;
use zerocopy::IntoBytes;

use super::*;

const SOURCE: &str = r#"
#include <stdio.h>
enum colour { RED, GREEN = 7, BLUE = -3 };
struct point { short x; double y; unsigned bits : 3; const char *name; };
struct small { float a, b; };
struct empty {};
#define KEEP __attribute__((noinline, noipa))
KEEP int plain(int number, const char *text, enum colour colour) { return number + text[0] + colour; }
KEEP double floats(float a, double b, struct small s) { return a + b + s.a; }
KEEP long object(struct point p, struct empty none, void *any) { return p.x + (long)any; }
KEEP void nothing(void) { puts("nothing"); }
KEEP int called_back(int (*function)(int), _Bool truth, unsigned __int128 wide) { return function(truth + wide); }
static __attribute__((noinline)) int changed(int used, int unused) { (void)unused; return used * 3; }
static int twice(int x) { return 2 * x; }
int main(int argc, char **argv) {
    struct point p = {1, 2.5, 3, "p"};
    struct small s = {1, 2};
    nothing();
    return plain(argc, argv[0], GREEN) + floats(1, 2, s) + object(p, (struct empty){}, argv) + changed(argc, 1)
        + called_back(twice, 1, 5);
}
"#;

struct Program {
    _folder: TempDir,
    path: PathBuf,
    bytes: Vec<u8>,
}

fn compiled(test: &str, options: &[&str]) -> Option<Program> {
    if !have("gcc") {
        skipped(test, "no gcc");
        return None;
    }
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("p.c"), SOURCE).expect("a file");
    let path = folder.path().join("p");
    let mut command = Command::new("gcc");
    command.args(options).args(["-o", "p", "p.c"]).current_dir(folder.path());
    assert!(command.status().expect("gcc").success());
    let bytes = std::fs::read(&path).expect("a program");
    Some(Program { _folder: folder, path, bytes })
}

/// The known functions, each with its name, signature and fetches.
struct Functions {
    known: Known,
    names: Vec<String>,
}

impl Functions {
    fn of(program: &Program, args: &str) -> Functions {
        let choice = ArgsChoice::parse(args).expect("a specification");
        let image = Image::read(&program.bytes).expect("an image");
        let names = ["", "p"];
        let module = Module {
            path: &program.path,
            names: &names,
            bytes: &program.bytes,
            debug_file: None,
            is_static: false,
        };
        let numbered = image.functions.iter().zip(0..).map(|(function, number)| (number, function));
        let known = signatures(&module, &choice, numbered);
        Functions { known, names: image.functions.iter().map(|f| f.name.to_owned()).collect() }
    }

    fn signature(&self, name: &str) -> Option<&Signature> {
        let is_it = |number: u32| self.names[number as usize] == name;
        let mut found = self.known.signatures.iter().filter(|(number, _)| is_it(*number));
        found.next().map(|(_, signature)| signature)
    }

    fn names(&self) -> Vec<&str> {
        self.known.signatures.iter().map(|(number, _)| self.names[*number as usize].as_str()).collect()
    }

    /// Checks that every value that has bytes has a fetch, in the same order.
    fn check(&self) {
        let bytes = self.known.fetches.bytes();
        let mut words = vec![0_u64; bytes.len().div_ceil(8)];
        words.as_mut_bytes()[..bytes.len()].copy_from_slice(&bytes);
        let fetches = Fetches::read(&words.as_bytes()[..bytes.len()]).expect("a table");
        for (number, signature) in &self.known.signatures {
            let (arguments, results) = fetches.of(*number);
            let kinds = signature.parameters.iter().map(|parameter| &parameter.kind);
            let with_values: Vec<_> = kinds.filter(|kind| kind.has_value()).collect();
            assert_eq!(with_values.len(), arguments.len(), "{signature:?}");
            assert_eq!(signature.result.as_ref().is_some_and(ValueKind::has_value), results.len() == 1);
            for (kind, fetch) in with_values.into_iter().zip(arguments) {
                let is_string = matches!(fetch.op.get(), Some(Op::CString));
                assert_eq!(*kind == ValueKind::CString, is_string, "{signature:?}");
            }
        }
    }
}

fn kinds(signature: Option<&Signature>) -> Vec<(Option<&str>, &ValueKind)> {
    let parameters = &signature.expect("a signature").parameters;
    parameters.iter().map(|p| (p.name.as_deref(), &p.kind)).collect()
}

#[test]
fn by_debug_information() {
    for options in [&["-g", "-O0"][..], &["-g", "-O2"]] {
        let Some(program) = compiled("by_debug_information", options) else { return };
        let functions = Functions::of(&program, "auto");
        functions.check();
        let plain = functions.signature("plain");
        let colours = vec![(0, "RED".to_owned()), (7, "GREEN".to_owned()), (-3, "BLUE".to_owned())];
        let expected = [
            (Some("number"), &ValueKind::Signed { bytes: 4 }),
            (Some("text"), &ValueKind::CString),
            (Some("colour"), &ValueKind::Enum { name: "colour".into(), variants: colours, bytes: 4 }),
        ];
        assert_eq!(kinds(plain), expected, "{options:?}");
        assert_eq!(plain.expect("it").result, Some(ValueKind::Signed { bytes: 4 }));

        let float =
            |name: &str, offset| Field { name: name.into(), offset, kind: ValueKind::Float { bytes: 4 } };
        let small =
            ValueKind::Struct { name: "small".into(), fields: vec![float("a", 0), float("b", 4)], bytes: 8 };
        let floats = kinds(functions.signature("floats"));
        let expected = [
            (Some("a"), &ValueKind::Float { bytes: 4 }),
            (Some("b"), &ValueKind::Float { bytes: 8 }),
            (Some("s"), &small),
        ];
        assert_eq!(floats, expected);

        // One structure is passed in memory, and the empty one is not passed at all.
        let field = |name: &str, offset, kind| Field { name: name.into(), offset, kind };
        let bits = ValueKind::Bits { start: 0, width: 3, of: Box::new(ValueKind::Unsigned { bytes: 4 }) };
        let point = ValueKind::Struct {
            name: "point".into(),
            fields: vec![
                field("x", 0, ValueKind::Signed { bytes: 2 }),
                field("y", 8, ValueKind::Float { bytes: 8 }),
                field("bits", 16, bits),
                field("name", 24, ValueKind::Pointer),
            ],
            bytes: 32,
        };
        let expected = [(Some("p"), &point), (Some("any"), &ValueKind::Pointer)];
        assert_eq!(kinds(functions.signature("object")), expected);
        let expected = [
            (Some("function"), &ValueKind::FunctionPointer),
            (Some("truth"), &ValueKind::Bool),
            (Some("wide"), &ValueKind::Unsigned { bytes: 16 }),
        ];
        assert_eq!(kinds(functions.signature("called_back")), expected);
        // The function has neither arguments nor a result.
        assert_eq!(functions.signature("nothing"), None);
        let of_main = kinds(functions.signature("main"));
        assert_eq!(
            of_main,
            [(Some("argc"), &ValueKind::Signed { bytes: 4 }), (Some("argv"), &ValueKind::Pointer)]
        );
    }
}

/// gcc removes the unused parameter and renames the function. Debug information has the place of the other parameter.
#[test]
fn changed_functions_have_the_parameters_that_are_left() {
    let Some(program) = compiled("changed_functions_have_the_parameters_that_are_left", &["-g", "-O2"])
    else {
        return;
    };
    let functions = Functions::of(&program, "auto");
    let copy = functions.names.iter().find(|name| name.starts_with("changed."));
    let copy = copy.unwrap_or_else(|| panic!("no copy in {:?}", functions.names));
    let expected =
        [(Some("used"), &ValueKind::Signed { bytes: 4 }), (Some("unused"), &ValueKind::Unsupported)];
    assert_eq!(kinds(functions.signature(copy)), expected);
    assert_eq!(functions.known.unclear.get(&Unclear::Changed), None, "{:?}", functions.known.unclear);
}

#[test]
fn by_specifications() {
    let Some(program) = compiled("by_specifications", &["-g", "-O1"]) else { return };
    let args = "plain@n=arg1/x32,arg2/s,arg3/e:colour,retval/u; floats@fparg2,retval/f; p!object;lib*!main;nothing@arg1/e:tint";
    let functions = Functions::of(&program, args);
    functions.check();
    let colours = vec![(0, "RED".to_owned()), (7, "GREEN".to_owned()), (-3, "BLUE".to_owned())];
    let expected = [
        (Some("n"), &ValueKind::Hex),
        (None, &ValueKind::CString),
        (None, &ValueKind::Enum { name: "colour".into(), variants: colours, bytes: 4 }),
    ];
    assert_eq!(kinds(functions.signature("plain")), expected);
    assert_eq!(functions.signature("plain").expect("it").result, Some(ValueKind::Unsigned { bytes: 8 }));
    assert_eq!(kinds(functions.signature("floats")), [(None, &ValueKind::Float { bytes: 8 })]);
    // A name without values selects the known values.
    assert_eq!(kinds(functions.signature("object")).len(), 2);
    let mut names = functions.names();
    names.sort_unstable();
    assert_eq!(names, ["floats", "nothing", "object", "plain"]);
    assert_eq!(functions.known.missing.iter().collect::<Vec<_>>(), ["tint"]);
}

#[test]
fn without_debug_information() {
    let Some(program) = compiled("without_debug_information", &["-O1", "-s"]) else { return };
    // The prototypes apply to the C library only, and this is a program.
    let functions = Functions::of(&program, "auto");
    assert!(functions.known.fetches.is_empty());
    let unknown = Parameter { name: None, kind: ValueKind::Unsupported };
    let is_unknown =
        |signature: &Signature| signature.parameters == [unknown.clone()] && signature.result.is_none();
    assert!(functions.known.signatures.iter().all(|(_, signature)| is_unknown(signature)));
    assert!(functions.known.unclear.contains_key(&Unclear::NoInformation));
}

#[test]
fn functions_of_the_c_library() {
    let path = Path::new("/lib/x86_64-linux-gnu/libc.so.6");
    let Ok(bytes) = std::fs::read(path) else {
        skipped("functions_of_the_c_library", "no glibc where Debian has it");
        return;
    };
    let image = Image::read_library(&bytes, None).expect("an image");
    let choice = ArgsChoice::parse("fopen64;strerror;qsort").expect("a specification");
    let module = Module { path, names: &["libc.so.6"], bytes: &bytes, debug_file: None, is_static: false };
    let numbered = || image.functions.iter().zip(0..).map(|(function, number)| (number, function));
    let known = signatures(&module, &choice, numbered());
    let of = |name: &str| {
        let (number, _) = numbered().find(|(_, f)| f.names().any(|other| other == name)).expect("a function");
        let found = known.signatures.iter().find(|(known, _)| *known == number);
        found.unwrap_or_else(|| panic!("{name}")).1.clone()
    };
    let kinds = |signature: &Signature| -> Vec<ValueKind> {
        signature.parameters.iter().map(|parameter| parameter.kind.clone()).collect()
    };
    assert_eq!(kinds(&of("fopen64")), [ValueKind::CString, ValueKind::CString]);
    assert_eq!(of("fopen64").result, Some(ValueKind::Pointer));
    assert_eq!(of("strerror").result, Some(ValueKind::CString));
    let unsigned = || ValueKind::Unsigned { bytes: 8 };
    assert_eq!(kinds(&of("qsort")), [ValueKind::Pointer, unsigned(), unsigned(), ValueKind::FunctionPointer]);
    assert_eq!(choice.unused().count(), 0);
}

#[test]
fn errors_name_the_option_and_an_example() {
    let error = format!("{:#}", ArgsChoice::parse("main@arg1/y").expect_err("a format that is none"));
    assert!(
        error.contains("--args takes auto, or FUNCTION@VALUES as in 'main@arg1/i32,arg2/s,retval/i32'"),
        "{error}"
    );
    assert!(error.contains("column 11"), "{error}");
    let error = format!("{:#}", ArgsChoice::parse("a[@arg1").expect_err("a malformed pattern"));
    assert!(error.contains("--args 'a['"), "{error}");
    let choice = ArgsChoice::parse("no_such_*@arg1;auto").expect("a specification");
    assert_eq!(choice.unused().collect::<Vec<_>>(), ["--args 'no_such_*'"]);
}
