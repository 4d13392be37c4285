//! How the System V ABI classifies types (AMD64 supplement, section 3.2.3, "Classification").
//!
//! The ABI classifies the eightbytes of an argument by the fields that overlap them. Here each *byte* of a type has a class, so
//! that the classes of a structure follow from those of its fields, wherever they are in it, and are found once for each type.

/// The class of a byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ByteClass {
    /// Padding.
    #[default]
    None,
    Integer,
    /// The low eightbyte of a vector register, or all of it that is used.
    Sse,
    /// What is above it in the same register.
    SseUp,
    X87,
    X87Up,
}

impl ByteClass {
    /// Returns the class of bytes that two fields of a union share, or of an eightbyte with bytes of both classes. The rules are
    /// those of the ABI; X87 classes that meet others make the whole argument one in memory, which [`Class::of`] decides.
    fn merged(self, other: ByteClass) -> ByteClass {
        use ByteClass::{Integer, None, Sse, X87, X87Up};
        match (self, other) {
            (a, b) if a == b => a,
            (None, a) | (a, None) => a,
            (Integer, _) | (_, Integer) => Integer,
            (X87 | X87Up, _) | (_, X87 | X87Up) => X87,
            _ => Sse,
        }
    }
}

/// The greatest number of bytes that a structure in registers can have, unless it is a vector.
const MOST: usize = 16;
/// The number of bytes of the largest vector register.
const VECTOR_MAX: u64 = 64;

/// The classes of a type's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Classes {
    /// Those of the first bytes. A larger type has none, because it is in memory.
    bytes: [ByteClass; MOST],
    /// The alignment of the scalar that begins at each byte, or 0. A structure with one that is not aligned is passed in memory.
    aligns: [u8; MOST],
    /// Whether x87 classes have met others, so that a union is passed in memory.
    is_mixed: bool,
    /// Whether the calling convention does not say how it is passed, or says it only together with the compiler's options.
    is_unknown: bool,
}

impl Classes {
    /// A type without contents.
    pub(crate) const EMPTY: Classes =
        Classes { bytes: [ByteClass::None; MOST], aligns: [0; MOST], is_mixed: false, is_unknown: false };
    pub(crate) const UNKNOWN: Classes = Classes { is_unknown: true, ..Classes::EMPTY };

    /// Returns the classes of a scalar whose bytes have one class, and which is aligned to its size.
    pub(crate) fn scalar(class: ByteClass, size: u64) -> Classes {
        let up = match class {
            ByteClass::X87 => ByteClass::X87Up,
            other => other,
        };
        let mut classes = Classes::EMPTY;
        for (i, byte) in classes.bytes.iter_mut().enumerate().take(size as usize) {
            *byte = if i < 8 { class } else { up };
        }
        classes.aligned(size.next_power_of_two().min(MOST as u64))
    }

    /// Returns the same classes for a scalar with this alignment.
    pub(crate) fn aligned(mut self, align: u64) -> Classes {
        self.aligns[0] = align as u8;
        self
    }

    /// Returns the classes of a type that fills a vector register.
    pub(crate) fn vector() -> Classes {
        let mut classes = Classes::scalar(ByteClass::Sse, 16);
        classes.bytes[8..].fill(ByteClass::SseUp);
        classes
    }

    /// Returns the class of the first byte.
    pub(crate) fn first(&self) -> ByteClass {
        self.bytes[0]
    }

    /// Adds those of a field.
    pub(crate) fn add(&mut self, field: &Classes, offset: u64) {
        self.is_mixed |= field.is_mixed;
        self.is_unknown |= field.is_unknown;
        self.merge(field, offset);
    }

    /// Adds a bit-field. It need not be aligned.
    pub(crate) fn add_bits(&mut self, start: u64, width: u64) {
        let (first, end) = (start / 8, start.saturating_add(width).div_ceil(8));
        if width > 0 {
            self.merge(&Classes::scalar(ByteClass::Integer, end - first).aligned(0), first);
        }
    }

    fn merge(&mut self, field: &Classes, offset: u64) {
        let Ok(offset) = usize::try_from(offset) else { return };
        for (byte, class) in self.bytes.iter_mut().skip(offset).zip(field.bytes) {
            let is_x87 = |class: ByteClass| matches!(class, ByteClass::X87 | ByteClass::X87Up);
            let are_both = *byte != ByteClass::None && class != ByteClass::None;
            self.is_mixed |= are_both && *byte != class && (is_x87(*byte) || is_x87(class));
            *byte = byte.merged(class);
        }
        for (align, of_field) in self.aligns.iter_mut().skip(offset).zip(field.aligns) {
            *align = (*align).max(of_field);
        }
    }

    /// Whether all scalars are aligned.
    fn are_aligned(&self) -> bool {
        self.aligns.iter().enumerate().all(|(at, &align)| align == 0 || at.is_multiple_of(align.into()))
    }
}

/// The class of an eightbyte that is passed in a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Eightbyte {
    Integer,
    Sse,
}

/// How a type is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Not at all: it has no contents.
    Empty,
    One(Eightbyte),
    Two(Eightbyte, Eightbyte),
    /// In a whole vector register.
    Vector,
    /// In memory as an argument, and in a register of the x87 unit as a result.
    X87,
    Memory,
    Unknown,
}

impl Class {
    /// Returns the class of a type with this size.
    pub(crate) fn of(classes: &Classes, size: u64) -> Class {
        if size > VECTOR_MAX {
            return Class::Memory;
        }
        if classes.is_unknown {
            return Class::Unknown;
        }
        let eightbyte =
            |range: &[ByteClass]| range.iter().copied().fold(ByteClass::default(), ByteClass::merged);
        let (low, high) = classes.bytes.split_at(8);
        let (low, high) = (eightbyte(low), eightbyte(high));
        if size > MOST as u64 || !classes.are_aligned() {
            return Class::Memory;
        }
        match (low, high) {
            (ByteClass::None, ByteClass::None) => Class::Empty,
            (ByteClass::X87, ByteClass::X87Up) if !classes.is_mixed => Class::X87,
            (_, ByteClass::X87 | ByteClass::X87Up) | (ByteClass::X87 | ByteClass::X87Up, _) => Class::Memory,
            (ByteClass::Sse, ByteClass::SseUp) => Class::Vector,
            (low, ByteClass::None) => Class::One(Eightbyte::in_register(low)),
            // Padding in the first eightbyte, as before an aligned empty member: compilers differ.
            (ByteClass::None, _) => Class::Unknown,
            (low, high) => Class::Two(Eightbyte::in_register(low), Eightbyte::in_register(high)),
        }
    }
}

impl Eightbyte {
    fn in_register(class: ByteClass) -> Eightbyte {
        match class {
            ByteClass::Integer => Eightbyte::Integer,
            _ => Eightbyte::Sse,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Eightbyte::{Integer, Sse};

    /// Returns the class of a structure with these fields: class, size, offset.
    fn class(size: u64, fields: &[(ByteClass, u64, u64)]) -> Class {
        let mut all = Classes::EMPTY;
        for &(class, size, offset) in fields {
            all.add(&Classes::scalar(class, size), offset);
        }
        Class::of(&all, size)
    }

    /// `typedef struct { int a, b; double d; } structparm;` is the ABI document's example of argument passing: the first
    /// eightbyte is INTEGER and the second one SSE.
    #[test]
    fn the_example_of_the_document() {
        let fields = [(ByteClass::Integer, 4, 0), (ByteClass::Integer, 4, 4), (ByteClass::Sse, 8, 8)];
        assert_eq!(class(16, &fields), Class::Two(Integer, Sse));
    }

    #[test]
    fn scalars() {
        let scalar = |class, size| Class::of(&Classes::scalar(class, size), size);
        assert_eq!(scalar(ByteClass::Integer, 1), Class::One(Integer));
        assert_eq!(scalar(ByteClass::Integer, 16), Class::Two(Integer, Integer));
        assert_eq!(scalar(ByteClass::Sse, 4), Class::One(Sse));
        assert_eq!(scalar(ByteClass::X87, 16), Class::X87);
        assert_eq!(Class::of(&Classes::vector(), 16), Class::Vector);
        assert_eq!(Class::of(&Classes::EMPTY, 1), Class::Empty);
        assert_eq!(Class::of(&Classes::UNKNOWN, 8), Class::Unknown);
    }

    /// The rules of merging, (a) to (f), and those of the clean-up after it.
    #[test]
    fn rules() {
        use ByteClass::{Integer as I, Sse as S, X87};
        // Integers and floats in one eightbyte are INTEGER.
        assert_eq!(class(8, &[(I, 4, 0), (S, 4, 4)]), Class::One(Integer));
        assert_eq!(class(8, &[(S, 4, 0), (S, 4, 4)]), Class::One(Sse));
        assert_eq!(class(12, &[(S, 4, 0), (S, 4, 4), (I, 4, 8)]), Class::Two(Sse, Integer));
        // A union.
        assert_eq!(class(8, &[(S, 8, 0), (I, 8, 0)]), Class::One(Integer));
        // Of more than two eightbytes.
        assert_eq!(class(24, &[(I, 8, 0), (I, 8, 8), (I, 8, 16)]), Class::Memory);
        // With an unaligned field. Only its place in the whole structure matters.
        assert_eq!(class(5, &[(I, 1, 0), (I, 4, 1)]), Class::Memory);
        let mut inner = Classes::scalar(I, 1);
        inner.add(&Classes::scalar(I, 4), 1);
        let mut outer = Classes::EMPTY;
        outer.add(&inner, 3);
        assert_eq!(Class::of(&outer, 8), Class::One(Integer));
        // A long double alone, and in a union with something else: X87UP is not preceded by X87.
        assert_eq!(class(16, &[(X87, 16, 0)]), Class::X87);
        assert_eq!(class(16, &[(X87, 16, 0), (I, 4, 0)]), Class::Memory);
        assert_eq!(class(16, &[(X87, 16, 0), (S, 8, 0)]), Class::Memory);
        // Part of a vector without the other one is SSE.
        let mut all = Classes::EMPTY;
        all.add(&Classes::vector(), 0);
        all.add(&Classes::scalar(I, 4), 0);
        assert_eq!(Class::of(&all, 16), Class::Two(Integer, Sse));
    }

    #[test]
    fn bit_fields_need_not_be_aligned() {
        let mut all = Classes::EMPTY;
        all.add_bits(0, 30);
        all.add_bits(30, 40);
        assert_eq!(Class::of(&all, 16), Class::Two(Integer, Integer));
        let mut all = Classes::EMPTY;
        all.add_bits(3, 5);
        all.add_bits(u64::MAX, u64::MAX);
        assert_eq!(Class::of(&all, 4), Class::One(Integer));
    }
}
