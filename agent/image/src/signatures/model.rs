//! The signatures of functions: their parameters and results, with types and places.

use std::sync::Arc;

use crate::signatures::classes::Classes;

/// What a function takes and returns.
#[derive(Clone, Debug, PartialEq)]
pub struct Signature {
    pub parameters: Vec<Parameter>,
    /// Why the parameters after these are left out, if there may be more.
    pub rest: Option<Rest>,
    /// What it returns; `None` if that is nothing, or not known.
    pub result: Option<Value>,
}

/// Why the last parameters of a function are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// The function takes any number of arguments, of any types.
    Variadic,
    /// The type of the next parameter does not say where it is, and so where those after it are.
    Type,
    /// The compiler may have removed or changed parameters of this function, and does not say where they are.
    Changed,
}

/// A parameter.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    pub name: Option<Arc<str>>,
    pub value: Value,
}

/// A value that a function takes or returns.
#[derive(Clone, Debug, PartialEq)]
pub struct Value {
    pub ty: Arc<Type>,
    pub place: Place,
}

/// Where a value is when the function is entered, or when it returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Nowhere: the type has no contents, and no argument is passed.
    Nowhere,
    /// In one word.
    Word(Word),
    /// In two words.
    Pair(Word, Word),
    /// Among the arguments on the stack, this many bytes above the CFA.
    Stack(u32),
    /// In memory, to which the address in this word leads.
    Behind(Word),
    /// In a register that is not read: the whole of a vector register, or one of the x87 unit.
    Unread,
}

/// A place of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// rdi, rsi, rdx, rcx, r8, r9, and then rax.
    Integer(u8),
    /// The lower half of xmm0 to xmm7.
    Vector(u8),
    /// This many bytes above the CFA.
    Stack(u32),
}

impl Word {
    pub const RDX: Word = Word::Integer(2);
    pub const RAX: Word = Word::Integer(6);
}

/// A type.
#[derive(Clone, Debug, PartialEq)]
pub struct Type {
    /// The number of bytes.
    pub size: u64,
    /// The alignment, in bytes.
    pub align: u64,
    pub shape: Shape,
    /// How the calling convention sees its bytes.
    pub(crate) classes: Classes,
}

/// The kinds of types.
#[derive(Clone, Debug, PartialEq)]
pub enum Shape {
    /// Nothing: the result of a function without one.
    Void,
    Signed,
    Unsigned,
    Bool,
    /// A character: of one byte, or a code unit of UTF-16 or UTF-32.
    Char,
    /// A floating-point number of 2, 4 or 8 bytes, or one of the x87 unit, which has 16 with its padding.
    Float,
    Enum(Arc<Enum>),
    Pointer(Pointee),
    /// An address and a number of bytes: a string without a zero at its end.
    Str(StrOrder),
    /// A `std::string`.
    String(StringLayout),
    Struct(Arc<Struct>),
    Array {
        element: Arc<Type>,
        count: u64,
    },
    /// Something that is not decoded, such as a decimal number or a vector.
    Opaque,
    /// A type of which nothing is known.
    Unknown,
}

/// What a pointer or a reference leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pointee {
    Function,
    /// Characters: a string that ends with a zero byte.
    Characters,
    /// A `std::string`.
    String(StringLayout),
    /// A string of known length: the words of the object that are the address and the length of its text.
    Text {
        address: u8,
        length: u8,
    },
    Other,
}

/// In which order a string of known length has its two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StrOrder {
    AddressFirst,
    LengthFirst,
}

/// How a `std::string` is laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringLayout {
    /// libstdc++, since GCC 5.
    Libstdcxx,
    /// libstdc++ with `_GLIBCXX_USE_CXX11_ABI=0`.
    LibstdcxxOld,
    Libcxx,
}

/// An enumeration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enum {
    pub name: Option<Arc<str>>,
    pub is_signed: bool,
    pub variants: Vec<(Arc<str>, i64)>,
}

/// A structure, class or union.
#[derive(Clone, Debug, PartialEq)]
pub struct Struct {
    pub name: Option<Arc<str>>,
    /// The fields, with those of base classes; at most [`FIELDS_MAX`].
    pub fields: Vec<Field>,
    /// How it is passed to functions.
    pub passing: Passing,
    /// Whether each of its bytes belongs to one field at most.
    pub is_union: bool,
}

/// The greatest number of fields of a structure that are kept.
pub const FIELDS_MAX: usize = 64;

/// A field.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// Its name; `None` for a base class or an anonymous structure.
    pub name: Option<Arc<str>>,
    /// The number of bytes before it.
    pub offset: u64,
    /// For a bit-field: the bits before it in the structure, and its width.
    pub bits: Option<(u64, u64)>,
    pub ty: Arc<Type>,
}

/// How objects of a class are passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passing {
    /// As structures of C are.
    Value,
    /// By the address of a copy that the caller has made, because it must not be copied like bytes.
    Reference,
    /// It is not known which of both.
    Unknown,
}

impl Type {
    pub(crate) fn new(size: u64, align: u64, shape: Shape, classes: Classes) -> Type {
        Type { size, align, shape, classes }
    }

    /// Returns the type of what is not there.
    pub(crate) fn void() -> Type {
        Type::new(0, 1, Shape::Void, Classes::EMPTY)
    }

    /// Returns the type of which nothing is known.
    pub(crate) fn unknown() -> Type {
        Type::new(0, 1, Shape::Unknown, Classes::UNKNOWN)
    }
}
