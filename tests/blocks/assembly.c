// What compilers do not write: flags that live long, the red zone, loops by rcx, short blocks behind tables.
#include <stdio.h>

// The zero flag of the comparison is read two blocks later, on one way.
long flags(long a, long b);
__asm__(".text\n.globl flags\n.type flags, @function\n"
        "flags:\n\tcmp %rsi, %rdi\n\tmov $1, %eax\n\tjc 1f\n\tmov $2, %eax\n"
        "1:\tje 2f\n\tlea 10(%rax), %rax\n\tjo 3f\n\tlea 100(%rax), %rax\n"
        "2:\tlea 1(%rax), %rax\n3:\tret\n.size flags, .-flags\n");

// Nothing but the red zone.
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

// The carry flag through a loop: inc and dec leave it alone, and so must a counter.
long carry(const unsigned long *a, const unsigned long *b, unsigned long *sum, long n);
__asm__(".globl carry\n.type carry, @function\n"
        "carry:\n\tclc\n1:\tmov (%rdi), %rax\n\tadc (%rsi), %rax\n\tmov %rax, (%rdx)\n\tlea 8(%rdi), %rdi\n"
        "\tlea 8(%rsi), %rsi\n\tlea 8(%rdx), %rdx\n\tdec %rcx\n\tjne 1b\n\tsetc %al\n\tmovzbl %al, %eax\n\tret\n"
        ".size carry, .-carry\n");

int main(void) {
    long sum = 0;
    for (long i = 0; i < 5; i++)
        for (long j = 0; j < 5; j++)
            sum = sum * 3 + flags(i, j);
    for (long i = 0; i < 20; i++)
        sum += zone(i) * 7 + counts(i) * 11;
    for (long i = 0; i < 40; i++)
        sum = sum * 5 + tiny(i % 4);
    unsigned long a[4] = {~0ul, ~0ul, 5, ~0ul}, b[4] = {1, 0, ~0ul, 0}, c[4];
    sum += carry(a, b, c, 4) + (long)c[0] + (long)c[1] + (long)c[2] + (long)c[3];
    printf("%ld\n", sum);
    return 0;
}
