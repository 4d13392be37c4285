//! Exact counts from callgrind, in the form that an engine which counts basic blocks writes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use gmon::{Arc, Block, Format, Profile};
use gprofinject_image::instructions::Code;
use gprofinject_image::x86::goes_on;
use iced_x86::{FlowControl, Instruction};

use super::{Folder, run};

/// Whether a tool is installed. If not, the test is skipped.
pub(crate) fn have(tool: &str) -> bool {
    let test = format!("gmon::{}", std::thread::current().name().unwrap_or_default());
    gprofinject_skip::have_for(&test, &[tool])
}

/// A program and what callgrind has counted in one run of it.
pub(crate) struct Truth {
    pub(crate) code: Code,
    /// The executions of each instruction that ran at all.
    pub(crate) instructions: BTreeMap<u64, u64>,
    /// The calls of each function's first instruction.
    pub(crate) calls: BTreeMap<u64, u64>,
}

impl Truth {
    /// Runs a program under callgrind.
    pub(crate) fn of(folder: &Folder, program: &Path, args: &[&str]) -> Truth {
        let out = folder.file("callgrind.out");
        run(Command::new("valgrind")
            .args(["--tool=callgrind", "--dump-instr=yes", "--dump-line=no", "--compress-strings=no"])
            // Otherwise the cost of the stub is included in that of the call.
            .args(["--compress-pos=no", "--skip-plt=no", "-q"])
            .arg(format!("--callgrind-out-file={}", out.display()))
            .arg(program)
            .args(args)
            .env("LD_BIND_NOW", "1"));
        let text = std::fs::read_to_string(out).expect("callgrind's file");
        let code = Code::parse(&std::fs::read(program).expect("the program")).expect("an x86 program");
        let program = program.canonicalize().expect("a path");
        let mut truth = Truth { code, instructions: BTreeMap::new(), calls: BTreeMap::new() };
        let (mut inside, mut called, mut pending) = (false, None, None);
        for line in text.lines() {
            let is = |object: &str| Path::new(object) == program;
            if let Some((count, target)) = pending.take() {
                // This is the inclusive cost of the call.
                if called.take().unwrap_or(inside) {
                    *truth.calls.entry(target).or_default() += count;
                }
            } else if let Some(object) = line.strip_prefix("ob=") {
                inside = is(object);
            } else if let Some(object) = line.strip_prefix("cob=") {
                called = Some(is(object));
            } else if let Some(rest) = line.strip_prefix("calls=") {
                let mut words = rest.split_whitespace();
                let count: u64 = words.next().and_then(|count| count.parse().ok()).expect("a count");
                pending = Some((count, words.next().and_then(address).expect("an address")));
            } else if let Some(at) = line.split_whitespace().next().and_then(address)
                && inside
            {
                let cost: u64 = line.split_whitespace().nth(1).and_then(|c| c.parse().ok()).expect("a cost");
                *truth.instructions.entry(at).or_default() += cost;
            }
        }
        truth
    }

    /// Returns how often an instruction was executed.
    pub(crate) fn count(&self, address: u64) -> u64 {
        self.instructions.get(&address).copied().unwrap_or(0)
    }

    /// Returns a record for each basic block of each function whose name is chosen.
    pub(crate) fn blocks(&self, chosen: impl Fn(&str) -> bool) -> Vec<Block> {
        let functions = || self.code.functions().iter().filter(|function| chosen(&function.name));
        let instructions = |function: &gmon::Function| {
            let end = function.end();
            self.code.instructions(function.start).take_while(move |i| i.ip() < end).collect::<Vec<_>>()
        };
        let targets: BTreeSet<u64> = functions()
            .flat_map(&instructions)
            .filter(is_branch)
            .map(|branch| branch.near_branch_target())
            .collect();
        let mut blocks = Vec::new();
        for function in functions() {
            let mut before: Option<Instruction> = None;
            for instruction in instructions(function) {
                let address = instruction.ip();
                let count = self.count(address);
                let starts = match &before {
                    None => true,
                    Some(before) => is_branch(before) || !goes_on(before) || self.count(before.ip()) != count,
                };
                let padding = before.as_ref().is_some_and(|before| !goes_on(before) && !is_call(before))
                    && is_nop(&instruction)
                    && count == 0;
                if (starts || targets.contains(&address)) && !padding {
                    blocks.push(Block { addr: address, count });
                }
                // The code after padding is treated as if it followed the code before the padding.
                if !padding {
                    before = Some(instruction);
                }
            }
        }
        blocks
    }

    /// Returns the profile of an engine that counts calls, and the basic blocks of the chosen functions.
    pub(crate) fn profile(&self, chosen: impl Fn(&str) -> bool + Copy) -> Profile {
        let functions = self.code.functions();
        let start = functions.iter().find(|function| function.name == "_start").expect("_start").start;
        let called = |to: &u64| functions.iter().any(|f| f.start == *to && chosen(&f.name));
        let arcs = self.calls.iter().filter(|(to, _)| called(to));
        let arcs = arcs.map(|(&to, &count)| Arc { from: start + 1, to, count }).collect();
        let build_id = self.code.build_id;
        Profile { build_id, arcs, blocks: self.blocks(chosen), ..Profile::new(Format::LITTLE_64) }
    }
}

fn address(word: &str) -> Option<u64> {
    u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
}

fn is_branch(instruction: &Instruction) -> bool {
    use FlowControl::{ConditionalBranch, UnconditionalBranch};
    matches!(instruction.flow_control(), ConditionalBranch | UnconditionalBranch)
}

fn is_call(instruction: &Instruction) -> bool {
    instruction.is_call_near() || instruction.is_call_near_indirect()
}

fn is_nop(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), iced_x86::Mnemonic::Nop | iced_x86::Mnemonic::Xchg)
}

/// Whether a name is that of a function of the compiler or the linker, which has no source lines.
pub(crate) fn is_own(name: &str) -> bool {
    !matches!(
        name,
        "_start" | "_init" | "_fini" | "deregister_tm_clones" | "register_tm_clones" | "frame_dummy"
    ) && !name.starts_with("__do_global")
}
