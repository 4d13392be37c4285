//! How the gates notice that the thread has been off the processor: [`switches`](crate::hot::times::switches).

/// Assembly: defines the macro `gpi_times_if_switched`, which jumps to a label if the calling thread's word is 0. It changes rdx.
#[cfg(not(feature = "standalone"))]
macro_rules! if_switched {
    () => {
        crate::hot::times::gates::lines::lines!(
            ".macro gpi_times_if_switched label",
            "mov rdx, [rip+{switched}]",
            "cmp qword ptr fs:[rdx], 0",
            "je \\label",
            ".endm",
        )
    };
}

/// Assembly: the same for programs that glibc's dynamic linker does not load, whose threads have no such word. It never jumps.
#[cfg(feature = "standalone")]
macro_rules! if_switched {
    () => {
        crate::hot::times::gates::lines::lines!(
            ".macro gpi_times_if_switched label",
            "# {switched}",
            ".endm",
        )
    };
}

pub(super) use if_switched;
