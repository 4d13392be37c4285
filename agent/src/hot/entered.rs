//! The assembly with which a gate ([`crate::hot::gate`]) finds out how a function was entered, by a call or by a jump out of another hooked
//! function, and with which it counts a jump and goes on.

/// Assembly: macros of which gates use `gpi_look`, `gpi_looked`, `gpi_label`, `gpi_tail` and `gpi_next`. They use those of
/// [`recent_arcs!`](crate::hot::recent_arcs::recent_arcs).
macro_rules! entered {
    () => {
        concat!(
            // Input: rsp = CFA - below. Output: rcx = thread block, rdx = offset of the thread words.
            ".macro gpi_look below\n",
            "mov [rsp-40+\\below], rcx\n",
            "mov [rsp-48+\\below], rdx\n",
            "mov [rsp-56+\\below], rdi\n",
            words_offset!("rdx"), "\n",
            thread_word!("mov rcx, ", "[rdx+{block}]\n"),
            ".endm\n",
            ".macro gpi_looked below\n",
            "mov rcx, [rsp-40+\\below]\n",
            "mov rdx, [rsp-48+\\below]\n",
            "mov rdi, [rsp-56+\\below]\n",
            ".endm\n",
            // After gpi_look and gpi_label: counts a jump to function eax out of the function that the frame's cell names, and stores
            // function eax in the cell, since the frame is now its own. Output: rsi = cell. The old value of rsi is saved at
            // CFA-64, on the `otherwise` path as well.
            ".macro gpi_tail below, otherwise\n",
            "mov [rsp-64+\\below], rsi\n",
            ".if {is_libraries}\n",
            words_offset!("rdx"), "\n",
            ".endif\n",
            thread_word!("mov rsi, ", "[rdx+{cells}]\n"),
            "lea rdx, [rsp+\\below]\n",
            "xor rdx, [rsi+{window_word}]\n",
            "cmp rdx, {window}\n",
            "jae \\otherwise\n",
            "lea rsi, [rsi+rdx*2]\n",
            // The cell may be that of another frame than an interned one, or than a standard one whose contents are aside.
            "cmp byte ptr [rsi+{state}], {interned}\n",
            "jae \\otherwise\n",
            ".if {is_libraries} == 0\n",
            "mov rdx, r11\n",
            "sub rdx, [rip+{agent}+{arena_lo}]\n",
            "cmp rdx, {labels_end}\n",
            "jb \\otherwise\n",
            ".endif\n",
            "mov r11d, [rsi+{function}]\n",
            "cmp r11d, eax\n",
            "je \\otherwise\n",
            "bts r11, {tail_bit}\n",
            "gpi_recent \\otherwise\n",
            "mov [rsi+{function}], eax\n",
            ".endm\n",
            // Stores at CFA-32 the address in the arena that the field `place` of function eax's record names, minus `before`
            // bytes. Changes rax, rcx.
            ".macro gpi_next place, below, before=0\n",
            "imul eax, eax, {record}\n",
            "mov rcx, [rip+{agent}+{functions}]\n",
            "mov eax, [rcx+rax+\\place]\n",
            "add rax, [rip+{agent}+{base}]\n",
            ".if \\before\n",
            "sub rax, \\before\n",
            ".endif\n",
            "mov [rsp-32+\\below], rax\n",
            ".endm\n",
            // After gpi_look: goes to `label` if the return address r11 is an exit label. Between the arenas of libraries there may be
            // anything, so the page is looked up. Changes rdi, and rdx if the functions are those of libraries.
            ".macro gpi_label label\n",
            "cmp r11, [rip+{agent}+{arena_lo}]\n",
            "jb 6f\n",
            "cmp r11, [rip+{agent}+{arena_hi}]\n",
            ".if {is_libraries}\n",
            "jae 6f\n",
            // `bt` with an operand in memory takes ten times as long.
            "mov rdi, r11\n",
            "sub rdi, [rip+{agent}+{base}]\n",
            "lea rdx, [rip+{labels}]\n",
            "shr rdi, {page_shift}+6\n",
            "mov rdx, [rdx+rdi*8]\n",
            "mov rdi, r11\n",
            "sub rdi, [rip+{agent}+{base}]\n",
            "shr rdi, {page_shift}\n",
            "bt rdx, rdi\n",
            "jc \\label\n",
            ".else\n",
            "jb \\label\n",
            ".endif\n",
            "6:\n",
            ".endm\n",
        )
    };
}

pub(crate) use entered;
