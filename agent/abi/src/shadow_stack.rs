//! Whether the processor will keep a shadow stack of return addresses for a process (Intel's CET, "SHSTK"), which both the injector and
//! the agent have to know before the C library turns it on.
//!
//! The kernel turns shadow stacks on only when a process asks for it, by `arch_prctl(ARCH_SHSTK_ENABLE)`
//! (Documentation/arch/x86/shstk.rst). The dynamic linker of glibc 2.39 and later, and the start code of static programs, do so just before
//! the program's own code runs, if the processor and the kernel can do it, if the program and its libraries are marked for it
//! (`GNU_PROPERTY_X86_FEATURE_1_SHSTK`), and if the user asks for it in GLIBC_TUNABLES (sysdeps/x86/cpu-features.c,
//! sysdeps/x86_64/dl-cet.c). That is after the agent has come into the process, so what will happen has to be told by the same signs.

/// The environment variable with glibc's tunables.
pub const TUNABLES: &str = "GLIBC_TUNABLES";

/// The file in which the kernel lists what each processor can do.
pub const PROCESSORS: &str = "/proc/cpuinfo";

/// The number of bytes at the beginning of [`PROCESSORS`] that have the flags of the first processor. Recent ones have some 200 flags.
pub const PROCESSORS_LEN: usize = 4096;

/// Returns whether a value of [`TUNABLES`] may turn the shadow stack on: `glibc.cpu.hwcaps=...,SHSTK`, or `glibc.cpu.x86_shstk` with another
/// value than `off`. glibc lets the last one of several decide; here one of them is sufficient.
#[must_use]
pub fn is_asked_for(tunables: &[u8]) -> bool {
    tunables.split(|&byte| byte == b':').any(|tunable| {
        if let Some(capabilities) = tunable.strip_prefix(b"glibc.cpu.hwcaps=") {
            return capabilities.split(|&byte| byte == b',').any(|capability| capability == b"SHSTK");
        }
        tunable.strip_prefix(b"glibc.cpu.x86_shstk=").is_some_and(|value| value != b"off")
    })
}

/// Returns whether processes can have shadow stacks, by the beginning of [`PROCESSORS`]: whether the kernel and the processor have them
/// (`user_shstk`, since Linux 6.6). If the beginning shows no flags at all, the answer is yes, because nothing is known.
#[must_use]
pub fn is_possible(processors: &[u8]) -> bool {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b':');
    let mut lines = processors.split(|&byte| byte == b'\n').map(|line| line.split(is_blank));
    let flags = lines.find_map(|mut words| (words.next() == Some(b"flags")).then_some(words));
    flags.is_none_or(|mut flags| flags.any(|flag| flag == b"user_shstk"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tunables_ask_for_it_or_not() {
        for asks in [
            "glibc.cpu.hwcaps=SHSTK",
            "glibc.malloc.check=3:glibc.cpu.hwcaps=-AVX2,SHSTK,IBT",
            "glibc.cpu.x86_shstk=on",
            "glibc.cpu.x86_shstk=permissive:glibc.cpu.x86_ibt=off",
            "glibc.cpu.hwcaps=-SHSTK:glibc.cpu.hwcaps=SHSTK",
        ] {
            assert!(is_asked_for(asks.as_bytes()), "{asks}");
        }
        for other in [
            "",
            ":::",
            "glibc.cpu.hwcaps=-SHSTK",
            "glibc.cpu.hwcaps=-IBT,-SHSTK",
            "glibc.cpu.hwcaps=SHSTKX,XSHSTK,shstk",
            "glibc.cpu.x86_shstk=off",
            "glibc.malloc.check=SHSTK",
            "xglibc.cpu.hwcaps=SHSTK",
            "glibc.cpu.hwcaps",
        ] {
            assert!(!is_asked_for(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn the_flags_of_the_first_processor_tell() {
        assert!(is_possible(b"processor\t: 0\nflags\t\t: fpu user_shstk vme\nbugs\t: x\n"));
        assert!(!is_possible(b"processor\t: 0\nflags\t\t: fpu vme\nbugs\t: user_shstk\n"));
        assert!(!is_possible(b"flags\t\t: fpu xuser_shstk user_shstkx"));
        assert!(is_possible(b""));
        assert!(is_possible(b"flag\t: fpu\n"));
    }
}
