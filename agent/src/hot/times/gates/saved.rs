//! How the gates call compiled code, which may change any register that it need not preserve.

/// Assembly: defines the macros `gpi_times_save` and `gpi_times_restore`.
macro_rules! saved_registers {
    () => {
        crate::hot::times::gates::lines::lines!(
            // Saves all integer registers that compiled code may change, and aligns the stack. rbp points to them.
            ".macro gpi_times_save",
            "push rax", ".cfi_adjust_cfa_offset 8",
            "push rcx", ".cfi_adjust_cfa_offset 8",
            "push rdx", ".cfi_adjust_cfa_offset 8",
            "push rsi", ".cfi_adjust_cfa_offset 8",
            "push rdi", ".cfi_adjust_cfa_offset 8",
            "push r8", ".cfi_adjust_cfa_offset 8",
            "push r9", ".cfi_adjust_cfa_offset 8",
            "push r10", ".cfi_adjust_cfa_offset 8",
            "push r11", ".cfi_adjust_cfa_offset 8",
            "push rbp", ".cfi_adjust_cfa_offset 8", ".cfi_rel_offset rbp, 0",
            "mov rbp, rsp", ".cfi_def_cfa_register rbp",
            "and rsp, -16",
            save_vectors!(),
            ".endm",
            ".macro gpi_times_restore",
            restore_vectors!(),
            "mov rsp, rbp", ".cfi_def_cfa_register rsp",
            "pop rbp", ".cfi_adjust_cfa_offset -8", ".cfi_restore rbp",
            "pop r11", ".cfi_adjust_cfa_offset -8",
            "pop r10", ".cfi_adjust_cfa_offset -8",
            "pop r9", ".cfi_adjust_cfa_offset -8",
            "pop r8", ".cfi_adjust_cfa_offset -8",
            "pop rdi", ".cfi_adjust_cfa_offset -8",
            "pop rsi", ".cfi_adjust_cfa_offset -8",
            "pop rdx", ".cfi_adjust_cfa_offset -8",
            "pop rcx", ".cfi_adjust_cfa_offset -8",
            "pop rax", ".cfi_adjust_cfa_offset -8",
            ".endm",
        )
    };
}

pub(super) use saved_registers;
