//! Reasons why nothing can be hooked, or something is not seen: each is provoked, the program runs as it does alone, and gprofinject says which
//! it is.

#![allow(unsafe_code, reason = "system calls between fork and exec")]

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use gprofinject_tests::place::Place;
use gprofinject_tests::run;

gprofinject_tests::trials! {
    together:
        memory_that_may_not_become_executable,
        text_that_may_not_become_writable,
        memory_that_is_refused,
        a_place_that_is_taken,
        text_that_another_tool_has_changed,
        a_static_program_that_uses_gs,
        a_static_program_whose_gs_the_kernel_sets,
        a_program_that_uses_gs_whose_basic_blocks_are_to_be_counted;
}

const LIMIT: Duration = Duration::from_secs(60);

/// Counts a few calls and prints what `f` returns. Code of another tool may overwrite `unused`.
const PROGRAM: &str = "#include <stdio.h>\n\
    __attribute__((noinline)) int f(int x) { asm volatile(\"\"); return x + 1; }\n\
    __attribute__((noinline, used)) int unused(int x) { asm volatile(\"\"); return x + 1; }\n\
    int main(void) { int t = 0; for (int i = 0; i < 100; i++) t = f(t); printf(\"%d\\n\", t); return 3; }\n";

/// A system call that a seccomp filter answers with an error: the tests of the filter, each of an offset in the data about the call and of a
/// condition on the word there.
struct Refused {
    number: libc::c_long,
    tests: &'static [(u32, Is)],
    error: i32,
}

/// A condition on a word.
enum Is {
    Equal(u32),
    Below(u32),
    /// The word has these bits.
    With(u32),
}

/// Offsets of the lower and upper halves of arguments in struct seccomp_data.
const ADDRESS_UPPER: u32 = 20;
const PROTECTION: u32 = 32;
const FLAGS: u32 = 40;

impl Refused {
    /// Makes the command, and what it executes, run under the filter.
    fn apply(&self, command: &mut Command) {
        let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
        let load = |offset: u32| statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset);
        let allow = || statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW);
        let mut filter = Vec::new();
        let mut test = |offset: u32, is: &Is| {
            let (kind, word, holds) = match *is {
                Is::Equal(word) => (libc::BPF_JEQ, word, true),
                Is::Below(word) => (libc::BPF_JGE, word, false),
                Is::With(bits) => (libc::BPF_JSET, bits, true),
            };
            let (jt, jf) = if holds { (1, 0) } else { (0, 1) };
            let jump = libc::BPF_JMP | kind | libc::BPF_K;
            filter.extend([load(offset), libc::sock_filter { code: jump as u16, jt, jf, k: word }, allow()]);
        };
        test(0, &Is::Equal(u32::try_from(self.number).unwrap()));
        self.tests.iter().for_each(|(offset, is)| test(*offset, is));
        let errno = libc::SECCOMP_RET_ERRNO | u32::try_from(self.error).unwrap();
        filter.push(statement(libc::BPF_RET | libc::BPF_K, errno));
        // SAFETY: these are two system calls, and the filter is there as long as the closure.
        unsafe {
            command.pre_exec(move || {
                let program =
                    libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
                let is_done = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                    && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0;
                if is_done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            })
        };
    }
}

/// Runs a program alone and under gprofinject, as changed by `change`. Both must do the same, and gprofinject say `about`.
fn check(place: &Place, flags: &[&str], about: &str, change: impl Fn(&mut Command)) {
    let program = place.path("program");
    let compare = |mut command: Command| {
        change(&mut command);
        run::run(command, None, LIMIT).unwrap()
    };
    let alone = compare(Command::new(&program));
    let stats = place.path("stats");
    let mut args = flags.to_vec();
    args.extend(["--stats", stats.to_str().unwrap(), program.to_str().unwrap()]);
    let ours = compare(place.command(&args));
    let said = ours.stderr_text();
    assert_eq!((ours.code(), ours.stdout_text()), (alone.code(), alone.stdout_text()), "{said}");
    assert!(said.contains("nothing was hooked") || said.contains("cannot be hooked"), "{said}");
    assert!(said.contains(about), "says nothing of {about:?}: {said}");
    let stats = std::fs::read_to_string(stats).unwrap();
    assert!(stats.contains(about), "the statistics say nothing of {about:?}: {stats}");
}

fn program() -> Place {
    let place = Place::new();
    place.c("program", PROGRAM, &[]);
    place
}

fn memory_that_may_not_become_executable() {
    let tests = &[(PROTECTION, Is::With(libc::PROT_EXEC as u32))];
    let refused = Refused { number: libc::SYS_mprotect, tests, error: libc::EACCES };
    check(&program(), &[], "no memory may become executable", |command| refused.apply(command));
}

fn text_that_may_not_become_writable() {
    // Libraries and stacks of threads are above.
    let tests = &[
        (PROTECTION, Is::Equal((libc::PROT_READ | libc::PROT_WRITE) as u32)),
        (ADDRESS_UPPER, Is::Below(0x7e00)),
    ];
    let refused = Refused { number: libc::SYS_mprotect, tests, error: libc::EACCES };
    check(&program(), &[], "code could not be made writable", |command| refused.apply(command));
}

fn memory_that_is_refused() {
    const PRIVATE: u32 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as u32;
    let tests = &[
        (FLAGS, Is::Equal(PRIVATE)),
        (PROTECTION, Is::Equal((libc::PROT_READ | libc::PROT_WRITE) as u32)),
    ];
    let refused = Refused { number: libc::SYS_mmap, tests, error: libc::ENOMEM };
    check(&program(), &[], "the agent got no memory", |command| refused.apply(command));
}

fn a_place_that_is_taken() {
    // An auditor takes all that is free within 2 GiB of the program.
    const TOOL: &str = "#define _GNU_SOURCE\n#include <link.h>\n#include <stdio.h>\n#include <sys/mman.h>\n\
        static void take(unsigned long from, unsigned long to) {\n\
            int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;\n\
            if (from < to) mmap((void *)from, to - from, PROT_NONE, flags, -1, 0);\n\
        }\n\
        unsigned la_version(unsigned v) { return LAV_CURRENT; }\n\
        unsigned la_objopen(struct link_map *map, Lmid_t id, uintptr_t *cookie) {\n\
            unsigned long from = map->l_addr - (2ul << 30), to = map->l_addr + (2ul << 30), lo, hi;\n\
            if (map->l_name[0]) return 0;\n\
            FILE *maps = fopen(\"/proc/self/maps\", \"r\");\n\
            for (char line[4096]; fgets(line, sizeof line, maps) && sscanf(line, \"%lx-%lx\", &lo, &hi) == 2;) {\n\
                if (hi <= from) continue;\n\
                take(from, lo < to ? lo : to);\n\
                if ((from = hi) >= to) break;\n\
            }\n\
            take(from, to);\n\
            fclose(maps);\n\
            return 0;\n\
        }\n";
    let place = program();
    let tool = place.c("tool.so", TOOL, &["-shared", "-fPIC"]);
    check(&place, &[], "there was no memory near the program's code", |command| {
        command.env("LD_AUDIT", &tool);
    });
}

fn text_that_another_tool_has_changed() {
    // An auditor runs before the dynamic linker relocates anything.
    const TOOL: &str = "#define _GNU_SOURCE\n#include <link.h>\n#include <stdint.h>\n#include <sys/mman.h>\n\
        unsigned la_version(unsigned v) { return LAV_CURRENT; }\n\
        unsigned la_objopen(struct link_map *map, Lmid_t id, uintptr_t *cookie) {\n\
            if (!map->l_name[0] && OFFSET) {\n\
                char *at = (char *)map->l_addr + OFFSET, *page = (char *)((uintptr_t)at & -4096);\n\
                mprotect(page, 8192, 7); *at = 0x90; mprotect(page, 8192, 5);\n\
            }\n\
            return 0;\n\
        }\n";
    let place = program();
    let symbols = gprofinject_tests::elf::Program::read(&place.path("program")).unwrap();
    let offset = format!("-DOFFSET={}", symbols.named("unused").unwrap().address);
    let tool = place.c("tool.so", TOOL, &["-shared", "-fPIC", &offset]);
    check(&place, &["--no-cache"], "code in memory is not that of its file", |command| {
        command.env("LD_AUDIT", &tool);
    });
}

/// Uses gs in a function.
const USES_GS: &str = "#include <stdio.h>\n#include <sys/syscall.h>\n#include <unistd.h>\n\
        static long words[2] = {4711, 4712};\n\
        __attribute__((noinline)) long word(void) { long w; asm volatile(\"mov %%gs:8, %0\" : \"=r\"(w)); return w; }\n\
        int main(void) { syscall(SYS_arch_prctl, 0x1001, words); printf(\"%ld\\n\", word()); return 3; }\n";

fn a_static_program_that_uses_gs() {
    let place = Place::new();
    place.c("program", USES_GS, &["-static"]);
    check(&place, &[], "uses the register gs", |_| {});
}

fn a_program_that_uses_gs_whose_basic_blocks_are_to_be_counted() {
    let place = Place::new();
    place.c("program", USES_GS, &[]);
    check(&place, &["--count", "blocks"], "uses the register gs", |_| {});
}

/// Code that is made at run time may use gs then.
fn a_static_program_whose_gs_the_kernel_sets() {
    const SOURCE: &str = "#include <stdio.h>\n#include <string.h>\n#include <sys/mman.h>\n#include <sys/syscall.h>\n#include <unistd.h>\n\
        static long words[2] = {4711, 4712};\n\
        int arch_prctl(int, unsigned long);\n\
        int main(void) {\n\
            unsigned char code[] = {0x65, 0x48, 0x8b, 0x04, 0x25, 8, 0, 0, 0, 0xc3};\n\
            void *made = mmap(0, 4096, 7, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);\n\
            memcpy(made, code, sizeof code);\n\
            SET;\n\
            printf(\"%ld\\n\", ((long (*)(void))made)());\n\
            return 3;\n\
        }\n";
    for set in ["-DSET=syscall(SYS_arch_prctl, 0x1001, words)", "-DSET=arch_prctl(0x1001, (unsigned long)words)"] {
        let place = Place::new();
        place.c("program", SOURCE, &["-static", set]);
        check(&place, &[], "uses the register gs", |_| {});
    }
}
