//! What the kernel says of the process's memory in /proc/self/stat, and the one part of it that the agent changes: where the
//! environment ends that /proc/self/environ shows.
#![allow(unsafe_code, reason = "a system call reads a structure")]

use crate::os::files;
use crate::os::kernel::call;
use linux_raw_sys::{general, prctl};

/// The number of fields of /proc/self/stat (proc_pid_stat(5)).
const FIELDS: usize = 52;

/// The fields of /proc/self/stat, by their numbers in proc_pid_stat(5), of which the first is 1.
pub(crate) struct Stat([u64; FIELDS]);

impl Stat {
    /// Reads the file. Returns `None` if it cannot be read.
    pub(crate) fn read() -> Option<Stat> {
        let mut text = [0_u8; 1024];
        let len = contents(b"/proc/self/stat\0", &mut text)?;
        Stat::parse(text.get(..len)?)
    }

    fn parse(text: &[u8]) -> Option<Stat> {
        // The second field is a name in parentheses, which may itself contain blanks and parentheses.
        let behind = text.iter().rposition(|&byte| byte == b')')?;
        let mut stat = Stat([0; FIELDS]);
        let words = text.get(behind + 2..)?.split(|&byte| byte == b' ');
        for (place, word) in stat.0.iter_mut().skip(2).zip(words) {
            let digits = word.iter().filter(|byte| byte.is_ascii_digit());
            *place = digits
                .fold(0_u64, |value, &byte| value.wrapping_mul(10).wrapping_add(u64::from(byte - b'0')));
        }
        Some(stat)
    }

    /// Returns a field that is an address, or 0 if the file does not have it.
    pub(crate) fn field(&self, number: usize) -> u64 {
        number.checked_sub(1).and_then(|index| self.0.get(index)).copied().unwrap_or(0)
    }

    /// Returns the address at which the kernel has begun to fill the stack.
    pub(crate) fn start_of_stack(&self) -> u64 {
        self.field(28)
    }
}

/// Returns for how long, in nanoseconds, the calling thread could have run while other threads had the processor: the second number in
/// schedstat (Documentation/scheduler/sched-stats.rst). `None` if the kernel does not say.
pub(crate) fn ready_ns() -> Option<u64> {
    let mut text = [0_u8; 80];
    let len = contents(b"/proc/thread-self/schedstat\0", &mut text)?;
    let number = text.get(..len)?.split(|&byte| byte == b' ').nth(1)?;
    let digits = number.iter().filter(|byte| byte.is_ascii_digit());
    Some(digits.fold(0_u64, |value, &byte| value.wrapping_mul(10).wrapping_add(u64::from(byte - b'0'))))
}

/// Reads the start of a file. Returns the number of bytes.
fn contents(path: &[u8], buffer: &mut [u8]) -> Option<usize> {
    let fd = files::open(path, false).ok()?;
    let len = files::read(fd, buffer);
    files::close(fd);
    len.ok()
}

/// Makes the kernel take an address for the end of the environment's strings. Nothing changes if the kernel cannot do that
/// (it is built without CONFIG_CHECKPOINT_RESTORE), if the process has inherited a seccomp filter, which may punish prctl, or
/// if the address is not one in the environment.
pub(crate) fn end_environment(end: u64) {
    let Some(stat) = Stat::read() else { return };
    let (start, old) = (stat.field(50), stat.field(51));
    if !(start..old).contains(&end) || !has_no_filter() {
        return;
    }
    // SAFETY: without an argument, brk changes nothing, and returns where the heap ends.
    let Ok(brk) = (unsafe { call(general::__NR_brk, [0]) }) else { return };
    // struct prctl_mm_map (linux/prctl.h): the extents of code and data, of the heap and of the arguments, no auxiliary vector,
    // and in the last word its length, 0, and no descriptor of a program.
    let map: [u64; 13] = [
        stat.field(26),
        stat.field(27),
        stat.field(45),
        stat.field(46),
        stat.field(47),
        brk,
        stat.start_of_stack(),
        stat.field(48),
        stat.field(49),
        start,
        end,
        0,
        u64::from(u32::MAX) << 32,
    ];
    let arguments: [u64; 4] =
        [prctl::PR_SET_MM.into(), prctl::PR_SET_MM_MAP.into(), map.as_ptr() as u64, size_of_val(&map) as u64];
    // SAFETY: the kernel reads the structure, all of whose values but one are those that it has itself.
    let _ = unsafe { call(general::__NR_prctl, arguments) };
}

/// Returns whether the process has no seccomp filter.
fn has_no_filter() -> bool {
    has_status(b"Seccomp:\t0")
}

/// Returns whether the kernel says that no other process traces this one.
pub(crate) fn is_untraced() -> bool {
    has_status(b"TracerPid:\t0")
}

/// Returns whether /proc/self/status has this line.
fn has_status(wanted: &[u8]) -> bool {
    let mut text = [0_u8; 4096];
    let len = contents(b"/proc/self/status\0", &mut text).unwrap_or(0);
    text.get(..len).unwrap_or_default().split(|&byte| byte == b'\n').any(|line| line == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_behind_the_name() {
        let mut text = b"17 (a) b (c) S 1 17".to_vec();
        for number in 6..=52 {
            text.extend_from_slice(format!(" {number}").as_bytes());
        }
        let stat = Stat::parse(&text).expect("a name in parentheses");
        assert_eq!((stat.field(4), stat.field(5), stat.field(50), stat.field(51)), (1, 17, 50, 51));
        assert_eq!(stat.start_of_stack(), 28);
        assert!(Stat::parse(b"").is_none());
    }
}
