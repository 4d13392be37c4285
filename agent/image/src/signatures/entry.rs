//! Where debug information says a parameter is at the entry of its function.
//!
//! In optimised code this is what the compiler knows: the register that the calling convention has for the parameter. In other
//! code it is the place in the frame to which the first instructions of the function will copy the parameter, which says nothing
//! of the entry. So places come from the calling convention, and what is said here can only confirm or contradict them.

use gimli::{
    AttributeValue, DW_AT_byte_size, DW_AT_encoding, DW_AT_location, DW_AT_name, Expression, Operation,
    UnitOffset, constants as dw,
};

use crate::signatures::model::{Place, Shape, Type, Word};
use crate::signatures::sections::Slice;
use crate::signatures::units::{Attribute, Entry, Unit, Units, number};

/// The greatest number of operations of an expression that is understood.
const OPERATIONS_MAX: usize = 8;

/// Where a parameter is said to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// Nothing is said of the entry: the compiler may have removed the parameter.
    Nothing,
    /// In one register; `None` if that is one in which no parameter is passed.
    Register(Option<Word>),
    /// In two registers, with 8 bytes in each.
    Pair(Word, Word),
    /// In pieces, some of which are in registers: the first two of these.
    Pieces([Option<Word>; 2]),
    /// In memory to which a register leads.
    Behind(Option<Word>),
    /// In the frame, or among the arguments on the stack: this many bytes above the CFA, if that is known.
    Frame(Option<i64>),
    /// In memory to which an address in the frame leads.
    BehindFrame,
    /// It is computed from what is in these registers, the first two; or it is a constant, or elsewhere.
    Computed([Option<Word>; 2]),
}

/// Whether a place is where debug information says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Agreement {
    Confirmed,
    /// Nothing is said.
    Open,
    Contradicted,
}

impl Said {
    /// Returns what is said of a parameter at an address, the entry of its function.
    ///
    /// `base` is the distance from the CFA to the base of the function's frame, and `ty` the type of the parameter.
    pub(crate) fn of<'s>(
        units: &Units<'s>,
        unit: &Unit<'s>,
        parameter: &Entry<'s>,
        at: u64,
        base: Option<i64>,
        ty: &Type,
    ) -> Said {
        let value = parameter.attr_value(DW_AT_location);
        let expression = match value {
            Some(AttributeValue::Exprloc(expression)) => Some(expression),
            Some(value) => in_list(units, unit, value, at),
            None => None,
        };
        expression.map_or(Said::Nothing, |expression| understood(units, unit, expression, base, ty))
    }

    /// Compares this with the place in the calling convention.
    pub(crate) fn agrees(self, place: Place) -> Agreement {
        let is = |holds: bool| if holds { Agreement::Confirmed } else { Agreement::Contradicted };
        if let Said::Pair(low, high) = self {
            return Said::Pieces([Some(low), Some(high)]).agrees(place);
        }
        match (self, place) {
            (Said::Pair(..), _) => Agreement::Open,
            (Said::Nothing | Said::Computed(_), _) => Agreement::Open,
            (_, Place::Nowhere) => Agreement::Open,
            // Arguments on the stack are in the caller's frame, and the function's own frame is below.
            (Said::Frame(Some(offset)), place) if offset >= 0 => match place {
                Place::Stack(at) | Place::Word(Word::Stack(at)) => is(offset == i64::from(at)),
                Place::Pair(Word::Stack(at), Word::Stack(_)) => is(offset == i64::from(at)),
                _ => Agreement::Contradicted,
            },
            // The code is not optimised.
            (Said::Frame(_) | Said::BehindFrame, _) => Agreement::Confirmed,
            (Said::Register(first) | Said::Pieces([first, _]), Place::Word(word)) => is(first == Some(word)),
            // One of the pieces may be missing, and several may be in one register.
            // One of both has gone.
            (Said::Register(first), Place::Pair(low, high)) => is(first == Some(low) || first == Some(high)),
            (Said::Pieces(pieces), Place::Pair(low, high)) => {
                is(pieces.into_iter().flatten().all(|piece| piece == low || piece == high))
            }
            (Said::Register(_) | Said::Pieces(_), Place::Stack(_)) => Agreement::Contradicted,
            (Said::Register(first) | Said::Pieces([first, _]), Place::Unread) => {
                is(first.is_none_or(|word| matches!(word, Word::Vector(_))))
            }
            // The address of an object may be said in place of the object.
            (Said::Register(first) | Said::Pieces([first, _]), Place::Behind(word)) => {
                is(first == Some(word))
            }
            (Said::Behind(register), Place::Behind(word)) => is(register == Some(word)),
            // An object on the stack, relative to rsp.
            (Said::Behind(None), Place::Stack(_)) => Agreement::Confirmed,
            (Said::Behind(_), _) => Agreement::Open,
        }
    }
}

impl Said {
    /// Whether all of a parameter of this type arrives at its place in the calling convention.
    ///
    /// LLVM removes an argument that a function ignores from the calls of the function, although its convention stays as it is,
    /// and says from then on that the argument is nowhere. So one of which something is said is passed. What is in memory is
    /// always passed.
    pub(crate) fn arrives(self, ty: &Type, place: Place) -> bool {
        let registers = match self {
            Said::Frame(_) | Said::BehindFrame => return true,
            Said::Nothing => [None, None],
            Said::Register(word) | Said::Behind(word) => [word, None],
            Said::Pair(low, high) => [Some(low), Some(high)],
            Said::Pieces(words) | Said::Computed(words) => words,
        };
        let is_in = |word: Word| registers.contains(&Some(word));
        match place {
            Place::Nowhere => true,
            Place::Unread => false,
            Place::Word(word) | Place::Behind(word) => is_in(word),
            Place::Pair(low, high) => is_in(low) && is_in(high),
            // LLVM passes a number of 16 bytes as two.
            Place::Stack(_) => !matches!(ty.shape, Shape::Signed | Shape::Unsigned),
        }
    }
}

/// Returns the expression in a list of locations that holds at an address.
fn in_list<'s>(
    units: &Units<'s>,
    unit: &Unit<'s>,
    value: Attribute<'s>,
    at: u64,
) -> Option<Expression<Slice<'s>>> {
    let mut all = units.dwarf(unit).attr_locations(&unit.unit, value).ok()??;
    while let Some(entry) = all.next().ok()? {
        if entry.range.begin <= at && at < entry.range.end {
            return Some(entry.data);
        }
    }
    None
}

fn understood<'s>(
    units: &Units<'s>,
    unit: &Unit<'s>,
    expression: Expression<Slice<'s>>,
    base: Option<i64>,
    ty: &Type,
) -> Said {
    let mut all = expression.operations(unit.unit.encoding());
    let mut operations = Vec::new();
    while let Ok(Some(operation)) = all.next() {
        if operations.len() == OPERATIONS_MAX {
            return computed(&operations);
        }
        operations.push(operation);
    }
    match operations.as_slice() {
        [] => Said::Nothing,
        [Operation::Register { register }] => Said::Register(word(*register)),
        // The value that a register had at the entry.
        [Operation::EntryValue { expression }, Operation::StackValue] => {
            match understood(units, unit, Expression(*expression), base, ty) {
                said @ Said::Register(_) => said,
                _ => Said::Computed([None, None]),
            }
        }
        [Operation::RegisterOffset { register, offset: 0, .. }] => Said::Behind(word(*register)),
        [Operation::FrameOffset { offset }] => Said::Frame(base.and_then(|base| base.checked_add(*offset))),
        [Operation::FrameOffset { .. }, Operation::Deref { size: 8, .. }] => Said::BehindFrame,
        // The register has the value in its lower bits, and the others are not said to be zero.
        [Operation::RegisterOffset { register, offset: 0, .. }, cut @ .., Operation::StackValue]
            if low_bits(units, unit, cut).is_some_and(|bits| bits >= bits_of(ty)) =>
        {
            Said::Register(word(*register))
        }
        pieces => of_pieces(pieces),
    }
}

/// Returns how many of the lower bits of a value these operations leave, if they do nothing but take others away.
fn low_bits<'s>(units: &Units<'s>, unit: &Unit<'s>, operations: &[Operation<Slice<'s>>]) -> Option<u64> {
    let mut bits = 64;
    let mut rest = operations;
    while !rest.is_empty() {
        let (left, after) = match rest {
            [Operation::UnsignedConstant { value }, Operation::And, after @ ..] => {
                let is_mask = value & value.wrapping_add(1) == 0;
                (u64::from(is_mask.then_some(value.trailing_ones())?), after)
            }
            // To a narrower type, and back to a wider one.
            [Operation::Convert { base_type }, after @ ..] => (width(units, unit, *base_type)?, after),
            _ => return None,
        };
        bits = bits.min(left);
        rest = after;
    }
    Some(bits)
}

/// Returns the number of bits of a base type of integers.
fn width<'s>(units: &Units<'s>, unit: &Unit<'s>, base_type: UnitOffset) -> Option<u64> {
    // The type of addresses.
    if base_type.0 == 0 {
        return Some(64);
    }
    let entry = unit.unit.entry(base_type).ok()?;
    let Some(AttributeValue::Encoding(encoding)) = entry.attr_value(DW_AT_encoding) else { return None };
    let is_integer = matches!(encoding, dw::DW_ATE_signed | dw::DW_ATE_unsigned);
    let bits = number(&entry, DW_AT_byte_size)?.checked_mul(8)?;
    // LLVM says of its type of one bit that it has a byte, but names it by its bits: `DW_ATE_unsigned_1`.
    let name = units.text(unit, entry.attr_value(DW_AT_name));
    let named = name.and_then(|name| name.strip_prefix("DW_ATE_")?.rsplit_once('_')?.1.parse().ok());
    is_integer.then_some(named.map_or(bits, |named: u64| named.min(bits)))
}

/// Returns how many bits of a parameter have to be known.
fn bits_of(ty: &Type) -> u64 {
    match ty.shape {
        // The others are zero, by the calling convention.
        Shape::Bool => 1,
        _ => ty.size.saturating_mul(8),
    }
}

/// Returns the registers of a value in pieces, if all that are somewhere are in registers.
fn of_pieces(operations: &[Operation<Slice<'_>>]) -> Said {
    let pair = |size: &u64, other: &u64| *size == 64 && *other == 64;
    if let [
        Operation::Register { register: low },
        Operation::Piece { size_in_bits: size, bit_offset: None },
        Operation::Register { register: high },
        Operation::Piece { size_in_bits: other, bit_offset: None },
    ] = operations
        && pair(size, other)
        && let (Some(low), Some(high)) = (word(*low), word(*high))
    {
        return Said::Pair(low, high);
    }
    let mut found = Vec::new();
    let mut before = None;
    for operation in operations {
        match operation {
            Operation::Register { register } if before.is_none() => before = Some(*register),
            Operation::Piece { .. } => found.extend(before.take().map(word)),
            _ => return computed(operations),
        }
    }
    match found.as_slice() {
        [] => Said::Computed([None, None]),
        [first, rest @ ..] => {
            Said::Pieces([*first, rest.iter().copied().find(|word| word != first).flatten()])
        }
    }
}

/// Returns what is said by operations of which only the registers are looked at.
fn computed(operations: &[Operation<Slice<'_>>]) -> Said {
    let register = |operation: &Operation<Slice<'_>>| match operation {
        Operation::Register { register } | Operation::RegisterOffset { register, .. } => word(*register),
        _ => None,
    };
    let mut words = operations.iter().filter_map(register);
    let first = words.next();
    Said::Computed([first, words.find(|word| Some(*word) != first)])
}

/// Returns the word that a register of DWARF's numbering is for arguments.
fn word(register: gimli::Register) -> Option<Word> {
    Some(match register.0 {
        5 => Word::Integer(0),
        4 => Word::Integer(1),
        1 => Word::RDX,
        2 => Word::Integer(3),
        8 => Word::Integer(4),
        9 => Word::Integer(5),
        xmm @ 17..=24 => Word::Vector((xmm - 17) as u8),
        _ => return None,
    })
}
