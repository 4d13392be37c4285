//! Static programs run with all patches of their plans: they print what they print without, and end in the same way.
//!
//! A copy of the program gets the arena as a segment of its file. The agent's place is taken by a few instructions that
//! count nothing: each slow path continues in the function, system calls are made as they are, and what goes through the
//! agent goes on. No frame gets an exit, so this shows that relocated code, patches, conventions of registers and the way
//! of system calls are right, but nothing about counts.

use crate::build::{compile_if_possible, folder, has, skipped};
use crate::standalone::{C, CXX, Carried};
use gprofinject_abi::plan::PlanHeader;
use gprofinject_image::Image;
use gprofinject_plan::Hooks;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use zerocopy::FromBytes;

/// What takes the agent's place. First the words of the arena's header, then the entry point, then code. `block` is memory
/// of zeros, so that no arc is ever found.
const AGENT: &str = r#"
.intel_syntax noprefix
.globl _start
_start:
  .quad both, entry_only, both, 0, tail, 0, through, through, system, through, through, through, through, through, 0, 0, 0, 0, 0, 0
  .quad through, through, through, 0, 0
  .quad start
words:
  .quad block, cells, 0, 0, 0, 0, 0, 0
  .quad 0, 0               # the word before the cells says that no address is in the window
cells:
  .quad 0, 0
start:
  mov eax, 158             # arch_prctl
  mov edi, 0x1001          # ARCH_SET_GS
  lea rsi, [rip+words]
  syscall
  jmp program
entry_only:                # rsp = CFA - 8
  mov rax, [rax*8+resumes]
  jmp rax
both:                      # rsp = CFA: into the body, as if nothing were hooked
  mov rax, [rax*8+bodies]
  mov [rsp-32], rax
  mov rax, [rsp-16]
  mov r11, [rsp-24]
  lea rsp, [rsp-8]
  jmp [rsp-24]
tail:                      # rsp = CFA - 8: into the callee's thunk
  mov rax, [rax*8+tails]
  mov [rsp-24], rax
  mov rax, [rsp-8]
  mov r11, [rsp-16]
  jmp [rsp-24]
through:
  jmp r11
system:                    # a new thread has the registers of its parent
  movq xmm15, rcx
  syscall
  movq rcx, xmm15
  jmp rcx
"#;

/// Bytes of [`AGENT`], at most.
const AGENT_LEN: u64 = 0x1000;
/// The address of the zeros.
const BLOCK: u64 = 0x7000_0000;
/// Bytes of the zeros.
const BLOCK_LEN: u64 = 0x400_0000;

/// Assembles [`AGENT`] for an address, with these symbols.
fn agent(folder: &Path, at: u64, symbols: &[(&str, u64)]) -> Vec<u8> {
    std::fs::write(folder.join("agent.s"), AGENT).unwrap();
    let assembled =
        Command::new("as").current_dir(folder).args(["agent.s", "-o", "agent.o"]).status().unwrap();
    assert!(assembled.success());
    let mut link = Command::new("ld");
    link.current_dir(folder)
        .args(["agent.o", "-o", "agent.bin", "--oformat=binary"])
        .arg(format!("-Ttext={at:#x}"));
    link.args(symbols.iter().map(|(name, value)| format!("--defsym={name}={value:#x}")));
    assert!(link.status().unwrap().success());
    std::fs::read(folder.join("agent.bin")).unwrap()
}

/// Writes a copy of the program that has the arena and all patches. Returns its path, or `None` if the program is not
/// loaded at its link addresses.
fn patched(folder: &Path, program: &Path, hooks: Hooks) -> Option<PathBuf> {
    const EXEC: u8 = 2;
    const LOAD: u32 = 1;
    let mut bytes = std::fs::read(program).unwrap();
    if bytes[16] != EXEC {
        return None;
    }
    let image = Image::read(&bytes).unwrap();
    let Carried { plan, mut arena, .. } = Carried::new(&image, hooks, false);
    let (patches, entry, at) = (plan.patches().to_vec(), image.entry, plan.arena);
    let file = plan.encode(&[]).concat();
    let header = PlanHeader::read_from_prefix(&file).unwrap().0;
    let tails: Vec<u64> = (0..header.tails.count as usize)
        .map(|n| {
            let at = header.tails.offset as usize + n * size_of::<gprofinject_abi::plan::TailRecord>();
            let record = gprofinject_abi::plan::TailRecord::read_from_prefix(&file[at..]).unwrap().0;
            plan.arena + u64::from(record.thunk)
        })
        .collect();
    let address = |offset: u32| plan.arena + u64::from(offset);
    let resumes: Vec<u64> = plan.records.iter().map(|r| address(r.resume)).collect();
    let bodies: Vec<u64> = plan.records.iter().map(|r| address(r.body)).collect();
    let place = plan.arena + plan.arena_len;
    let tables = [&resumes, &bodies, &tails];
    let mut next = place + AGENT_LEN;
    let starts = tables.map(|table| {
        let start = next;
        next += 8 * table.len() as u64;
        start
    });
    drop(image);
    let symbols = [
        ("program", entry),
        ("block", BLOCK),
        ("resumes", starts[0]),
        ("bodies", starts[1]),
        ("tails", starts[2]),
    ];
    let mut agent = agent(folder, place, &symbols);
    assert!(agent.len() as u64 <= AGENT_LEN);
    const WORDS: usize = size_of::<gprofinject_abi::plan::ArenaHeader>();
    arena[..WORDS].copy_from_slice(&agent[..WORDS]);
    let start = u64::from_le_bytes(*agent[WORDS..].first_chunk().unwrap());
    agent.resize(AGENT_LEN as usize, 0);
    arena.extend(agent);
    arena.extend(tables.into_iter().flatten().flat_map(|address| address.to_le_bytes()));
    // The program headers, which take 56 bytes each, begin at byte 64 of the file.
    let count = usize::from(bytes[56]);
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
    let kind = |bytes: &[u8], n: usize| u32::from_le_bytes(*bytes[64 + 56 * n..].first_chunk().unwrap());
    let loads: Vec<[u64; 3]> = (0..count)
        .filter(|&n| kind(&bytes, n) == LOAD)
        .map(|n| [8, 16, 32].map(|field| word(&bytes, 64 + 56 * n + field)))
        .collect();
    for patch in &patches {
        let [offset, from, _] =
            loads.iter().find(|[_, from, len]| (*from..from + len).contains(&patch.address)).unwrap();
        let at = (patch.address - from + offset) as usize;
        let len = usize::from(patch.len);
        bytes[at..at + len].copy_from_slice(&patch.replacement[..len]);
    }
    bytes.resize(bytes.len().next_multiple_of(0x1000), 0);
    let arena_offset = bytes.len() as u64;
    let arena_len = arena.len() as u64;
    bytes.extend(arena);
    // Headers that these programs do without: PT_NOTE, PT_GNU_PROPERTY, PT_GNU_RELRO, PT_GNU_STACK.
    let spare = [4, 0x6474_e553, 0x6474_e552, 0x6474_e551];
    let mut spare = spare.iter().flat_map(|&wanted| (0..count).map(move |n| (n, wanted)));
    for (flags, offset, address, in_file, in_memory) in
        [(7_u32, arena_offset, at, arena_len, arena_len), (6, 0, BLOCK, 0, BLOCK_LEN)]
    {
        let (n, _) = spare.find(|&(n, wanted)| kind(&bytes, n) == wanted).expect("a header to spare");
        let at = 64 + 56 * n;
        bytes[at..at + 4].copy_from_slice(&LOAD.to_le_bytes());
        bytes[at + 4..at + 8].copy_from_slice(&flags.to_le_bytes());
        for (field, value) in (1..).zip([offset, address, address, in_file, in_memory, 0x1000]) {
            bytes[at + 8 * field..at + 8 * field + 8].copy_from_slice(&value.to_le_bytes());
        }
    }
    bytes[24..32].copy_from_slice(&start.to_le_bytes());
    let copy = folder.join(format!("patched-{hooks:?}"));
    std::fs::write(&copy, bytes).unwrap();
    std::fs::set_permissions(&copy, std::fs::Permissions::from_mode(0o755)).unwrap();
    Some(copy)
}

/// Runs a program under the same name as the original.
fn run(program: &Path, arguments: &[&str]) -> Output {
    use std::os::unix::process::CommandExt;
    Command::new(program).arg0("program").args(arguments).env("LC_ALL", "C").output().unwrap()
}

/// Runs a program with all arguments, with and without patches.
fn compare(folder: &Path, program: &Path, all: &[&[&str]]) {
    for hooks in [Hooks::Entry, Hooks::Both] {
        let Some(copy) = patched(folder, program, hooks) else {
            return skipped(&format!("{} is not loaded at its link addresses", program.display()));
        };
        for arguments in all {
            let (alone, with) = (run(program, arguments), run(&copy, arguments));
            let text = |output: &Output| {
                (output.status.code(), output.status.signal(), output.stdout.clone(), output.stderr.clone())
            };
            assert_eq!(text(&alone), text(&with), "{} {arguments:?}", copy.display());
        }
    }
}

#[test]
fn compiled_programs() {
    for (compiler, file, source, flags) in [
        ("gcc", "a.c", C, &["-O2", "-static", "-pthread"][..]),
        ("g++", "a.cc", CXX, &["-O2", "-static", "-pthread"]),
        ("musl-gcc", "a.c", C, &["-O2", "-static"]),
    ] {
        if !has(compiler) || !has("ld") {
            continue;
        }
        let folder = folder(&format!("executed-{compiler}"));
        if let Some(program) = compile_if_possible(&folder, compiler, &[(file, source)], flags) {
            compare(&folder, &program, &[&[], &["/bin/true"], &["/bin/false"]]);
        }
    }
}

#[test]
fn installed_programs() {
    let scripts: [&[&str]; 3] = [
        &["-c", "for i in 1 2 3; do echo $((i * i)) | (read x; echo got $x); done; exit 7"],
        &["-c", "f() { echo \"$1\"; }; for x in a b c; do f $x & wait; done; f \"$(echo nested; f deep)\""],
        &["-c", "no-such-command; echo $?; kill -TERM $$"],
    ];
    let applets: [&[&str]; 5] = [
        &["seq", "1", "2000"],
        &["sh", "-c", "busybox seq 100 | busybox sort -r | busybox head -n 3; echo $((6 * 7)); exit 3"],
        &["awk", "BEGIN { for (i = 0; i < 2000; i++) s += i * i; print s, sin(1), toupper(\"abc\") }"],
        &["sh", "-c", "busybox tar -c /etc/passwd 2>/dev/null | busybox gzip | busybox md5sum"],
        &["find", "/etc", "-maxdepth", "1", "-name", "p*"],
    ];
    let known = [("/usr/bin/bash-static", &scripts[..]), ("/bin/busybox", &applets[..])];
    for (program, arguments) in known {
        if !Path::new(program).exists() || !has("ld") {
            skipped(&format!("this machine has no {program}"));
            continue;
        }
        let folder = folder(&format!("executed{}", program.replace('/', "-")));
        compare(&folder, Path::new(program), arguments);
    }
}
