//! From the signature of a function to the fetches with which the agent reads its arguments and its result.

use gprofinject_abi::args::{CallFetches, FETCHES_MAX, Fetch, FetchHeader, ON_STACK, Op, RAW_MAX, VECTOR};
use gprofinject_image::signatures::{Place, Pointee, Shape, StrOrder, StringLayout, Type, Value, Word};
use zerocopy::IntoBytes;

/// Returns how a value is read; `None` if it has no contents, or is in a register that the agent does not save.
pub fn fetch(value: &Value) -> Option<Fetch> {
    let Value { ty, place } = value;
    match (&ty.shape, *place) {
        (_, Place::Nowhere | Place::Unread) | (Shape::Void | Shape::Unknown | Shape::Opaque, _) => None,
        (Shape::Pointer(to), Place::Word(word)) => Some(of_pointer(*to, word)),
        (Shape::String(layout), Place::Behind(word)) => Some(one(string(*layout), word, 0)),
        (Shape::String(_), _) => None,
        (Shape::Str(order), Place::Pair(low, high)) => Some(text(*order, low, high)),
        (Shape::Str(order), Place::Stack(at)) => Some(text(*order, Word::Stack(at), Word::Stack(at + 8))),
        (Shape::Str(_), _) => None,
        (_, Place::Word(word)) if is_number(ty) => Some(number(ty, Op::Scalar, word)),
        (_, Place::Stack(at)) if is_number(ty) => Some(number(ty, Op::Scalar, Word::Stack(at))),
        (_, Place::Behind(word)) if is_number(ty) => Some(number(ty, Op::Load, word)),
        (_, place) => object(ty, place),
    }
}

/// Returns how a number in a register, or on the stack, is read.
pub fn scalar(word: Word, size: u32, is_signed: bool) -> Fetch {
    Fetch { is_signed: is_signed.into(), ..one(Op::Scalar, word, size) }
}

/// Returns how an object is read that is among the arguments on the stack, at this word.
pub fn on_stack(word: Word, size: u32) -> Fetch {
    one(Op::Stack, word, size)
}

/// Returns how a string that ends with a zero byte, or a `std::string`, is read, to which the address in a word leads.
pub fn at_address(op: Op, word: Word) -> Fetch {
    one(op, word, 0)
}

/// Returns the operation that reads a `std::string`.
pub fn string(layout: StringLayout) -> Op {
    match layout {
        StringLayout::Libstdcxx => Op::StdString,
        StringLayout::LibstdcxxOld => Op::OldString,
        StringLayout::Libcxx => Op::LibcxxString,
    }
}

/// Whether a value is a number of at most 8 bytes, or is read like one.
fn is_number(ty: &Type) -> bool {
    let is_kind = matches!(
        ty.shape,
        Shape::Signed
            | Shape::Unsigned
            | Shape::Bool
            | Shape::Char
            | Shape::Float
            | Shape::Enum(_)
            | Shape::Pointer(_)
    );
    is_kind && ty.size <= 8
}

fn number(ty: &Type, op: Op, word: Word) -> Fetch {
    let is_signed = match &ty.shape {
        Shape::Signed | Shape::Char => true,
        Shape::Enum(all) => all.is_signed,
        _ => false,
    };
    Fetch { is_signed: is_signed.into(), ..one(op, word, ty.size as u32) }
}

fn of_pointer(to: Pointee, word: Word) -> Fetch {
    match to {
        Pointee::Characters => one(Op::CString, word, 0),
        Pointee::String(layout) => one(string(layout), word, 0),
        Pointee::Text { address, length } => one(Op::Text, word, u32::from(address) | u32::from(length) << 8),
        Pointee::Function | Pointee::Other => one(Op::Scalar, word, 8),
    }
}

fn text(order: StrOrder, first: Word, second: Word) -> Fetch {
    match order {
        StrOrder::AddressFirst => two(Op::Str, first, second, 0),
        StrOrder::LengthFirst => two(Op::Str, second, first, 0),
    }
}

/// Returns how an object is read: as many of its bytes as are kept.
fn object(ty: &Type, place: Place) -> Option<Fetch> {
    let size = ty.size.min(RAW_MAX as u64) as u32;
    Some(match place {
        // What is beyond the word is padding.
        Place::Word(word) => one(Op::Words, word, size.min(8)),
        Place::Pair(low, high) => two(Op::Words, low, high, size),
        Place::Stack(at) => one(Op::Stack, Word::Stack(at), size),
        Place::Behind(word) => one(Op::Bytes, word, size),
        Place::Nowhere | Place::Unread => return None,
    })
}

fn one(op: Op, word: Word, size: u32) -> Fetch {
    let (source, offset) = source(word);
    Fetch { op: op.code(), is_signed: 0, sources: [source, 0], size, offsets: [offset, 0] }
}

fn two(op: Op, first: Word, second: Word, size: u32) -> Fetch {
    let (first, second) = (source(first), source(second));
    Fetch { op: op.code(), is_signed: 0, sources: [first.0, second.0], size, offsets: [first.1, second.1] }
}

fn source(word: Word) -> (u8, u32) {
    match word {
        Word::Integer(number) => (number, 0),
        Word::Vector(number) => (VECTOR + number, 0),
        Word::Stack(offset) => (ON_STACK, offset),
    }
}

/// The fetches of a module's functions: what the agent gets.
#[derive(Debug, Default)]
pub struct FetchTable {
    functions: Vec<CallFetches>,
    fetches: Vec<Fetch>,
}

impl FetchTable {
    /// Adds the fetches of a function. More than [`FETCHES_MAX`] for its arguments are left out.
    pub fn add(&mut self, number: u32, arguments: &[Fetch], result: Option<Fetch>) {
        let index = number as usize;
        if self.functions.len() <= index {
            self.functions.resize(index + 1, CallFetches::default());
        }
        let arguments = &arguments[..arguments.len().min(FETCHES_MAX)];
        let first = self.fetches.len() as u32;
        self.fetches.extend(arguments.iter().copied().chain(result));
        let (arguments, results) = (arguments.len() as u16, result.is_some().into());
        self.functions[index] = CallFetches { first, arguments, results };
    }

    /// Whether no function has any.
    pub fn is_empty(&self) -> bool {
        self.fetches.is_empty()
    }

    /// Returns the table as bytes, for [`Fetches::read`](gprofinject_abi::args::Fetches::read).
    pub fn bytes(&self) -> Vec<u8> {
        let (functions, fetches) = (self.functions.len() as u32, self.fetches.len() as u32);
        let header = FetchHeader { functions, fetches, reserved: 0 };
        [header.as_bytes(), self.functions.as_bytes(), self.fetches.as_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gprofinject_abi::args::Fetches;

    #[test]
    fn a_table_as_the_agent_reads_it() {
        let [a, b, c] = [1, 2, 8].map(|size| scalar(Word::Integer(0), size, size == 2));
        let mut table = FetchTable::default();
        assert!(table.is_empty());
        table.add(3, &[a, b], Some(c));
        table.add(1, &[], Some(a));
        table.add(2, &vec![b; FETCHES_MAX + 5], None);
        let bytes = table.bytes();
        // Aligned to 8.
        let mut words = vec![0_u64; bytes.len().div_ceil(8)];
        words.as_mut_bytes()[..bytes.len()].copy_from_slice(&bytes);
        let read = Fetches::read(&words.as_bytes()[..bytes.len()]).expect("a table");
        assert_eq!(read.of(3), (&[a, b][..], &[c][..]));
        assert_eq!(read.of(1), (&[][..], &[a][..]));
        assert_eq!(read.of(2).0.len(), FETCHES_MAX);
        for none in [0, 4, u32::MAX] {
            assert_eq!(read.of(none), (&[][..], &[][..]));
        }
        for len in 0..bytes.len() {
            assert!(Fetches::read(&words.as_bytes()[..len]).is_none(), "{len}");
        }
    }

    #[test]
    fn words_of_all_kinds() {
        assert_eq!(scalar(Word::RAX, 4, true).sources[0], gprofinject_abi::args::RAX);
        assert_eq!(scalar(Word::RDX, 4, true).sources[0], gprofinject_abi::args::RDX);
        assert_eq!(scalar(Word::Vector(7), 4, false).sources[0], VECTOR + 7);
        let on_stack = scalar(Word::Stack(24), 4, false);
        assert_eq!((on_stack.sources[0], on_stack.offsets[0]), (ON_STACK, 24));
    }
}
