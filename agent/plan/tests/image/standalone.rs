//! Plans for static programs: every system call that may make a thread or execute a program leads to the agent, and every
//! patch is right. What the programs contain is compared with the output of objdump.

use crate::build::{compile_if_possible, folder, has, options, run, skipped};
use gprofinject_abi::plan::{ArenaHeader, Patch, PlanHeader};
use gprofinject_image::{Function, FunctionKind, Image};
use gprofinject_plan::{Hooks, Options, Plan, Reason, Role, Verdict};
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, OpKind, Register};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use zerocopy::FromBytes;

/// Uses of all system calls that lead to the agent.
pub(crate) const C: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
static void *run(void *p) { return p; }
static jmp_buf back;
extern char **environ;
int main(int argc, char **argv) {
  pthread_t thread;
  pthread_create(&thread, 0, run, 0);
  pthread_cancel(thread);
  pthread_join(thread, 0);
  if (argc > 1) {
    pid_t child;
    if (fork() == 0) execve(argv[1], argv, environ);
    if (vfork() == 0) _exit(1);
    posix_spawn(&child, argv[1], 0, 0, argv, environ);
    printf("%d %ld\n", system(argv[1]), syscall(argc, 0));
  }
  if (!setjmp(back)) longjmp(back, 1);
  return 0;
}
"#;

pub(crate) const CXX: &str = r#"
#include <stdexcept>
#include <thread>
#include <unistd.h>
__attribute__((noinline)) int risky(int x) { if (x > 1) throw std::runtime_error("too big"); return x; }
int main(int argc, char **) {
  std::thread([] { fork(); }).join();
  try { return risky(argc); } catch (const std::exception &e) { return e.what()[0]; }
}
"#;

/// The numbers of clone, fork, execve, prctl, exit_group, seccomp, execveat and clone3.
const SPECIAL: [u64; 8] = [56, 57, 59, 157, 231, 317, 322, 435];

/// The addresses of all instructions that objdump finds, and the `syscall` instructions among them, each with the number
/// that the nearest instruction before it that writes eax puts there, if that is a constant.
fn listed(program: &Path) -> (HashSet<u64>, BTreeMap<u64, Option<u64>>) {
    let text = run("objdump", &["-d", "-w", "--no-show-raw-insn", program.to_str().unwrap()]);
    let mut calls = BTreeMap::new();
    let mut all = HashSet::new();
    let mut before: Vec<&str> = Vec::new();
    for line in text.lines() {
        let Some((address, instruction)) = line.split_once(":\t") else {
            before.clear();
            continue;
        };
        let address = u64::from_str_radix(address.trim(), 16).unwrap();
        all.insert(address);
        if instruction.trim() == "syscall" {
            calls.insert(address, number(&before, "%eax"));
        }
        before.push(instruction.trim());
    }
    (all, calls)
}

/// Returns the names of a general register's whole and of its lower half, from either.
fn names(register: &str) -> Option<[String; 2]> {
    let name = register.strip_prefix('%')?;
    if let Some(number) = name.strip_prefix('r').map(|rest| rest.trim_end_matches('d'))
        && number.parse::<u32>().is_ok()
    {
        return Some([format!("%r{number}"), format!("%r{number}d")]);
    }
    let letters = name.strip_prefix(['r', 'e']).filter(|letters| letters.len() == 2)?;
    Some([format!("%r{letters}"), format!("%e{letters}")])
}

/// Returns the constant that the instructions put into a register.
fn number(before: &[&str], register: &str) -> Option<u64> {
    let own = names(register)?;
    let constant =
        |operands: &str| u64::from_str_radix(operands.strip_prefix("$0x")?.split(',').next()?, 16).ok();
    for (n, instruction) in before.iter().enumerate().rev() {
        let (name, operands) = instruction.split_once(char::is_whitespace).unwrap_or((instruction, ""));
        let operands = operands.trim();
        if name.starts_with("call") || *instruction == "syscall" && own[1] == "%eax" {
            return None;
        }
        if name == "cmp" || name == "test" || name == "push" {
            continue;
        }
        let (from, to) = operands.rsplit_once(',').unwrap_or(("", operands));
        if own.iter().any(|own| own == to) {
            return match name {
                "mov" if from.starts_with('%') => number(&before[..n], from),
                "mov" => constant(operands),
                "xor" if from == to => Some(0),
                "pop" => n.checked_sub(1).and_then(|n| constant(before[n].strip_prefix("push")?.trim())),
                _ => None,
            };
        }
        match to {
            "%al" if own[1] == "%eax" && name == "mov" => {
                let rest = number(&before[..n], register)?;
                return constant(operands).map(|low| rest & !0xff | low);
            }
            "%al" | "%ax" if own[1] == "%eax" => return None,
            _ => {}
        }
    }
    None
}

/// A plan for a program, and the program's bytes after the agent has carried it out.
pub(crate) struct Carried<'i, 'd> {
    pub(crate) image: &'i Image<'d>,
    pub(crate) plan: Plan,
    pub(crate) arena: Vec<u8>,
}

impl<'i, 'd> Carried<'i, 'd> {
    pub(crate) fn new(image: &'i Image<'d>, hooks: Hooks, counted: bool) -> Carried<'i, 'd> {
        let all: &dyn Fn(&Function) -> bool = &|_| true;
        let options = Options { hooks, counted: counted.then_some(all), ..options(Role::Standalone) };
        let plan = Plan::new(image, &options);
        let file = plan.encode(&[]).concat();
        let header = PlanHeader::read_from_prefix(&file).unwrap().0;
        assert_eq!(header.standalone, 1);
        let arena = file[header.arena_file as usize..][..header.arena_len as usize].to_vec();
        Carried { image, plan, arena }
    }

    /// Returns the arena's code at an address, or `None` outside it.
    fn arena_at(&self, address: u64) -> Option<&[u8]> {
        self.arena.get(usize::try_from(address.wrapping_sub(self.plan.arena)).ok()?..)
    }

    /// Returns the patch that overwrites an address.
    fn patch_at(&self, address: u64) -> Option<&Patch> {
        let patches = self.plan.patches();
        let after = patches.partition_point(|p| p.address <= address);
        let patch = &patches[after.checked_sub(1)?];
        (address < patch.address + u64::from(patch.len)).then_some(patch)
    }

    /// Checks that patches have the file's bytes, lie in code, and do not overlap.
    fn check_patches(&self) {
        let mut last = 0;
        for patch in self.plan.patches() {
            let len = usize::from(patch.len);
            assert!(patch.address >= last && len > 0, "{:#x}: overlap", patch.address);
            last = patch.address + len as u64;
            let bytes = self.image.data_at(patch.address, len as u64).unwrap();
            assert_eq!(bytes, &patch.original[..len], "{:#x}", patch.address);
        }
    }

    /// Checks that no branch of the program leads into the middle of a patch that is a jump.
    fn check_branches(&self) {
        for f in &self.image.functions {
            let Some(code) = self.image.code_at(f.address, f.size) else { continue };
            let decoder = Decoder::with_ip(64, code, f.address, DecoderOptions::NONE);
            for i in decoder.into_iter().take_while(|i| !i.is_invalid()) {
                // What a patch overwrites does not run.
                let is_overwritten =
                    self.patch_at(i.ip()).is_some() || self.patch_at(i.next_ip() - 1).is_some();
                if i.op0_kind() != OpKind::NearBranch64 || is_overwritten || self.is_dead(i.ip()) {
                    continue;
                }
                let target = i.near_branch_target();
                if let Some(patch) = self.patch_at(target).filter(|patch| patch.displacement == 2) {
                    assert_eq!(patch.address, target, "{:#x} leads into a patch", i.ip());
                }
            }
        }
    }

    /// Returns whether an instruction has been relocated, so that its original does not run.
    fn is_dead(&self, address: u64) -> bool {
        self.plan.moved(address).is_some()
    }

    /// Follows the jump that replaces a system call, and returns its address and the instructions in the arena up to the jump back.
    fn follow(&self, call: u64) -> (u64, Vec<iced_x86::Instruction>) {
        let patch = (0..32).find_map(|n| {
            let patch = self.plan.patches().iter().find(|p| p.address == call - n)?;
            (patch.displacement == 2).then_some(patch)
        });
        let patch = patch.unwrap_or_else(|| panic!("no patch at {call:#x}"));
        assert_eq!((patch.len, patch.replacement[0]), (5, 0xe9));
        let distance = i32::from_le_bytes(*patch.replacement[1..].first_chunk().unwrap());
        let to = (patch.address + 5).wrapping_add(distance as u64);
        let code = self.arena_at(to).expect("the patch leads to the arena");
        let decoder = Decoder::with_ip(64, &code[..200.min(code.len())], to, DecoderOptions::NONE);
        let mut instructions = Vec::new();
        for i in decoder {
            let ends = !matches!(
                i.flow_control(),
                FlowControl::Next | FlowControl::Call | FlowControl::ConditionalBranch
            );
            let has_called = instructions.iter().any(|i: &iced_x86::Instruction| i.code() == Code::Syscall);
            instructions.push(i);
            if ends && has_called {
                break;
            }
        }
        (patch.address, instructions)
    }

    /// Checks the code of a redirected system call.
    fn check_call(&self, call: u64, number: Option<u64>, instructions: &HashSet<u64>) {
        let (from, code) = self.follow(call);
        assert!(instructions.contains(&from), "{from:#x} is inside an instruction");
        let word = self.plan.arena + offset_of!(ArenaHeader, system_call) as u64;
        let gate =
            code.iter().position(|i| i.code() == Code::Jmp_rm64 && i.is_ip_rel_memory_operand()).unwrap();
        assert_eq!(code[gate].ip_rel_memory_address(), word);
        let after = code[gate - 1].ip_rel_memory_address();
        assert_eq!((code[gate - 1].code(), code[gate - 1].op0_register()), (Code::Lea_r64_m, Register::RCX));
        let plain = &code[gate + 1];
        assert_eq!((plain.code(), plain.next_ip()), (Code::Syscall, after), "{call:#x}");
        let special = code[gate - 1].ip();
        let checks = code.iter().filter(|i| i.code() == Code::Jrcxz_rel8_64).count();
        match number.filter(|number| SPECIAL.contains(number)) {
            Some(_) if checks == 0 => {}
            _ => assert_eq!(checks, SPECIAL.len(), "{call:#x}"),
        }
        // With each number, control comes to the right place, and nothing but rcx changes.
        for eax in (0..500).chain([0xffff_ffc8, u32::MAX]) {
            if checks == 0 {
                break;
            }
            let mut rcx = 0;
            let mut at = code.iter().position(|i| i.code() == Code::Jrcxz_rel8_64).unwrap() - 1;
            loop {
                let i = &code[at];
                match i.code() {
                    Code::Lea_r32_m => {
                        assert_eq!(i.op0_register(), Register::ECX);
                        let base = if i.memory_base() == Register::RAX { eax } else { rcx };
                        rcx = base.wrapping_add(i.memory_displacement32());
                        at += 1;
                    }
                    Code::Jrcxz_rel8_64 if rcx != 0 => at += 1,
                    Code::Jrcxz_rel8_64 | Code::Jmp_rel8_64 => {
                        let to = i.near_branch_target();
                        if to == special || to == plain.ip() {
                            assert_eq!(to == special, SPECIAL.contains(&eax.into()), "{call:#x}: {eax}");
                            break;
                        }
                        panic!("{call:#x} leads to {to:#x}");
                    }
                    _ => panic!("{call:#x}: {i}"),
                }
            }
        }
        // The relocated instructions after it, and the jump back behind the original ones.
        let rest = code.iter().find(|i| {
            i.ip() >= after
                && matches!(i.flow_control(), FlowControl::UnconditionalBranch | FlowControl::Return)
        });
        let rest = rest.unwrap();
        if rest.flow_control() == FlowControl::UnconditionalBranch {
            let back = rest.near_branch_target();
            let original = self.image.code_at(call + 2, 24).unwrap_or_default();
            let mut original = Decoder::with_ip(64, original, call + 2, DecoderOptions::NONE).into_iter();
            let is_own = original.any(|i| i.is_jmp_short_or_near() && i.near_branch_target() == back);
            assert!(is_own || (call + 2..call + 40).contains(&back), "{call:#x} continues at {back:#x}");
        }
        // A thread that waits in the system call finds its place.
        let here = self.plan.moved(call + 2).map(|offset| self.plan.arena.wrapping_add(offset.into()));
        assert!(here.is_none_or(|here| here == after), "{call:#x}");
        assert!(here.is_some() || self.patch_at(call + 2).is_none(), "{call:#x}: nowhere to go");
    }
}

/// Returns the addresses after system calls with which the C library compares the address of an interrupted instruction.
fn compared(program: &Path) -> Vec<u64> {
    let symbols = run("nm", &[program.to_str().unwrap()]);
    let is_end = |line: &&str| line.ends_with(" __cp_end") || line.ends_with(" __syscall_cancel_arch_end");
    let addresses = symbols.lines().filter(is_end).map(|line| u64::from_str_radix(&line[..16], 16).unwrap());
    addresses.collect()
}

/// Plans the program in all modes and checks the plans. `compared` has the addresses after system calls that must stay
/// where they are. Returns the numbers of system calls that lead to the agent and of
/// functions that are hooked.
fn check(program: &Path, compared: &[u64]) -> (usize, usize) {
    let bytes = std::fs::read(program).unwrap();
    let image = Image::read(&bytes).unwrap();
    let (instructions, listed) = listed(program);
    let mut result = (0, 0);
    for (hooks, counted) in [(Hooks::Both, false), (Hooks::Entry, false), (Hooks::Both, true)] {
        let carried = Carried::new(&image, hooks, counted);
        let plan = &carried.plan;
        let refused = |reason: &Verdict| match reason {
            Verdict::Refused(reason) => Some(*reason),
            Verdict::Hooked(_) => None,
        };
        let mut refusals: BTreeMap<Reason, Vec<&str>> = BTreeMap::new();
        for (f, verdict) in image.functions.iter().zip(plan.verdicts.iter()) {
            if !matches!(f.kind, FunctionKind::Cold(_))
                && let Some(reason) = refused(verdict)
            {
                refusals.entry(reason).or_default().push(f.name);
            }
        }
        println!(
            "{}: {hooks:?} {counted}: {} functions, {} hooked, {:?}, {} system calls redirected of {}, not: {:x?}, refused: {refusals:?}",
            program.display(),
            image.functions.len(),
            plan.records.len(),
            plan.downgrade,
            plan.redirected.len(),
            listed.len(),
            plan.unredirected,
        );
        assert!(plan.downgrade.is_some() || plan.hooks == hooks);
        carried.check_patches();
        if !counted {
            carried.check_branches();
        }
        let redirected: BTreeSet<u64> = plan.redirected.iter().copied().collect();
        assert!(redirected.is_disjoint(&plan.unredirected.iter().copied().collect()));
        for (&call, &number) in &listed {
            let is_known = redirected.contains(&call) || plan.unredirected.contains(&call);
            let is_special = number.is_none_or(|number| SPECIAL.contains(&number));
            if compared.contains(&(call + 2)) {
                assert!(!is_known, "{call:#x} has to stay");
                let hooked = image.function_at(call).map(|i| plan.verdicts[i]);
                assert!(
                    matches!(hooked, None | Some(Verdict::Refused(Reason::CancellationPoint))),
                    "{hooked:?}"
                );
                continue;
            }
            assert!(is_known || !is_special, "{call:#x} with number {number:?} is not found");
            assert!(!is_known || number != Some(58), "{call:#x} is vfork");
        }
        for &call in &redirected {
            let number = listed.get(&call).unwrap_or_else(|| panic!("{call:#x} is no system call"));
            carried.check_call(call, *number, &instructions);
        }
        assert_eq!(plan.unredirected, [], "{}", program.display());
        result = (redirected.len(), plan.records.len());
    }
    result
}

/// Checks a program, and the same without symbols.
fn check_both(program: &Path) {
    let compared = compared(program);
    let (calls, hooked) = check(program, &compared);
    assert!(calls >= 3, "{}: {calls} system calls", program.display());
    assert!(hooked > 50, "{}: {hooked} functions", program.display());
    println!("{}: {} cancellation points", program.display(), compared.len());
    let stripped = program.with_extension("stripped");
    run("objcopy", &["--strip-all", program.to_str().unwrap(), stripped.to_str().unwrap()]);
    // Without names, fewer addresses are known to which nothing leads.
    let (without, _) = check(&stripped, &compared);
    assert!(without >= calls, "{}: {without} of {calls}", stripped.display());
}

#[test]
fn static_programs() {
    let programs: [(&str, &str, &str, &[&str]); 6] = [
        ("gcc", "a.c", C, &["-O2", "-static", "-pthread"]),
        ("gcc", "a.c", C, &["-O2", "-static-pie", "-pthread"]),
        ("g++", "a.cc", CXX, &["-O2", "-static", "-pthread"]),
        ("g++", "a.cc", CXX, &["-O2", "-static-pie", "-pthread"]),
        ("musl-gcc", "a.c", C, &["-O2", "-static"]),
        ("clang", "a.c", C, &["-Os", "-static", "-pthread"]),
    ];
    for (number, (compiler, file, source, flags)) in programs.into_iter().enumerate() {
        if !has(compiler) {
            continue;
        }
        let folder = folder(&format!("standalone-{number}"));
        if let Some(program) = compile_if_possible(&folder, compiler, &[(file, source)], flags) {
            check_both(&program);
        }
    }
}

/// Static programs that were not built for this test.
#[test]
fn installed_static_programs() {
    let named = std::env::var("IMAGE_STATIC_PROGRAMS").unwrap_or_default();
    let named = named.split(':').filter(|name| !name.is_empty()).map(PathBuf::from);
    let known = ["/bin/busybox", "/bin/bash-static", "/usr/bin/bash-static"].map(PathBuf::from);
    let mut any = false;
    for program in named.chain(known).filter(|program| program.exists()) {
        check(&program, &[]);
        any = true;
    }
    if !any {
        skipped("this machine has no static programs");
    }
}
