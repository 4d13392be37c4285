//! The frame in which the gates ([`crate::hot::gate`]) keep the integer registers that compiled Rust may change.

/// Assembly: saves the registers that Rust code may change, except rax and r11, which the thunk has saved. Input: rsp
/// = CFA - 128. Output: rbp points to the saved registers, rsp is aligned to 16.
macro_rules! save_registers {
    () => {
        concat!(
            "push rcx\n",
            ".cfi_adjust_cfa_offset 8\n",
            "push rdx\n",
            ".cfi_adjust_cfa_offset 8\n",
            "push rsi\n",
            ".cfi_adjust_cfa_offset 8\n",
            "push rdi\n",
            ".cfi_adjust_cfa_offset 8\n",
            "push r8\n",
            ".cfi_adjust_cfa_offset 8\n",
            "push r9\n",
            ".cfi_adjust_cfa_offset 8\n",
            "push r10\n",
            ".cfi_adjust_cfa_offset 8\n",
            "push rbp\n",
            ".cfi_adjust_cfa_offset 8\n",
            ".cfi_rel_offset rbp, 0\n",
            "mov rbp, rsp\n",
            ".cfi_def_cfa_register rbp\n", // CFA = rbp + 192
            "push rax\n",                  // [rbp-8]: number
            "push r11\n",                  // [rbp-16]: return address
            "and rsp, -16\n",
        )
    };
}

/// Assembly: loads the arguments for Rust code from the saved registers: edi = number, rsi = return address, rdx =
/// CFA.
macro_rules! load_arguments {
    () => {
        concat!(
            "mov edi, [rbp-8]\n",
            "mov rsi, [rbp-16]\n",
            "lea rdx, [rbp+192]\n", // 8 pushes and 128 bytes
        )
    };
}

/// Assembly: restores the registers that `save_registers!` has saved. Output: rsp = CFA - 128. Does not change the
/// flags.
macro_rules! restore_registers {
    () => {
        concat!(
            "mov rsp, rbp\n",
            ".cfi_def_cfa_register rsp\n",
            "pop rbp\n",
            ".cfi_adjust_cfa_offset -8\n",
            ".cfi_restore rbp\n",
            "pop r10\n",
            ".cfi_adjust_cfa_offset -8\n",
            "pop r9\n",
            ".cfi_adjust_cfa_offset -8\n",
            "pop r8\n",
            ".cfi_adjust_cfa_offset -8\n",
            "pop rdi\n",
            ".cfi_adjust_cfa_offset -8\n",
            "pop rsi\n",
            ".cfi_adjust_cfa_offset -8\n",
            "pop rdx\n",
            ".cfi_adjust_cfa_offset -8\n",
            "pop rcx\n",
            ".cfi_adjust_cfa_offset -8\n",
        )
    };
}

pub(crate) use {load_arguments, restore_registers, save_registers};
