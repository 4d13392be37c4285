//! Which registers and which part of the stack the values of a call take (System V ABI, section 3.2.3, "Passing" and
//! "Returning of Values").

use crate::signatures::classes::{ByteClass, Class, Eightbyte};
use crate::signatures::model::{Passing, Place, Shape, Type, Word};
use crate::signatures::units::Producer;

/// The integer registers for arguments.
const INTEGERS: u8 = 6;
/// The vector registers for arguments.
const VECTORS: u8 = 8;
/// The offset from the CFA above which arguments are not followed.
const STACK_MAX: u64 = 1 << 20;

/// What the arguments before have taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Assignment {
    integers: u8,
    vectors: u8,
    stack: u64,
    producer: Producer,
}

impl Assignment {
    /// Begins with the first argument of a function that this compiler has made.
    pub(crate) fn new(producer: Producer) -> Assignment {
        Assignment { integers: 0, vectors: 0, stack: 0, producer }
    }

    /// Returns the place of the next argument, of this type, in the convention of C and C++. `None` means that it is not known,
    /// and so neither are those of later arguments.
    pub(crate) fn argument(&mut self, ty: &Type) -> Option<Place> {
        match passing(ty) {
            Passing::Reference => self.address(),
            Passing::Unknown => None,
            Passing::Value => self.value(ty),
        }
    }

    /// The same for an argument of which the caller has made a copy, and passes the address.
    pub(crate) fn address(&mut self) -> Option<Place> {
        self.word(Eightbyte::Integer).map(Place::Behind)
    }

    /// The same for an argument that is passed by value in a vector register, if one is free.
    pub(crate) fn vector(&mut self, ty: &Type) -> Option<Place> {
        if self.vectors == VECTORS {
            return self.on_stack(ty);
        }
        self.vectors += 1;
        Some(Place::Unread)
    }

    /// The same for an argument that is passed by value.
    pub(crate) fn value(&mut self, ty: &Type) -> Option<Place> {
        match Class::of(&ty.classes, ty.size) {
            Class::Empty => Some(Place::Nowhere),
            // Padding may make it larger than the register, which matters on the stack.
            Class::One(class) if ty.size > 8 && !self.is_free(class) => self.on_stack(ty),
            Class::One(class) => self.word(class).map(Place::Word),
            Class::Two(low, high) => self.pair(low, high, ty),
            Class::Vector => self.vector(ty),
            Class::X87 | Class::Memory => self.on_stack(ty),
            Class::Unknown => None,
        }
    }

    /// Returns the vector register for the next argument that is passed in one.
    pub(crate) fn next_vector(&self) -> Word {
        Word::Vector(self.vectors)
    }

    fn is_free(&self, class: Eightbyte) -> bool {
        match class {
            Eightbyte::Integer => self.integers < INTEGERS,
            Eightbyte::Sse => self.vectors < VECTORS,
        }
    }

    /// Takes one word.
    pub(crate) fn word(&mut self, class: Eightbyte) -> Option<Word> {
        if !self.is_free(class) {
            return self.stack_room(8, 8).map(Word::Stack);
        }
        let taken = match class {
            Eightbyte::Integer => &mut self.integers,
            Eightbyte::Sse => &mut self.vectors,
        };
        let number = *taken;
        *taken += 1;
        Some(match class {
            Eightbyte::Integer => Word::Integer(number),
            Eightbyte::Sse => Word::Vector(number),
        })
    }

    /// Takes two words in registers, or, if one of them is not free, room on the stack. Registers that remain are for later
    /// arguments.
    fn pair(&mut self, low: Eightbyte, high: Eightbyte, ty: &Type) -> Option<Place> {
        let needed = |class| u8::from(low == class) + u8::from(high == class);
        let is_free = self.integers + needed(Eightbyte::Integer) <= INTEGERS
            && self.vectors + needed(Eightbyte::Sse) <= VECTORS;
        if !is_free {
            // GCC passes numbers of 128 bits on the stack as the ABI says. Before version 18, LLVM split them between the last
            // register and the stack and did not align them; before version 20, the register was then lost for later arguments.
            let is_number = matches!(ty.shape, Shape::Signed | Shape::Unsigned);
            return if is_number && self.producer != Producer::Gcc { None } else { self.on_stack(ty) };
        }
        Some(Place::Pair(self.word(low)?, self.word(high)?))
    }

    /// The same for an argument that is passed by value on the stack.
    pub(crate) fn on_stack(&mut self, ty: &Type) -> Option<Place> {
        self.stack_room(ty.size, ty.align).map(Place::Stack)
    }

    /// Takes room on the stack: a multiple of 8 bytes, aligned to 8 or to what the type needs.
    fn stack_room(&mut self, size: u64, align: u64) -> Option<u32> {
        let start = self.stack.checked_next_multiple_of(align.max(8))?;
        let end = start.checked_add(size.checked_next_multiple_of(8)?)?;
        if end > STACK_MAX {
            return None;
        }
        self.stack = end;
        u32::try_from(start).ok()
    }
}

/// Where a result is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Returned {
    At(Place),
    /// In memory that the caller has provided: its address is a first, hidden argument, and the function returns it in rax.
    InMemory,
    /// It is not known whether there is a hidden argument.
    Unknown,
}

/// Returns where a result of this type is, in the convention of C and C++.
pub(crate) fn result(ty: &Type) -> Returned {
    match passing(ty) {
        Passing::Reference => return Returned::InMemory,
        Passing::Unknown => return Returned::Unknown,
        Passing::Value => {}
    }
    let word = |class, is_second| match (class, is_second) {
        (Eightbyte::Integer, false) => Word::RAX,
        (Eightbyte::Integer, true) => Word::RDX,
        (Eightbyte::Sse, second) => Word::Vector(second.into()),
    };
    Returned::At(match Class::of(&ty.classes, ty.size) {
        Class::Empty => Place::Nowhere,
        Class::One(class) => Place::Word(word(class, false)),
        // The second one takes the next free register of its kind.
        Class::Two(low, high) => Place::Pair(word(low, false), word(high, low == high)),
        Class::Vector | Class::X87 => Place::Unread,
        Class::Memory if is_complex(ty) => match ty.classes.first() {
            // Two registers of the x87 unit (class COMPLEX_X87).
            ByteClass::X87 => Place::Unread,
            ByteClass::None => return Returned::Unknown,
            _ => return Returned::InMemory,
        },
        Class::Memory => return Returned::InMemory,
        Class::Unknown => return Returned::Unknown,
    })
}

/// Whether a type is a complex number whose parts have 16 bytes each.
fn is_complex(ty: &Type) -> bool {
    ty.shape == Shape::Opaque && ty.size == 32
}

/// Returns how a type is passed. Everything but classes of C++ is passed by value.
pub(crate) fn passing(ty: &Type) -> Passing {
    match &ty.shape {
        Shape::Struct(object) => object.passing,
        Shape::String(_) => Passing::Reference,
        Shape::Unknown => Passing::Unknown,
        _ => Passing::Value,
    }
}
