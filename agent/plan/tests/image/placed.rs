//! The code in the arenas of libraries at the places where processes have loaded them, as iced decodes it: every branch
//! and every access leads to the same place as in the plan, however far the library and its arena were moved.

use std::collections::HashSet;
use std::mem::offset_of;
use std::path::PathBuf;

use gprofinject_abi::plan::{FunctionRecord, LIBRARIES, Patch, PlanHeader, Table, TailRecord};
use gprofinject_abi::region::SLOTS;
use gprofinject_abi::times::{TIMES, TimesHeader};
use gprofinject_image::{Function, Image};
use gprofinject_plan::{Hooks, Options, Placement, Plan, Role};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use zerocopy::FromBytes;

use crate::build::{folder, options, try_compile};

/// Libraries that are often installed, with assembly code, exceptions, tables in their text, and tail calls.
const INSTALLED: [&str; 9] = [
    "../x86_64-linux-musl/libc.so",
    "libc.so.6",
    "libm.so.6",
    "libstdc++.so.6",
    "libgcc_s.so.1",
    "libz.so.1",
    "libcrypto.so.3",
    "libgmp.so.10",
    "libsqlite3.so.0",
];

/// The place of the clock of executed instructions in a thread block.
const CLOCK: u64 = TIMES + offset_of!(TimesHeader, executed) as u64;

/// A plan file, and its arena as the agent fills it.
struct Placed {
    file: Vec<u8>,
    header: PlanHeader,
    arena: Vec<u8>,
}

impl Placed {
    fn new(file: Vec<u8>) -> Placed {
        let header = PlanHeader::read_from_prefix(&file).unwrap().0;
        let arena = file[header.arena_file as usize..][..header.arena_len as usize].to_vec();
        Placed { file, header, arena }
    }

    fn functions(&self) -> Vec<FunctionRecord> {
        entries(&self.file, self.header.functions)
    }

    /// Returns the arena offsets at which code begins.
    fn starts(&self) -> Vec<u32> {
        let records = self.functions();
        let fields = records.iter().flat_map(|r| [r.resume, r.body, r.thunk, r.exit]);
        let tails = entries::<TailRecord>(&self.file, self.header.tails);
        let fields = fields.chain(tails.iter().flat_map(|tail| [tail.again, tail.thunk]));
        // 0 stands for an offset that is not used.
        fields.filter(|&field| field != 0).collect()
    }

    fn decode(&self, offset: u32) -> Instruction {
        let ip = self.header.arena.wrapping_add(offset.into());
        Decoder::with_ip(64, &self.arena[offset as usize..], ip, DecoderOptions::NONE).decode()
    }
}

fn entries<T: FromBytes>(file: &[u8], table: Table) -> Vec<T> {
    let bytes = &file[table.offset as usize..];
    let records = bytes.chunks_exact(size_of::<T>()).take(table.count as usize);
    records.map(|record| T::read_from_bytes(record).unwrap()).collect()
}

/// A library's plan before and after it was placed.
struct Pair {
    planned: Placed,
    placed: Placed,
    placement: Placement,
}

impl Pair {
    fn new(plan: &Plan, moved: i64) -> Pair {
        let planned = Placed::new(plan.encode(&[]).concat());
        // Numbers that occur nowhere else.
        let placement = Placement {
            moved,
            first_function: LIBRARIES + 0x1_2345,
            first_slot: SLOTS as u32 + 0x0300_4560,
            first_tail: 0x5432,
            first_counter: 0x0412_3458,
            words: -0x7654,
        };
        let placed = Placed::new(plan.placed(&placement).expect("the library fits there"));
        Pair { planned, placed, placement }
    }

    /// Returns where an address of the plan is in the process.
    fn place(&self, address: u64) -> u64 {
        let offset = address.wrapping_sub(self.planned.header.arena);
        let is_in_arena = offset < self.planned.header.arena_len;
        if is_in_arena { address.wrapping_add_signed(self.placement.moved) } else { address }
    }

    /// Checks that an instruction does in the process what it does in the plan. Returns the arena offset to which it
    /// branches, if that is known.
    fn check(&self, library: &str, offset: u32) -> (Instruction, Option<u32>) {
        let (before, after) = (self.planned.decode(offset), self.placed.decode(offset));
        // Instructions are written only in messages: that takes longer than all the rest.
        let what = || format!("{library}: arena offset {offset:#x}: {before} became {after}");
        assert_eq!((before.code(), before.len()), (after.code(), after.len()), "{}", what());
        for operand in 0..before.op_count() {
            let kind = before.op_kind(operand);
            assert_eq!(kind, after.op_kind(operand), "{}", what());
            match kind {
                OpKind::Register => {
                    assert_eq!(before.op_register(operand), after.op_register(operand), "{}", what())
                }
                OpKind::Memory => {
                    let parts = |i: &Instruction| {
                        (i.memory_base(), i.memory_index(), i.memory_index_scale(), i.segment_prefix())
                    };
                    assert_eq!(parts(&before), parts(&after), "{}", what());
                    let (old, new) = (before.memory_displacement64(), after.memory_displacement64());
                    if before.memory_base() == Register::RIP {
                        assert_eq!(new, self.place(old), "{}", what());
                    } else if before.segment_prefix() == Register::GS && self.planned.header.standalone == 0 {
                        // The library's code uses no gs, or it is not copied. The clock is in the same place for all modules.
                        let is_clock = before.mnemonic() == Mnemonic::Add && old == CLOCK;
                        let by = if is_clock { 0 } else { self.placement.first_counter.into() };
                        assert_eq!(new.wrapping_sub(old), by, "{}", what());
                    } else if matches!(before.segment_prefix(), Register::FS | Register::GS) {
                        let words = self.placement.words as u64;
                        assert!([0, words].contains(&new.wrapping_sub(old)), "{}", what());
                    } else {
                        let slots = u64::from(self.placement.first_slot) - SLOTS;
                        assert!([0, slots].contains(&new.wrapping_sub(old)), "{}", what());
                    }
                }
                OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => {
                    assert_eq!(
                        after.near_branch_target(),
                        self.place(before.near_branch_target()),
                        "{}",
                        what()
                    );
                }
                _ => {
                    let (old, new) = (before.immediate(operand), after.immediate(operand));
                    let Placement { first_function, first_tail, moved, .. } = self.placement;
                    let numbers = [0, first_function, first_tail, moved as u32];
                    let known = numbers.contains(&(new.wrapping_sub(old) as u32)) || new == self.place(old);
                    assert!(known, "{}", what());
                }
            }
        }
        let target = (before.near_branch_target() != 0).then(|| before.near_branch_target());
        let inside = target.map(|target| target.wrapping_sub(self.planned.header.arena));
        (before, inside.filter(|offset| *offset < self.planned.header.arena_len).map(|offset| offset as u32))
    }

    /// Follows the code from everywhere where it is entered. Returns the number of instructions.
    fn check_all(&self, library: &str) -> usize {
        let starts = self.planned.starts();
        assert_eq!(starts, self.placed.starts(), "{library}");
        let mut seen = HashSet::new();
        let mut left = starts;
        for (before, after) in self.planned.functions().iter().zip(self.placed.functions()) {
            assert_eq!(after.entry, self.place(before.entry), "{library}");
        }
        let patches = |of: &Placed| entries::<Patch>(&of.file, of.header.patches);
        for (before, after) in patches(&self.planned).iter().zip(patches(&self.placed)) {
            assert_eq!(after.address, self.place(before.address), "{library}");
            assert_eq!((after.len, after.original), (before.len, before.original), "{library}");
            let what = || format!("{library}: the patch at {:#x}", before.address);
            let (mut old, mut new) = (before.replacement, after.replacement);
            assert_eq!(before.displacement, after.displacement, "{}", what());
            if let Some(at) = before.displacement.checked_sub(1).map(usize::from) {
                let target = |patch: &Patch| {
                    let bytes: [u8; 4] = patch.replacement[at..at + 4].try_into().unwrap();
                    let next = patch.address + at as u64 + 4;
                    next.wrapping_add_signed(i32::from_le_bytes(bytes).into())
                };
                assert_eq!(target(&after), self.place(target(before)), "{}", what());
                let inside = target(before).wrapping_sub(self.planned.header.arena);
                assert!(inside < self.planned.header.arena_len, "{}", what());
                left.push(inside as u32);
                old[at..at + 4].fill(0);
                new[at..at + 4].fill(0);
            }
            assert_eq!(old, new, "{}", what());
            let bytes = &before.replacement[..before.len.into()];
            let first = Decoder::with_ip(64, bytes, before.address, DecoderOptions::NONE).decode();
            let inside = first.near_branch_target().wrapping_sub(self.planned.header.arena);
            let leads_there = !first.is_invalid() && inside < self.planned.header.arena_len;
            assert!(before.displacement != 0 || !leads_there, "{}: {first}", what());
        }
        while let Some(mut offset) = left.pop() {
            while seen.insert(offset) {
                let (instruction, target) = self.check(library, offset);
                assert!(!instruction.is_invalid(), "{library}: no code at arena offset {offset:#x}");
                left.extend(target);
                match instruction.flow_control() {
                    FlowControl::Return
                    | FlowControl::UnconditionalBranch
                    | FlowControl::IndirectBranch
                    | FlowControl::Exception => break,
                    _ => offset += instruction.len() as u32,
                }
            }
        }
        seen.len()
    }
}

/// Plans a library in both modes, with and without counted basic blocks, for processes of glibc's and of musl's, and checks
/// it. Returns the number of its functions that are hooked.
fn is_placed_right(library: &str, bytes: &[u8]) -> usize {
    is_placed_right_in(library, bytes, Role::StandaloneLibrary);
    is_placed_right_in(library, bytes, Role::Library)
}

/// Does the same for the processes of standalone programs, which are musl's, or for others.
fn is_placed_right_in(library: &str, bytes: &[u8], role: Role) -> usize {
    let image = Image::read_library(bytes, None).unwrap();
    let mut hooked = 0;
    let all: &dyn Fn(&Function) -> bool = &|_| true;
    let modes = [
        (Hooks::Both, None, false),
        (Hooks::Entry, None, false),
        (Hooks::Both, None, true),
        (Hooks::Both, Some(all), false),
        (Hooks::Entry, Some(all), false),
        (Hooks::Both, Some(all), true),
    ];
    for (hooks, counted, clock) in modes.into_iter().take(if role.is_standalone() { 3 } else { 6 }) {
        let options = Options { hooks, counted, clock, ..options(role) };
        let plan = Plan::new(&image, &options);
        for moved in [0, 0x0123_4000, -0x0543_2000] {
            let pair = Pair::new(&plan, moved);
            hooked = pair.planned.functions().len();
            let instructions = pair.check_all(library);
            assert!(
                instructions >= 3 * hooked,
                "{library}: {instructions} instructions of {hooked} functions"
            );
        }
    }
    hooked
}

/// Checks libraries that were not built for this test: those that are installed, and those whose paths are in
/// `IMAGE_LIBRARIES`, separated by colons.
#[test]
fn installed_libraries() {
    let named = std::env::var("IMAGE_LIBRARIES").unwrap_or_default();
    let named = named.split(':').filter(|name| !name.is_empty()).map(PathBuf::from);
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"].map(PathBuf::from);
    let known = INSTALLED
        .iter()
        .filter_map(|name| folders.iter().map(|folder| folder.join(name)).find(|library| library.exists()));
    for library in named.chain(known) {
        let bytes = std::fs::read(&library).unwrap();
        is_placed_right(&library.display().to_string(), &bytes);
    }
}

/// A library calls its own exported functions through stubs, because other files may define them, too. Their call sites have home slots as if
/// the calls were direct.
#[test]
fn call_sites_before_stubs_have_slots() {
    let calls: String =
        (0..40).map(|n| format!("long g{n}(long a) {{ return called(a + {n}) * {n}; }}\n")).collect();
    let source = format!("__attribute__((noinline)) long called(long a) {{ return a * a; }}\n{calls}");
    let sources = [("a.c", source.as_str())];
    let [by_stub, directly] = ["-Wl,-z,now", "-Wl,-Bsymbolic"].map(|flag| {
        let flags = ["-O2", "-fPIC", "-shared", "-fsemantic-interposition", flag];
        let library = try_compile(&folder("placed-stubs"), "gcc", &sources, &flags).unwrap();
        let bytes = std::fs::read(library).unwrap();
        let image = Image::read_library(&bytes, None).unwrap();
        let called = image.functions.iter().find(|function| function.name == "called").unwrap().address;
        let stubs: Vec<u64> =
            image.details().own_stubs.iter().filter(|own| own.0 == called).map(|own| own.1).collect();
        let known = gprofinject_image::plt::stubs(&bytes);
        let names: Vec<&str> =
            stubs.iter().filter_map(|&at| Some(&*gprofinject_image::plt::at(&known, at)?.name)).collect();
        let options = options(Role::Library);
        let plan = Plan::new(&image, &options);
        let slots = plan.records.iter().find(|record| record.entry == called).unwrap().slot_count;
        (names.join(" "), slots)
    });
    assert_eq!((&*by_stub.0, &*directly.0), ("called@plt", ""));
    // Those for unknown callers alone are 8, and 3 spare ones.
    assert!(by_stub.1 > 40 && directly.1 > 40, "{by_stub:?} {directly:?}");
}

/// The system calls that lead to the agent are placed with the rest of a library, although no function of it is hooked.
#[test]
fn a_library_that_makes_threads() {
    let source = "long f(long a, long b) { long r;
        __asm__ volatile(\"mov $56, %%eax; syscall\" : \"=a\"(r) : \"D\"(a), \"S\"(b) : \"rcx\", \"r11\", \"memory\"); return r; }
        long g(long n, long a) { long r;
        __asm__ volatile(\"syscall\" : \"=a\"(r) : \"a\"(n), \"D\"(a) : \"rcx\", \"r11\", \"memory\"); return r; }";
    let library =
        try_compile(&folder("placed-calls"), "gcc", &[("a.c", source)], &["-O2", "-fPIC", "-shared"])
            .unwrap();
    let bytes = std::fs::read(library).unwrap();
    let image = Image::read_library(&bytes, None).unwrap();
    let options = Options { selected: &|_| false, ..options(Role::StandaloneLibrary) };
    let plan = Plan::new(&image, &options);
    assert_eq!((plan.records.len(), plan.redirected.len(), plan.patches().len()), (0, 2, 2));
    assert!(Pair::new(&plan, 0).check_all("the test's library") > 20);
    let elsewhere = Plan::new(&image, &Options { role: Role::Library, ..options });
    assert!(elsewhere.patches().is_empty());
}

#[test]
fn a_library_of_this_test() {
    let source = "int a(int x) { __asm__ volatile(\"\"); return x + 1; }
        static int table[4] = {1, 2, 3, 4};
        int b(int x) { return table[x & 3] + a(x); }
        int c(int x) { return b(x + 1); }
        int d(int x) { switch (x) { case 0: return a(3); case 1: return b(4); case 2: return c(5); case 3: return b(9);
            case 4: return a(8); default: return 7; } }
        void e(void (*f)(void)) { f(); }";
    for flags in [["-O0"], ["-O2"], ["-Os"]] {
        let flags = [&flags[..], &["-fPIC", "-shared"]].concat();
        let library = try_compile(&folder("placed"), "gcc", &[("a.c", source)], &flags).unwrap();
        let hooked = is_placed_right("the test's library", &std::fs::read(library).unwrap());
        assert!(hooked >= 5, "{flags:?}: {hooked}");
    }
}
