//! Contents of sections, decompressed where they are compressed.

use std::borrow::Cow;
use std::io::{self, Read};

use object::{CompressionFormat, ObjectSection};

/// Compression makes debug information smaller by so much at most, as a whole.
const OFTEN: u64 = 64;
/// The line table of generated code may become smaller by some hundred times, but nothing by more than this: it is what
/// deflate can do at best.
const AT_MOST: u64 = 1032;
/// A section that becomes smaller by more than [`OFTEN`] is never larger than this.
const LARGE: u64 = 1 << 30;

/// Whether so many bytes can have become so few.
fn is_likely(claimed: u64, compressed: u64) -> bool {
    let most = compressed.saturating_mul(AT_MOST).min(LARGE);
    claimed <= most.max(compressed.saturating_mul(OFTEN))
}

/// Why a section cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SectionError {
    #[error(transparent)]
    Object(#[from] object::Error),
    #[error("{compressed} compressed bytes that claim to be {claimed}")]
    Size { compressed: u64, claimed: u64 },
    #[error("the compressed data is damaged")]
    Data(#[source] io::Error),
}

/// The contents of a section.
///
/// The size that a compressed section claims decides nothing: as much memory is taken as there is data, and the claim has to
/// be true in the end.
pub(crate) fn contents<'d>(section: &impl ObjectSection<'d>) -> Result<Cow<'d, [u8]>, SectionError> {
    let stored = section.compressed_data()?;
    if stored.format == CompressionFormat::None {
        return Ok(Cow::Borrowed(stored.data));
    }
    let (compressed, claimed) = (stored.data.len() as u64, stored.uncompressed_size);
    let wrong = SectionError::Size { compressed, claimed };
    if !is_likely(claimed, compressed) {
        return Err(wrong);
    }
    let mut bytes = Vec::with_capacity(claimed.min(compressed.saturating_mul(4)) as usize);
    let read = match stored.format {
        CompressionFormat::Zlib => {
            flate2::read::ZlibDecoder::new(stored.data).take(claimed + 1).read_to_end(&mut bytes).map(drop)
        }
        CompressionFormat::Zstandard => read_frames(stored.data, claimed + 1, &mut bytes),
        _ => Err(io::Error::other("unknown compression")),
    };
    read.map_err(SectionError::Data)?;
    if bytes.len() as u64 == claimed { Ok(Cow::Owned(bytes)) } else { Err(wrong) }
}

/// Zstandard's frames, one behind the other, up to so many bytes.
fn read_frames(mut data: &[u8], most: u64, bytes: &mut Vec<u8>) -> io::Result<()> {
    while !data.is_empty() && (bytes.len() as u64) < most {
        let decoder = ruzstd::decoding::StreamingDecoder::new(&mut data).map_err(io::Error::other)?;
        decoder.take(most - bytes.len() as u64).read_to_end(bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::is_likely;

    #[test]
    fn sizes_that_a_section_may_claim() {
        // gcc's .debug_line of 3000 like functions.
        assert!(is_likely(198_091, 1075));
        assert!(is_likely(64 << 30, 1 << 30));
        assert!(!is_likely(1 << 20, 1000));
        assert!(!is_likely(3 << 30, 4 << 20));
        assert!(!is_likely(u64::MAX, u64::MAX >> 7));
    }
}
