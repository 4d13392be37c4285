//! The assembly by which a gate ([`crate::hot::gate`]) finds an arc in the thread block's table of recent arcs
//! ([`gprofinject_abi::region::recent`]).

/// Assembly: macros of which gates use `gpi_set`, `gpi_way`, `gpi_recent` and `gpi_both`.
macro_rules! recent_arcs {
    () => {
        concat!(
            // Loads into rdi the address of the set of the table of recent arcs in which the arc of function eax with the key r11
            // is, if it is in the table. rcx = thread block. Changes rdx.
            ".macro gpi_set\n",
            "lea edx, [r11+rax]\n",
            "imul edx, edx, {hash}\n",
            "shr edx, {shift}\n",
            "shl edx, {ways_bits}\n",
            "lea rdi, [rcx+rdx*8+{recent}]\n",
            ".endm\n",
            // Loads into rdx the offset of the arc's slot in the thread block, if it is in the word of that set at this offset; otherwise
            // jumps to `otherwise`.
            ".macro gpi_way word, otherwise\n",
            "mov rdx, [rdi+\\word]\n",
            "ror rdx, 32\n",
            "sub rdx, 1\n",
            "cmp edx, eax\n",
            "jne \\otherwise\n",
            "shr rdx, 32\n",
            "cmp [rcx+rdx+{key}], r11\n",
            "jne \\otherwise\n",
            ".endm\n",
            // Finds the slot of the arc of function eax with the key r11, if it is in the table of recent arcs; otherwise jumps
            // to `otherwise`. rcx = thread block. Output: rdx = the slot's offset in it. Changes rdi.
            ".macro gpi_find otherwise\n",
            "gpi_set\n",
            "gpi_way 0, 51f\n",
            "jmp 52f\n",
            "51:\n",
            "gpi_way 8, \\otherwise\n",
            "52:\n",
            ".endm\n",
            // The same, and counts the arc.
            ".macro gpi_recent otherwise\n",
            "gpi_find \\otherwise\n",
            "inc qword ptr [rcx+rdx+{count}]\n",
            ".endm\n",
            // The same for the arc with the key r11 and, unless r10 is 0, the one with the key r10: counts both or none. Changes r9.
            ".macro gpi_both otherwise\n",
            "gpi_find \\otherwise\n",
            ".if {has_own}\n",
            "test r10, r10\n",
            "jz 53f\n",
            "mov r9, rdx\n",
            "mov r11, r10\n",
            "gpi_find \\otherwise\n",
            "inc qword ptr [rcx+r9+{count}]\n",
            "53:\n",
            ".endif\n",
            "inc qword ptr [rcx+rdx+{count}]\n",
            ".endm\n",
        )
    };
}

pub(crate) use recent_arcs;
