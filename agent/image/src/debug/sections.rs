//! The contents of sections, decompressed if they are compressed.

use std::borrow::Cow;
use std::io::{self, Read};

use object::{CompressionFormat, ObjectSection};

/// The largest factor by which compression makes debug information smaller as a whole.
const OFTEN: u64 = 64;
/// The largest factor that deflate can reach at all. The line table of generated code may become smaller by a
/// factor of some hundred.
const AT_MOST: u64 = 1032;
/// The largest size in bytes of a section that becomes smaller by more than [`OFTEN`].
const LARGE: u64 = 1 << 30;

/// Whether compression can have made this number of bytes of the claimed number.
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

/// Returns the contents of a section.
///
/// The size that a compressed section claims does not determine the allocation: the memory grows with the
/// data, and in the end the claim must be true.
///
/// # Errors
/// The section is damaged, or compressed in an unknown way.
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

/// Decompresses Zstandard's frames, one after the other, up to `most` bytes.
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
        // gcc's .debug_line of 3000 similar functions.
        assert!(is_likely(198_091, 1075));
        assert!(is_likely(64 << 30, 1 << 30));
        assert!(!is_likely(1 << 20, 1000));
        assert!(!is_likely(3 << 30, 4 << 20));
        assert!(!is_likely(u64::MAX, u64::MAX >> 7));
    }
}
