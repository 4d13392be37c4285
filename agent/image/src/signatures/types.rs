//! Reads types from debug information.
//!
//! Each type is read once. What a pointer leads to is looked at only as far as it matters for showing the value, so types that
//! contain pointers to themselves are no problem; those that contain themselves are damaged, and unknown.

use std::collections::HashMap;
use std::sync::Arc;

use gimli::{
    AttributeValue, DW_AT_GNU_vector, DW_AT_alignment, DW_AT_bit_size, DW_AT_byte_size, DW_AT_const_value,
    DW_AT_count, DW_AT_encoding, DW_AT_lower_bound, DW_AT_type, DW_AT_upper_bound, constants as dw,
};

use crate::signatures::aggregates::{self, OtherTypes};
use crate::signatures::classes::{ByteClass, Classes};
use crate::signatures::model::{Enum, Field, Passing, Pointee, Shape, StrOrder, Struct, Type};
use crate::signatures::units::{Die, Entry, Unit, Units, is_name, number};

/// How deep types may be nested: structures in structures, and names of names.
const DEPTH_MAX: u32 = 48;
/// The greatest number of enumerators that are kept.
const VARIANTS_MAX: usize = 512;

/// The types that have been read.
#[derive(Default)]
pub(crate) struct Types {
    /// `None` while a type is being read.
    known: HashMap<Die, Option<Arc<Type>>>,
    depth: u32,
}

impl OtherTypes for Types {
    fn of<'s>(&mut self, units: &mut Units<'s>, unit: usize, entry: &Entry<'s>) -> Arc<Type> {
        match entry.attr_value(DW_AT_type) {
            None => Arc::new(Type::void()),
            value => match units.referred(unit, value) {
                Some(die) => self.at(units, die),
                None => Arc::new(Type::unknown()),
            },
        }
    }

    fn at(&mut self, units: &mut Units<'_>, die: Die) -> Arc<Type> {
        if let Some(known) = self.known.get(&die) {
            return known.clone().unwrap_or_else(|| Arc::new(Type::unknown()));
        }
        if self.depth == DEPTH_MAX {
            return Arc::new(Type::unknown());
        }
        self.depth += 1;
        self.known.insert(die, None);
        let read = self.read(units, die).unwrap_or_else(|| Arc::new(Type::unknown()));
        self.depth -= 1;
        self.known.insert(die, Some(read.clone()));
        read
    }
}

impl Types {
    fn read(&mut self, units: &mut Units<'_>, die: Die) -> Option<Arc<Type>> {
        let (unit, entry) = units.entry(die)?;
        let size = || number(&entry, DW_AT_byte_size);
        Some(Arc::new(match entry.tag() {
            tag if is_name(tag) => {
                let named = self.of(units, die.unit, &entry);
                match number(&entry, DW_AT_alignment) {
                    Some(align) if align.is_power_of_two() => {
                        Type { align: align.max(named.align), ..(*named).clone() }
                    }
                    _ => return Some(named),
                }
            }
            dw::DW_TAG_base_type => base(units, &unit, &entry)?,
            dw::DW_TAG_pointer_type
            | dw::DW_TAG_reference_type
            | dw::DW_TAG_rvalue_reference_type
            | dw::DW_TAG_unspecified_type
                if size().is_none_or(|size| size == 8) =>
            {
                let is_pointer = entry.tag() != dw::DW_TAG_unspecified_type;
                // The other unspecified type is that of nullptr, which has no type of its own.
                if !is_pointer && !units.name(&unit, &entry)?.contains("nullptr") {
                    return None;
                }
                let pointee = if is_pointer { self.pointee(units, die.unit, &entry) } else { Pointee::Other };
                scalar(8, Shape::Pointer(pointee), ByteClass::Integer)
            }
            dw::DW_TAG_ptr_to_member_type => match units.referred(die.unit, entry.attr_value(DW_AT_type)) {
                Some(to) if is_function(units, to) => {
                    // The function's address, or its place in the table of virtual functions; and what is added to `this`.
                    let classes = Classes::scalar(ByteClass::Integer, 16).aligned(8);
                    Type::new(16, 8, Shape::Opaque, classes)
                }
                _ => scalar(8, Shape::Signed, ByteClass::Integer),
            },
            dw::DW_TAG_string_type => fortran_string(size().unwrap_or(0)),
            dw::DW_TAG_enumeration_type => self.enumeration(units, die, &unit, &entry)?,
            dw::DW_TAG_array_type => self.array(units, die, &unit, &entry)?,
            dw::DW_TAG_structure_type | dw::DW_TAG_class_type | dw::DW_TAG_union_type => {
                return Some(aggregates::read(self, units, die, &unit, &entry));
            }
            _ => return None,
        }))
    }

    /// Returns what a pointer leads to.
    fn pointee<'s>(&mut self, units: &mut Units<'s>, unit: usize, entry: &Entry<'s>) -> Pointee {
        let mut at = units.referred(unit, entry.attr_value(DW_AT_type));
        for _ in 0..DEPTH_MAX {
            let Some((unit, entry)) = at.and_then(|die| units.entry(die)) else { break };
            let Some(die) = at else { break };
            match entry.tag() {
                tag if is_name(tag) => at = units.referred(die.unit, entry.attr_value(DW_AT_type)),
                dw::DW_TAG_subroutine_type => return Pointee::Function,
                dw::DW_TAG_base_type if is_character(units, &unit, &entry) => return Pointee::Characters,
                dw::DW_TAG_structure_type if unit.language == Some(dw::DW_LANG_Rust) => {
                    let name = units.text(&unit, entry.attr_value(gimli::DW_AT_name));
                    let is_text = matches!(name, Some("String" | "&str" | "&mut str"));
                    let text = if is_text { rust_text(&self.at(units, die)) } else { None };
                    return text.unwrap_or(Pointee::Other);
                }
                dw::DW_TAG_structure_type | dw::DW_TAG_class_type => {
                    return match aggregates::string_layout(units, die, &unit, &entry) {
                        Some(layout) => Pointee::String(layout),
                        None => Pointee::Other,
                    };
                }
                _ => break,
            }
        }
        Pointee::Other
    }

    /// Reads an enumeration.
    fn enumeration<'s>(
        &mut self,
        units: &mut Units<'s>,
        die: Die,
        unit: &Unit<'s>,
        entry: &Entry<'s>,
    ) -> Option<Type> {
        let base = entry.has_attr(DW_AT_type).then(|| self.of(units, die.unit, entry));
        let size = number(entry, DW_AT_byte_size).or(base.as_ref().map(|base| base.size));
        let size = size.filter(|size| matches!(size, 1 | 2 | 4 | 8))?;
        let Variants { all, are_signed } = variants(units, unit, die)?;
        let is_signed = match base {
            Some(base) => base.shape == Shape::Signed,
            None => are_signed,
        };
        // An enumerator of an unsigned type may be stored as a signed number of its size.
        let unused = 64 - 8 * size as u32;
        let fitting = |value: i64| {
            if is_signed { value << unused >> unused } else { ((value as u64) << unused >> unused) as i64 }
        };
        let variants = all.into_iter().map(|(name, value)| (name, fitting(value))).collect();
        let named = Enum { name: units.name(unit, entry), is_signed, variants };
        Some(scalar(size, Shape::Enum(Arc::new(named)), ByteClass::Integer))
    }

    /// Reads an array, or a vector.
    fn array<'s>(
        &mut self,
        units: &mut Units<'s>,
        die: Die,
        unit: &Unit<'s>,
        entry: &Entry<'s>,
    ) -> Option<Type> {
        let element = self.of(units, die.unit, entry);
        let lowest = if unit.language.is_some_and(is_fortran) { 1 } else { 0 };
        let mut count = Some(1_u64);
        let mut tree = unit.unit.entries_tree(Some(die.offset)).ok()?;
        let mut children = tree.root().ok()?.children();
        while let Some(child) = children.next().ok()? {
            let child = child.entry();
            if child.tag() == dw::DW_TAG_subrange_type {
                let upper = number(child, DW_AT_upper_bound);
                let lower = number(child, DW_AT_lower_bound).unwrap_or(lowest);
                let of_bounds = || Some(upper?.wrapping_add(1).saturating_sub(lower));
                let here = number(child, DW_AT_count).or_else(of_bounds);
                // Without bounds it is the flexible array at the end of a structure.
                count = here.and_then(|here| count?.checked_mul(here));
            }
        }
        let is_flexible = count.is_none();
        let count = count.unwrap_or(0);
        let size = element.size.checked_mul(count)?;
        if entry.has_attr(DW_AT_GNU_vector) {
            let size = number(entry, DW_AT_byte_size).unwrap_or(size);
            let classes = match size {
                8 => Classes::scalar(ByteClass::Sse, 8),
                16 => Classes::vector(),
                // How wider ones are passed depends on whether the code may use AVX, and compilers differ in small ones.
                _ => Classes::UNKNOWN,
            };
            return Some(Type::new(size, size.next_power_of_two().min(64), Shape::Opaque, classes));
        }
        let mut classes = if is_flexible { Classes::EMPTY } else { element.classes };
        if count == 0 {
            classes = Classes::EMPTY;
        }
        // Classes are those of the first 16 bytes.
        for n in 1..count.min(16) {
            match element.size.checked_mul(n) {
                Some(offset) if offset < 16 => classes.add(&element.classes, offset),
                _ => break,
            }
        }
        let align = element.align;
        Some(Type::new(size, align, Shape::Array { element, count }, classes))
    }
}

/// Returns where a `String` or `&str` of Rust has the address and the length of its text. The compiler chooses the order.
fn rust_text(ty: &Type) -> Option<Pointee> {
    let Shape::Struct(object) = &ty.shape else { return None };
    let field = |object: &Struct, name: &str| {
        let field = object.fields.iter().find(|field| field.name.as_deref() == Some(name))?;
        Some((field.offset, field.ty.clone()))
    };
    let is_length = |ty: &Type| ty.shape == Shape::Unsigned && ty.size == 8;
    let (address, (length, ty)) = match field(object, "vec") {
        Some((vec, ty)) => {
            let Shape::Struct(inner) = &ty.shape else { return None };
            let (buffer, ty) = field(inner, "buf")?;
            let (length, of_length) = field(inner, "len")?;
            (vec + buffer + first_pointer(&ty)?, (vec + length, of_length))
        }
        None => (field(object, "data_ptr")?.0, field(object, "length")?),
    };
    let word = |offset: u64| u8::try_from(offset / 8).ok().filter(|_| offset.is_multiple_of(8));
    let text = Pointee::Text { address: word(address)?, length: word(length)? };
    is_length(&ty).then_some(text)
}

/// Returns the offset of the first pointer in a structure of structures.
fn first_pointer(ty: &Type) -> Option<u64> {
    match &ty.shape {
        Shape::Pointer(_) => Some(0),
        Shape::Struct(object) => {
            object.fields.iter().find_map(|field| Some(field.offset + first_pointer(&field.ty)?))
        }
        _ => None,
    }
}

/// Returns a type that is as large as it is aligned.
pub(crate) fn scalar(size: u64, shape: Shape, class: ByteClass) -> Type {
    Type::new(size, size.next_power_of_two().min(16), shape, Classes::scalar(class, size))
}

/// Returns a string of Fortran, whose length is passed apart from its address.
fn fortran_string(size: u64) -> Type {
    Type::new(size, 1, Shape::Str(StrOrder::AddressFirst), Classes::UNKNOWN)
}

/// Reads a base type.
fn base<'s>(units: &Units<'s>, unit: &Unit<'s>, entry: &Entry<'s>) -> Option<Type> {
    let size = number(entry, DW_AT_byte_size)?;
    let name = units.text(unit, entry.attr_value(gimli::DW_AT_name)).unwrap_or_default();
    let Some(AttributeValue::Encoding(encoding)) = entry.attr_value(DW_AT_encoding) else { return None };
    // Rust's empty tuple.
    if size == 0 {
        return Some(Type::void());
    }
    // An integer of any number of bits: what the others are is not said.
    let named = || name.split_once("_BitInt(")?.1.strip_suffix(')')?.parse().ok();
    let bits = number(entry, DW_AT_bit_size).or_else(named);
    // clang 14 does not say how many bits it has.
    let has_spare_bits = bits.map_or(name.ends_with("_BitInt"), |bits: u64| bits != size.saturating_mul(8));
    let is_integer_size = matches!(size, 1 | 2 | 4 | 8 | 16);
    let integer = |shape| {
        let shape = if has_spare_bits { Shape::Opaque } else { shape };
        is_integer_size.then(|| scalar(size, shape, ByteClass::Integer))
    };
    let is_char = is_character(units, unit, entry);
    match encoding {
        dw::DW_ATE_boolean if size <= 8 => integer(Shape::Bool),
        dw::DW_ATE_signed_char | dw::DW_ATE_unsigned_char if is_char => integer(Shape::Char),
        dw::DW_ATE_UTF | dw::DW_ATE_UCS | dw::DW_ATE_ASCII if size <= 4 => integer(Shape::Char),
        dw::DW_ATE_signed | dw::DW_ATE_signed_char => integer(Shape::Signed),
        dw::DW_ATE_unsigned | dw::DW_ATE_unsigned_char => integer(Shape::Unsigned),
        dw::DW_ATE_float => float(size, name),
        dw::DW_ATE_complex_float => match size {
            8 | 16 => Some(complex(name, size)),
            32 => {
                // clang gives all complex types the same name. As an argument, either is in memory.
                let classes = match name {
                    _ if is_x87(name) => Classes::scalar(ByteClass::X87, 16),
                    "complex" => Classes::EMPTY,
                    _ => Classes::vector(),
                };
                Some(Type::new(32, 16, Shape::Opaque, classes))
            }
            _ => None,
        },
        dw::DW_ATE_decimal_float => match size {
            4 | 8 => Some(scalar(size, Shape::Opaque, ByteClass::Sse)),
            16 => Some(Type::new(16, 16, Shape::Opaque, Classes::vector())),
            _ => None,
        },
        _ => None,
    }
}

/// Returns a complex number, which is passed like a structure of its two parts.
fn complex(name: &str, size: u64) -> Type {
    let part = Arc::new(scalar(size / 2, Shape::Float, ByteClass::Sse));
    let field = |name: &str, offset| Field { name: Some(name.into()), offset, bits: None, ty: part.clone() };
    let fields = vec![field("re", 0), field("im", size / 2)];
    let object = Struct { name: Some(name.into()), fields, passing: Passing::Value, is_union: false };
    let classes = Classes::scalar(ByteClass::Sse, size).aligned(size / 2);
    Type::new(size, size / 2, Shape::Struct(Arc::new(object)), classes)
}

fn float(size: u64, name: &str) -> Option<Type> {
    match size {
        // With 8 bits of exponent, which is not decoded.
        2 if name.contains("bf") => Some(scalar(2, Shape::Opaque, ByteClass::Sse)),
        2 => Some(scalar(2, Shape::Float, ByteClass::Sse)),
        4 | 8 => Some(scalar(size, Shape::Float, ByteClass::Sse)),
        16 if is_x87(name) => Some(scalar(16, Shape::Float, ByteClass::X87)),
        // __float128
        16 => Some(Type::new(16, 16, Shape::Opaque, Classes::vector())),
        _ => None,
    }
}

/// Whether a floating-point type of 16 bytes is that of the x87 unit, by its name in C, Fortran and Rust.
fn is_x87(name: &str) -> bool {
    ["long double", "_Float64x", "__float80", "kind=10"].iter().any(|known| name.contains(known))
}

/// Whether a base type is that of characters: C's char, as opposed to numbers of one byte.
fn is_character<'s>(units: &Units<'s>, unit: &Unit<'s>, entry: &Entry<'s>) -> bool {
    let name = units.text(unit, entry.attr_value(gimli::DW_AT_name)).unwrap_or_default();
    let is_one_byte = number(entry, DW_AT_byte_size) == Some(1);
    is_one_byte && matches!(name, "char" | "char8_t" | "character(kind=1)")
}

fn is_function(units: &mut Units<'_>, die: Die) -> bool {
    units.entry(die).is_some_and(|(_, entry)| entry.tag() == dw::DW_TAG_subroutine_type)
}

pub(crate) fn is_fortran(language: gimli::DwLang) -> bool {
    matches!(
        language,
        dw::DW_LANG_Fortran77
            | dw::DW_LANG_Fortran90
            | dw::DW_LANG_Fortran95
            | dw::DW_LANG_Fortran03
            | dw::DW_LANG_Fortran08
            | dw::DW_LANG_Fortran18
    )
}

/// The enumerators of an enumeration.
#[derive(Default)]
struct Variants {
    all: Vec<(Arc<str>, i64)>,
    /// Whether one of them is negative.
    are_signed: bool,
}

/// Returns the enumerators of an enumeration.
fn variants<'s>(units: &Units<'s>, unit: &Unit<'s>, die: Die) -> Option<Variants> {
    let mut found = Variants::default();
    let mut tree = unit.unit.entries_tree(Some(die.offset)).ok()?;
    let mut children = tree.root().ok()?.children();
    while let Some(child) = children.next().ok()? {
        let child = child.entry();
        // A number in a form without a sign is not negative.
        let value = match child.attr_value(DW_AT_const_value) {
            Some(AttributeValue::Sdata(value)) => Some(value),
            Some(value) => value.udata_value().map(|value| value as i64),
            None => None,
        };
        if let (dw::DW_TAG_enumerator, Some(value), Some(name)) =
            (child.tag(), value, units.name(unit, child))
        {
            found.are_signed |= value < 0;
            if found.all.len() < VARIANTS_MAX {
                found.all.push((name, value));
            }
        }
    }
    Some(found)
}
