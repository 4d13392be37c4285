//! The kinds of a function's parameters and of its result.

/// The kinds of a function's parameters and of its result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    /// The parameters, as far as they are known.
    pub parameters: Vec<Parameter>,
    /// The result, or `None` if its kind is not known.
    pub result: Option<ValueKind>,
}

/// A parameter of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The parameter's name, if it is known.
    pub name: Option<String>,
    /// The parameter's kind.
    pub kind: ValueKind,
}

/// The kind of a value, which determines its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// A signed integer of 1, 2, 4, 8 or 16 bytes. Further bits of the encoded value are ignored.
    Signed { bytes: u8 },
    /// An unsigned integer of 1, 2, 4, 8 or 16 bytes.
    Unsigned { bytes: u8 },
    /// An integer that is shown in hexadecimal.
    Hex,
    /// An integer that is shown in octal.
    Octal,
    /// `true` or `false`.
    Bool,
    /// A character: a byte, or a Unicode scalar value.
    Char,
    /// A floating-point number of 2, 4 or 8 bytes, or x87's of 10 or 16 bytes, which is [`Encoded::Bytes`](crate::value::Encoded::Bytes).
    Float { bytes: u8 },
    /// An enumeration, whose values are shown by name.
    Enum {
        /// The type's name.
        name: String,
        /// The values and their names.
        variants: Vec<(i64, String)>,
        /// The size in bytes.
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
        /// The known fields.
        fields: Vec<Field>,
        /// The length in bytes.
        bytes: u32,
    },
    /// A bit-field of a structure: bits of its bytes there.
    Bits {
        /// The number of bits before it in its first byte.
        start: u8,
        /// The number of bits, from 1 to 64.
        width: u8,
        /// The kind of its value: an integer, a truth value or an enumeration.
        of: Box<ValueKind>,
    },
    /// An array of characters in a structure: a string, which ends with the first null character.
    Characters {
        /// The length of the array in bytes.
        bytes: u32,
    },
    /// `void` or `()`, which has no value.
    Unit,
    /// A value that cannot be read, so that the trace does not have it. It is shown as `?`.
    Unsupported,
}

/// A field of a structure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// The field's name, or an empty string if it has none.
    pub name: String,
    /// The field's offset in the structure in bytes.
    pub offset: u32,
    /// The field's kind. Strings in a structure are not followed, and are [`ValueKind::Pointer`]s.
    pub kind: ValueKind,
}

impl ValueKind {
    /// Returns whether values of this kind are in the bytes of a trace.
    pub fn has_value(&self) -> bool {
        !matches!(self, ValueKind::Unit | ValueKind::Unsupported)
    }

    /// Returns the size of a value of this kind in a structure, in bytes. A string has the size of its pointer.
    pub fn bytes(&self) -> u32 {
        match self {
            ValueKind::Signed { bytes }
            | ValueKind::Unsigned { bytes }
            | ValueKind::Float { bytes }
            | ValueKind::Enum { bytes, .. } => u32::from(*bytes),
            ValueKind::Bool | ValueKind::Char => 1,
            ValueKind::Struct { bytes, .. } | ValueKind::Characters { bytes } => *bytes,
            ValueKind::Bits { start, width, .. } => (u32::from(*start) + u32::from(*width)).div_ceil(8),
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
