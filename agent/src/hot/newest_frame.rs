//! The assembly by which a gate ([`crate::hot::gate`]) finds the caller of a call out of unhooked code, or out of a hooked
//! library to the program: the first steps of [`crate::hot::callers`], in the same order. It leaves all cases in which they
//! do not find the caller to the slow path, and those in which a frame may have been handed over from one set of functions
//! to the other.

/// Assembly: macros of which gates use `gpi_caller` and `gpi_called`. The arguments are `$foreign` and `$native` of
/// `gates!`.
macro_rules! newest_frame {
    ($foreign:literal, $native:literal) => {
        concat!(
            // Loads into rcx the cell of the frame with the CFA `at`; jumps to `otherwise` unless the cell lies in the
            // window, and to `gone` unless its frame exists. rdi = cells. Changes r11.
            ".macro gpi_frame at, otherwise, gone\n",
            "mov rcx, \\at\n",
            "xor rcx, [rdi+{window_word}]\n",
            "cmp rcx, {window}\n",
            "jae \\otherwise\n",
            "lea rcx, [rdi+rcx*2]\n",
            "gpi_exists \\gone\n",
            ".endm\n",
            // Jumps to `gone` unless there is a frame whose cell is at rcx.
            ".macro gpi_exists gone\n",
            "cmp qword ptr [rcx+{return_address}], 0\n",
            "je \\gone\n",
            "cmp byte ptr [rcx+{state}], {free}\n",
            "jae \\gone\n",
            ".endm\n",
            // Jumps to `otherwise` unless the frame with the CFA `at`, whose cell is at rcx, is older than the call
            // with the CFA r8, is on the same stack, was not left by a jump, and has in its return slot an exit label
            // of the set `facts`, which is that of libraries if `is_paged`. Interned frames are left to the slow path. rdx = offset of
            // the thread words. Changes r11.
            ".macro gpi_alive at, facts, is_paged, otherwise\n",
            "cmp \\at, r8\n",
            "jbe \\otherwise\n",
            thread_word!("cmp \\at, ", "[rdx+{stack_hi}]\n"),
            "jae \\otherwise\n",
            "cmp dword ptr [rcx+{link}], {left}\n",
            "je \\otherwise\n",
            "cmp byte ptr [rcx+{state}], {interned}\n",
            "jae \\otherwise\n",
            "mov r11, [\\at-8]\n",
            "cmp r11, [rip+\\facts+{arena_lo}]\n",
            "jb \\otherwise\n",
            "cmp r11, [rip+\\facts+{arena_hi}]\n",
            "jae \\otherwise\n",
            ".if \\is_paged\n",
            "sub r11, [rip+\\facts+{base}]\n",
            "shr r11, {page_shift}\n",
            "bt qword ptr [rip+{labels}], r11\n",
            "jnc \\otherwise\n",
            ".else\n",
            "sub r11, [rip+\\facts+{arena_lo}]\n",
            "cmp r11, {labels_end}\n",       // an interned label: the cell may be that of another frame
            "jb \\otherwise\n",
            ".endif\n",
            ".endm\n",
            // After gpi_look: finds the keys of a call out of unhooked code, or out of a hooked library to the program,
            // if the return address r11 is a site and the newest live frame is easily found. Output: r11 = key, r10 =
            // key in the program's own view if that is another one, otherwise 0, rsi = CFA of the newest live frame of
            // this set, r8 = CFA, rdi = cells, rcx and rdx as after gpi_look; the old rsi, r8, r9 and r10 are saved at
            // CFA-64 and below, and r9 is changed. In all other cases, jumps to `otherwise` with these registers and
            // r11 unchanged.
            ".macro gpi_caller below, otherwise\n",
            "mov edi, r11d\n",
            "and edi, {sites_mask}\n",
            "lea rdx, [rip+{sites}]\n",
            "mov rdx, [rdx+rdi*8]\n",
            "mov rdi, rdx\n",
            ".if {has_own}\n",
            "btr rdx, {twice_bit}\n",         // the site may be one in a hooked library
            ".endif\n",
            "cmp rdx, r11\n",
            "jne \\otherwise\n",
            "mov [rsp-64+\\below], rsi\n",
            "mov [rsp-72+\\below], r8\n",
            "mov [rsp-80+\\below], r9\n",
            "mov [rsp-88+\\below], r10\n",
            "mov r9, rdi\n",                  // the site
            words_offset!("rdx"), "\n",
            ".if \\below\n",
            thread_word!("mov rsi, ", "[rdx+{last}]\n"),
            "cmp byte ptr [rip+{agent}+{both}], 0\n",
            "je 36f\n",
            ".endif\n",
            "lea r8, [rsp+\\below]\n",
            thread_word!("cmp r8, ", "[rdx+{stack_lo}]\n"),
            "jb 35f\n",
            thread_word!("cmp r8, ", "[rdx+{stack_hi}]\n"),
            "jae 35f\n",
            thread_word!("mov rsi, ", "[rdx+{last}]\n"),
            thread_word!("mov rdi, ", "[rdx+{cells}]\n"),
            thread_word!("cmp rsi, ", "[rdx+{stack_hi}]\n"),
            "je 33f\n",
            "gpi_frame rsi, 35f, 42f\n",
            "cmp dword ptr [rcx+{function}], {libraries}\n",
            $foreign, " 45f\n",
            "gpi_alive rsi, {agent}, {is_libraries}, 35f\n",
            "31:\n",                          // this frame is the newest one of this set
            "mov r10d, [rcx+{function}]\n",
            "bts r10, {caller_bit}\n",
            "jmp 34f\n",
            "35:\n",
            "mov rsi, [rsp-64+\\below]\n",
            "mov r8, [rsp-72+\\below]\n",
            "mov r9, [rsp-80+\\below]\n",
            "mov r10, [rsp-88+\\below]\n",
            "mov r11, [rsp-8+\\below]\n",
            "jmp \\otherwise\n",
            "45:\n",                          // a live frame of the other set has its place
            "cmp rsi, r8\n",
            "jbe 42f\n",
            "mov r11, [rsi-8]\n",
            "cmp r11, [rip+{agent}+{arena_lo}]\n",
            "jb 42f\n",
            "cmp r11, [rip+{agent}+{arena_hi}]\n",
            "jb 35b\n",                       // a function of this set may have handed it over
            "42:\n",                          // hooked code had called it: are the next cells above it those of a live frame?
            "cmp rsi, r8\n",
            "cmovb rsi, r8\n",
            "and rsi, -8\n",
            "mov rcx, rsi\n",
            "xor rcx, [rdi+{window_word}]\n",
            "add rcx, {near}\n",
            "cmp rcx, {window}\n",
            "jae 35b\n",
            "lea rcx, [rdi+rcx*2-2*{near}]\n",
            "lea rdi, [rsi+{near}]\n",
            thread_word!("cmp rdi, ", "[rdx+{stack_hi}]\n"),
            thread_word!("cmova rdi, ", "[rdx+{stack_hi}]\n"),
            "43:\n",
            "add rsi, 8\n",
            "add rcx, {cell}\n",
            "cmp rsi, rdi\n",
            "jae 35b\n",
            "gpi_exists 43b\n",
            "cmp dword ptr [rcx+{link}], {left}\n",
            "je 43b\n",
            "cmp dword ptr [rcx+{function}], {libraries}\n",
            $foreign, " 44f\n",
            "gpi_alive rsi, {agent}, {is_libraries}, 35b\n",
            thread_word!("mov rdi, ", "[rdx+{cells}]\n"),
            "jmp 31b\n",
            "44:\n",                          // may a function of this set have handed the frame over to the other set?
            "mov r11, [rsi-8]\n",
            "cmp r11, [rip+{agent}+{arena_lo}]\n",
            "jb 43b\n",
            "cmp r11, [rip+{agent}+{arena_hi}]\n",
            "jae 43b\n",
            "jmp 35b\n",
            ".if \\below\n",
            "36:\n",                          // no shadow stack is kept
            "mov r11, {root}\n",
            "xor r10d, r10d\n",
            "jmp 39f\n",
            ".endif\n",
            "33:\n",                          // no frame of this set is alive
            "mov r10, {root}\n",
            "34:\n",
            ".if {has_own}\n",
            "bt r9, {twice_bit}\n",
            "jc 38f\n",
            ".endif\n",
            thread_word!("mov r9, ", "[rdx+{other}]\n"),     // the frame of the other set's last event
            "cmp r9, rsi\n",
            "jae 37f\n",                      // no frame of the other set is newer
            "gpi_frame r9, 35b, 35b\n",
            "cmp dword ptr [rcx+{function}], {libraries}\n",
            $native, " 35b\n",
            "gpi_alive r9, {other_agent}, {has_own}, 35b\n",
            "mov r9d, [rcx+{function}]\n",
            "bts r9, {caller_bit}\n",
            "38:\n",                          // r9 = key, r10 = the one in this set's own view
            "mov r11, r9\n",
            ".if {has_own}\n",
            "mov rcx, {no_caller}\n",
            "cmp r10, {root}\n",
            "cmove r10, rcx\n",
            "bts r10, {own_bit}\n",
            ".endif\n",
            "jmp 39f\n",
            "37:\n",
            "mov r11, r10\n",
            "xor r10d, r10d\n",
            "39:\n",
            thread_word!("mov rcx, ", "[rdx+{block}]\n"),
            ".endm\n",
            // Restores what gpi_caller has saved, except r11.
            ".macro gpi_called below\n",
            "mov rsi, [rsp-64+\\below]\n",
            "mov r8, [rsp-72+\\below]\n",
            "mov r9, [rsp-80+\\below]\n",
            "mov r10, [rsp-88+\\below]\n",
            ".endm\n",
        )
    };
}

pub(crate) use newest_frame;
