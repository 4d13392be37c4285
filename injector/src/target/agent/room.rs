//! Where in a process the agent can lie, and the C library beside it.

use crate::os::proc::Mapping;

const PAGE: u64 = 4096;

/// A place for `len` bytes from where the C library's code can be reached.
pub(super) fn gap(mappings: &[Mapping], near: u64, len: u64) -> Option<u64> {
    const REACH: u64 = 1 << 30;
    const LOWEST: u64 = 1 << 20;
    const AWAY: u64 = 256 << 20;
    let below = mappings.iter().rposition(|mapping| mapping.lo <= near)?;
    for n in (0..=below).rev() {
        let hi = mappings[n].lo;
        let lo = n.checked_sub(1).map_or(LOWEST, |n| mappings[n].hi);
        // A page stays free on either side.
        if hi.saturating_sub(lo) >= len + 2 * PAGE && near - hi < REACH {
            // Right below is where the process's next memory comes from.
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

/// The C library's code.
pub(super) fn libc_code(mappings: &[Mapping]) -> Option<&Mapping> {
    let is_libc = |path: &str| {
        let name = path.trim_end_matches(" (deleted)").rsplit('/').next().unwrap_or_default();
        name.starts_with("libc.so.") || name.starts_with("libc-2.")
    };
    mappings.iter().find(|mapping| mapping.executable && is_libc(&mapping.path))
}

/// How much of the C library's code is read. Another file may have its name, and any length.
pub(super) fn code_len(libc: &Mapping) -> usize {
    const MOST: u64 = 64 << 20;
    (libc.hi - libc.lo).min(MOST) as usize
}

const SYSCALL: [u8; 2] = [0x0f, 0x05];

/// Address of a `syscall` instruction in a piece of code.
pub(super) fn find_syscall(code: &[u8]) -> Option<u64> {
    code.windows(SYSCALL.len()).position(|bytes| bytes == SYSCALL).map(|at| at as u64)
}
