//! What an earlier run has found out about a file: its functions, and its other properties.
//!
//! The planner needs more than that ([`Image::details`]), but a run whose plans are kept needs no more.

use std::borrow::Cow;
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::facts::Facts;
use crate::file::elf;
use crate::frames::unwind;
use crate::image::{Code, Image, Segment};
use crate::list::Functions;
use crate::tables::{Reader, Writer};

/// The parts of an image that are kept, beside its functions. The others are read from the file's headers.
#[derive(Serialize, Deserialize)]
struct Outline<'i> {
    code_ranges: Vec<(u64, u64)>,
    facts: Cow<'i, Facts>,
}

impl<'d> Image<'d> {
    /// Returns what [`Image::from_outline`] needs besides the file. Returns `None` if calls were removed from the code, which depends on more than the file.
    pub fn outline(&self) -> Option<Vec<u8>> {
        if !self.removed.is_empty() || self.facts.hooks_removed {
            return None;
        }
        let code_ranges = self.code_ranges.iter().map(|range| (range.start, range.end)).collect();
        let outline = Outline { code_ranges, facts: Cow::Borrowed(&self.facts) };
        let mut writer = Writer::default();
        writer.add(&postcard::to_allocvec(&outline).ok()?);
        self.functions.write(&mut writer).ok()?;
        Some(writer.into_bytes())
    }

    /// Makes the image of a file from what [`Image::outline`] has returned for a file with the same bytes and the same debug file.
    /// Returns `None` if it is damaged.
    pub fn from_outline(
        bytes: &'d [u8],
        debug_file: Option<&'d [u8]>,
        outline: &'static [u8],
    ) -> Option<Image<'d>> {
        let elf = elf::Elf::parse_any(bytes).ok()?;
        let mut reader = Reader::new(outline);
        let (outline, []) = postcard::take_from_bytes::<Outline>(reader.bytes(1)?).ok()? else { return None };
        let functions = Functions::read(&mut reader)?;
        let Outline { code_ranges, facts } = outline;
        let is_sound = reader.is_at_end() && code_ranges.iter().all(|(start, end)| start <= end);
        is_sound.then(|| Image::with(&elf, (bytes, debug_file), code_ranges, functions, facts.into_owned()))
    }

    /// Makes an image without details.
    pub(crate) fn with(
        elf: &elf::Elf<'d>,
        files: (&'d [u8], Option<&'d [u8]>),
        code_ranges: Vec<(u64, u64)>,
        functions: Functions<'d>,
        facts: Facts,
    ) -> Image<'d> {
        let code = |load: &elf::Load<'d>| Code { address: load.address, bytes: load.mapped.into() };
        let segment =
            |load: &elf::Load<'d>| Segment { address: load.address, bytes: load.bytes, memory: load.memory };
        Image {
            elf_type: elf.elf_type,
            entry: elf.entry,
            phdr: elf.phdr,
            lo: elf.lo,
            hi: elf.hi,
            code: elf.loads.iter().filter(|load| load.executable).map(code).collect(),
            segments: elf.loads.iter().map(segment).collect(),
            removed: Vec::new(),
            code_ranges: code_ranges.into_iter().map(|(start, end)| start..end).collect(),
            functions,
            facts,
            nameless_parts: OnceLock::new(),
            details: OnceLock::new(),
            eh_frame: unwind::eh_frame(elf).unwrap_or_default().0,
            files,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> Vec<u8> {
        std::fs::read("/proc/self/exe").expect("our own program")
    }

    #[test]
    fn an_outline_is_the_image() {
        let bytes = own();
        let image = Image::read(&bytes).expect("a program");
        let outline = image.outline().expect("nothing was removed").leak();
        let again = Image::from_outline(&bytes, None, outline).expect("undamaged");
        assert!(image.functions.addresses().eq(again.functions.addresses()));
        assert_eq!(
            (image.functions.len(), image.functions.extent()),
            (again.functions.len(), again.functions.extent())
        );
        let kinds =
            |image: &Image| (0..=image.functions.len()).map(|n| image.functions.kind(n)).collect::<Vec<_>>();
        assert_eq!(kinds(&image), kinds(&again));
        assert_eq!(format!("{:?}", *image.functions), format!("{:?}", *again.functions));
        assert_eq!(format!("{:?}", image.facts), format!("{:?}", again.facts));
        assert_eq!((image.elf_type, image.entry, image.phdr), (again.elf_type, again.entry, again.phdr));
        assert_eq!((image.lo, image.hi, &image.code_ranges), (again.lo, again.hi, &again.code_ranges));
        assert_eq!(image.code.len(), again.code.len());
        // The rest is read when it is needed.
        assert!(again.details.get().is_none());
        assert_eq!(image.details().code_pointers, again.details().code_pointers);
        assert_eq!(image.details().landing_pads, again.details().landing_pads);
        let function = image.functions.iter().find(|function| image.cfa(function.address).is_some());
        let address = function.expect("with a frame description").address;
        assert_eq!(image.cfa(address), again.cfa(address));
    }

    #[test]
    fn a_damaged_outline_is_refused_or_harmless() {
        let bytes = own();
        let outline = Image::read(&bytes).expect("a program").outline().expect("nothing was removed").leak();
        for len in (0..outline.len()).step_by(outline.len() / 50 + 1) {
            assert!(Image::from_outline(&bytes, None, &outline[..len]).is_none(), "{len} bytes");
        }
        for at in (0..outline.len()).step_by(outline.len() / 200 + 1) {
            let mut damaged = outline.to_vec();
            damaged[at] ^= 0x81;
            if let Some(image) = Image::from_outline(&bytes, None, damaged.leak()) {
                let known =
                    image.functions.iter().filter(|function| image.function_at(function.address).is_some());
                std::hint::black_box((
                    known.count(),
                    (0..image.functions.len()).map(|n| image.owner(n)).max(),
                ));
            }
        }
    }
}
