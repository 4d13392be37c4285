//! Functions with random parameters and results: what is read of their calls is what they get.

use super::library::{Decoded, Library, decoded};
use gprofinject_image::signatures::{Parameter, Place, Rest, Shape, Signature, Value};
use gprofinject_plan::fetches;
use std::fmt::Write;

/// Functions of each library.
const FUNCTIONS: usize = 250;

/// A sequence of numbers that is the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }

    fn is(&mut self, percent: usize) -> bool {
        self.below(100) < percent
    }
}

/// A type of C, and the statements that make an object of it valid, and that set all its bits that count.
#[derive(Clone)]
struct Kind {
    name: String,
    /// For an object `$`: what follows after it was filled with random bits.
    valid: String,
    /// For an object `$` of zeros.
    mask: String,
    /// Whether it is aligned to 16 or more bytes.
    is_wide: bool,
}

const SCALARS: [&str; 24] = [
    "char",
    "signed char",
    "unsigned char",
    "short",
    "unsigned short",
    "int",
    "unsigned",
    "long",
    "unsigned long",
    "long long",
    "_Bool",
    "float",
    "double",
    "long double",
    "__int128",
    "unsigned __int128",
    "void *",
    "enum e",
    "enum small",
    "float _Complex",
    "double _Complex",
    "v4sf",
    "v2sf",
    "function",
];

fn scalar(random: &mut Random) -> Kind {
    let name = match random.below(4) {
        // The ordinary ones more often.
        0 => SCALARS[random.below(SCALARS.len())],
        1 => ["int", "long", "double", "float"][random.below(4)],
        _ => SCALARS[random.below(13)],
    };
    let name = name.to_owned();
    let (valid, mask) = match name.as_str() {
        "_Bool" => ("$ = bits() & 1;", "memset(&$, 1, 1);"),
        "long double" => ("$ = (int)bits();", "memset(&$, 0xff, 10);"),
        _ => ("", "memset(&$, 0xff, sizeof($));"),
    };
    let is_wide = name.contains("__int128") || name == "long double" || name == "v4sf";
    Kind { name, valid: valid.to_owned(), mask: mask.to_owned(), is_wide }
}

/// Writes the definition of a structure or a union, and returns it.
fn aggregate(random: &mut Random, source: &mut String, number: usize, known: &[Kind]) -> Kind {
    let is_union = random.is(15);
    let (mut fields, mut valid, mut mask) = (String::new(), String::new(), String::new());
    let mut is_wide = false;
    for i in 0..1 + random.below(if is_union { 3 } else { 5 }) {
        let inner = if random.is(20) && !known.is_empty() {
            known[random.below(known.len())].clone()
        } else {
            scalar(random)
        };
        is_wide |= inner.is_wide;
        let of_field = |text: &str, field: &str| text.replace('$', &format!("$.{field}"));
        // Only the first member of a union has a value.
        let has_value = !is_union || i == 0;
        if random.is(12) {
            let base = ["int", "unsigned", "long", "unsigned char", "short"][random.below(5)];
            let most = match base {
                "unsigned char" => 8,
                "short" => 16,
                "long" => 64,
                _ => 32,
            };
            writeln!(fields, "    {base} f{i} : {};", 1 + random.below(most)).expect("memory");
            if has_value {
                write!(mask, "$.f{i} = -1;").expect("memory");
            }
        } else if random.is(12) {
            let count = 1 + random.below(3);
            writeln!(fields, "    {} f{i}[{count}];", inner.name).expect("memory");
            for n in 0..count {
                if has_value {
                    valid += &of_field(&inner.valid, &format!("f{i}[{n}]"));
                    mask += &of_field(&inner.mask, &format!("f{i}[{n}]"));
                }
            }
        } else {
            writeln!(fields, "    {} f{i};", inner.name).expect("memory");
            if has_value {
                valid += &of_field(&inner.valid, &format!("f{i}"));
                mask += &of_field(&inner.mask, &format!("f{i}"));
            }
        }
    }
    let attribute = match random.below(20) {
        // Debug information does not say that such a structure is not aligned.
        0 if !is_wide => "__attribute__((packed))",
        1 => "__attribute__((aligned(16)))",
        2 => "__attribute__((aligned(32)))",
        _ => "",
    };
    let kind = if is_union { "union" } else { "struct" };
    writeln!(source, "{kind} {attribute} a{number} {{\n{fields}}};").expect("memory");
    let is_wide = is_wide || attribute.contains("aligned");
    Kind { name: format!("{kind} a{number}"), valid, mask, is_wide }
}

/// Returns a source with functions `f0`, `f1`, ..., and `call0`, ... that call them.
fn source(seed: u64) -> String {
    let mut random = Random(seed);
    let mut source = String::from(
        "#include \"capture.c\"
enum e { RED, GREEN = -5, BLUE = 100000 };
enum __attribute__((packed)) small { ONE = 1, TWO = 200 };
typedef float v4sf __attribute__((vector_size(16)));
typedef float v2sf __attribute__((vector_size(8)));
typedef int (*function)(int, ...);
static unsigned long state = 88172645463325252ul;
static unsigned long bits(void) {
    state ^= state << 13; state ^= state >> 7; state ^= state << 17;
    return state;
}
static void fill(void *to, unsigned long size) {
    for (unsigned long i = 0; i < size; i++) ((unsigned char *)to)[i] = bits() >> 24;
}
#define KEEP __attribute__((noinline))
",
    );
    let mut known: Vec<Kind> = Vec::new();
    for i in 0..FUNCTIONS {
        if random.is(70) {
            let kind = aggregate(&mut random, &mut source, i, &known);
            known.push(kind);
        }
        let any = |random: &mut Random| match known.as_slice() {
            [_, ..] if random.is(45) => known[known.len() - 1 - random.below(known.len().min(8))].clone(),
            _ => scalar(random),
        };
        let parameters: Vec<Kind> = (0..random.below(12)).map(|_| any(&mut random)).collect();
        let result = if random.is(85) { Some(any(&mut random)) } else { None };
        function(&mut source, i, &parameters, result.as_ref());
    }
    source
}

/// Writes a function and its caller.
fn function(source: &mut String, i: usize, parameters: &[Kind], result: Option<&Kind>) {
    let list = |with_names: bool| {
        let each = parameters.iter().enumerate();
        let each =
            each.map(|(n, kind)| if with_names { format!("{} p{n}", kind.name) } else { kind.name.clone() });
        let all = each.collect::<Vec<_>>().join(", ");
        if all.is_empty() { "void".to_owned() } else { all }
    };
    let returned = result.map_or("void", |kind| &kind.name);
    let masked = |kind: &Kind, value: &str, number: &str| {
        let mask = kind.mask.replace('$', "mask");
        format!(
            "    {{ {} mask; memset(&mask, 0, sizeof mask); {mask} note({number}, &{value}, &mask, sizeof mask); }}\n",
            kind.name
        )
    };
    if let Some(kind) = result {
        writeln!(source, "{} r{i};", kind.name).expect("memory");
    }
    writeln!(source, "KEEP {returned} f{i}({}) {{", list(true)).expect("memory");
    for (n, kind) in parameters.iter().enumerate() {
        source.push_str(&masked(kind, &format!("p{n}"), &n.to_string()));
    }
    if result.is_some() {
        writeln!(source, "    return r{i};").expect("memory");
    }
    writeln!(source, "}}\nvoid call{i}(void) {{").expect("memory");
    for (n, kind) in parameters.iter().enumerate() {
        let valid = kind.valid.replace('$', &format!("p{n}"));
        writeln!(source, "    {} p{n}; fill(&p{n}, sizeof p{n}); {valid}", kind.name).expect("memory");
    }
    if let Some(kind) = result {
        let valid = kind.valid.replace('$', &format!("r{i}"));
        writeln!(source, "    fill(&r{i}, sizeof r{i}); {valid}").expect("memory");
    }
    let arguments = (0..parameters.len()).map(|n| format!("p{n}")).collect::<Vec<_>>().join(", ");
    let call = format!("(({returned} (*)({}))capture)({arguments})", list(false));
    writeln!(source, "    capture_target = (void *)f{i};").expect("memory");
    match result {
        Some(kind) => {
            writeln!(source, "    {} r = {call};", kind.name).expect("memory");
            source.push_str(&masked(kind, "r", "-1"));
        }
        None => writeln!(source, "    {call};").expect("memory"),
    }
    source.push_str("}\n");
}

/// How many values were compared, and how many were there that cannot be read.
#[derive(Clone, Copy, Debug, Default)]
struct Count {
    compared: usize,
    unread: usize,
    left_out: usize,
    /// Functions of which not all parameters are known.
    cut_short: usize,
}

/// Compares one value with what the function says of it.
fn compare(context: &str, value: &Decoded, bytes: &[u8], mask: &[u8]) {
    let read: Vec<u8> = match value {
        Decoded::Scalar(number) => number.to_le_bytes().to_vec(),
        Decoded::Raw(bytes) => bytes.clone(),
        other => panic!("{context}: {other:?}, expected {bytes:02x?}"),
    };
    let len = bytes.len().min(64);
    for i in 0..len {
        // What is not read is padding.
        let differs = (read.get(i).copied().unwrap_or(!bytes[i]) ^ bytes[i]) & mask[i];
        assert_eq!(differs, 0, "{context}: byte {i} of {read:02x?}, expected {bytes:02x?} under {mask:02x?}");
    }
}

/// Whether a value is not read by design: a vector, and what is in a whole vector register or one of the x87 unit.
fn is_unread(value: &Value) -> bool {
    matches!(value.place, Place::Nowhere | Place::Unread) || value.ty.shape == Shape::Opaque
}

fn compare_all(library: &Library, i: usize, signature: &Signature, context: &str, count: &mut Count) {
    let call = library.call(signature, &format!("call{i}"));
    let of_result: Option<&Value> = signature.result.as_ref();
    let parameters = signature.parameters.iter().map(|Parameter { value, .. }| value);
    let mut left_out = false;
    let (mut at_entry, at_exit) = (decoded(&call.at_entry).into_iter(), decoded(&call.at_exit));
    for (n, value) in parameters.enumerate() {
        let noted = call.noted.iter().find(|noted| noted.argument == n as i32).expect("it is said");
        match fetches::fetch(value) {
            None => {
                assert!(is_unread(value), "{context} p{n}: {value:?}");
                count.unread += 1;
            }
            Some(_) => match at_entry.next() {
                Some(read) => {
                    assert!(!left_out);
                    let context = format!("{context} p{n} of {} bytes at {:?}", value.ty.size, value.place);
                    compare(&context, &read, &noted.bytes, &noted.mask);
                    count.compared += 1;
                }
                // They are longer than a call's values may be.
                None => {
                    assert!(call.at_entry.len() > 128, "{context} p{n}");
                    left_out = true;
                    count.left_out += 1;
                }
            },
        }
    }
    let noted = call.noted.iter().find(|noted| noted.argument == -1);
    assert_eq!(noted.is_some(), of_result.is_some(), "{context}");
    if let (Some(noted), Some(value)) = (noted, of_result) {
        match at_exit.first() {
            Some(read) => {
                compare(&format!("{context} result at {:?}", value.place), read, &noted.bytes, &noted.mask);
                count.compared += 1;
            }
            None => {
                assert!(is_unread(value), "{context}: {value:?}");
                count.unread += 1;
            }
        }
    }
}

#[test]
fn random_functions() {
    let test = "random_functions";
    let mut count = Count::default();
    let seeds = if std::env::var_os("GPROFINJECT_FULL").is_some() { 20 } else { 1 };
    for compiler in ["gcc", "clang"] {
        for seed in 1..=seeds {
            let source = source(seed * 7919 + compiler.len() as u64);
            for options in [&["-O0", "-gdwarf-5"][..], &["-O2", "-gdwarf-4"]] {
                let name = "random.c";
                let Some(library) = Library::compile(test, compiler, options, name, &source) else { break };
                let info = library.debug_info();
                let mut signatures = library.signatures(&info);
                for i in 0..FUNCTIONS {
                    let context = format!("{compiler} {options:?} seed {seed} f{i}");
                    let signature = library.signature(&mut signatures, &format!("f{i}"));
                    let signature = signature.unwrap_or_else(|why| panic!("{context}: {why}"));
                    // Versions of clang differ in where a number of 128 bits is that is not in registers.
                    let head = source.split(&format!(" f{i}(")).nth(1).expect("the function");
                    let parameters = head.split(')').next().expect("its parameters");
                    let next = parameters.split(',').nth(signature.parameters.len()).unwrap_or_default();
                    let is_known_to_differ = compiler == "clang" && next.contains("__int128");
                    let expected = is_known_to_differ.then_some(Rest::Type);
                    assert_eq!(signature.rest, expected, "{context}: {parameters} from {next:?} on");
                    count.cut_short += usize::from(is_known_to_differ);
                    compare_all(&library, i, &signature, &context, &mut count);
                }
            }
        }
    }
    println!("{count:?}");
    assert!(count.compared > 10 * (count.unread + count.left_out), "{count:?}");
}
