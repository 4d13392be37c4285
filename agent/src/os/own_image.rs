//! The agent's own library, as it lies in memory.
#![allow(
    unsafe_code,
    reason = "the linker's symbols are read by instructions; the library's headers are read"
)]

const PAGE: u64 = 4096;

#[cfg(not(test))]
core::arch::global_asm!(".hidden _end");

/// Returns the start address of the library.
pub(crate) fn start() -> u64 {
    let start: u64;
    #[cfg(not(test))]
    // SAFETY: the linker defines the symbol, and only its address is taken.
    unsafe {
        core::arch::asm!("lea {}, [rip + __ehdr_start]", out(reg) start, options(nostack, pure, nomem));
    }
    #[cfg(test)]
    {
        start = 0;
    }
    start
}

/// Returns the end address of the library.
pub(crate) fn end() -> u64 {
    let end: u64;
    #[cfg(not(test))]
    // SAFETY: the linker defines the symbol, and only its address is taken.
    unsafe {
        core::arch::asm!("lea {}, [rip + _end]", out(reg) end, options(nostack, pure, nomem));
    }
    #[cfg(test)]
    {
        end = 0;
    }
    end
}

/// A segment of the library, as far as it comes from the library's file: whole pages.
#[cfg_attr(feature = "standalone", allow(dead_code))]
pub(crate) struct Segment {
    pub(crate) start: u64,
    pub(crate) len: u64,
    /// Where it is in the file.
    pub(crate) offset: u64,
    pub(crate) is_written: bool,
    pub(crate) is_executed: bool,
}

/// Returns the segments of the library.
#[cfg_attr(feature = "standalone", allow(dead_code))]
pub(crate) fn segments() -> impl Iterator<Item = Segment> {
    const PT_LOAD: u32 = 1;
    const EXECUTED: u32 = 1;
    const WRITTEN: u32 = 2;
    // SAFETY: `headers` returns addresses of our own program headers.
    let read = |header: u64| unsafe { *(header as *const [u64; 5]) };
    headers().map(read).filter(|words| words[0] as u32 == PT_LOAD).map(|words| {
        let [kind_and_flags, offset, address, _, len] = words;
        let flags = (kind_and_flags >> 32) as u32;
        let first = address & !(PAGE - 1);
        Segment {
            start: start() + first,
            len: (address + len).next_multiple_of(PAGE) - first,
            offset: offset & !(PAGE - 1),
            is_written: flags & WRITTEN != 0,
            is_executed: flags & EXECUTED != 0,
        }
    })
}

/// Returns the address of the library's unwind tables, an `.eh_frame_hdr`. Integer code only; see [`crate::hot::gate`].
pub(crate) fn unwind_tables() -> Option<u64> {
    const PT_GNU_EH_FRAME: u32 = 0x6474_e550;
    let library = start();
    if library == 0 {
        return None;
    }
    // SAFETY: e_phoff, e_phentsize and e_phnum of our own header, and the program headers that they name.
    unsafe {
        let mut header = library + *((library + 0x20) as *const u64);
        let (size, count) = (*((library + 0x36) as *const u16), *((library + 0x38) as *const u16));
        let end = header + u64::from(count) * u64::from(size);
        while header < end {
            if *(header as *const u32) == PT_GNU_EH_FRAME {
                return Some(library + *((header + 0x10) as *const u64));
            }
            header += u64::from(size);
        }
    }
    None
}

/// Returns the addresses of the library's program headers.
#[cfg_attr(feature = "standalone", allow(dead_code))]
fn headers() -> impl Iterator<Item = u64> {
    let library = start();
    // SAFETY: e_phoff, e_phentsize and e_phnum of our own header.
    let (first, size, count) = unsafe {
        let half = |at: u64| u64::from(*((library + at) as *const u16));
        (library + *((library + 0x20) as *const u64), half(0x36), half(0x38))
    };
    (0..count).map(move |index| first + index * size)
}
