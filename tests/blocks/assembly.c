// What compilers do not write: flags that live long, the red zone, loops by rcx, short basic blocks after tables.
#include <stdio.h>

// The zero flag of the comparison is read two basic blocks later, on one path.
long flags(long a, long b);
__asm__(".text\n.globl flags\n.type flags, @function\n"
        "flags:\n\tcmp %rsi, %rdi\n\tmov $1, %eax\n\tjc 1f\n\tmov $2, %eax\n"
        "1:\tje 2f\n\tlea 10(%rax), %rax\n\tjo 3f\n\tlea 100(%rax), %rax\n"
        "2:\tlea 1(%rax), %rax\n3:\tret\n.size flags, .-flags\n");

// A function that uses only the red zone.
long zone(long n);
__asm__(".globl zone\n.type zone, @function\n"
        "zone:\n\tmovq $0, -8(%rsp)\n\tmov %rdi, -128(%rsp)\n"
        "1:\tcmpq $0, -128(%rsp)\n\tmov -8(%rsp), %rax\n\tje 2f\n\tmov -128(%rsp), %rax\n\tadd %rax, -8(%rsp)\n"
        "\tdecq -128(%rsp)\n\tjmp 1b\n2:\tret\n.size zone, .-zone\n");

long counts(long n);
__asm__(".globl counts\n.type counts, @function\n"
        "counts:\n\tmov %rdi, %rcx\n\txor %eax, %eax\n\tjrcxz 2f\n1:\tadd %rcx, %rax\n\tloop 1b\n"
        "\t.rept 40\n\tmov %rax, %rdx\n\t.endr\n2:\tret\n.size counts, .-counts\n");

// Targets of one and two bytes.
long tiny(long n);
__asm__(".globl tiny\n.type tiny, @function\n"
        "tiny:\n\tlea 9f(%rip), %rdx\n\txor %eax, %eax\n\tmovslq (%rdx,%rdi,4), %rcx\n\tadd %rdx, %rcx\n\tjmp *%rcx\n"
        "1:\tinc %eax\n2:\tinc %eax\n3:\tinc %eax\n4:\tadd $5, %eax\n\tmovabs $0x123456789abcdef0, %rdx\n"
        "\txor %rdx, %rax\n\tmovabs $0x123456789abcdef0, %rdx\n\txor %rdx, %rax\n\tret\n.size tiny, .-tiny\n"
        "\t.section .rodata\n\t.align 4\n9:\t.long 1b-9b, 2b-9b, 3b-9b, 4b-9b, 0\n\t.text\n");

// The carry flag through a loop: inc and dec preserve it, and so must a counter.
long carry(const unsigned long *a, const unsigned long *b, unsigned long *sum, long n);
__asm__(".globl carry\n.type carry, @function\n"
        "carry:\n\tclc\n1:\tmov (%rdi), %rax\n\tadc (%rsi), %rax\n\tmov %rax, (%rdx)\n\tlea 8(%rdi), %rdi\n"
        "\tlea 8(%rsi), %rsi\n\tlea 8(%rdx), %rdx\n\tdec %rcx\n\tjne 1b\n\tsetc %al\n\tmovzbl %al, %eax\n\tret\n"
        ".size carry, .-carry\n");

// Jumps through words in memory to places of one byte, with all registers in use: in a table, on the stack, in a variable.
#define PLACES(name) "1:\tcld\n2:\tcld\n3:\tlea (%rcx,%rax), %rax\n\tadd %rdx, %rax\n\tadd %r8, %rax\n" name "\tret\n"
#define REGISTERS "\tmov $1000, %ecx\n\tmov $2000, %r8d\n"
#define TABLE "\t.section .data.rel.ro, \"aw\"\n\t.align 8\n9:\t.quad 1b, 2b, 3b, 4b\n\t.text\n"
long by_table(long n);
__asm__(".globl by_table\n.type by_table, @function\n"
        "by_table:\n" REGISTERS "\tlea 9f(%rip), %rdx\n\tmov %rdi, %rax\n\tnotrack jmp *(%rdx,%rax,8)\n"
        PLACES("\tsub %rdx, %rax\n") "4:\tret\n.size by_table, .-by_table\n" TABLE);
long by_stack(long n);
__asm__(".globl by_stack\n.type by_stack, @function\n"
        "by_stack:\n" REGISTERS "\tlea 9f(%rip), %rdx\n\tmov (%rdx,%rdi,8), %rax\n\tmov %rax, -8(%rsp)\n"
        "\tmov %edi, %eax\n\tmov $4000, %edx\n\tjmp *-8(%rsp)\n" PLACES("")
        "4:\tret\n.size by_stack, .-by_stack\n" TABLE);
long by_variable(long n);
__asm__(".globl by_variable\n.type by_variable, @function\n"
        "by_variable:\n" REGISTERS "\tlea 9f(%rip), %rdx\n\tmov (%rdx,%rdi,8), %rax\n\tmov %rax, 8f(%rip)\n"
        "\tmov %edi, %eax\n\tmov $4000, %edx\n\tjmp *8f(%rip)\n" PLACES("")
        "4:\tret\n.size by_variable, .-by_variable\n" TABLE ".data\n8:\t.quad 0\n.text\n");

// Distances from a label, indexed by letters: the compiler makes the subtraction part of the table's address.
long letters(long letter);
__asm__(".globl letters\n.type letters, @function\n"
        "letters:\n\tlea 9f-4*97(%rip), %rdx\n\tmovslq (%rdx,%rdi,4), %rax\n\tlea 3f(%rip), %rcx\n"
        "\tadd %rcx, %rax\n\tjmp *%rax\n1:\tmov $11, %eax\n\tret\n2:\tmov $12, %eax\n\tret\n"
        "3:\tmov $13, %eax\n\tret\n.size letters, .-letters\n"
        "\t.section .rodata\n\t.align 4\n9:\t.long 1b-3b, 2b-3b, 3b-3b\n\t.text\n");

// The same with the sum in another register; and addresses of 32 bits, in a program for a fixed place.
long moved(long letter);
__asm__(".globl moved\n.type moved, @function\n"
        "moved:\n\tlea 9f-4*97(%rip), %rdx\n\tmovslq (%rdx,%rdi,4), %rax\n\tlea 3f(%rip), %rcx\n"
        "\tadd %rcx, %rax\n\tmov %rax, %r8\n\tjmp *%r8\n1:\tmov $21, %eax\n\tret\n2:\tmov $22, %eax\n\tret\n"
        "3:\tmov $23, %eax\n\tret\n.size moved, .-moved\n"
        "\t.section .rodata\n\t.align 4\n9:\t.long 1b-3b, 2b-3b, 3b-3b\n\t.text\n");
#ifdef __PIE__
static long narrow(long n) { return n; }
#else
long narrow(long n);
__asm__(".globl narrow\n.type narrow, @function\n"
        "narrow:\n\tmov 9f(,%rdi,4), %eax\n\tjmp *%rax\n1:\tmov $31, %eax\n\tret\n2:\tmov $32, %eax\n\tret\n"
        "3:\tmov $33, %eax\n\tret\n.size narrow, .-narrow\n"
        "\t.section .rodata\n\t.align 4\n9:\t.long 1b, 2b, 3b\n\t.text\n");
#endif

// Zeros after a function are not padding if the program reads them.
long before_zeros(long n), zeros(void);
__asm__(".globl before_zeros\n.type before_zeros, @function\n"
        "before_zeros:\n\tlea 9f(%rip), %rdx\n\tmov %edi, %eax\n\tjmp *(%rdx,%rdi,8)\n"
        "1:\tlea 1(%rax), %eax\n\tlea 2(%rax), %eax\n2:\tcld\n3:\tlea 3(%rax), %eax\n\tnop\n4:\tret\n"
        ".size before_zeros, .-before_zeros\nall_zeros:\t.quad 0\n" TABLE
        ".globl zeros\n.type zeros, @function\nzeros:\tmov all_zeros(%rip), %rax\n\tret\n.size zeros, .-zeros\n");

int main(void) {
    long sum = 0;
    for (long i = 0; i < 5; i++)
        for (long j = 0; j < 5; j++)
            sum = sum * 3 + flags(i, j);
    for (long i = 0; i < 20; i++)
        sum += zone(i) * 7 + counts(i) * 11;
    for (long i = 0; i < 40; i++)
        sum = sum * 5 + tiny(i % 4) + by_table(i % 4) + by_stack(i % 4) + by_variable(i % 4) + letters('a' + i % 3) + before_zeros(i % 4) + zeros();
    unsigned long a[4] = {~0ul, ~0ul, 5, ~0ul}, b[4] = {1, 0, ~0ul, 0}, c[4];
    sum += carry(a, b, c, 4) + (long)c[0] + (long)c[1] + (long)c[2] + (long)c[3];
    for (long i = 0; i < 30; i++) sum = sum * 7 + moved('a' + i % 3) + narrow(i % 3);
    printf("%ld\n", sum);
    return 0;
}
