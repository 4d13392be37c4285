//! Reads structures, classes and unions: their fields, how they are passed, and which of them are strings.

use std::sync::Arc;

use gimli::{
    AttributeValue, DW_AT_alignment, DW_AT_artificial, DW_AT_bit_offset, DW_AT_bit_size, DW_AT_byte_size,
    DW_AT_calling_convention, DW_AT_data_bit_offset, DW_AT_data_member_location, DW_AT_declaration,
    DW_AT_defaulted, DW_AT_deleted, DW_AT_external, DW_AT_name, DW_AT_signature, DW_AT_type,
    DW_AT_virtuality, Operation, UnitOffset, constants as dw,
};

use crate::signatures::classes::{ByteClass, Classes};
use crate::signatures::model::{FIELDS_MAX, Field, Passing, Shape, StrOrder, StringLayout, Struct, Type};
use crate::signatures::units::{Die, Entry, Unit, Units, is_name, number};

/// The number of members above which a structure is not read.
const MEMBERS_MAX: usize = 4096;
/// The value of DW_AT_defaulted for a function that the compiler makes as usual.
const IN_CLASS: u64 = 1;
/// The greatest number of names of a type that are followed.
const NAMES_MAX: usize = 16;

/// The types of fields, which whoever reads a structure has to read as well.
pub(crate) trait OtherTypes {
    /// Returns the type of an entry: what its DW_AT_type refers to.
    fn of<'s>(&mut self, units: &mut Units<'s>, unit: usize, entry: &Entry<'s>) -> Arc<Type>;

    /// Returns the type at an entry.
    fn at(&mut self, units: &mut Units<'_>, die: Die) -> Arc<Type>;
}

/// Returns a `std::string`, which is always passed by its address.
pub(crate) fn string(layout: StringLayout) -> Type {
    let size = match layout {
        StringLayout::Libstdcxx => 32,
        StringLayout::LibstdcxxOld => 8,
        StringLayout::Libcxx => 24,
    };
    Type::new(size, 8, Shape::String(layout), Classes::scalar(ByteClass::Integer, size).aligned(8))
}

/// Reads a structure, class or union.
pub(crate) fn read<'s>(
    types: &mut impl OtherTypes,
    units: &mut Units<'s>,
    die: Die,
    unit: &Unit<'s>,
    entry: &Entry<'s>,
) -> Arc<Type> {
    if let Some(layout) = string_layout(units, die, unit, entry) {
        return Arc::new(string(layout));
    }
    // The definition is in a type unit.
    if let signature @ Some(_) = entry.attr_value(DW_AT_signature) {
        let defined = units.referred(die.unit, signature).filter(|&defined| defined != die);
        return defined.map_or_else(|| Arc::new(Type::unknown()), |defined| types.at(units, defined));
    }
    let size = number(entry, DW_AT_byte_size).filter(|_| !entry.has_attr(DW_AT_declaration));
    let Some(size) = size else { return Arc::new(Type::unknown()) };
    let mut members = Members { fields: Vec::new(), special: Special::No, is_odd: false };
    let is_read = members.read(types, units, die, unit).is_some() && !members.is_odd;
    // A structure without members has one byte in C++ and none in C. GCC leaves out those of some unions.
    let has_all = !members.fields.is_empty() || size <= 1;
    if !is_read || !has_all {
        // Enums with data of Rust have parts of which only some are there.
        return Arc::new(Type::new(size, 1, Shape::Unknown, Classes::UNKNOWN));
    }
    if let Some(order) = view_order(units, die, unit, entry, &members.fields) {
        let classes = members.classes();
        return Arc::new(Type::new(size, 8, Shape::Str(order), classes));
    }
    let align = members.align(size, number(entry, DW_AT_alignment));
    let classes = members.classes();
    let passing = members.passing(entry);
    members.fields.truncate(FIELDS_MAX);
    let is_union = entry.tag() == dw::DW_TAG_union_type;
    let object = Struct { name: units.name(unit, entry), fields: members.fields, passing, is_union };
    Arc::new(Type::new(size, align, Shape::Struct(Arc::new(object)), classes))
}

/// Whether a class has functions that take part in copying it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Special {
    No,
    /// It has some, but they may be declared only to say that they are the usual ones: before DWARF 5, both look the same.
    Perhaps,
    /// It has some, or virtual functions or virtual base classes.
    Yes,
}

struct Members {
    fields: Vec<Field>,
    special: Special,
    /// Whether it has members of a kind that is not known.
    is_odd: bool,
}

impl Members {
    /// Reads the entries below that of a structure.
    fn read<'s>(
        &mut self,
        types: &mut impl OtherTypes,
        units: &mut Units<'s>,
        die: Die,
        unit: &Unit<'s>,
    ) -> Option<()> {
        let mut tree = unit.unit.entries_tree(Some(die.offset)).ok()?;
        let mut children = tree.root().ok()?.children();
        while let Some(child) = children.next().ok()? {
            let child = child.entry();
            match child.tag() {
                // Static members are declared here and defined elsewhere.
                dw::DW_TAG_member if child.has_attr(DW_AT_external) || child.has_attr(DW_AT_declaration) => {}
                dw::DW_TAG_inheritance if child.has_attr(DW_AT_virtuality) => self.special = Special::Yes,
                dw::DW_TAG_member | dw::DW_TAG_inheritance => {
                    if self.fields.len() == MEMBERS_MAX {
                        return None;
                    }
                    let ty = types.of(units, die.unit, child);
                    let name = units.name(unit, child);
                    if name.as_ref().is_some_and(|name| name.starts_with("_vptr")) {
                        self.special = Special::Yes;
                    }
                    let offset = offset(unit, child)?;
                    let (offset, bits) = bits(child, offset, ty.size)?;
                    self.fields.push(Field { name, offset, bits, ty });
                }
                dw::DW_TAG_subprogram => self.see_function(units, die, unit, child),
                dw::DW_TAG_variant_part => self.is_odd = true,
                _ => {}
            }
        }
        Some(())
    }

    /// Takes a function of the class into account.
    fn see_function<'s>(&mut self, units: &mut Units<'s>, class: Die, unit: &Unit<'s>, function: &Entry<'s>) {
        if number(function, DW_AT_virtuality).is_some_and(|kind| kind != 0) {
            self.special = Special::Yes;
        }
        let is_destructor =
            || units.text(unit, function.attr_value(DW_AT_name)).is_some_and(|name| name.starts_with('~'));
        let is_usual = function.has_attr(DW_AT_artificial)
            || function.has_attr(DW_AT_deleted)
            || number(function, DW_AT_defaulted) == Some(IN_CLASS);
        if self.special != Special::Yes
            && !is_usual
            && (is_destructor() || copies(units, class, unit, function))
        {
            self.special = if unit.unit.header.version() >= 5 { Special::Yes } else { Special::Perhaps };
        }
    }

    /// Returns the classes of all bytes.
    fn classes(&self) -> Classes {
        let mut classes = Classes::EMPTY;
        for field in &self.fields {
            match field.bits {
                Some((start, width)) => classes.add_bits(start, width),
                None => classes.add(&field.ty.classes, field.offset),
            }
        }
        classes
    }

    /// Returns the alignment: that of the fields, unless they are packed, or what is said of it.
    fn align(&self, size: u64, said: Option<u64>) -> u64 {
        let fields = self.fields.iter();
        let mut align = fields.map(|field| field.ty.align).max().unwrap_or(1).max(1);
        let fits = |align: u64| {
            size.is_multiple_of(align)
                && self.fields.iter().all(|f| f.ty.align < align || f.offset.is_multiple_of(align))
        };
        while align > 1 && !fits(align) {
            align /= 2;
        }
        said.filter(|said| said.is_power_of_two()).map_or(align, |said| said.max(align))
    }

    /// Returns how objects are passed to functions (Itanium C++ ABI, section 1.1, "non-trivial for the purposes of calls").
    fn passing(&self, entry: &Entry<'_>) -> Passing {
        match entry.attr_value(DW_AT_calling_convention) {
            Some(AttributeValue::CallingConvention(dw::DW_CC_pass_by_value)) => return Passing::Value,
            Some(AttributeValue::CallingConvention(dw::DW_CC_pass_by_reference)) => {
                return Passing::Reference;
            }
            _ => {}
        }
        let of_fields = self.fields.iter().map(|field| of_field(&field.ty));
        let of_fields = of_fields.fold(Passing::Value, |all, one| match (all, one) {
            (Passing::Reference, _) | (_, Passing::Reference) => Passing::Reference,
            (Passing::Unknown, _) | (_, Passing::Unknown) => Passing::Unknown,
            _ => Passing::Value,
        });
        match self.special {
            Special::Yes => Passing::Reference,
            Special::Perhaps if of_fields == Passing::Value => Passing::Unknown,
            _ => of_fields,
        }
    }
}

fn of_field(ty: &Type) -> Passing {
    match &ty.shape {
        Shape::Struct(object) => object.passing,
        Shape::String(_) => Passing::Reference,
        Shape::Array { element, .. } => of_field(element),
        Shape::Unknown => Passing::Unknown,
        _ => Passing::Value,
    }
}

/// Whether a member function is a constructor from another object of its class: it has the name of the class, and its second
/// parameter is a reference to one.
fn copies<'s>(units: &mut Units<'s>, class: Die, unit: &Unit<'s>, function: &Entry<'s>) -> bool {
    let Some((_, of)) = units.entry(class) else { return false };
    let name = units.text(unit, of.attr_value(DW_AT_name)).and_then(|name| name.split('<').next());
    let own = units.text(unit, function.attr_value(DW_AT_name));
    if own.is_none() || own != name {
        return false;
    }
    let second = || {
        let mut tree = unit.unit.entries_tree(Some(function.offset())).ok()?;
        let mut children = tree.root().ok()?.children();
        let mut parameters = 0;
        while let Some(child) = children.next().ok()? {
            parameters += u32::from(child.entry().tag() == dw::DW_TAG_formal_parameter);
            if parameters == 2 {
                return child.entry().attr_value(DW_AT_type);
            }
        }
        None
    };
    let mut at = units.referred(class.unit, second());
    let mut is_reference = false;
    for _ in 0..NAMES_MAX {
        let Some((die, (_, ty))) = at.and_then(|die| Some((die, units.entry(die)?))) else { return false };
        let is_step = matches!(ty.tag(), dw::DW_TAG_reference_type | dw::DW_TAG_rvalue_reference_type);
        is_reference |= is_step;
        if !is_step && !is_name(ty.tag()) {
            return is_reference && die == class;
        }
        at = units.referred(die.unit, ty.attr_value(DW_AT_type));
    }
    false
}

/// Returns the byte offset of a member; `None` if it depends on the object.
fn offset(unit: &Unit<'_>, member: &Entry<'_>) -> Option<u64> {
    match member.attr_value(DW_AT_data_member_location) {
        // A member of a union, or a bit-field whose place is said in bits.
        None => Some(0),
        Some(AttributeValue::Exprloc(expression)) => {
            let mut operations = expression.operations(unit.unit.encoding());
            match (operations.next().ok()?, operations.next().ok()?) {
                (Some(Operation::PlusConstant { value }), None) => Some(value),
                _ => None,
            }
        }
        Some(value) => value.udata_value(),
    }
}

/// Returns the byte offset of a member, and, if it is a bit-field, the number of bits before it in the structure and its width.
fn bits(member: &Entry<'_>, offset: u64, storage: u64) -> Option<(u64, Option<(u64, u64)>)> {
    let Some(width) = number(member, DW_AT_bit_size) else { return Some((offset, None)) };
    let start = match (number(member, DW_AT_data_bit_offset), number(member, DW_AT_bit_offset)) {
        (Some(start), _) => offset.checked_mul(8)?.checked_add(start)?,
        // The older way counts from the most significant bit of the storage unit, beyond which a packed bit-field may begin.
        (None, Some(from_top)) => {
            let storage = number(member, DW_AT_byte_size).unwrap_or(storage);
            let bits = offset.checked_add(storage)?.checked_mul(8)?.checked_sub(width)?;
            bits.checked_add_signed((from_top as i64).checked_neg()?)?
        }
        (None, None) => offset.checked_mul(8)?,
    };
    start.checked_add(width)?;
    Some((start / 8, Some((start, width))))
}

/// Returns how a class is laid out if it is `std::string`.
pub(crate) fn string_layout<'s>(
    units: &mut Units<'s>,
    die: Die,
    unit: &Unit<'s>,
    entry: &Entry<'s>,
) -> Option<StringLayout> {
    let name = units.text(unit, entry.attr_value(DW_AT_name))?;
    if !is_template(name, "basic_string") {
        return None;
    }
    let members = member_names(units, die, unit)?;
    let has = |wanted: &str| members.iter().any(|name| name == wanted);
    if has("_M_string_length") {
        return Some(StringLayout::Libstdcxx);
    }
    if has("_M_dataplus") {
        return Some(StringLayout::LibstdcxxOld);
    }
    let is_declared_only = entry.has_attr(DW_AT_declaration);
    if !has("__r_") && !has("__rep_") && !is_declared_only {
        return None;
    }
    // clang may leave the definition to the library. The namespaces tell the libraries apart.
    match namespaces(units, unit, die.offset)?.as_slice() {
        [.., "std", "__cxx11"] if is_declared_only && name != "basic_string" => Some(StringLayout::Libstdcxx),
        [.., "std", "__1" | "__ndk1"] if name != "basic_string" || !is_declared_only => {
            Some(StringLayout::Libcxx)
        }
        _ => None,
    }
}

/// Returns in which order a class has its words if it is `std::string_view`.
fn view_order<'s>(
    units: &mut Units<'s>,
    die: Die,
    unit: &Unit<'s>,
    entry: &Entry<'s>,
    fields: &[Field],
) -> Option<StrOrder> {
    let name = units.text(unit, entry.attr_value(DW_AT_name))?;
    if !is_template(name, "basic_string_view") || !has_char(units, die, unit) {
        return None;
    }
    let [first, second] = fields else { return None };
    let is_length = |field: &Field| field.ty.shape == Shape::Unsigned && field.ty.size == 8;
    let is_address = |field: &Field| matches!(field.ty.shape, Shape::Pointer(_));
    match (first.offset, second.offset) {
        (0, 8) if is_length(first) && is_address(second) => Some(StrOrder::LengthFirst),
        (0, 8) if is_address(first) && is_length(second) => Some(StrOrder::AddressFirst),
        _ => None,
    }
}

/// Whether a class has this name, with `char` as its first template argument if the name has arguments at all.
fn is_template(name: &str, template: &str) -> bool {
    name.strip_prefix(template).is_some_and(|rest| {
        rest.is_empty() || rest.strip_prefix("<char").is_some_and(|rest| rest.starts_with([',', '>']))
    })
}

/// Returns the names of a string class's members, or `None` if its characters are others than `char`.
fn member_names<'s>(units: &mut Units<'s>, die: Die, unit: &Unit<'s>) -> Option<Vec<String>> {
    let mut names = Vec::new();
    let mut tree = unit.unit.entries_tree(Some(die.offset)).ok()?;
    let mut children = tree.root().ok()?.children();
    while let Some(child) = children.next().ok()? {
        let child = child.entry();
        if child.tag() == dw::DW_TAG_member && !child.has_attr(DW_AT_external) {
            names.extend(units.text(unit, child.attr_value(DW_AT_name)).map(str::to_owned));
        }
    }
    let is_declared_only = names.is_empty();
    (is_declared_only || has_char(units, die, unit)).then_some(names)
}

/// Whether the first template argument of a class is `char`.
fn has_char<'s>(units: &mut Units<'s>, die: Die, unit: &Unit<'s>) -> bool {
    let argument = || {
        let mut tree = unit.unit.entries_tree(Some(die.offset)).ok()?;
        let mut children = tree.root().ok()?.children();
        while let Some(child) = children.next().ok()? {
            if child.entry().tag() == dw::DW_TAG_template_type_parameter {
                return child.entry().attr_value(DW_AT_type);
            }
        }
        None
    };
    let mut at = units.referred(die.unit, argument());
    for _ in 0..NAMES_MAX {
        let Some((unit, ty)) = at.and_then(|die| units.entry(die)) else { return false };
        if !is_name(ty.tag()) {
            return units.text(&unit, ty.attr_value(DW_AT_name)) == Some("char");
        }
        at = at.and_then(|die| units.referred(die.unit, ty.attr_value(DW_AT_type)));
    }
    false
}

/// Returns the names of what an entry is in, from the outside in.
fn namespaces<'s>(units: &Units<'s>, unit: &Unit<'s>, wanted: UnitOffset) -> Option<Vec<&'s str>> {
    let mut around: Vec<(isize, &str)> = Vec::new();
    let mut cursor = unit.unit.entries();
    while let Some(entry) = cursor.next_dfs().ok()? {
        let depth = entry.depth();
        around.retain(|&(outer, _)| outer < depth);
        if entry.offset() == wanted {
            return Some(around.into_iter().map(|(_, name)| name).collect());
        }
        if entry.tag() == dw::DW_TAG_namespace {
            around.push((depth, units.text(unit, entry.attr_value(DW_AT_name)).unwrap_or_default()));
        }
    }
    None
}
