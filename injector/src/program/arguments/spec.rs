//! Parses the user's specification of arguments and results to trace: `--args SPEC`, in the syntax of uftrace.
//!
//! ```text
//! spec     = item { ";" item }
//! item     = "auto" | GLOB [ "@" values ]           without values: all known values of the function
//! values   = value { "," value }
//! value    = [ NAME "=" ] ( "arg" N | "fparg" N | "retval" ) [ "/" format ] [ "%" place ]
//! format   = letter [ bits ] | "e:" NAME
//! letter   = "d" | "i" | "u" | "x" | "o" | "c" | "f" | "s" | "S" | "p" | "a"
//! bits     = "8" | "16" | "32" | "64" | "80"
//! place    = REGISTER | "stack" [ "+" ] N
//! ```
//!
//! This is the syntax in the section ARGUMENTS of uftrace-record(1), without structures (`t`), which only `auto` shows, and with names
//! of values and the format `a` (an address) as extensions.

use gprofinject_image::signatures::Word;

/// The maximum number of an argument, and of a word on the stack.
const NUMBER_MAX: u32 = 128;
/// The maximum number of values of a function.
const VALUES_MAX: usize = 64;
/// The number of integer registers for arguments.
const INTEGERS: u32 = 6;
/// The number of vector registers for arguments.
const VECTORS: u32 = 8;

/// One item of a specification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// All known values of all functions.
    Auto,
    /// Values of the functions whose names match.
    Functions {
        glob: String,
        /// The values. An empty list selects all known values.
        values: Vec<ValueSpec>,
    },
}

/// A value to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ValueSpec {
    pub(crate) name: Option<String>,
    /// Whether the value is the function's result.
    pub(crate) is_result: bool,
    pub(crate) word: Word,
    pub(crate) format: Format,
}

/// The format of a value, which determines how the value is read and shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Signed {
        bytes: u8,
    },
    Unsigned {
        bytes: u8,
    },
    Hex {
        bytes: u8,
    },
    Octal {
        bytes: u8,
    },
    Char,
    /// A floating-point number of 4 or 8 bytes, or of 16 bytes for a long double.
    Float {
        bytes: u8,
    },
    /// A string that ends with a zero byte.
    CString,
    StdString,
    Address,
    FunctionPointer,
    /// The enumeration of the program with this name.
    Enum(String),
}

/// An error in a specification.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}': column {}: {fault}", .at + 1)]
pub(crate) struct SpecError {
    text: String,
    /// The position of the error in characters.
    at: usize,
    fault: Fault,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Fault {
    #[error("a function's name or a pattern is missing before '{0}'")]
    NoName(char),
    #[error(
        "'{0}' is a regular expression; patterns are those of -I, where * stands for anything: write {1}"
    )]
    Regular(String, String),
    #[error(
        "nothing follows after '@'; write for example main@arg1/i32,arg2/s,retval/i32, or the name alone for what is known"
    )]
    NoValues,
    #[error("'{0}' is no value; write arg1 (from 1 on), fparg1 for a floating-point number, or retval")]
    Value(String),
    #[error("'{0}' is no number of an argument; they go from 1 to {NUMBER_MAX}")]
    Number(String),
    #[error(
        "'{0}' is no format; write d or i (signed), u (unsigned), x, o, c, f (floating point), s (char *), S (std::string), \
         p (function pointer), a (address), with 8, 16, 32 or 64 bits as in i32, or e:NAME for an enumeration"
    )]
    Format(String),
    #[error("structures cannot be written as a format; with debug information, auto shows them")]
    Structure,
    #[error("{1} has no size of {0} bits; write {2}")]
    Size(String, &'static str, &'static str),
    #[error(
        "a long double is passed on the stack; write fparg1/80%stack+1 if it is the first argument there"
    )]
    LongDouble,
    #[error("the name of the enumeration is missing after 'e:'")]
    NoEnum,
    #[error(
        "'{0}' is no place; write %rdi, %rsi, %rdx, %rcx, %r8, %r9, %xmm0 to %xmm7, or %stack+1 for the first word on the stack"
    )]
    Place(String),
    #[error(
        "'{0}' is no word on the stack; stack+1 is the first argument there, and stack+{NUMBER_MAX} the last one that is read"
    )]
    Stack(String),
    #[error("the place of a result is known; leave out '%{0}'")]
    PlaceOfResult(String),
    #[error("a function has more than {VALUES_MAX} values")]
    TooMany,
}

/// Parses a specification.
///
/// # Errors
/// Returns an error if the specification is invalid. The error has the position, and what is expected there.
pub(crate) fn parse(text: &str) -> Result<Vec<Item>, SpecError> {
    let whole = Part { all: text, start: 0, text };
    let items = whole.split(';').filter(|item| !item.text.trim().is_empty());
    items.map(|item| item.trimmed().item()).collect()
}

/// A part of a specification, with its position.
#[derive(Clone, Copy)]
struct Part<'t> {
    all: &'t str,
    /// The byte offset of `text` in `all`.
    start: usize,
    text: &'t str,
}

impl<'t> Part<'t> {
    fn error(self, fault: Fault) -> SpecError {
        let at = self.all.get(..self.start).map_or(0, |before| before.chars().count());
        SpecError { text: self.all.to_owned(), at, fault }
    }

    /// Returns the part from a byte offset on.
    fn from(self, offset: usize) -> Part<'t> {
        Part { start: self.start + offset, text: self.text.get(offset..).unwrap_or_default(), ..self }
    }

    /// Returns the part before a byte offset.
    fn before(self, offset: usize) -> Part<'t> {
        Part { text: self.text.get(..offset).unwrap_or_default(), ..self }
    }

    fn split(self, separator: char) -> impl Iterator<Item = Part<'t>> {
        let mut start = 0;
        self.text.split(separator).map(move |text| {
            let part = Part { start: self.start + start, text, ..self };
            start += text.len() + separator.len_utf8();
            part
        })
    }

    /// Splits the part at the first separator, which neither result contains.
    fn split_at(self, separator: char) -> (Part<'t>, Option<Part<'t>>) {
        match self.text.find(separator) {
            Some(at) => (self.before(at), Some(self.from(at + separator.len_utf8()))),
            None => (self, None),
        }
    }

    fn trimmed(self) -> Part<'t> {
        let front = self.text.len() - self.text.trim_start().len();
        let part = self.from(front);
        Part { text: part.text.trim_end(), ..part }
    }

    fn item(self) -> Result<Item, SpecError> {
        if self.text == "auto" {
            return Ok(Item::Auto);
        }
        let (glob, values) = self.split_at('@');
        let glob = glob.trimmed();
        glob.check_glob(if values.is_some() { '@' } else { ';' })?;
        let values = match values {
            None => Vec::new(),
            Some(values) if values.text.trim().is_empty() => return Err(values.error(Fault::NoValues)),
            Some(values) => {
                values.split(',').map(|value| value.trimmed().value()).collect::<Result<Vec<_>, _>>()?
            }
        };
        if values.len() > VALUES_MAX {
            return Err(self.error(Fault::TooMany));
        }
        Ok(Item::Functions { glob: glob.text.to_owned(), values })
    }

    /// Rejects a pattern of uftrace that would have another meaning here.
    fn check_glob(self, next: char) -> Result<(), SpecError> {
        let glob = self.text;
        if glob.is_empty() {
            return Err(self.error(Fault::NoName(next)));
        }
        let is_regular = glob == "." || glob.starts_with('^') || glob.ends_with('$');
        if is_regular {
            let plain = glob.trim_start_matches('^').trim_end_matches('$').replace(".*", "*");
            let better = if plain == "." || plain.is_empty() { "*".to_owned() } else { plain };
            return Err(self.error(Fault::Regular(glob.to_owned(), better)));
        }
        Ok(())
    }

    fn value(self) -> Result<ValueSpec, SpecError> {
        let (front, named) = self.split_at('=');
        let (name, rest) = match named {
            Some(rest) => (Some(front.text.trim().to_owned()), rest.trimmed()),
            None => (None, self),
        };
        let (front, place) = rest.split_at('%');
        let (what, format) = front.split_at('/');
        let kind = what.what()?;
        let format = match format {
            Some(format) => format.format(kind)?,
            None if matches!(kind, What::Float(_)) => Format::Float { bytes: 8 },
            None => Format::Signed { bytes: 8 },
        };
        let is_float = matches!(format, Format::Float { .. });
        let word = match (kind, place) {
            (What::Result, None) => {
                if is_float {
                    Word::Vector(0)
                } else {
                    Word::RAX
                }
            }
            (What::Result, Some(place)) => {
                return Err(place.error(Fault::PlaceOfResult(place.text.to_owned())));
            }
            (_, Some(place)) => place.place()?,
            (What::Argument(number) | What::Float(number), None) => usual_place(number, is_float),
        };
        // For a std::string result, the function returns the address of the object, for which the caller has provided the memory.
        if format == (Format::Float { bytes: 16 }) && !matches!((word, place), (Word::Stack(_), Some(_))) {
            return Err(rest.error(Fault::LongDouble));
        }
        Ok(ValueSpec { name, is_result: matches!(kind, What::Result), word, format })
    }

    /// Parses `arg1`, `fparg1` or `retval`.
    fn what(self) -> Result<What, SpecError> {
        let text = self.text;
        if text == "retval" {
            return Ok(What::Result);
        }
        let float = text.strip_prefix("fparg");
        let Some(digits) = float.or_else(|| text.strip_prefix("arg")) else {
            return Err(self.error(Fault::Value(text.to_owned())));
        };
        let number = digits.parse().ok().filter(|number| (1..=NUMBER_MAX).contains(number));
        let is_number = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.is_empty();
        match (number, float) {
            (Some(number), Some(_)) => Ok(What::Float(number)),
            (Some(number), None) => Ok(What::Argument(number)),
            (None, _) if is_number => Err(self.error(Fault::Number(digits.to_owned()))),
            (None, _) => Err(self.error(Fault::Value(text.to_owned()))),
        }
    }

    fn format(self, of: What) -> Result<Format, SpecError> {
        if let Some(name) = self.text.strip_prefix("e:") {
            return match name.trim() {
                "" => Err(self.error(Fault::NoEnum)),
                name => Ok(Format::Enum(name.to_owned())),
            };
        }
        let letters = self.text.find(|c: char| c.is_ascii_digit()).unwrap_or(self.text.len());
        let (letter, bits) = (self.before(letters), self.from(letters));
        let unknown = || self.error(Fault::Format(self.text.to_owned()));
        let integer = |what| bits.integer_bytes(what);
        let no_size = |what, format: Format, expected: &str, write| match bits.text {
            "" => Ok(format),
            text if text == expected => Ok(format),
            text => Err(bits.error(Fault::Size(text.to_owned(), what, write))),
        };
        match (letter.text, of) {
            ("", What::Float(_)) | ("f", _) => Ok(Format::Float { bytes: bits.float_bytes()? }),
            ("d" | "i", _) => Ok(Format::Signed { bytes: integer("a signed number")? }),
            ("u", _) => Ok(Format::Unsigned { bytes: integer("an unsigned number")? }),
            ("x", _) => Ok(Format::Hex { bytes: integer("a number")? }),
            ("o", _) => Ok(Format::Octal { bytes: integer("a number")? }),
            ("c", _) => no_size("a character", Format::Char, "8", "c"),
            ("s", _) => no_size("a string", Format::CString, "64", "s"),
            ("S", _) => no_size("a string", Format::StdString, "64", "S"),
            ("p", _) => no_size("a pointer", Format::FunctionPointer, "64", "p"),
            ("a", _) => no_size("an address", Format::Address, "64", "a"),
            ("t", _) => Err(self.error(Fault::Structure)),
            _ => Err(unknown()),
        }
    }

    fn integer_bytes(self, what: &'static str) -> Result<u8, SpecError> {
        match self.text {
            "8" => Ok(1),
            "16" => Ok(2),
            "32" => Ok(4),
            "" | "64" => Ok(8),
            text => Err(self.error(Fault::Size(text.to_owned(), what, "8, 16, 32 or 64"))),
        }
    }

    fn float_bytes(self) -> Result<u8, SpecError> {
        match self.text {
            "32" => Ok(4),
            "" | "64" => Ok(8),
            "80" => Ok(16),
            text => Err(self.error(Fault::Size(text.to_owned(), "a floating-point number", "32, 64 or 80"))),
        }
    }

    /// Parses a register, or a word on the stack.
    fn place(self) -> Result<Word, SpecError> {
        let lower = self.text.to_ascii_lowercase();
        if let Some(offset) = lower.strip_prefix("stack") {
            let number = offset.strip_prefix('+').unwrap_or(offset).parse();
            return match number {
                Ok(number @ 1..=NUMBER_MAX) => Ok(Word::Stack((number - 1) * 8)),
                _ => Err(self.error(Fault::Stack(self.text.to_owned()))),
            };
        }
        const REGISTERS: [&str; INTEGERS as usize] = ["rdi", "rsi", "rdx", "rcx", "r8", "r9"];
        let integer = REGISTERS.iter().position(|&name| name == lower);
        let vector = || lower.strip_prefix("xmm")?.parse().ok().filter(|&n: &u8| u32::from(n) < VECTORS);
        let word = integer.map(|n| Word::Integer(n as u8)).or_else(|| vector().map(Word::Vector));
        word.ok_or_else(|| self.error(Fault::Place(self.text.to_owned())))
    }
}

/// Identifies a value of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// The integer or pointer argument with this number among those arguments.
    Argument(u32),
    /// The floating-point argument with this number among those arguments.
    Float(u32),
    Result,
}

/// Returns the place of an argument that is not a structure: the register of its number, or a word on the stack, assuming that no
/// arguments of the other kind are there.
fn usual_place(number: u32, is_float: bool) -> Word {
    let index = number - 1;
    match if is_float { VECTORS } else { INTEGERS } {
        registers if index >= registers => Word::Stack((index - registers) * 8),
        _ if is_float => Word::Vector(index as u8),
        _ => Word::Integer(index as u8),
    }
}

#[cfg(test)]
mod tests;
