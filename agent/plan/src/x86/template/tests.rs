//! Compares the templates with listings, some of which are in docs/internals/hot-path.md, and checks their holes.
#![allow(clippy::unwrap_used)]
use crate::x86::template::exit::BEHIND_EXIT;
use crate::x86::template::kind::{Kind, Measured, Second};
use crate::x86::template::*;
use gprofinject_abi::plan::{ArenaHeader, ISLAND};
use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};

/// Returns in which plans there are thunks of a kind.
fn measured(kind: Kind) -> impl Iterator<Item = Measured> {
    let all = [Measured::None, Measured::All, Measured::Outer, Measured::Long, Measured::Chosen].into_iter();
    all.filter(move |&measured| match measured {
        Measured::None => !kind.skips,
        Measured::All | Measured::Long | Measured::Chosen => !kind.skips && !kind.callbacks,
        Measured::Outer => !kind.callbacks,
    })
}

/// Returns all kinds of thunks that there are.
fn kinds() -> impl Iterator<Item = Kind> {
    let all = (0..Kind::COUNT).map(Kind::of);
    all.filter(|kind| !(kind.both && kind.callbacks) && (kind.both || !kind.skips))
}

fn listing(t: &Template) -> Vec<String> {
    let mut formatter = IntelFormatter::new();
    formatter.options_mut().set_hex_prefix("0x");
    formatter.options_mut().set_hex_suffix("");
    Decoder::with_ip(64, &t.bytes, 0, DecoderOptions::NONE)
        .iter()
        .map(|i| {
            let mut text = String::new();
            formatter.format(&i, &mut text);
            text
        })
        .collect()
}

#[test]
fn entry_and_exit_is_as_documented() {
    let t = Template::thunk(Kind { hashed: false, ..Kind::LARGEST }, Role::Program, Measured::None);
    let expected = [
        "mov [rsp-8],rax",
        "mov [rsp-0x10],r11",
        "pop r11",
        "mov rax,fs:[0]",
        "cmp [rax],r11",
        "jne 0x0000000010000000",
        "inc qword ptr [rax+8]",
        "mov rax,rsp",
        "mov r11,fs:[8]",
        "xor rax,[r11-8]",
        "cmp rax,0x4000000",
        "jae short 0x00000000000000B5",
        "lea rax,[r11+rax*2]",
        "cmp byte ptr [rax+0xF],0xC0",
        "jne short 0x00000000000000B5",
        "mov r11,[rsp-8]",
        "mov [rax],r11",
        "mov qword ptr [rax+8],0x12345678",
        "mov fs:[0x10],rsp",
        "mov r11,[rsp-0x18]",
        "mov rax,[rsp-0x10]",
        "call 0x0000000010000000",
        "mov [rsp-0x10],r11",
        "mov [rsp-0x18],rax",
        "mov rax,rsp",
        "mov r11,fs:[8]",
        "xor rax,[r11-8]",
        "cmp rax,0x4000000",
        "jae short 0x00000000000000BA",
        "lea rax,[r11+rax*2]",
        "cmp dword ptr [rax+0xC],1",
        "ja short 0x00000000000000BF",
        "push qword ptr [rax]",
        "mov byte ptr [rax+0xF],0xC0",
        "mov r11,[rsp-8]",
        "mov rax,[rsp-0x10]",
        "ret",
        "jmp 0x0000000010000000",
        "jmp 0x0000000010000000",
        "jmp 0x0000000010000000",
        "nop",
        "cmp byte ptr [rax+0xF],0x40",
        "jae short 0x00000000000000BA",
        "mov r11d,[rax+0xC]",
        "lea r11,[rsp+r11*8-8]",
        "mov fs:[0x10],r11",
        "jmp short 0x000000000000009F",
    ];
    assert_eq!(listing(&t), expected);
    assert_eq!(
        listing(&Template { bytes: t.bytes[t.exit as usize..].to_vec(), ..t.clone() })[0],
        "mov [rsp-0x10],r11"
    );
    // This is less than three and a half cache lines. The body follows.
    assert!(t.bytes.len() <= 224, "{}", t.bytes.len());
}

#[test]
fn entry_only_is_as_documented() {
    let t = Template::thunk(Kind { both: false, ..Kind::LARGEST }, Role::Program, Measured::None);
    let expected = [
        "mov [rsp-8],rax",
        "mov [rsp-0x10],r11",
        "mov r11,[rsp]",
        "imul eax,r11d,0x12345678",
        "shr eax,0x12",
        "and eax,0x12345678",
        "add rax,fs:[0]",
        "cmp [rax],r11",
        "jne 0x0000000010000000",
        "inc qword ptr [rax+8]",
        "mov r11,[rsp-0x10]",
        "mov rax,[rsp-8]",
    ];
    assert_eq!(listing(&t), expected);
    assert_eq!(t.exit, 0);
}

#[test]
fn a_second_look_is_as_documented() {
    let t = Template::second_look(Second::R11, 21);
    let expected = [
        "cmp [rax+0x10],r11",
        "jne short 0x0000000000000015",
        "inc qword ptr [rax+0x18]",
        "jmp 0x0000000010000000",
    ];
    assert_eq!(listing(&t), expected);
    assert_eq!(t.bytes.len(), 21);
}

#[test]
fn a_tail_call_is_as_documented() {
    let t = Template::tail(Kind { hashed: false, ..Kind::LARGEST }, Role::Program);
    let expected = [
        "mov [rsp-8],rax",
        "mov [rsp-0x10],r11",
        "lea rax,[rsp+8]",
        "mov r11,fs:[8]",
        "xor rax,[r11-8]",
        "cmp rax,0x4000000",
        "jae 0x0000000010000000",
        "lea rax,[r11+rax*2]",
        "mov r11,fs:[0]",
        "cmp dword ptr [r11],0x12345678",
        "jne 0x0000000010000000",
        "inc qword ptr [r11+8]",
        "mov dword ptr [rax+8],0x12345678",
        "mov r11,[rsp-0x10]",
        "mov rax,[rsp-8]",
        "jmp 0x0000000010000000",
    ];
    assert_eq!(listing(&t), expected);
    let (at, _) = t.holes.iter().find(|(_, hole)| *hole == Hole::SlotAndSite).unwrap();
    assert_eq!(t.bytes[*at as usize..*at as usize + 8], [0, 0, 0, 0, 0x78, 0x56, 0x34, 0x12]);
}

#[test]
fn the_thunk_for_callbacks_is_as_documented() {
    let kind = Kind { both: false, callbacks: true, hashed: false, ..Kind::LARGEST };
    let t = Template::thunk(kind, Role::Program, Measured::None);
    let expected = [
        "mov [rsp-8],rax",
        "mov [rsp-0x10],r11",
        "mov r11,[rsp]",
        "mov rax,fs:[0]",
        "cmp [rax],r11",
        "jne short 0x000000000000007F",
        "inc qword ptr [rax+8]",
        "mov r11,[rsp-0x10]",
        "mov rax,[rsp-8]",
        "jmp 0x0000000010000000",
        "lea rsp,[rsp-8]",
        "jmp short 0x0000000000000027",
        "call 0x0000000010000000",
    ];
    let listing = listing(&t);
    assert_eq!(listing[..expected.len()], expected);
    // The exit is that of all thunks.
    let both = Template::thunk(Kind { both: true, callbacks: false, ..kind }, Role::Program, Measured::None);
    let exit = |t: &Template| t.bytes[t.exit as usize..t.bytes.len() - BEHIND_EXIT].to_vec();
    assert_eq!(exit(&t), exit(&both));
    assert_eq!((t.bytes[t.resume as usize], t.bytes[t.again as usize]), (0x48, 0x4c));
    assert_eq!(t.popped, t.resume);
}

#[test]
fn the_way_of_deep_calls_is_as_documented() {
    let kind = Kind { skips: true, hashed: false, ..Kind::LARGEST };
    let t = Template::thunk(kind, Role::Program, Measured::Outer);
    let listing = listing(&t);
    let at = |offset: u32| {
        let code = Decoder::with_ip(64, &t.bytes[..offset as usize], 0, DecoderOptions::NONE);
        code.into_iter().count()
    };
    let fill = listing.iter().position(|line| line == "mov rax,rsp").unwrap();
    let offset = Decoder::with_ip(64, &t.bytes, 0, DecoderOptions::NONE).iter().nth(fill).unwrap().ip();
    let skips = [
        "cmp rsp,fs:[0x40]".to_owned(),
        format!("ja short 0x{offset:016X}"),
        "cmp rsp,fs:[0x48]".to_owned(),
        format!("jb short 0x{offset:016X}"),
        "mov r11,[rsp-0x18]".to_owned(),
        "mov rax,[rsp-0x10]".to_owned(),
        "lea rsp,[rsp-8]".to_owned(),
        "jmp 0x0000000010000000".to_owned(),
    ];
    assert_eq!(listing[at(t.resume)..fill], skips);
    let (exit, inner) = (t.exit, t.exit + 28);
    let ends = [
        "cmp rsp,fs:[0x40]".to_owned(),
        format!("ja short 0x{:016X}", exit + 22),
        "cmp rsp,fs:[0x48]".to_owned(),
        format!("jae short 0x{inner:016X}"),
        "call qword ptr [0x10000000]".to_owned(),
        "mov [rsp-0x10],r11".to_owned(),
    ];
    assert_eq!(listing[at(exit)..][..ends.len()], ends);
}

#[test]
fn a_tail_call_that_fills_a_cell_is_as_documented() {
    let t = Template::filling_tail(Kind { hashed: false, ..Kind::LARGEST }, Role::Program);
    let words = t.holes.iter().filter_map(|&(_, hole)| match hole {
        Hole::Header(word) => Some(word as usize),
        _ => None,
    });
    let labels = [offset_of!(ArenaHeader, program_labels), offset_of!(ArenaHeader, library_labels)];
    assert_eq!(words.collect::<Vec<_>>(), labels);
    let expected = [
        "mov [rsp-8],rax",
        "mov [rsp-0x10],r11",
        "mov r11,fs:[0]",
        "cmp dword ptr [r11],0x12345678",
        "jne 0x0000000010000000",
        "mov rax,[rsp]",
        "mov r11,[0x10000000]",
        "cmp rax,[r11]",
        "jb short LIBRARY",
        "cmp rax,[r11+8]",
        "jb short LABEL",
        "mov r11,[0x10000000]",
        "cmp rax,[r11]",
        "jb short ADDRESS",
        "cmp rax,[r11+8]",
        "jae short ADDRESS",
        "sub rax,[r11+0x10]",
        "shr rax,0xC",
        "mov r11,[r11+0x18]",
        "bt [r11],rax",
        "jb short LABEL",
        "mov r11,fs:[0]",
        "inc qword ptr [r11+8]",
        "lea rsp,[rsp+8]",
        "jmp 0x0000000010000000",
        "lea rax,[rsp+8]",
        "mov r11,fs:[8]",
        "xor rax,[r11-8]",
        "cmp rax,0x4000000",
        "jae 0x0000000010000000",
        "lea rax,[r11+rax*2]",
        "mov r11,fs:[0]",
        "inc qword ptr [r11+8]",
        "mov dword ptr [rax+8],0x12345678",
        "mov r11,[rsp-0x10]",
        "mov rax,[rsp-8]",
        "jmp 0x0000000010000000",
    ];
    let offsets: Vec<u64> =
        Decoder::with_ip(64, &t.bytes, 0, DecoderOptions::NONE).iter().map(|i| i.ip()).collect();
    let at = |n: usize| format!("0x{:016X}", offsets[n]);
    let expected = expected
        .map(|line| line.replace("LIBRARY", &at(11)).replace("ADDRESS", &at(21)).replace("LABEL", &at(25)));
    assert_eq!(listing(&t), expected);
    assert_eq!(offsets[24], t.popped.into());
}

#[test]
fn every_hole_is_four_bytes_inside_the_code() {
    assert!((0..Kind::COUNT).all(|index| Kind::of(index).index() == index));
    for kind in kinds() {
        for measured in measured(kind) {
            let t = Template::thunk(kind, Role::Program, measured);
            for &(at, hole) in &t.holes {
                if matches!(hole, Hole::Shift | Hole::NarrowMask) {
                    assert_eq!(t.bytes[at as usize], 0x12);
                    continue;
                }
                let bytes: [u8; 4] = t.bytes[at as usize..at as usize + 4].try_into().unwrap();
                let value = u32::from_le_bytes(bytes);
                match hole {
                    Hole::Number | Hole::Mask | Hole::Multiplier => assert_eq!(value, 0x1234_5678),
                    Hole::Tls => assert!(value <= 72),
                    Hole::Slot => assert!(value == 0 || value == 8),
                    Hole::Branch(_) | Hole::Header(_) => assert!(value > 0x0f00_0000),
                    Hole::Shift | Hole::NarrowMask | Hole::SlotAndSite => unreachable!(),
                }
            }
        }
    }
}

#[test]
fn short_branches_lead_to_islands() {
    let all = kinds().flat_map(|kind| measured(kind).map(move |measured| (kind, measured)));
    for (kind, measured) in all.filter(|(kind, _)| kind.has_exit()) {
        let t = Template::thunk(kind, Role::Program, measured);
        let islands = t.bytes.len() - BEHIND_EXIT;
        let leads = Decoder::with_ip(64, &t.bytes[..islands], 0, DecoderOptions::NONE)
            .into_iter()
            .filter(|i| i.is_jcc_short())
            .map(|i| i.near_branch_target() as usize)
            .filter(|&target| target >= islands);
        // The longest thunks have near branches in place of the first two.
        let is_near = |target: Target| {
            t.holes.iter().any(|&(at, hole)| hole == Hole::Branch(target) && (at as usize) < islands)
        };
        let near = [is_near(Target::Miss), is_near(Target::Outside)];
        assert!(near[0] || !near[1], "{kind:?}");
        let all = [0, 1, 2, 3].map(|n| islands + n * ISLAND as usize);
        // A thunk that fills no cell does not look at the window on entry.
        let expected =
            all.into_iter().enumerate().filter(|(n, _)| !(*n < 2 && near[*n] || *n == 1 && kind.callbacks));
        // Two branches lead to the slow path for a stack pointer outside of the window.
        let mut leads: Vec<usize> = leads.collect();
        leads.dedup();
        assert_eq!(leads, expected.map(|(_, at)| at).collect::<Vec<_>>(), "{kind:?}");
        let to: Vec<Hole> = t.holes[t.holes.len() - 4..].iter().map(|&(_, hole)| hole).collect();
        assert_eq!(to[..3], [Target::Miss, Target::Outside, Target::Exit].map(Hole::Branch));
        assert_eq!(to[3], Hole::Tls);
    }
}

#[test]
fn the_exit_is_in_one_cache_line() {
    for kind in kinds() {
        let t = Template::thunk(kind, Role::Program, Measured::None);
        for (next, before) in [(0, 0), (1, 0), (64, 13), (100, 13), (127, 0)] {
            let start = t.place(next, before);
            assert!((next..next + LINE).contains(&start), "{kind:?}: {next} {before} {start}");
            if kind.both {
                let exit = start + before + t.exit as usize;
                let end = start + before + t.bytes.len() - BEHIND_EXIT;
                assert_eq!(exit / LINE, (end - 1) / LINE, "{kind:?}: {next} {before} {start}");
            } else {
                assert_eq!(start % LINE, 0);
            }
        }
    }
}

/// The thunks of a standalone program differ from those of another program in one byte of each access to a word of
/// the thread: the prefix that names the segment.
#[test]
fn words_of_a_standalone_program_are_in_gs() {
    const FS: u8 = 0x64;
    const GS: u8 = 0x65;
    for kind in kinds() {
        let pairs = [
            [Role::Program, Role::Standalone].map(|role| Template::thunk(kind, role, Measured::None)),
            [Role::Program, Role::Standalone].map(|role| Template::tail(kind, role)),
            [Role::Program, Role::Standalone].map(|role| Template::filling_tail(kind, role)),
        ];
        for [program, standalone] in pairs {
            let (own, other) = (listing(&program), listing(&standalone));
            let words = own.iter().filter(|line| line.contains("fs:")).count();
            assert!(words >= 1 && own.iter().all(|line| !line.contains("gs:")), "{kind:?}");
            let translated: Vec<String> = own.iter().map(|line| line.replace("fs:", "gs:")).collect();
            assert_eq!(translated, other, "{kind:?}");
            assert_eq!(program.holes, standalone.holes, "{kind:?}");
            let differ = program.bytes.iter().zip(&standalone.bytes).filter(|(a, b)| a != b);
            let prefixes: Vec<_> = differ.map(|(&a, &b)| (a, b)).collect();
            assert_eq!(prefixes, vec![(FS, GS); words], "{kind:?}");
            let holes = program.holes.iter().filter(|(_, hole)| *hole == Hole::Tls).count();
            assert_eq!(holes, words, "{kind:?}");
        }
    }
    let gs = Template::thunk(Kind { hashed: false, ..Kind::LARGEST }, Role::Standalone, Measured::None);
    assert_eq!(listing(&gs)[3], "mov rax,gs:[0]");
    assert_eq!(listing(&gs)[18], "mov gs:[0x10],rsp");
}
