//! Images: what a process maps of a kept plan in place of its own text, and what tools and the process itself see there.

use std::path::Path;
use std::process::Command;

use gprofinject_tests::place::finish;
use gprofinject_tests::tool;

use crate::cache::{CALLS, FUNCTIONS, Scene, settle, source};

gprofinject_tests::trials! {
    together:
        text_of_an_image_takes_the_place_of_the_programs,
        a_program_may_map_its_own_text_again,
        processes_share_the_images_of_libraries;
}

/// The text that a process with a kept plan runs is mapped from the cache, in an ELF file with the same symbols, where other tools
/// find the patches and the thunks. Whatever the program's file has become meanwhile, the names are those of the program that has run.
fn text_of_an_image_takes_the_place_of_the_programs() {
    let scene = Scene::fresh();
    let shows_maps = "#include <stdio.h>\n__attribute__((constructor)) static void show(void) { char l[999]; \
        sprintf(l, \"/proc/%s/maps\", \"self\"); FILE *f = fopen(l, \"r\"); while (fgets(l, 999, f)) fputs(l, stderr); fclose(f); }\n";
    scene.place.c("program", &(source(1) + shows_maps), &["-Wl,--build-id=0x1234"]);
    settle();
    let files = |said: &str| -> Vec<String> {
        let code = said.lines().filter(|line| line.contains(" r-xp ") && line.contains(".plan"));
        code.filter_map(|line| Some(line.split_whitespace().nth(5)?.to_owned())).collect()
    };
    let before = scene.run(&[]);
    let entry = scene.entry();
    let is_entry = |file: &String| Path::new(file) == entry;
    assert!(!before.cached && !files(&before.said).iter().any(is_entry), "{}", before.said);
    let kept = scene.run(&[]);
    assert!(kept.cached && kept.arcs == before.arcs);
    // The text, and the arena.
    assert_eq!(files(&kept.said).iter().filter(|file| is_entry(file)).count(), 2, "{}", kept.said);

    let shown = |tool: &str, arguments: &[&str], file: &Path| {
        let shown = Command::new(tool).args(arguments).arg(file).output().unwrap();
        assert!(shown.status.success() && shown.stderr.is_empty(), "{tool}: {shown:?}");
        String::from_utf8(shown.stdout).unwrap()
    };
    let program = scene.place.path("program");
    assert_eq!(shown("nm", &[], &entry).lines().count(), shown("nm", &[], &program).lines().count());
    assert_eq!(shown("nm", &["-n"], &entry), shown("nm", &["-n"], &program));
    let first = |file: &Path| {
        let code = shown("objdump", &["-d", "--no-show-raw-insn", "--disassemble=f7"], file);
        let after = code.lines().skip_while(|line| !line.ends_with("<f7>:")).nth(1).unwrap().to_owned();
        after.split('\t').nth(1).unwrap().trim().to_owned()
    };
    assert!(first(&entry).starts_with("jmp") && !first(&program).starts_with("jmp"), "{}", first(&entry));
    let thunks = shown("objdump", &["-d", "-j", ".gprofinject"], &entry);
    // objdump loses its way in the tables between, and finds it again.
    assert!(thunks.matches("%fs:").count() > FUNCTIONS / 2, "{}", thunks.len());

    // A debugger finds what it has written into the text. (strace is the tracer here.)
    if tool::installed("strace").is_some() {
        let mut traced = Command::new("strace");
        traced.args(["-f", "-o", "/dev/null"]).arg(tool::gprofinject().unwrap());
        traced.args(["-o", "profile", "./program"]).current_dir(scene.place.folder.path());
        traced.env("XDG_CACHE_HOME", &scene.caches);
        let outcome = finish(traced);
        assert_eq!(outcome.stdout_text(), format!("{CALLS}\n"));
        assert_eq!(files(&outcome.stderr_text()).iter().filter(|file| is_entry(file)).count(), 1);
    }
}

/// V8 maps the pages of its built-in functions once more, from the file that is mapped there.
fn a_program_may_map_its_own_text_again() {
    let scene = Scene::fresh();
    let source = "#include <fcntl.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <sys/mman.h>\n\
        __attribute__((noipa)) int f(int x) { return x * 3 + 1; }\n\
        int main(void) { char l[999], path[500]; unsigned long lo, hi, offset; FILE *maps = fopen(\"/proc/self/maps\", \"r\"); \
        while (fgets(l, 999, maps)) if (sscanf(l, \"%lx-%lx %*s %lx %*s %*s %499s\", &lo, &hi, &offset, path) == 4 \
        && lo <= (unsigned long)f && (unsigned long)f < hi) break; \
        char *again = mmap(NULL, hi - lo, PROT_READ | PROT_EXEC, MAP_PRIVATE, open(path, O_RDONLY), offset); \
        int (*g)(int) = (int (*)(int))(again + ((unsigned long)f - lo)); printf(\"%d %d\\n\", f(1), g(2)); return 0; }\n";
    scene.place.c("program", source, &[]);
    settle();
    for _ in 0..3 {
        let outcome = finish(scene.command("./program", &[]));
        assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (0, "4 7\n"), "{}", outcome.stderr_text());
    }
}

/// Processes that load the same libraries map the same patched text and the same arenas, wherever the libraries are.
fn processes_share_the_images_of_libraries() {
    let scene = Scene::fresh();
    let place = &scene.place;
    let late = "int late(int x) { return x + 1; }\n\
        int other(int x) { for (int i = 0; i < 1000; i++) x = x * 3 + i; return x; }\n";
    let late = place.c("late.so", late, &["-shared", "-fPIC", "-Wl,-soname,late.so"]);
    let early = "int late(int); int early(int x) { return x > 0 ? late(x) + early(x - 1) : 0; }\n";
    let early = place.c("early.so", early, &["-shared", "-fPIC", late.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"]);
    let source = "#include <stdio.h>\n#include <sys/wait.h>\n#include <unistd.h>\nint early(int);\n\
        static void show(void) { char l[999]; FILE *f = fopen(\"/proc/self/maps\", \"r\"); \
        while (fgets(l, 999, f)) fputs(l, stderr); fclose(f); }\n\
        int main(int argc, char **argv) { int x = early(10); show(); fflush(stderr); if (argc > 1) { \
        execl(\"/proc/self/exe\", argv[0], NULL); return 1; } printf(\"%d\\n\", x); return 0; }\n";
    place.c("program", source, &[early.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"]);
    settle();
    let run = || {
        let mut command = scene.command("./program", &["--rate", "0"]);
        command.arg("again");
        let outcome = finish(command);
        assert_eq!((outcome.code(), outcome.stdout_text().as_str()), (0, "65\n"), "{}", outcome.stderr_text());
        let flat = Command::new(tool::gmon().unwrap())
            .args(["flat", "profile.pb.gz"])
            .current_dir(place.folder.path())
            .output()
            .unwrap();
        (outcome.stderr_text(), String::from_utf8(flat.stdout).unwrap())
    };
    let code = |said: &str, what: &str| -> Vec<(String, String)> {
        let fields = said.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let code = fields.filter(|fields| fields.len() > 5 && fields[1] == "r-xp" && fields[5].contains(what));
        code.map(|fields| (format!("{} {}", fields[4], fields[2]), fields[5].to_owned())).collect()
    };
    let (first, before) = run();
    // Without images, the text is the libraries' own, and processes share the files of the arenas.
    assert_eq!(code(&first, "early.so").len(), 2, "{first}");
    let (then, after) = run();
    assert!(code(&then, "early.so").is_empty() && code(&then, "late.so").is_empty(), "{then}");
    let mut arenas = code(&first, "memfd:gprofinject");
    arenas.sort();
    // Two libraries in two processes.
    assert!(arenas.len() == 4 && arenas[0] == arenas[1] && arenas[2] == arenas[3], "{arenas:?}");
    // With images, the arenas are kept as well: both processes have text and an arena of each library from the cache.
    assert!(code(&then, "memfd:gprofinject").is_empty(), "{then}");
    let mut kept = [code(&then, ".plan"), code(&then, ".arena")].concat();
    kept.sort();
    assert!(kept.len() >= 8 && kept.chunks(2).all(|both| both.len() == 2 && both[0] == both[1]), "{kept:?}");
    assert!(before == after && before.contains("late") && before.contains("early"), "{before}{after}");

    // Samples in the image's text are the library's, whether a function is hooked or not.
    let source = "#include <time.h>\nint other(int);\nint main(void) { int x = 0; while (clock() < CLOCKS_PER_SEC / 5) \
        x = other(x); return 0; }\n";
    place.c("program", source, &[late.to_str().unwrap(), "-Wl,-rpath,$ORIGIN"]);
    settle();
    for options in [&["--rate", "2000"][..], &["--rate", "2000", "-X", "other"]] {
        for _ in 0..2 {
            let outcome = finish(scene.command("./program", options));
            assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
            let mut gmon = Command::new(tool::gmon().unwrap());
            let flat = gmon.args(["flat", "profile.pb.gz"]).current_dir(place.folder.path()).output().unwrap();
            let flat = String::from_utf8(flat.stdout).unwrap();
            let first = flat.lines().find(|line| line.contains("late.so")).unwrap_or_default();
            let share = first.split_whitespace().next().and_then(|share| share.parse::<f64>().ok());
            let is_whole = first.contains(" other ") && share > Some(20.0) && !flat.contains(".plan") && !flat.contains(".arena");
            assert!(is_whole, "{options:?}: {flat}");
        }
    }
}
