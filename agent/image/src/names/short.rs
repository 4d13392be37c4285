//! Short forms of demangled names, for tables and pictures.
//!
//! A name of C++ or Rust says more than a reader of a table looks for: `void std::vector<int, std::allocator<int> >::push_back(int
//! const&)` is `std::vector<...>::push_back` in short. Two functions may have the same short name; [`unambiguous`] tells them apart.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// What stands for arguments that are left out.
const ELIDED: &str = "<...>";
/// What stands for the part of a name for which there is no room.
const CUT: char = '\u{2026}';

/// What a demangler puts in front of the name of a function that it belongs to.
const PREFIXES: [&str; 6] = [
    "virtual thunk to ",
    "non-virtual thunk to ",
    "covariant return thunk to ",
    "guard variable for ",
    "TLS init function for ",
    "TLS wrapper function for ",
];

/// Parts of names that only say in which version of a library, or that in no other file, something is defined.
const NOISE: [(&str, &str); 7] = [
    ("(anonymous namespace)::", ""),
    ("{anonymous}::", ""),
    ("std::__cxx11::", "std::"),
    ("std::__1::", "std::"),
    ("std::__ndk1::", "std::"),
    ("std::__debug::", "std::"),
    ("[abi:cxx11]", ""),
];

/// The templates of the standard library whose instances for characters have names of their own, without `basic_`.
const OF_CHARACTERS: [&str; 17] = [
    "string",
    "string_view",
    "ostream",
    "istream",
    "iostream",
    "stringstream",
    "ostringstream",
    "istringstream",
    "fstream",
    "ofstream",
    "ifstream",
    "streambuf",
    "stringbuf",
    "filebuf",
    "ios",
    "regex",
    "istringbuf",
];

/// The operators of C++ that are symbols, longer ones before their beginnings.
const OPERATORS: [&str; 43] = [
    "<=>", "<<=", ">>=", "->*", "()", "[]", "->", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "++", "--",
    "+=", "-=", "*=", "/=", "%=", "^=", "&=", "|=", "\"\"", "<", ">", "+", "-", "*", "/", "%", "^", "&", "|",
    "~", "!", "=", ",", "::", ".*", ".",
];

/// Returns a demangled name without its parameters, its return type, the arguments of templates, anonymous namespaces and hashes.
pub fn short(name: &str) -> Cow<'_, str> {
    shortened(name, false)
}

/// Returns a demangled name as [`short`] does, but with the types of its parameters, in short.
pub fn short_with_parameters(name: &str) -> Cow<'_, str> {
    shortened(name, true)
}

/// Returns the short form of each name. Those that are the same in short but differ have their parameters, or are left as they are
/// if these do not tell them apart.
pub fn unambiguous<'n>(names: &[&'n str]) -> Vec<Cow<'n, str>> {
    let mut shown: Vec<Cow<'n, str>> = names.iter().map(|name| short(name)).collect();
    for longer in [short_with_parameters, Cow::Borrowed] as [fn(&'n str) -> Cow<'n, str>; 2] {
        let mut first: HashMap<&str, &str> = HashMap::new();
        let mut ambiguous: HashSet<String> = HashSet::new();
        for (short, name) in shown.iter().zip(names) {
            if *first.entry(short).or_insert(name) != *name {
                ambiguous.insert(short.to_string());
            }
        }
        if ambiguous.is_empty() {
            break;
        }
        for (short, name) in shown.iter_mut().zip(names) {
            if ambiguous.contains(short.as_ref()) {
                *short = longer(name);
            }
        }
    }
    shown
}

/// Returns a name that takes at most `width` columns, if each of its characters takes one. The beginning of one with several components is
/// left out, at the beginning of a component if one fits, so that what is left is the end: the last component. One without, such as a name of
/// C, loses its middle: the names of a library have common beginnings or ends.
pub fn fit(name: &str, width: usize) -> Cow<'_, str> {
    let length = name.chars().count();
    if length <= width {
        return Cow::Borrowed(name);
    }
    let room = width.saturating_sub(1);
    if !name.contains("::") {
        let tail = room / 2;
        let at = |index: usize| name.char_indices().nth(index).map_or(name.len(), |(at, _)| at);
        return Cow::Owned(format!("{}{CUT}{}", &name[..at(room - tail)], &name[at(length - tail)..]));
    }
    let from = name.char_indices().nth(length - room).map_or(name.len(), |(at, _)| at);
    let end = name[from..].trim_start_matches(':');
    // A component that begins soon is a better beginning than the middle of a word.
    let component = end.find("::").map(|at| at + 2).filter(|&at| at < end.len() && at * 2 <= end.len());
    Cow::Owned(format!("{CUT}{}", &end[component.unwrap_or(0)..]))
}

fn shortened(name: &str, parameters: bool) -> Cow<'_, str> {
    let name = without_version(name);
    let is_plain = !name.contains(['(', '<', ':', ' ']) && !name.contains(".llvm.");
    // Names in brackets are gprofinject's own, or those of Objective-C.
    if is_plain || name.starts_with(['[', '+', '-']) {
        return Cow::Borrowed(name);
    }
    for prefix in PREFIXES {
        if let Some(rest) = name.strip_prefix(prefix) {
            return Cow::Owned(format!("{prefix}{}", shortened(rest, parameters)));
        }
    }
    if let Some(of) = thunk(name) {
        return Cow::Owned(format!("virtual thunk to {}", shortened(of, parameters)));
    }
    let mut text = Cow::Borrowed(name);
    for (noise, instead) in NOISE {
        if text.contains(noise) {
            text = Cow::Owned(text.replace(noise, instead));
        }
    }
    if text.contains("basic_") {
        text = Cow::Owned(without_characters(&text));
    }
    let mut walk = Walk { text: &text, at: 0, out: String::with_capacity(text.len()), parameters };
    walk.name();
    let out = without_hash(&walk.out);
    if out.is_empty() || out == name { Cow::Borrowed(name) } else { Cow::Owned(out.to_owned()) }
}

/// Returns the function to which a thunk leads that the crate `cpp_demangle` writes as `{virtual override thunk({offset(8)}, f())}`.
fn thunk(name: &str) -> Option<&str> {
    let inner = name.strip_prefix("{virtual override thunk({")?.strip_suffix(")}")?;
    inner.split_once("}, ").map(|(_, function)| function)
}

/// Returns a name without the version of the symbol that libraries' tables add, as in `pow@@GLIBC_2.29`. A stub's `f@plt` stays.
fn without_version(name: &str) -> &str {
    let Some((before, version)) = name.split_once('@') else { return name };
    let version = version.trim_start_matches('@');
    let is_version = version.starts_with(|first: char| first.is_ascii_uppercase())
        && version.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.'));
    if is_version && !before.is_empty() { before } else { name }
}

/// Returns a name without the hash that LLVM adds to the names of local functions.
fn without_hash(name: &str) -> &str {
    match name.rfind(".llvm.") {
        Some(at) if name[at + 6..].bytes().all(|byte| byte.is_ascii_digit()) => &name[..at],
        _ => name,
    }
}

/// Replaces `std::basic_string<char, ...>` by `std::string`, and the like.
fn without_characters(text: &str) -> String {
    const BASIC: &str = "std::basic_";
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(BASIC) {
        let after = &rest[at + BASIC.len()..];
        let open = after.find(|c: char| !(c.is_ascii_lowercase() || c == '_')).unwrap_or(after.len());
        let template = &after[..open];
        let end = matching(after, open);
        let arguments: String = after[open..end].chars().filter(|c| *c != ' ').collect();
        let is_of = |character: &str| {
            arguments == format!("<{character}>")
                || arguments == format!("<{character},std::char_traits<{character}>>")
                || arguments
                    == format!("<{character},std::char_traits<{character}>,std::allocator<{character}>>")
                || arguments == format!("<{character},std::regex_traits<{character}>>")
        };
        let prefix = match () {
            () if !OF_CHARACTERS.contains(&template) => None,
            () if is_of("char") => Some("std::"),
            () if is_of("wchar_t") => Some("std::w"),
            () => None,
        };
        match prefix {
            Some(prefix) => {
                out += &rest[..at];
                out += prefix;
                out += template;
                rest = &after[end..];
            }
            None => {
                out += &rest[..at + BASIC.len()];
                rest = after;
            }
        }
    }
    out + rest
}

/// Returns the offset after the bracket that closes the one at `open`; `open` if there is none there, and the end of the text if
/// nothing closes it.
fn matching(text: &str, open: usize) -> usize {
    let bytes = text.as_bytes();
    let mut closers: Vec<u8> = Vec::new();
    let mut at = open;
    if !text[open..].starts_with(['<', '(', '[', '{']) {
        return open;
    }
    while let Some(&byte) = bytes.get(at) {
        let closer = match byte {
            b'<' => Some(b'>'),
            b'(' => Some(b')'),
            b'[' => Some(b']'),
            b'{' => Some(b'}'),
            _ => None,
        };
        match closer {
            Some(closer) => closers.push(closer),
            // An arrow closes nothing.
            None if byte == b'>' && at > 0 && matches!(bytes[at - 1], b'-' | b'=') => {}
            None if byte == b'>' && closers.last() != Some(&b'>') => {}
            None if matches!(byte, b'>' | b')' | b']' | b'}') => {
                // A comparison among the arguments of a template is in parentheses, and opens nothing.
                if let Some(found) = closers.iter().rposition(|&closer| closer == byte) {
                    closers.truncate(found);
                }
            }
            None => {}
        }
        at += 1;
        if closers.is_empty() {
            return at;
        }
    }
    text.len()
}

/// Returns a list of types in short: the last component of each, without the arguments of templates.
fn types(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        if c == '<' && !out.is_empty() && !out.ends_with([' ', '(', '&', '[', ',']) {
            out += ELIDED;
            at = matching(text, at);
        } else if text[at..].starts_with("::") {
            // What is in front is a component that is not the last one, perhaps with arguments.
            let component = out.strip_suffix(ELIDED).unwrap_or(&out);
            let begin =
                component.trim_end_matches(|c: char| c.is_alphanumeric() || matches!(c, '_' | '$')).len();
            out.truncate(begin);
            at += 2;
        } else {
            out.push(c);
            at += c.len_utf8();
        }
    }
    out
}

/// Goes through a name from its beginning to its end.
struct Walk<'t> {
    text: &'t str,
    at: usize,
    out: String,
    /// Whether the types of parameters are wanted.
    parameters: bool,
}

impl<'t> Walk<'t> {
    fn name(&mut self) {
        // Where the name begins after what may be its return type.
        let mut begin = 0;
        while let Some(c) = self.text[self.at..].chars().next() {
            match c {
                '<' if self.out.len() == begin && self.rest().starts_with('<') => self.qualified(),
                '<' => self.arguments(),
                '(' if self.out.ends_with('.') || self.out.trim_end().ends_with("decltype") => {
                    self.copy_bracket()
                }
                // The function returns a pointer to a function, whose type is around its name.
                '(' if self.rest().starts_with("(*") && self.out.ends_with(' ') => {
                    begin = self.out.len();
                    self.at += 2;
                }
                '(' => {
                    self.out.drain(..begin);
                    begin = 0;
                    if !self.take_parameters() {
                        return;
                    }
                }
                '{' => self.braces(),
                '[' => self.copy_bracket(),
                ' ' => {
                    self.push(c);
                    begin = self.out.len();
                }
                _ if self.rest().starts_with("operator") && self.is_word() => self.operator(),
                c => self.push(c),
            }
        }
    }

    fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    fn push(&mut self, c: char) {
        self.out.push(c);
        self.at += c.len_utf8();
    }

    /// Whether the word here is a whole one.
    fn is_word(&self) -> bool {
        let is_part = |c: char| c.is_alphanumeric() || c == '_';
        let after = self.rest()["operator".len()..].chars().next();
        !self.out.ends_with(is_part) && !after.is_some_and(is_part)
    }

    fn copy_bracket(&mut self) {
        let end = matching(self.text, self.at);
        self.out += &self.text[self.at..end];
        self.at = end;
    }

    /// Leaves out the arguments of a template.
    fn arguments(&mut self) {
        let end = matching(self.text, self.at);
        self.out += if end - self.at > 2 { ELIDED } else { "<>" };
        self.at = end;
    }

    /// Shortens the type and the trait in Rust's `<a::Type as b::Trait>::method`, and the type in `<a::Type>::method`.
    fn qualified(&mut self) {
        let end = matching(self.text, self.at);
        let inner = &self.text[self.at + 1..end];
        let shown = types(inner.strip_suffix('>').unwrap_or(inner));
        if shown.contains([' ', '&', '[', '(']) {
            self.out.push('<');
            self.out += &shown;
            self.out.push('>');
        } else {
            self.out += &shown;
        }
        self.at = end;
    }

    /// Shortens `{lambda(int, char)#1}`.
    fn braces(&mut self) {
        let end = matching(self.text, self.at);
        let inner = &self.text[self.at..end];
        match inner.find('(').map(|open| (open, matching(inner, open))) {
            Some((open, close)) => {
                self.out += &inner[..open];
                self.out += &inner[close..];
            }
            None => self.out += inner,
        }
        self.at = end;
    }

    fn operator(&mut self) {
        self.out += "operator";
        self.at += "operator".len();
        if let Some(symbol) = OPERATORS.iter().find(|symbol| self.rest().starts_with(**symbol)) {
            self.out += symbol;
            self.at += symbol.len();
            // The space keeps the arguments of the template apart from the operator.
            if self.rest().starts_with(" <") {
                self.push(' ');
                self.arguments();
            }
            return;
        }
        // `operator new[]`, or a conversion to a type.
        let mut end = self.text.len();
        let mut at = self.at;
        while let Some(c) = self.text[at..].chars().next() {
            match c {
                '(' => {
                    end = at;
                    break;
                }
                '<' => at = matching(self.text, at),
                c => at += c.len_utf8(),
            }
        }
        self.out += &types(&self.text[self.at..end]);
        self.at = end;
    }

    /// Leaves out or shortens parameters, and what may follow them. Returns whether the name goes on.
    fn take_parameters(&mut self) -> bool {
        let end = matching(self.text, self.at);
        let inner = &self.text[self.at + 1..end];
        let after = &self.text[end..];
        // What is local to a function has the function with its parameters in front.
        let next = after.find("::").filter(|&at| {
            after[..at].trim_start().trim_end().bytes().all(|b| b.is_ascii_lowercase() || b == b'&')
        });
        if let Some(next) = next {
            self.at = end + next;
            return true;
        }
        if self.parameters {
            self.out.push('(');
            self.out += &types(inner.strip_suffix(')').unwrap_or(inner));
            self.out.push(')');
        }
        // A compiler's clone has its suffix behind the parameters.
        if let Some(clone) = after.find(" [clone ").filter(|_| !after.contains(".llvm.")) {
            self.out += &after[clone..];
        } else if after.ends_with("@plt") {
            self.out += "@plt";
        }
        self.at = self.text.len();
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names() {
        for (name, expected) in [
            ("main", "main"),
            ("pow@@GLIBC_2.29", "pow"),
            ("memcpy@GLIBC_2.2.5", "memcpy"),
            ("jv_free@plt", "jv_free@plt"),
            ("f(int)", "f"),
            ("foo::bar(int) const", "foo::bar"),
            (
                "void std::vector<int, std::allocator<int> >::push_back(int const&)",
                "std::vector<...>::push_back",
            ),
            ("std::vector<int> make<int>(std::function<int (char)>)", "make<...>"),
            (
                "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >::append(char const*)",
                "std::string::append",
            ),
            (
                "std::basic_ostream<char, std::char_traits<char> >& std::operator<< <std::char_traits<char> >(std::basic_ostream<char, std::char_traits<char> >&, char const*)",
                "std::operator<< <...>",
            ),
            ("(anonymous namespace)::f(int)", "f"),
            ("a::(anonymous namespace)::B::operator()(int) const", "a::B::operator()"),
            ("a::B::operator bool() const", "a::B::operator bool"),
            ("a::B::operator std::vector<int>() const", "a::B::operator vector<...>"),
            ("operator new[](unsigned long)", "operator new[]"),
            ("bool a::operator<(a::B const&, a::B const&)", "a::operator<"),
            (
                "{virtual override thunk({virtual offset(0, -24)}, a::B<int>::~B())}",
                "virtual thunk to a::B<...>::~B",
            ),
            ("f(int)::{lambda(char)#1}::operator()(char) const", "f::{lambda#1}::operator()"),
            ("g() const::Local::h(int)", "g::Local::h"),
            ("virtual thunk to a::B<int>::f(int)", "virtual thunk to a::B<...>::f"),
            ("f(int) [clone .constprop.0]", "f [clone .constprop.0]"),
            ("f(int)@plt", "f@plt"),
            ("void (*pick<int>(int))(char)", "pick<...>"),
            ("f.llvm.1234567", "f"),
            ("a<((b)1 > (c)2)>::d()", "a<...>::d"),
            ("decltype (f(1)) g<int>(int)", "g<...>"),
            // Rust
            ("core::ptr::drop_in_place<alloc::string::String>", "core::ptr::drop_in_place<...>"),
            ("<alloc::vec::Vec<u8> as core::ops::drop::Drop>::drop", "<Vec<...> as Drop>::drop"),
            ("<a::B<c::D>>::e::<u8>", "B<...>::e::<...>"),
            ("<&mut a::B as c::D>::e", "<&mut B as D>::e"),
            ("<[a::B] as c::D<x::Y>>::e", "<[B] as D<...>>::e"),
            ("<fn(a::B) -> c::D as e::F>::g", "<fn(B) -> D as F>::g"),
            (
                "core::ops::function::FnOnce::call_once{{vtable.shim}}",
                "core::ops::function::FnOnce::call_once{{vtable.shim}}",
            ),
            ("a::b::{closure#0}::<u8>", "a::b::{closure#0}::<...>"),
            // Go
            ("encoding/json.(*Decoder).Decode", "encoding/json.(*Decoder).Decode"),
            ("sort.pdqsort_func[go.shape.int]", "sort.pdqsort_func[go.shape.int]"),
            ("type:.eq.struct { F uintptr; x int }", "type:.eq.struct { F uintptr; x int }"),
            // Others
            ("[outside]", "[outside]"),
            ("-[NSString length:]", "-[NSString length:]"),
            ("ls+0x4a30", "ls+0x4a30"),
            ("", ""),
        ] {
            assert_eq!(short(name), expected, "{name}");
        }
    }

    #[test]
    fn nothing_of_a_name_makes_it_fail() {
        let parts = [
            "<",
            ">",
            "(",
            ")",
            "::",
            "operator",
            " ",
            "{",
            "}",
            "[",
            "é",
            "basic_string",
            "std::",
            "a",
            "->",
            "thunk",
        ];
        let mut state = 1_u64;
        for _ in 0..20_000 {
            let mut name = String::new();
            for _ in 0..12 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                name += parts[(state >> 33) as usize % parts.len()];
            }
            assert!(name.is_empty() || !short(&name).is_empty());
            let _ = (short_with_parameters(&name), fit(&name, 7));
        }
    }

    #[test]
    fn overloads_are_told_apart() {
        let names = ["f(int)", "f(a::B<int> const&)", "g(int)", "d<int>()", "d<char>()", "f(int)"];
        let expected = ["f(int)", "f(B<...> const&)", "g", "d<int>()", "d<char>()", "f(int)"];
        assert_eq!(unambiguous(&names), expected);
    }

    #[test]
    fn names_fit() {
        for (name, width, expected) in [
            ("parse", 5, "parse"),
            ("json::Parser::parse", 15, "\u{2026}Parser::parse"),
            ("json::Parser::parse", 16, "\u{2026}Parser::parse"),
            ("json::Parser::parse", 6, "\u{2026}parse"),
            ("json::Parser::parse", 4, "\u{2026}rse"),
            ("ééé", 2, "é\u{2026}"),
            ("_PyEval_EvalFrameDefault", 12, "_PyEva\u{2026}fault"),
            ("abc", 0, "\u{2026}"),
        ] {
            assert_eq!(fit(name, width), expected, "{name} {width}");
        }
    }
}
