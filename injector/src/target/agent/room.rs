//! Finds room for the agent in a process, and the C library near it.

use gprofinject_abi::region::PAGE;

use crate::os::proc::Mapping;

/// Returns the address of free room for `len` bytes from which the C library's code at `near` can be reached,
/// if there is any.
pub(super) fn gap(mappings: &[Mapping], near: u64, len: u64) -> Option<u64> {
    const REACH: u64 = 1 << 30;
    const LOWEST: u64 = 1 << 20;
    const AWAY: u64 = 256 << 20;
    let below = mappings.iter().rposition(|mapping| mapping.lo <= near)?;
    for n in (0..=below).rev() {
        let hi = mappings[n].lo;
        let lo = n.checked_sub(1).map_or(LOWEST, |n| mappings[n].hi);
        // One page stays free on either side.
        if hi.saturating_sub(lo) >= len + 2 * PAGE && near - hi < REACH {
            // The process's next mappings are placed right below the existing ones.
            let away = ((hi - lo - len - 2 * PAGE) / 2).min(AWAY) & !(PAGE - 1);
            return Some(hi - PAGE - len - away);
        }
    }
    let mut lo = mappings.get(below)?.hi;
    for mapping in mappings.get(below + 1..)? {
        if mapping.lo.saturating_sub(lo) >= len + 2 * PAGE && lo - near < REACH {
            return Some(lo + PAGE);
        }
        lo = mapping.hi;
    }
    None
}

/// Returns the mapping of the C library's code.
pub(super) fn libc_code(mappings: &[Mapping]) -> Option<&Mapping> {
    let is_libc = |path: &str| {
        let name = path.trim_end_matches(" (deleted)").rsplit('/').next().unwrap_or_default();
        name.starts_with("libc.so.") || name.starts_with("libc-2.")
    };
    mappings.iter().find(|mapping| mapping.executable && is_libc(&mapping.path))
}

/// The number of bytes of the C library's code that are read. Another file may have the library's name, and
/// any length.
pub(super) fn code_len(libc: &Mapping) -> usize {
    const MOST: u64 = 64 << 20;
    (libc.hi - libc.lo).min(MOST) as usize
}

const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Returns the offset of a `syscall` instruction in a piece of code.
pub(crate) fn find_syscall(code: &[u8]) -> Option<u64> {
    code.windows(SYSCALL.len()).position(|bytes| bytes == SYSCALL).map(|at| at as u64)
}
