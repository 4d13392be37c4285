//! Assembly that preserves registers around calls of agent code, in places where the program makes
//! no call.

/// Assembly: pushes the lower halves of the vector registers, 256 bytes. The stack must be aligned to 16.
macro_rules! save_vectors {
    () => {
        concat!(
            "sub rsp, 256\n",
            "movaps [rsp+0], xmm0\n",
            "movaps [rsp+16], xmm1\n",
            "movaps [rsp+32], xmm2\n",
            "movaps [rsp+48], xmm3\n",
            "movaps [rsp+64], xmm4\n",
            "movaps [rsp+80], xmm5\n",
            "movaps [rsp+96], xmm6\n",
            "movaps [rsp+112], xmm7\n",
            "movaps [rsp+128], xmm8\n",
            "movaps [rsp+144], xmm9\n",
            "movaps [rsp+160], xmm10\n",
            "movaps [rsp+176], xmm11\n",
            "movaps [rsp+192], xmm12\n",
            "movaps [rsp+208], xmm13\n",
            "movaps [rsp+224], xmm14\n",
            "movaps [rsp+240], xmm15\n",
        )
    };
}

/// Assembly: restores the vector registers. The stack pointer does not change.
macro_rules! restore_vectors {
    () => {
        concat!(
            "movaps xmm0, [rsp+0]\n",
            "movaps xmm1, [rsp+16]\n",
            "movaps xmm2, [rsp+32]\n",
            "movaps xmm3, [rsp+48]\n",
            "movaps xmm4, [rsp+64]\n",
            "movaps xmm5, [rsp+80]\n",
            "movaps xmm6, [rsp+96]\n",
            "movaps xmm7, [rsp+112]\n",
            "movaps xmm8, [rsp+128]\n",
            "movaps xmm9, [rsp+144]\n",
            "movaps xmm10, [rsp+160]\n",
            "movaps xmm11, [rsp+176]\n",
            "movaps xmm12, [rsp+192]\n",
            "movaps xmm13, [rsp+208]\n",
            "movaps xmm14, [rsp+224]\n",
            "movaps xmm15, [rsp+240]\n",
        )
    };
}

/// Assembly: defines two macros. The first saves all integer registers that compiled code may change and the lower halves of the vector registers, and aligns the stack;
/// rbp points to the integer registers, rsp to the others. The second restores them.
macro_rules! saved_registers {
    ($save:literal, $restore:literal) => {
        concat!(
            ".macro ",
            $save,
            "\n",
            "push rax\n",
            ".cfi_adjust_cfa_offset 8\n",
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
            "push r11\n",
            ".cfi_adjust_cfa_offset 8\n",
            "push rbp\n",
            ".cfi_adjust_cfa_offset 8\n",
            ".cfi_rel_offset rbp, 0\n",
            "mov rbp, rsp\n",
            ".cfi_def_cfa_register rbp\n",
            "and rsp, -16\n",
            crate::os::vectors::save_vectors!(),
            ".endm\n",
            ".macro ",
            $restore,
            "\n",
            crate::os::vectors::restore_vectors!(),
            "mov rsp, rbp\n",
            ".cfi_def_cfa_register rsp\n",
            "pop rbp\n",
            ".cfi_adjust_cfa_offset -8\n",
            ".cfi_restore rbp\n",
            "pop r11\n",
            ".cfi_adjust_cfa_offset -8\n",
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
            "pop rax\n",
            ".cfi_adjust_cfa_offset -8\n",
            ".endm\n",
        )
    };
}

pub(crate) use {restore_vectors, save_vectors, saved_registers};
