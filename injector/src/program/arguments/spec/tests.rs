use super::*;

fn values(text: &str) -> Vec<ValueSpec> {
    match parse(text).expect("a specification").as_slice() {
        [Item::Functions { values, .. }] => values.clone(),
        other => panic!("{other:?}"),
    }
}

fn value(word: Word, format: Format) -> ValueSpec {
    ValueSpec { name: None, is_result: false, word, format }
}

/// The examples of uftrace-record(1), and of its tests.
#[test]
fn uftrace_examples() {
    let result = |format| ValueSpec { is_result: true, ..value(Word::RAX, format) };
    assert_eq!(
        values("main@arg1/x,arg2/s,retval"),
        [
            value(Word::Integer(0), Format::Hex { bytes: 8 }),
            value(Word::Integer(1), Format::CString),
            result(Format::Signed { bytes: 8 }),
        ]
    );
    assert_eq!(values("main@retval/i32"), [result(Format::Signed { bytes: 4 })]);
    assert_eq!(values("puts@arg1/s"), [value(Word::Integer(0), Format::CString)]);
    let float = |n, bytes| value(Word::Vector(n), Format::Float { bytes });
    assert_eq!(values("float_add@fparg1/32,fparg2/32"), [float(0, 4), float(1, 4)]);
    assert_eq!(values("double_mul@fparg1,fparg2/64"), [float(0, 8), float(1, 8)]);
    let of_float = ValueSpec { is_result: true, ..float(0, 4) };
    assert_eq!(values("float_div@retval/f32"), [of_float]);
    let stack = |n, bytes| value(Word::Stack(n), Format::Float { bytes });
    assert_eq!(values("long_double@fparg1/80%stack+1,fparg2/80%stack+3"), [stack(0, 16), stack(16, 16)]);
    assert_eq!(values("f@arg7/i32%stack1"), [value(Word::Stack(0), Format::Signed { bytes: 4 })]);
    assert_eq!(
        values("enum_arg@arg1/e:colour%rsi"),
        [value(Word::Integer(1), Format::Enum("colour".into()))]
    );
}

#[test]
fn all_formats_and_places() {
    let formats = [
        ("d", Format::Signed { bytes: 8 }),
        ("i8", Format::Signed { bytes: 1 }),
        ("u16", Format::Unsigned { bytes: 2 }),
        ("x64", Format::Hex { bytes: 8 }),
        ("o", Format::Octal { bytes: 8 }),
        ("c", Format::Char),
        ("c8", Format::Char),
        ("S", Format::StdString),
        ("p", Format::FunctionPointer),
        ("a", Format::Address),
    ];
    for (text, format) in formats {
        assert_eq!(values(&format!("f@arg1/{text}")), [value(Word::Integer(0), format)], "{text}");
    }
    for (text, word) in [
        ("arg6", Word::Integer(5)),
        ("arg7", Word::Stack(0)),
        ("arg9", Word::Stack(16)),
        ("arg1%r9", Word::Integer(5)),
        ("arg1%RDX", Word::Integer(2)),
        ("arg1%stack+8", Word::Stack(56)),
        ("arg1/x%xmm7", Word::Vector(7)),
    ] {
        assert_eq!(values(&format!("f@{text}"))[0].word, word, "{text}");
    }
    assert_eq!(values("f@fparg8")[0].word, Word::Vector(7));
    assert_eq!(values("f@fparg9")[0].word, Word::Stack(0));
    assert_eq!(values("f@arg2/f32")[0].word, Word::Vector(1));
    let named = values("open@path=arg1/s, flags = arg2/x32");
    assert_eq!(
        named.iter().map(|value| value.name.as_deref()).collect::<Vec<_>>(),
        [Some("path"), Some("flags")]
    );
}

#[test]
fn several_items() {
    let items = parse(" auto; lib*!f@arg1 ;main;").expect("a specification");
    let functions = |glob: &str, values| Item::Functions { glob: glob.to_owned(), values };
    let arg1 = value(Word::Integer(0), Format::Signed { bytes: 8 });
    assert_eq!(items, [Item::Auto, functions("lib*!f", vec![arg1]), functions("main", Vec::new())]);
    assert_eq!(parse("").expect("nothing"), []);
}

#[test]
fn errors_say_where_and_what_would_be_right() {
    for (text, column, says) in [
        ("main@arg1/y", 11, "'y' is no format; write d or i (signed)"),
        ("auto;main@arg0", 11, "'0' is no number of an argument; they go from 1 to 128"),
        ("main@arg1,ret", 11, "'ret' is no value; write arg1 (from 1 on), fparg1"),
        ("main@argument", 6, "'argument' is no value"),
        ("main@", 6, "nothing follows after '@'"),
        ("@arg1", 1, "a function's name or a pattern is missing before '@'"),
        (".@arg1", 1, "write *"),
        ("^get_.*@arg1", 1, "write get_*"),
        ("main$", 1, "write main"),
        ("main@arg1/i33", 12, "a signed number has no size of 33 bits; write 8, 16, 32 or 64"),
        ("main@arg1/s8", 12, "a string has no size of 8 bits; write s"),
        ("main@fparg1/16", 13, "write 32, 64 or 80"),
        ("main@fparg1/80", 6, "write fparg1/80%stack+1"),
        ("main@retval/f80", 6, "a long double"),
        ("main@arg1%rax", 11, "'rax' is no place; write %rdi"),
        ("main@arg1%xmm8", 11, "'xmm8' is no place"),
        ("main@arg1%stack+0", 11, "stack+1 is the first argument there"),
        ("main@arg1%stack+999", 11, "stack+128 the last one"),
        ("main@retval%rdi", 13, "leave out '%rdi'"),
        ("main@arg1/t16", 11, "auto shows them"),
        ("main@arg1/e:", 11, "the name of the enumeration is missing"),
        ("größe@argl", 7, "'argl' is no value"),
    ] {
        let error = parse(text).expect_err(text).to_string();
        assert!(error.starts_with(&format!("'{text}': column {column}: ")), "{text}: {error}");
        assert!(error.contains(says), "{text}: {error}");
    }
    let many = format!("f@{}", vec!["arg1"; VALUES_MAX + 1].join(","));
    assert!(parse(&many).expect_err("many").to_string().contains("more than 64"));
}

/// Whatever is typed, nothing panics.
#[test]
fn anything_may_be_typed() {
    let pieces = [
        "main", "@", "arg", "1", "/", "e:", "%", "stack+", ";", ",", "=", "ü", " ", "fparg", "80", "x",
        "retval",
    ];
    let mut state = 88_172_645_463_325_252_u64;
    for _ in 0..20_000 {
        let mut text = String::new();
        for _ in 0..8 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            text += pieces[(state % pieces.len() as u64) as usize];
        }
        if let Err(error) = parse(&text) {
            assert!(error.to_string().len() > text.len(), "{text}");
        }
    }
}
