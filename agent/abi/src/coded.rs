//! Enums whose values shared records hold as numbers, because another program may have written any number
//! there.

/// Declares an enum, and the type of the number by which a shared record holds one of its values.
///
/// `get` of the number's type is the checked conversion back: it returns `None` if no value has that number.
macro_rules! coded {
    (
        $(#[$about:meta])*
        pub enum $name:ident as $code:ident($number:ty) {
            $($(#[$what:meta])* $value:ident = $n:literal,)*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$what])* $value = $n,)* }

        #[doc = concat!("The number of a [`", stringify!($name), "`], or any other number.")]
        #[repr(transparent)]
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, zerocopy::FromBytes, zerocopy::IntoBytes,
            zerocopy::Immutable, zerocopy::KnownLayout,
        )]
        pub struct $code(pub $number);

        impl $code {
            /// Returns the value with this number, or `None` if there is none.
            pub const fn get(self) -> Option<$name> {
                match self.0 {
                    $($n => Some($name::$value),)*
                    _ => None,
                }
            }
        }

        impl $name {
            /// Returns the number of this value.
            pub const fn code(self) -> $code {
                $code(self as $number)
            }
        }
    };
}

pub(crate) use coded;
