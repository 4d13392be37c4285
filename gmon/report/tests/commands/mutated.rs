//! Programs whose compressed debug information is damaged or hostile: no size in a header determines how much
//! memory is used. The `gmon` command reads them with little address space; without a limit it would take
//! what the header says.

use std::path::{Path, PathBuf};
use std::process::Command;

use object::read::elf::ElfFile64;
use object::{CompressionFormat, Object, ObjectSection, ObjectSymbol};

/// The address space for the command itself and a small program, in KiB.
const LIMIT: u32 = 300_000;

fn folder(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a folder for the test");
    path
}

/// Compiles a program with debug information that objcopy has compressed. (gcc 12 does not know zstd, but
/// objcopy of the same Debian does.) Returns `None` if this objcopy was built without zstd, as it says, and
/// the test is skipped.
fn compile(folder: &Path, compression: &str) -> Option<Vec<u8>> {
    let (source, program) = (folder.join("p.c"), folder.join(format!("p-{compression}")));
    let functions = (0..400).map(|n| format!("int f{n}(int x) {{ return x * {n}; }}\n"));
    let text: String = functions.chain(["int main(void) { return 0; }\n".to_owned()]).collect();
    std::fs::write(&source, text).expect("a source");
    let done = Command::new("gcc").args(["-g", "-o"]).arg(&program).arg(&source).output().expect("gcc");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let option = format!("--compress-debug-sections={compression}");
    let done = Command::new("objcopy").arg(option).arg(&program).output().expect("objcopy");
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(compression == "zstd" && said.contains("zstd"), "{said}");
        gprofinject_skip::skipped(&format!("gmon::mutated, {compression}"), &format!("objcopy: {said}"));
        return None;
    }
    Some(std::fs::read(&program).expect("a program"))
}

/// Writes a profile with one count, so that reports read the program.
fn profile(folder: &Path, program: &[u8]) -> PathBuf {
    let file = object::File::parse(program).expect("a program");
    let main = file.symbol_by_name("main").expect("main").address();
    let profile = gmon::Profile {
        blocks: vec![gmon::Block { addr: main, count: 1 }],
        ..gmon::Profile::new(gmon::Format::LITTLE_64)
    };
    let mut bytes = Vec::new();
    gmon::write(&profile, &mut bytes).expect("a good profile");
    let path = folder.join("gmon.out");
    std::fs::write(&path, bytes).expect("a profile");
    path
}

/// Runs `gmon lines` with little address space. Returns its exit status and its messages.
fn lines(program: &Path, profile: &Path) -> (Option<i32>, String) {
    let limited = "ulimit -v \"$1\"; shift; exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", limited, "sh", &LIMIT.to_string(), env!("CARGO_BIN_EXE_gmon"), "lines"]);
    let output = command.arg(program).arg(profile).output().expect("a shell");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_claimed_size_takes_no_memory() {
    let folder = folder("mutated");
    for compression in ["zlib", "zlib-gnu", "zstd"] {
        let Some(good) = compile(&folder, compression) else { continue };
        let (profile, program) = (profile(&folder, &good), folder.join("mutated"));
        std::fs::write(&program, &good).expect("a program");
        let (status, said) = lines(&program, &profile);
        assert_eq!((status, said.contains("going on without")), (Some(0), false), "{compression}: {said}");
        let file = ElfFile64::<object::Endianness>::parse(&*good).expect("a program");
        let mut mutated = 0;
        for section in file.sections() {
            let Ok(range) = section.compressed_file_range() else { continue };
            // ch_size has eight bytes, little-endian, 16 bytes before the data; the size in .zdebug is
            // immediately before the data, big-endian.
            let size_at = match range.format {
                CompressionFormat::None => continue,
                _ if section.name().is_ok_and(|name| name.starts_with(".zdebug")) => {
                    range.offset - 8..range.offset
                }
                _ => range.offset - 16..range.offset - 8,
            };
            for at in size_at {
                for value in [0x7f, 0xff] {
                    let mut bytes = good.clone();
                    bytes[at as usize] = value;
                    std::fs::write(&program, &bytes).expect("a program");
                    let (status, said) = lines(&program, &profile);
                    assert!(
                        matches!(status, Some(0..=2)),
                        "{compression} {at:#x} {value:#x}: {status:?} {said}"
                    );
                    assert!(!said.contains("memory"), "{compression} {at:#x} {value:#x}: {said}");
                    mutated += 1;
                }
            }
        }
        assert!(mutated >= 16, "{compression}: nothing is compressed");
    }
}

/// Changes any one byte of the file, in particular of compressed data and of its headers.
#[test]
fn any_byte_may_be_wrong() {
    let folder = folder("mutated-anywhere");
    let good = compile(&folder, "zlib").expect("gcc");
    let (profile, program) = (profile(&folder, &good), folder.join("mutated"));
    let rounds: usize = std::env::var("GMON_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(300);
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..rounds {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let mut bytes = good.clone();
        let at = (seed >> 16) as usize % bytes.len();
        bytes[at] = seed as u8;
        std::fs::write(&program, &bytes).expect("a program");
        let (status, said) = lines(&program, &profile);
        assert!(matches!(status, Some(0..=2)), "{at:#x} {:#x}: {status:?} {said}", seed as u8);
    }
}
