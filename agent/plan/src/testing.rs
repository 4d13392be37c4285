//! Small programs for unit tests, and their plans.
#![allow(clippy::unwrap_used)]

use std::sync::OnceLock;

use crate::decide::options::{Engine, Hooks, Options};
use crate::decide::verdict::{Tactic, Verdict};
use crate::plan::Plan;
use crate::x86::template::kind::{Measured, Role};
use gprofinject_image::{Code, Details, ElfType, Facts, Function, FunctionKind, Image, Segment};

/// The address at which the code of a test program begins.
pub(crate) const TEXT: u64 = 0x1000;

/// Returns a program whose functions have these sizes in bytes and follow each other in one section. The
/// address of each function is taken.
pub(crate) fn image<'d>(elf_type: ElfType, base: u64, code: &'d [u8], sizes: &[usize]) -> Image<'d> {
    let segment = Segment { address: base, bytes: code, memory: code.len() as u64 };
    let mut functions = Vec::new();
    let mut address = base;
    for &size in sizes {
        let end = address + size as u64;
        let kind = FunctionKind::Ordinary;
        let (size, name, aliases, frame) = (size as u64, "f", Vec::new(), Some(true));
        functions.push(Function { address, size, limit: end, name, aliases, kind, frame });
        address = end;
    }
    let hi = base + code.len() as u64;
    functions.last_mut().unwrap().limit = hi;
    Image {
        elf_type,
        entry: 0,
        phdr: base - 0x40,
        lo: base - 0x1000,
        hi: base + 0x1000,
        code: vec![Code { address: base, bytes: code.into() }],
        segments: vec![segment],
        removed: Vec::new(),
        code_ranges: std::iter::once(base..hi).collect(),
        details: OnceLock::from(Details {
            code_pointers: functions.iter().map(|f| f.address).collect(),
            ..Details::default()
        }),
        functions: functions.into(),
        facts: Facts::default(),
        nameless_parts: Default::default(),
        eh_frame: &[],
        files: (&[], None),
    }
}

/// Returns a plan with entry and exit hooks for all functions except the one with index `skip`.
pub(crate) fn plan_of(image: &Image, skip: Option<usize>) -> Plan {
    plan_with(image, skip, None, false)
}

/// Returns a plan with hooks for all functions whose arena is at this address.
pub(crate) fn plan_at(image: &Image, arena: u64) -> Plan {
    plan_with(image, None, Some(arena), false)
}

/// Returns a plan for a process with a shadow stack, with hooks for all functions.
pub(crate) fn plan_under_shadow_stack(image: &Image) -> Plan {
    plan_with(image, None, None, true)
}

fn plan_with(image: &Image, skip: Option<usize>, arena: Option<u64>, shadow_stack: bool) -> Plan {
    let left_out = skip.map(|i| image.functions[i].address);
    let selected = |f: &Function| Some(f.address) != left_out;
    Plan::new(
        image,
        &Options {
            hooks: Hooks::Both,
            engine: Engine::Builtin,
            selected: &selected,
            min_size: 0,
            insist: false,
            shadow_stack,
            counted: None,
            clock: false,
            outermost: false,
            role: Role::Program,
            measured: Measured::None,
            told: None,
            arena,
            words: 0,
        },
    )
}

/// Returns the bytes that the plan writes at an address.
pub(crate) fn patch(plan: &Plan, address: u64) -> Vec<u8> {
    let p = plan.patches.iter().find(|p| p.address == address).unwrap();
    p.replacement[..p.len as usize].to_vec()
}

/// Returns the tactic for each function, or `None` for a function that is not hooked.
pub(crate) fn tactics(plan: &Plan) -> Vec<Option<Tactic>> {
    let tactic = |v: &Verdict| match v {
        Verdict::Hooked(tactic) => Some(*tactic),
        Verdict::Refused(_) => None,
    };
    plan.verdicts.iter().map(tactic).collect()
}
