//! What the kernel puts on the stack for a signal handler, and where handlers return (struct rt_sigframe in
//! arch/x86/include/asm/sigframe.h, struct sigcontext in arch/x86/include/uapi/asm/sigcontext.h).

/// The code that every C library gives handlers as their return address: `mov rax, SYS_rt_sigreturn; syscall`. Its frame has no call, so
/// unwinders know it by its bytes.
pub(crate) const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, 15, 0, 0, 0, 0x0f, 0x05];

/// Registers of the interrupted code, by their numbers in the words of a `struct sigcontext`.
pub(crate) const R12: u64 = 4;
pub(crate) const R13: u64 = 5;
pub(crate) const R14: u64 = 6;
pub(crate) const R15: u64 = 7;
pub(crate) const RBP: u64 = 10;
pub(crate) const RBX: u64 = 11;
pub(crate) const RSP: u64 = 15;
pub(crate) const RIP: u64 = 16;
/// The word with the address of the extended state, which the kernel has put above it on the same stack.
pub(crate) const STATE: u64 = 23;

/// Returns the offset of a word of the `struct sigcontext` in the `struct ucontext`, to which the stack pointer points in the restorer.
pub(crate) const fn offset(word: u64) -> u64 {
    /// The flags, the link and the alternate stack.
    const HEAD: u64 = 40;
    HEAD + 8 * word
}
