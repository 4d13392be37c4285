//! The kernel is the second opinion: it runs the same filters in a child, with every answer turned into an error number, so that
//! no call is really made.
#![allow(unsafe_code, reason = "a child installs filters and makes system calls")]

use super::*;

const ALLOW: u32 = 0x7fff_0000;
const LOG: u32 = 0x7ffc_0000;
const ERRNO: u32 = 0x0005_0000;
const KILL: u32 = 0;

const LOAD: u16 = LD | ABS;
const JA: u16 = JMP;
const JEQ: u16 = JMP | 0x10;
const JSET: u16 = JMP | 0x40;

fn does(code: u16, k: u32) -> Instruction {
    Instruction { code, jt: 0, jf: 0, k }
}

fn jump(code: u16, k: u32, jt: u8, jf: u8) -> Instruction {
    Instruction { code, jt, jf, k }
}

fn with(number: u32, arguments: &[Option<u64>]) -> Call {
    let mut call = Call::any(number);
    call.arguments[..arguments.len()].copy_from_slice(arguments);
    call
}

/// As libseccomp and systemd make them: the architecture, then numbers, then arguments.
#[test]
fn answers_to_calls() {
    let filter = Filter(vec![
        does(LOAD, 4),
        jump(JEQ, 0xc000_003e, 1, 0),
        does(RET, KILL),
        does(LOAD, 0),
        jump(JEQ, 10, 0, 3), // mprotect: not with PROT_EXEC
        does(LOAD, 32),
        jump(JSET, 4, 0, 3),
        does(RET, ERRNO | 1),
        jump(JEQ, 9, 1, 0),
        jump(JEQ, 11, 1, 2),
        does(RET, ALLOW),
        does(RET, LOG),
        does(RET, ERRNO | 38),
    ]);
    assert!(filter.allows(&Call::any(9)) && filter.allows(&Call::any(11)));
    assert!(!filter.allows(&Call::any(12)));
    assert!(filter.allows(&with(10, &[None, None, Some(1)])));
    assert!(!filter.allows(&with(10, &[None, None, Some(5)])));
    assert!(!filter.allows(&Call::any(10)), "an argument that is not known may be a refused one");
    assert!(filter.allows(&with(10, &[None, None, Some(1 | 4 << 32)])), "the lower half only");
}

/// Each action of the kernel's, and what it does with the call.
#[test]
fn only_allow_and_log_let_a_call_be_made() {
    let of = |action| Filter(vec![does(RET, action)]).allows(&Call::any(0));
    assert!(of(ALLOW) && of(ALLOW | 7) && of(LOG));
    for action in [KILL, 0x8000_0000, 0x0003_0000, ERRNO | 1, ERRNO, 0x7fc0_0000, 0x7ff0_0000, u32::MAX] {
        assert!(!of(action), "{action:#x}");
    }
}

#[test]
fn ways_meet() {
    // A known word is still known where two ways meet, and one that differs is not.
    let meets = |other: u32| {
        Filter(vec![
            does(LDX | IMM, 7),
            does(LOAD, 16),
            jump(JEQ, 1, 0, 1),
            does(LDX | IMM, other),
            does(MISC | TXA, 0),
            jump(JEQ, 7, 0, 1),
            does(RET, ALLOW),
            does(RET, KILL),
        ])
    };
    assert!(meets(7).allows(&Call::any(0)));
    assert!(!meets(8).allows(&Call::any(0)));
    assert!(meets(8).allows(&with(0, &[Some(2)])) && !meets(8).allows(&with(0, &[Some(1)])));
    // The address of the instruction is never known.
    let by_address =
        |offset| Filter(vec![does(LOAD, offset), jump(JEQ, 0, 0, 1), does(RET, ALLOW), does(RET, KILL)]);
    assert!(
        !by_address(8).allows(&with(0, &[Some(0); 6])) && !by_address(12).allows(&with(0, &[Some(0); 6]))
    );
}

#[test]
fn what_is_no_filter_allows_nothing() {
    for filter in [
        vec![],
        vec![does(LOAD, 0)],
        vec![does(JA, u32::MAX), does(RET, ALLOW)],
        vec![jump(JEQ, 0, 255, 255), does(RET, ALLOW)],
        vec![does(LOAD, 2), does(RET, ALLOW)],
        vec![does(LOAD, 64), does(RET, ALLOW)],
        vec![does(LD | MEM, 16), does(RET, ALLOW)],
        vec![does(STX, u32::MAX), does(RET, ALLOW)],
        vec![does(ALU | 0x30, 0), does(RET, ALLOW)],
        vec![does(0xffff, 0), does(RET, ALLOW)],
    ] {
        assert!(!Filter(filter.clone()).allows(&Call::any(0)), "{filter:?}");
    }
}

/// A generator of numbers (splitmix64), so that a failure can be repeated.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A value that comparisons with others of its kind often find equal.
    fn word(&mut self) -> u32 {
        match self.below(4) {
            0 => self.next() as u32,
            1 => 1 << self.below(32),
            _ => self.below(8) as u32,
        }
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }

    /// A filter that the kernel takes: all jumps lead to instructions, and the last one returns.
    fn filter(&mut self) -> Filter {
        let len = 4 + self.below(28) as usize;
        let answers = [ALLOW, ALLOW, ALLOW, LOG, ERRNO | 1, KILL];
        let mut filter: Vec<Instruction> = (0..len).map(|at| self.instruction(len - at, &answers)).collect();
        filter.push(does(RET, self.one_of(&answers)));
        // The kernel refuses to load from scratch memory that may not have been written.
        let memory = (0..MEMORY as u32).map(|slot| does(ST, slot));
        Filter(memory.chain(filter).collect())
    }

    fn instruction(&mut self, left: usize, answers: &[u32]) -> Instruction {
        let by = self.one_of(&[0, BY_X]);
        // Not the address of the instruction, which this test does not know.
        let offset = self.one_of(&[0, 4, 16, 20, 24, 28, 32, 36, 40, 44, 48, 52, 56, 60]);
        match self.below(12) {
            0..=2 => does(LOAD, offset),
            3 => match self.below(5) {
                0 => does(LD | IMM, self.word()),
                1 => does(LDX | IMM, self.word()),
                2 => does(LD | LEN, 0),
                3 => does(LDX | LEN, 0),
                _ => does(MISC | self.one_of(&[0, TXA]), 0),
            },
            4 => does(self.one_of(&[LD | MEM, LDX | MEM, ST, STX]), self.below(MEMORY as u64) as u32),
            5 | 6 => match self.one_of(&[0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0x80, 0xa0_u16]) {
                0x30 => does(ALU | 0x30 | by, self.word().max(1)),
                // How far a register shifts that is larger than 31 differs between kernels.
                shift @ (0x60 | 0x70) => does(ALU | shift, self.below(32) as u32),
                0x80 => does(ALU | 0x80, 0),
                operation => does(ALU | operation | by, self.word()),
            },
            7 => does(JA, self.below(left as u64) as u32),
            8 => does(RET, self.one_of(answers)),
            _ => {
                let operation = self.one_of(&[0x10, 0x20, 0x30, 0x40_u16]);
                let [jt, jf] = [(); 2].map(|()| self.below(left.min(256) as u64) as u8);
                jump(JMP | operation | by, self.word(), jt, jf)
            }
        }
    }

    fn call(&mut self) -> Call {
        let arguments = [(); 6].map(|()| Some(u64::from(self.word()) | u64::from(self.word()) << 32));
        Call { number: self.below(16) as u32, arguments }
    }
}

const ALLOWED: i64 = 100;
const REFUSED: i64 = 101;
const CALLS: usize = 16;

/// Returns what the kernel answers to the calls. A filter that divides by 0 ends the child at that call: the answers end
/// before it.
fn kernels_answers(filter: &Filter, calls: &[Call; CALLS]) -> Vec<bool> {
    let mut program = filter.0.clone();
    for instruction in program.iter_mut().filter(|instruction| instruction.code == RET) {
        instruction.k = ERRNO | if is_allowing(instruction.k) { ALLOWED } else { REFUSED } as u32;
    }
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr().cast() };
    let len = size_of::<[i64; CALLS]>();
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    // SAFETY: the mapping is new, and both processes write to it as to an array of numbers. The child makes system calls only, and
    // under its filter no call is made.
    let answers = unsafe {
        let answers = libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0).cast::<[i64; CALLS]>();
        assert_ne!(answers.cast(), libc::MAP_FAILED);
        let child = libc::fork();
        if child == 0 {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
            if libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0 {
                for (answer, call) in (*answers).iter_mut().zip(calls) {
                    let [a, b, c, d, e, f] = call.arguments.map(|argument| argument.unwrap_or(0));
                    let result: i64;
                    std::arch::asm!("syscall", inlateout("rax") u64::from(call.number) => result,
                        in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, in("r9") f,
                        lateout("rcx") _, lateout("r11") _);
                    std::ptr::write_volatile(answer, -result);
                }
            }
            std::arch::asm!("ud2", options(noreturn));
        }
        assert!(child > 0);
        assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
        let all = *answers;
        libc::munmap(answers.cast(), len);
        all
    };
    let known = answers.into_iter().take_while(|answer| *answer != 0);
    known
        .map(|answer| {
            if answer == ALLOWED {
                true
            } else {
                assert_eq!(answer, REFUSED);
                false
            }
        })
        .collect()
}

#[test]
fn the_kernel_gives_the_same_answers() {
    let mut numbers = Numbers(1);
    let (mut allowed, mut refused) = (0, 0);
    for round in 0..1000 {
        let (filter, calls) = (numbers.filter(), [(); CALLS].map(|()| numbers.call()));
        let answers = kernels_answers(&filter, &calls);
        for (call, &answer) in calls.iter().zip(&answers) {
            assert_eq!(filter.allows(call), answer, "round {round}: {filter:?} {call:?}");
            *if answer { &mut allowed } else { &mut refused } += 1;
        }
        if let Some(ended) = calls.get(answers.len()) {
            assert!(!filter.allows(ended), "round {round}: {filter:?} {ended:?}");
        }
    }
    assert!(allowed > 1000 && refused > 1000, "{allowed} {refused}");
}

/// A call of which not all is known is allowed only if all calls are that it may be.
#[test]
fn what_is_not_known_may_be_anything() {
    let mut numbers = Numbers(2);
    let mut allowed = 0;
    for _ in 0..20_000 {
        let (filter, mut call) = (numbers.filter(), numbers.call());
        for argument in &mut call.arguments {
            if numbers.below(2) == 0 {
                *argument = None;
            }
        }
        if !filter.allows(&call) {
            continue;
        }
        allowed += 1;
        for _ in 0..16 {
            let other = numbers.call().arguments;
            let mut arguments = call.arguments;
            arguments.iter_mut().zip(other).for_each(|(known, any)| *known = known.or(any));
            assert!(filter.allows(&Call { arguments, ..call }), "{filter:?} {call:?} {arguments:?}");
        }
    }
    assert!(allowed > 1000, "{allowed}");
}

/// Whatever bytes a process has for a filter, the answer comes.
#[test]
fn damaged_filters() {
    let mut numbers = Numbers(3);
    for _ in 0..50_000 {
        let mut filter = numbers.filter();
        for _ in 0..=numbers.below(6) {
            let at = numbers.below(filter.0.len() as u64) as usize;
            let [one, other] = [numbers.next(), numbers.next()];
            filter.0[at] = Instruction {
                code: one as u16,
                jt: (one >> 16) as u8,
                jf: (one >> 24) as u8,
                k: other as u32,
            };
        }
        let _ = filter.allows(&numbers.call());
        let _ = filter.allows(&Call::any(numbers.next() as u32));
    }
}
