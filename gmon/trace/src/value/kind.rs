//! What a function's parameters and its result are.

/// The kinds of a function's parameters and of its result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// The parameters, as far as they are known.
    pub parameters: Vec<Parameter>,
    /// The result; `None` if nothing is known of it.
    pub result: Option<ValueKind>,
}

/// A parameter of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Its name, if it is known.
    pub name: Option<String>,
    /// What it is.
    pub kind: ValueKind,
}

/// What a value is, and so how it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// A signed integer of so many bytes: 1, 2, 4, 8 or 16. What its encoding has above them does not count.
    Signed { bytes: u8 },
    /// An unsigned integer of so many bytes.
    Unsigned { bytes: u8 },
    /// An integer that is shown in hexadecimal.
    Hex,
    /// An integer that is shown in octal.
    Octal,
    /// `true` or `false`.
    Bool,
    /// A character: a byte, or a Unicode scalar value.
    Char,
    /// A floating-point number of 4 or 8 bytes, or x87's of 10 or 16 bytes, which is [`Encoded::Bytes`](crate::value::Encoded::Bytes).
    Float { bytes: u8 },
    /// An enumeration, by the names of its values.
    Enum {
        /// The type's name.
        name: String,
        /// Values and their names.
        variants: Vec<(i64, String)>,
        /// Bytes of the value.
        bytes: u8,
    },
    /// An address.
    Pointer,
    /// The address of a function.
    FunctionPointer,
    /// A `char *` to a string that ends with a null character: [`Encoded::Text`](crate::value::Encoded::Text).
    CString,
    /// A `&str`: [`Encoded::Text`](crate::value::Encoded::Text).
    RustStr,
    /// A `std::string`: [`Encoded::Text`](crate::value::Encoded::Text).
    StdString,
    /// A structure by value: [`Encoded::Bytes`](crate::value::Encoded::Bytes).
    Struct {
        /// The type's name.
        name: String,
        /// Its fields, as far as they are known.
        fields: Vec<Field>,
        /// Its length in bytes.
        bytes: u32,
    },
    /// `void` or `()`: there is no value.
    Unit,
    /// A value that cannot be fetched, which is shown as `?`: there is none in the trace.
    Unsupported,
}

/// A field of a structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name; empty if it has none.
    pub name: String,
    /// Where it is in the structure, in bytes.
    pub offset: u32,
    /// What it is. Strings cannot be in a structure, and are [`ValueKind::Pointer`]s there.
    pub kind: ValueKind,
}

impl ValueKind {
    /// Whether the bytes of a trace have a value of this kind.
    pub fn has_value(&self) -> bool {
        !matches!(self, ValueKind::Unit | ValueKind::Unsupported)
    }

    /// Returns how many bytes it takes in a structure. Strings take those of the pointer to them.
    pub fn bytes(&self) -> u32 {
        match self {
            ValueKind::Signed { bytes }
            | ValueKind::Unsigned { bytes }
            | ValueKind::Float { bytes }
            | ValueKind::Enum { bytes, .. } => u32::from(*bytes),
            ValueKind::Bool | ValueKind::Char => 1,
            ValueKind::Struct { bytes, .. } => *bytes,
            ValueKind::Unit | ValueKind::Unsupported => 0,
            ValueKind::Hex
            | ValueKind::Octal
            | ValueKind::Pointer
            | ValueKind::FunctionPointer
            | ValueKind::CString
            | ValueKind::RustStr
            | ValueKind::StdString => 8,
        }
    }
}
