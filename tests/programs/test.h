// What the small programs share.
#pragma once

// A function that no optimisation looks into: called as often as the source says.
#if defined(__clang__)
#define OPAQUE __attribute__((noinline))
#else
#define OPAQUE __attribute__((noipa))
#endif

// Not inlined and not cloned, but the compiler may know which registers it leaves alone (-fipa-ra).
#if defined(__clang__)
#define SEEN __attribute__((noinline))
#else
#define SEEN __attribute__((noinline, noclone))
#endif

// Keeps calls from being merged, dropped, or made tail calls.
#define BARRIER() __asm__ volatile("" ::: "memory")

// A function in assembly of exactly these bytes, right behind what stands before it.
#define ASM_FUNCTION(name, body) \
    __asm__(".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n.cfi_startproc\n" body \
            "\n.cfi_endproc\n.size " #name ", . - " #name "\n")

// Programs check what they compute: a wrong register shows as a wrong exit status, and where.
#ifndef __ASSEMBLER__
#ifdef __cplusplus
extern "C" void abort() noexcept;
extern "C" int printf(const char *, ...);
#else
void abort(void);
int printf(const char *, ...);
#endif
#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            printf("line %d: %s\n", __LINE__, #condition); \
            abort(); \
        } \
    } while (0)
#endif
