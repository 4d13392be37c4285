//! Random programs in assembly: functions of every shape that is hard to hook, which call each other, count
//! these calls themselves, and compute a result.
//!
//! The calls are counted where they are made, so that functions of one byte are counted too.

use std::fmt::Write;

use crate::sequences::Generator;

/// The number of functions in a program.
pub const FUNCTIONS: u64 = 150;

/// Returns the C source and the assembly source of one program.
pub fn program<R: FnMut() -> u64>(random: R) -> (String, String) {
    let mut generator = Generator::new(random);
    let tiny = 1 + generator.below(4);
    let (aligned, taken) = (generator.below(3), 1 + generator.below(4));
    let void = (0..FUNCTIONS).map(|_| generator.below(6) == 0).collect();
    let clean = (0..FUNCTIONS).map(|_| generator.below(2) == 0).collect();
    let mut writer = Writer { generator, tiny, aligned, taken, void, clean, text: String::new(), label: 0 };
    writer.text += ".text\n";
    for i in 0..FUNCTIONS {
        writer.function(i);
    }
    writer.data();
    let c = writer.driver();
    (c, writer.text)
}

struct Writer<R: FnMut() -> u64> {
    generator: Generator<R>,
    /// One in this number of functions has only a few bytes.
    tiny: u64,
    /// The alignment of functions; 0 means that they follow each other without padding.
    aligned: u64,
    /// The address of one in this number of functions is taken.
    taken: u64,
    /// Whether each function leaves nothing in rax that a caller uses.
    void: Vec<bool>,
    /// Whether each function preserves r11, and calls only functions that do. Others may keep a value in r11
    /// across a call of such a function.
    clean: Vec<bool>,
    text: String,
    label: u64,
}

impl<R: FnMut() -> u64> Writer<R> {
    fn below(&mut self, limit: u64) -> u64 {
        self.generator.below(limit)
    }

    fn line(&mut self, line: &str) {
        self.text += line;
        self.text.push('\n');
    }

    fn label(&mut self) -> String {
        self.label += 1;
        format!(".L{}", self.label)
    }

    /// Returns a function after `i`, so that calls come to an end.
    fn later(&mut self, i: u64) -> Option<u64> {
        let room = (FUNCTIONS - i - 1).min(30);
        let later = (room > 0).then(|| i + 1 + self.below(room));
        later.filter(|&j| self.clean[j as usize] || !self.clean[i as usize])
    }

    fn function(&mut self, i: u64) {
        match (self.below(8), self.aligned) {
            (_, 0) => {}
            (0, _) | (_, 2) => self.line(".p2align 4"),
            (1, _) => self.line(".p2align 3, 0xcc"),
            _ => {}
        }
        let visible = if self.below(2) == 0 { ".globl" } else { ".hidden" };
        let _ =
            write!(self.text, ".globl f{i}\n{visible} f{i}\n.type f{i}, @function\nf{i}:\n.cfi_startproc\n");
        if self.below(4) == 0 {
            self.line("endbr64");
        }
        if self.void[i as usize] || self.below(self.tiny) == 0 {
            self.tiny(i);
        } else if self.below(10) == 0 {
            self.odd(i);
        } else {
            self.beginning(i);
            for _ in 0..self.below(3) {
                self.middle(i);
            }
            self.end(i);
        }
        let _ = write!(self.text, ".cfi_endproc\n.size f{i}, . - f{i}\n");
    }

    fn tiny(&mut self, i: u64) {
        let label = self.label();
        let text = match self.below(4) + if self.void[i as usize] { 0 } else { 4 } {
            0 => "ret".into(),
            1 => "repz ret".into(),
            2 => format!("{label}: shr %edi\njne {label}\nret"),
            3 => format!("shr %edi\njne f{i}\nret"),
            4 => "mov %edi, %eax\nret".into(),
            5 => "push %rdi\npop %rax\nret".into(),
            6 => "xor %eax, %eax\nret".into(),
            _ => "lea 1(%rdi), %rax\nret".into(),
        };
        self.line(&text);
    }

    /// Writes a function that removes its return address from the slot, calls others, and returns by means of
    /// the copy.
    fn odd(&mut self, i: u64) {
        let (first, last) = self.generator.pick(&[
            ("pop %rcx\npush %rbx\nmov %rcx, %rbx", "mov %rbx, %rcx\npop %rbx\njmp *%rcx"),
            ("push %rbx\nmov 8(%rsp), %rbx", "mov %rbx, %rcx\npop %rbx\nlea 8(%rsp), %rsp\njmp *%rcx"),
            ("pushq (%rsp)", "pop %rcx\nadd $8, %rsp\njmp *%rcx"),
            ("push %rbx\nlea -24(%rsp), %rbx", "mov 32(%rbx), %rcx\npop %rbx\npop %rdx\npush %rcx\nret"),
            ("xchg %rbx, (%rsp)", "xchg %rbx, (%rsp)\nret"),
            (
                "push %rbx\nmovups (%rsp), %xmm5\nmovhlps %xmm5, %xmm5\nmovq %xmm5, %rbx",
                "mov %rbx, %rcx\npop %rbx\npop %rdx\njmp *%rcx",
            ),
            ("sub $8, %rsp", "test $1, %al\njne 9f\nadd $8, %rsp\nret\n9: pop %rcx\npop %rcx\njmp *%rcx"),
        ]);
        self.line(first);
        self.line("mov %rdi, %rax");
        for _ in 0..1 + self.below(3) {
            self.middle(i);
        }
        self.line(last);
    }

    /// Returns the code that follows a call of `j`.
    fn result(&self, j: u64) -> &'static str {
        if self.void[j as usize] { "mov $2, %eax\n" } else { "" }
    }

    /// Writes the beginning of a function, which leaves a value in rax; rdi is the argument, and stays.
    fn beginning(&mut self, i: u64) {
        let (a, b) = (self.label(), self.label());
        let later = self.later(i);
        let text = match self.below(17) {
            0 => "mov %rdi, %rax".into(),
            1 => "lea words+16(%rip), %rax\nmov (%rax), %rax\nadd %rdi, %rax".into(),
            2 => format!("mov %rdi, %rax\ntest $1, %dil\nje {a}\nnot %rax\n{a}: inc %rax"),
            3 => format!("mov %rdi, %rcx\nand $3, %ecx\njrcxz {a}\nadd $5, %rdi\n{a}: mov %rdi, %rax"),
            4 => format!("xor %eax, %eax\n{a}: inc %eax\nshr %edi\njne {a}"),
            // A loop to the first instruction.
            5 => format!("shr %edi\njne f{i}\nmov $3, %eax"),
            6 => format!("push %rdi\npop %rax\nshr $2, %edi\nje {a}\n{}jmp f{i}\n{a}:", self.filler(100)),
            // A branch back into the first bytes, from far away or near.
            7 => format!(
                "xor %eax, %eax\n{a}: add $3, %eax\nshr $3, %edi\n{}test %edi, %edi\njne {a}",
                self.filler(300)
            ),
            8 => format!("push %rcx\n{a}: lea 1(%rdi), %rax\n{}shr %edi\njne {a}\npop %rcx", self.filler(60)),
            9 => format!("mov $3, %ecx\nxor %eax, %eax\n{a}: add %rcx, %rax\nloop {a}"),
            10 => {
                format!("jmp {a}\n{b}: mov %edi, %eax\njmp 9f\n{a}: test $2, %dil\njne {b}\nmov $9, %eax\n9:")
            }
            11 => format!(
                "mov %edi, %eax\nand $3, %edi\nlea 7f(%rip), %rcx\nmovslq (%rcx,%rdi,4), %rdx\nadd %rcx, %rdx\njmp *%rdx\n\
                 .section .rodata\n.p2align 2\n7: .long {a}-7b, {b}-7b, {a}-7b, {b}-7b\n.text\n{a}: add $5, %eax\n{b}: inc %eax"
            ),
            12 => "lock incq words+8(%rip)\nmov words+8(%rip), %eax".into(),
            13 => "cmpq $7, words+24(%rip)\nsetg %al\nmovzbl %al, %eax".into(),
            14 => format!(
                "test $4, %dil\njne f{i}.cold\n{a}: mov %edi, %eax\n.pushsection .text.unlikely\n.type f{i}.cold, @function\n\
                 f{i}.cold: .cfi_startproc\nand $3, %edi\njmp {a}\n.cfi_endproc\n.size f{i}.cold, . - f{i}.cold\n.popsection"
            ),
            15 => match later {
                // A call is the first instruction, or one of the first.
                Some(j) => {
                    let counted = self.below(2) == 0;
                    // The counter is after the call.
                    let push = if counted { "push %rdi\n" } else { "" };
                    let pop = if counted { "pop %rdi\n" } else { "mov $6, %edi\n" };
                    let call = match self.clean[i as usize] || self.below(2) == 0 {
                        true => format!("call f{j}"),
                        false => format!("call *pointers+{}(%rip)", j * 8),
                    };
                    format!("{push}{call}\nincq calls+{}(%rip)\n{pop}{}", j * 8, self.result(j))
                }
                None => "mov $1, %eax".into(),
            },
            _ => "vpxor %xmm0, %xmm0, %xmm0\nvmovq %xmm0, %rax\nadd %rdi, %rax".into(),
        };
        self.line(&text);
    }

    /// Returns up to `most` bytes without effect.
    fn filler(&mut self, most: u64) -> String {
        let mut text = String::new();
        let bytes = self.below(most);
        let mut written = 0;
        while written < bytes {
            let (line, len) = self.generator.pick(&[
                ("nop\n", 1),
                ("mov %rax, %rax\n", 3),
                ("nopw 0(%rax,%rax,1)\n", 6),
                ("lea 0x1000(%rax), %rdx\n", 7),
            ]);
            text += line;
            written += len;
        }
        text
    }

    fn middle(&mut self, i: u64) {
        let Some(j) = self.later(i) else { return };
        let count = format!("incq calls+{}(%rip)", j * 8);
        let (label, result) = (self.label(), self.result(j));
        // A library's function, or any function that is called through a pointer, might change r11.
        let (clean, keeps) = (self.clean[i as usize], self.clean[j as usize]);
        let text = match self.below(9) {
            1 if clean => "not %rax".into(),
            7 | 8 if !clean && keeps => format!(
                "push %rax\nmov $5, %edi\nlea 3(%rax), %r11\n{count}\ncall f{j}\n{result}pop %rdi\nadd %r11, %rax\nadd %rdi, %rax"
            ),
            0 => format!(
                "push %rax\nmov $5, %edi\n{count}\ncall f{j}\n{result}pop %rdi\nlea (%rax,%rdi), %rax"
            ),
            1 => format!(
                "push %rbx\nmov %rax, %rbx\nmov $11, %edi\n{count}\ncall *pointers+{}(%rip)\n{result}add %rbx, %rax\npop %rbx",
                j * 8
            ),
            2 => format!(
                "test $1, %al\nje {label}\nmov %rax, %rdi\nand $15, %edi\n{count}\ncall f{j}\n{result}{label}:"
            ),
            3 => {
                let own = i * 8;
                // A single recursion.
                format!(
                    "cmpb $0, busy+{i}(%rip)\njne {label}\nmovb $1, busy+{i}(%rip)\nmov $3, %edi\nincq calls+{own}(%rip)\ncall f{i}\nmovb $0, busy+{i}(%rip)\n{label}:"
                )
            }
            _ => "lea 7(%rax,%rax,2), %rax".into(),
        };
        self.line(&text);
    }

    fn end(&mut self, i: u64) {
        let later = self.later(i).filter(|&j| !self.void[j as usize]);
        let text = match (self.below(8), later) {
            (0, Some(j)) => format!("mov %eax, %edi\nand $31, %edi\nincq calls+{}(%rip)\njmp f{j}", j * 8),
            (1, Some(j)) if !self.clean[i as usize] => {
                format!("mov $4, %edi\nincq calls+{}(%rip)\njmp *pointers+{}(%rip)", j * 8, j * 8)
            }
            (2, Some(j)) => format!(
                "mov $12, %edi\nxor %ecx, %ecx\ntest $1, %al\nsete %cl\nadd %rcx, calls+{}(%rip)\ntest $1, %al\nje f{j}\nret",
                j * 8
            ),
            (3, _) => "repz ret".into(),
            _ => "ret".into(),
        };
        self.line(&text);
    }

    fn data(&mut self) {
        self.text += ".data\n.globl calls, pointers\n.p2align 3\n";
        let _ =
            writeln!(self.text, "calls: .fill {FUNCTIONS}, 8, 0\nbusy: .fill {FUNCTIONS}, 1, 0\n.p2align 3");
        self.text += "words: .quad 3, 0, 17, 8\npointers:\n";
        for i in 0..FUNCTIONS {
            // The addresses of the others are not taken.
            let used = self.text.contains(&format!("*pointers+{}(", i * 8)) || self.below(self.taken) == 0;
            let _ = writeln!(self.text, ".quad {}", if used { format!("f{i}") } else { "0".into() });
        }
        self.text += ".section .note.GNU-stack, \"\", @progbits\n";
    }

    /// Writes the function that calls all others and prints the results: a sum, and how often each function
    /// was called.
    fn driver(&mut self) -> String {
        let mut c = String::from(
            "#include <stdio.h>\nextern unsigned long calls[];\nextern long (*pointers[])(long);\n",
        );
        for i in 0..FUNCTIONS {
            let _ = writeln!(c, "long f{i}(long);");
        }
        c += "int main(void) {\nunsigned long sum = 1;\n";
        for _ in 0..3 {
            for i in 0..FUNCTIONS {
                let argument = self.below(64);
                let used = if self.void[i as usize] { "0 *" } else { "" };
                let _ = match self.below(3) {
                    0 => writeln!(
                        c,
                        "if (pointers[{i}]) calls[{i}]++, sum = sum * 31 + {used} pointers[{i}]({argument});"
                    ),
                    1 => Ok(()),
                    _ => writeln!(c, "calls[{i}]++; sum = sum * 31 + {used} f{i}({argument});"),
                };
            }
        }
        let _ = writeln!(
            c,
            "printf(\"sum %lx\\n\", sum);\nfor (int i = 0; i < {FUNCTIONS}; i++) printf(\"f%d %lu\\n\", i, calls[i]);\nreturn 0;\n}}"
        );
        c
    }
}
