//! Letters outside of ASCII in C++'s mangled names, which the crate `cpp_demangle` does not know.
//!
//! gcc and clang write identifiers into mangled names in UTF-8, with their lengths in bytes. Each such character is replaced by
//! as many bytes in ASCII that occur nowhere else in the name, and is put back into what the demangler has written.

use std::borrow::Cow;

/// What begins the substitute of a character. The demangler takes it for a letter.
const MARK: char = '$';
/// What a substitute ends in. Each one stands for a character.
const ENDS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// A mangled name in ASCII.
pub(super) struct Hidden {
    pub(super) text: String,
    /// The characters of 2, 3 and 4 bytes that were replaced, each by the mark, 0, 1 or 2 underscores, and the end with its index.
    characters: [Vec<char>; 3],
}

impl Hidden {
    /// Returns the mangled name in ASCII. `None` if it is ASCII, if it is no mangled name of C++, and if it has the mark itself or
    /// too many different characters.
    pub(super) fn of(name: &str) -> Option<Hidden> {
        if name.is_ascii() || !name.starts_with("_Z") || name.contains(MARK) {
            return None;
        }
        let mut hidden = Hidden { text: String::with_capacity(name.len()), characters: Default::default() };
        for character in name.chars() {
            if character.is_ascii() {
                hidden.text.push(character);
                continue;
            }
            let more = character.len_utf8().checked_sub(2)?;
            let known = hidden.characters.get_mut(more)?;
            let index = known.iter().position(|&known| known == character).unwrap_or_else(|| {
                known.push(character);
                known.len() - 1
            });
            let end = char::from(*ENDS.get(index)?);
            hidden.text.push(MARK);
            (0..more).for_each(|_| hidden.text.push('_'));
            hidden.text.push(end);
        }
        Some(hidden)
    }

    /// Returns a text that was made of the name with the characters of the name.
    pub(super) fn restore<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if !text.contains(MARK) {
            return Cow::Borrowed(text);
        }
        let mut parts = text.split(MARK);
        let mut restored = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let end = part.trim_start_matches('_');
            let index = end.bytes().next().and_then(|byte| ENDS.iter().position(|&end| end == byte));
            let known = self.characters.get(part.len() - end.len());
            match known.zip(index).and_then(|(known, index)| known.get(index)) {
                Some(&character) => {
                    restored.push(character);
                    restored.push_str(&end[1..]);
                }
                // A demangler that has cut a name may have cut a substitute as well.
                None => {
                    restored.push(MARK);
                    restored.push_str(part);
                }
            }
        }
        Cow::Owned(restored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_have_substitutes_of_their_length() {
        let name = "_ZN8größen7ZählerIiE11zählen_数El𝛼ö_";
        let hidden = Hidden::of(name).expect("it is mangled");
        assert!(hidden.text.is_ascii());
        assert_eq!(hidden.text.len(), name.len());
        assert_eq!(hidden.restore(&hidden.text), name);
    }

    #[test]
    fn names_that_stay_as_they_are() {
        assert!(Hidden::of("_Z1fv").is_none());
        assert!(Hidden::of("größe").is_none());
        assert!(Hidden::of("_Z7gr$ößev").is_none());
        let many: String = ('\u{100}'..).take(63).collect();
        assert!(Hidden::of(&format!("_Z126{many}v")).is_none());
    }

    #[test]
    fn a_cut_substitute_is_kept() {
        let hidden = Hidden::of("_Z2öv").expect("it is mangled");
        assert_eq!(hidden.restore("$0 $1 $ $__ $___0 $"), "ö $1 $ $__ $___0 $");
    }
}
