//! The code that makes a system call through the agent.
//!
//! The agent makes the system calls that create threads and processes, execute programs, enter seccomp or end the process.
//! No flag, no word of the
//! stack and no register may change on the way to it, but for rcx and r11, which `syscall` overwrites in any case.
//!
//! ```text
//! the number is known             the number is unknown
//!                                   lea    ecx, [rax-56]     ; clone
//!                                   jrcxz  agent
//!                                   lea    ecx, [rcx-1]      ; fork
//!                                   jrcxz  agent
//!                                   ..                       ; the other numbers
//!                                   jmp    plain
//!   lea  rcx, [after]             agent:
//!   jmp  [system_call]              lea    rcx, [after]
//!   syscall                         jmp    [system_call]
//! after:                          plain:
//!                                   syscall
//!                                 after:
//! ```
//!
//! The `syscall` directly before `after` is there also if the number is known. If a signal interrupts a system call, the
//! kernel may repeat it by moving a thread back by the two bytes of the instruction; so that is right for a thread that
//! was moved from the end of the original instruction to `after`, too.

use iced_x86::{Code, Encoder, IcedError, Instruction, MemoryOperand, Register};

/// The numbers of the system calls that lead to the agent: clone, fork, execve, prctl, exit_group, seccomp, execveat and
/// clone3, in ascending order.
pub(crate) const SPECIAL: [u32; 8] = [56, 57, 59, 157, 231, 317, 322, 435];
/// The most bytes that the code takes.
pub(crate) const MOST: usize = 96;

/// Returns the code for the address `at`. `word` is the address of the word that holds the agent's address, and
/// `is_known` says whether the number is one of [`SPECIAL`].
///
/// # Errors
///
/// Returns an error if the word is out of reach.
pub(crate) fn through_agent(at: u64, word: u64, is_known: bool) -> Result<Vec<u8>, IcedError> {
    // The first pass finds out where the labels are. The length of no instruction depends on them.
    let labels = Labels { agent: at, plain: at, after: at };
    let (_, labels) = encode(at, word, is_known, labels)?;
    encode(at, word, is_known, labels).map(|(code, _)| code)
}

/// The addresses of the labels.
#[derive(Clone, Copy)]
struct Labels {
    agent: u64,
    plain: u64,
    after: u64,
}

/// Encodes the code with these labels, and returns it with the labels as they are in it.
fn encode(at: u64, word: u64, is_known: bool, labels: Labels) -> Result<(Vec<u8>, Labels), IcedError> {
    let mut encoder = Encoder::new(64);
    let mut ip = at;
    let mut put = |i: Instruction| -> Result<u64, IcedError> {
        ip = ip.wrapping_add(encoder.encode(&i, ip)? as u64);
        Ok(ip)
    };
    let mut agent = at;
    if !is_known {
        let (mut register, mut subtracted) = (Register::RAX, 0);
        for number in SPECIAL {
            let difference =
                MemoryOperand::with_base_displ(register, i64::from(subtracted) - i64::from(number));
            put(Instruction::with2(Code::Lea_r32_m, Register::ECX, difference)?)?;
            put(Instruction::with_branch(Code::Jrcxz_rel8_64, labels.agent)?)?;
            (register, subtracted) = (Register::RCX, number);
        }
        agent = put(Instruction::with_branch(Code::Jmp_rel8_64, labels.plain)?)?;
    }
    let relative = |address: u64| MemoryOperand::with_base_displ(Register::RIP, address as i64);
    put(Instruction::with2(Code::Lea_r64_m, Register::RCX, relative(labels.after))?)?;
    let plain = put(Instruction::with1(Code::Jmp_rm64, relative(word))?)?;
    let after = put(Instruction::with(Code::Syscall))?;
    Ok((encoder.take_buffer(), Labels { agent, plain, after }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::x86::relocate::instructions::tests::listing;

    const AT: u64 = 0x1000;
    const WORD: u64 = 0x40;

    #[test]
    fn a_known_number_leads_straight_to_the_agent() {
        let code = through_agent(AT, WORD, true).unwrap();
        assert_eq!(listing(&code, AT), ["lea rcx,[0x100F]", "jmp qword ptr [0x40]", "syscall"]);
        assert_eq!(code.len(), 15);
    }

    #[test]
    fn an_unknown_number_is_compared_without_a_flag() {
        let code = through_agent(AT, WORD, false).unwrap();
        let agent = "jrcxz 0x000000000000102A";
        let expected = [
            "lea ecx,[rax-0x38]",
            agent,
            "lea ecx,[rcx-1]",
            agent,
            "lea ecx,[rcx-2]",
            agent,
            "lea ecx,[rcx-0x62]",
            agent,
            "lea ecx,[rcx-0x4A]",
            agent,
            "lea ecx,[rcx-0x56]",
            agent,
            "lea ecx,[rcx-5]",
            agent,
            "lea ecx,[rcx-0x71]",
            agent,
            "jmp short 0x0000000000001037",
            "lea rcx,[0x1039]",
            "jmp qword ptr [0x40]",
            "syscall",
        ];
        assert_eq!(listing(&code, AT), expected);
        assert!(code.len() <= MOST && code.ends_with(&[0x0f, 0x05]), "{}", code.len());
    }
}
