//! Saves and restores the vector registers that may hold arguments or results, around calls that the agent
//! makes where the program makes none.

/// Assembly: pushes the lower halves of the vector registers, 256 bytes, onto the stack, which must be
/// aligned to 16.
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

/// Assembly: restores these registers. The stack pointer is unchanged.
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

pub(crate) use {restore_vectors, save_vectors};
