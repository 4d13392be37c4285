//! The cache of plans: it saves the planning, changes no profile, and causes no access to other users' files.
//! The tests beside the code, in `agent/plan/src/stored/tests.rs` and `injector/src/program/plan_cache/`,
//! cover damaged entries as well.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use gprofinject_tests::place::{Place, finish};
use gprofinject_tests::run::Outcome;
use gprofinject_skip as skip;
use gprofinject_tests::{gprofdata, tool};

gprofinject_tests::trials! {
    together:
        the_second_run_finds_the_plan_and_counts_the_same,
        what_is_listed_is_the_same,
        the_plan_of_a_program_that_was_just_made_is_found_later,
        another_program_under_the_same_name_and_build_id_is_planned_anew,
        programs_with_counted_blocks_are_planned_anew,
        a_damaged_entry_is_replaced,
        folders_that_others_can_enter_or_replace_are_not_used,
        root_does_not_use_another_users_cache,
        without_a_place_for_it_there_is_no_cache,
        runs_at_the_same_time_do_not_meet,
        a_kept_plan_serves_another_users_process,
        the_oldest_entries_go,
        executed_programs_are_cached_too,
        a_kept_plan_of_several_megabytes_finds_its_place;
}

/// The unprivileged user with the name nobody.
const USER: u32 = 65534;

/// The number of functions in the program. Function N is called N % 7 + 1 times.
pub(crate) const FUNCTIONS: usize = 400;
pub(crate) const CALLS: usize = {
    let (mut n, mut sum) = (0, 0);
    while n < FUNCTIONS {
        sum += n % 7 + 1;
        n += 1;
    }
    sum
};

/// Returns a source with enough code for a plan to be kept. `answer` is one byte of it.
pub(crate) fn source(answer: u8) -> String {
    let mut source = String::from("#include <stdio.h>\n");
    for n in 0..FUNCTIONS {
        let body = "asm volatile(\".rept 400\\n nop\\n .endr\");";
        writeln!(source, "__attribute__((noinline)) int f{n}(int x) {{ {body} return x + {answer}; }}")
            .unwrap();
    }
    source.push_str("int main(void) { int t = 0;\n");
    for n in 0..FUNCTIONS {
        writeln!(source, "for (int i = 0; i < {}; i++) t = f{n}(t);", n % 7 + 1).unwrap();
    }
    source.push_str("printf(\"%d\\n\", t); return 0; }\n");
    source
}

/// A folder with the program, and a folder for caches.
pub(crate) struct Scene {
    pub(crate) place: Place,
    pub(crate) caches: PathBuf,
}

/// One run of gprofinject.
pub(crate) struct Run {
    pub(crate) cached: bool,
    /// The arcs in the profile.
    pub(crate) arcs: std::collections::BTreeMap<(u64, u64), u64>,
    pub(crate) said: String,
}

/// Waits until files that were made just now are known by their version, in runs at any speed.
pub(crate) fn settle() {
    std::thread::sleep(Duration::from_secs(4));
}

impl Scene {
    fn new() -> Scene {
        let scene = Scene::fresh();
        settle();
        scene
    }

    /// Makes the program just now: it has no version yet.
    pub(crate) fn fresh() -> Scene {
        let place = Place::new();
        fs::set_permissions(place.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        place.c("program", &source(1), &["-Wl,--build-id=0x1234"]);
        // gprofinject does not accept names that contain symbolic links.
        let caches = place.folder.path().canonicalize().unwrap().join("caches");
        Scene { place, caches }
    }

    pub(crate) fn command(&self, program: &str, options: &[&str]) -> Command {
        let mut command = Command::new(tool::gprofinject().unwrap());
        command.args(options).args(["-v", "--stats", "stats", "-o", "profile", program]);
        command.current_dir(self.place.folder.path()).env_remove("GMON_OUT_PREFIX");
        command.env("XDG_CACHE_HOME", &self.caches);
        command
    }

    pub(crate) fn run(&self, options: &[&str]) -> Run {
        self.judge(finish(self.command("./program", options)), options)
    }

    /// Checks that the program ran as it does alone and that all its calls are in the profile.
    fn judge(&self, outcome: Outcome, options: &[&str]) -> Run {
        let said = outcome.stderr_text();
        assert_eq!(
            (outcome.code(), outcome.stdout_text().as_str()),
            (0, format!("{CALLS}\n").as_str()),
            "{said}"
        );
        let stats: serde_json::Value =
            serde_json::from_slice(&fs::read(self.place.path("stats")).unwrap()).unwrap();
        let cached = stats["plan_cached"].as_bool().unwrap();
        assert_eq!(cached, said.contains("for a plan from the cache"), "{said}");
        let arcs = gprofdata::read(&self.place.path("profile")).unwrap().arcs;
        if options.is_empty() {
            // main and functions that the C library calls are counted in addition.
            let calls: u64 = arcs.values().sum();
            assert!((CALLS as u64..CALLS as u64 + 20).contains(&calls), "{calls} of {CALLS}");
        }
        Run { cached, arcs, said }
    }

    fn folder(&self) -> PathBuf {
        self.caches.join("gprofinject")
    }

    /// Returns the names of the files in the cache, but for those with what was found out about files, beside the plans.
    fn names(&self) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.folder()) else { return Vec::new() };
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.retain(|name| !name.ends_with(".file"));
        names.sort();
        names
    }

    /// Returns the only entry.
    pub(crate) fn entry(&self) -> PathBuf {
        let names = self.names();
        assert_eq!(names.len(), 1, "{names:?}");
        self.folder().join(&names[0])
    }
}

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn is_root(test: &str) -> bool {
    let root = fs::metadata("/proc/self").unwrap().uid() == 0;
    if !root {
        skip::skipped(test, "only root can act as two users");
    }
    root
}

fn the_second_run_finds_the_plan_and_counts_the_same() {
    let scene = Scene::new();
    fs::create_dir(&scene.caches).unwrap();
    for (n, options) in [&["--hooks=both"][..], &["--hooks=entry"], &["-X", "f3"], &[]].iter().enumerate() {
        let anew = scene.run(&[&["--no-cache"], *options].concat());
        assert!(!anew.cached && scene.names().len() == n, "--no-cache keeps nothing");
        let (first, second) = (scene.run(options), scene.run(options));
        assert!(!first.cached && second.cached, "{options:?}");
        assert!(first.arcs == anew.arcs && second.arcs == anew.arcs, "{options:?}");
        assert_eq!(scene.names().len(), n + 1, "{options:?}");
        assert!(!scene.run(&[&["--no-cache"], *options].concat()).cached, "--no-cache finds nothing");
    }
    for name in scene.names() {
        assert_eq!(mode(&scene.folder().join(name)), 0o600);
    }
    assert_eq!(mode(&scene.folder()), 0o700);
    // No hooks in three ways: the plans are the same, except for what they say about each function.
    for (options, reason) in [("--hooks=none", "no-hooks"), ("-X*", "not-selected"), ("--min-size=1000000", "too-small")] {
        for cached in [false, true] {
            let run = scene.run(&[options]);
            assert_eq!((run.cached, run.said.contains(reason)), (cached, true), "{options}: {}", run.said);
            assert!(run.arcs.is_empty());
        }
    }
}

fn the_plan_of_a_program_that_was_just_made_is_found_later() {
    let scene = Scene::fresh();
    let first = scene.run(&[]);
    assert!(!first.cached);
    settle();
    for _ in 0..2 {
        let next = scene.run(&[]);
        assert!(next.cached && next.arcs == first.arcs, "{}", next.said);
    }
}

fn what_is_listed_is_the_same() {
    let scene = Scene::new();
    let list = |options: &[&str]| {
        let mut command = Command::new(tool::gprofinject().unwrap());
        command.args(options).args(["--list", "./program"]);
        command.current_dir(scene.place.folder.path()).env("XDG_CACHE_HOME", &scene.caches);
        finish(command).stdout_text()
    };
    let anew = list(&["--no-cache"]);
    assert!(anew.contains("f399"), "{anew}");
    assert_eq!(list(&[]), anew);
    assert!(scene.names().is_empty(), "nothing is kept where nothing is run");
    scene.run(&[]);
    assert_eq!(scene.names().len(), 1);
    assert_eq!(list(&[]), anew);
}

/// A forged build-id does not lead to the plan of the program from which it was taken.
fn another_program_under_the_same_name_and_build_id_is_planned_anew() {
    let scene = Scene::new();
    scene.run(&[]);
    assert!(scene.run(&[]).cached);
    let len = fs::metadata(scene.place.path("program")).unwrap().len();
    scene.place.c("program", &source(2), &["-Wl,--build-id=0x1234"]);
    assert_eq!(fs::metadata(scene.place.path("program")).unwrap().len(), len);
    let outcome = finish(scene.command("./program", &[]));
    assert_eq!(outcome.stdout_text(), format!("{}\n", 2 * CALLS));
    assert!(!outcome.stderr_text().contains("from the cache"), "{}", outcome.stderr_text());
    assert_eq!(scene.names().len(), 2);
}

fn programs_with_counted_blocks_are_planned_anew() {
    let scene = Scene::new();
    for _ in 0..2 {
        assert!(!scene.run(&["--count=blocks"]).cached);
    }
    // The names of functions in which samples were may be kept.
    let kept = fs::read_dir(scene.caches.join("gprofinject")).into_iter().flatten();
    let names: Vec<_> = kept.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.iter().all(|name| name.ends_with(".file")), "{names:?}");
}

fn a_damaged_entry_is_replaced() {
    // The end of an entry says when it was written.
    let parts = |entry: &[u8]| entry[..entry.len() - 112].to_vec();
    let scene = Scene::new();
    let good = scene.run(&[]);
    let whole = fs::read(scene.entry()).unwrap();
    let damage: [&dyn Fn(&Path); 7] = [
        &|path| fs::write(path, b"").unwrap(),
        &|path| fs::write(path, &whole[..whole.len() / 2]).unwrap(),
        &|path| {
            let mut bytes = whole.clone();
            bytes[whole.len() - 4000] ^= 1;
            fs::write(path, bytes).unwrap();
        },
        &|path| fs::File::options().write(true).open(path).unwrap().set_len(1 << 40).unwrap(),
        &|path| fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap(),
        &|path| {
            fs::rename(path, scene.place.path("moved")).unwrap();
            symlink(scene.place.path("moved"), path).unwrap();
        },
        &|path| {
            fs::remove_file(path).unwrap();
            assert!(Command::new("mkfifo").args(["-m", "600"]).arg(path).status().unwrap().success());
        },
    ];
    for (n, damage) in damage.iter().enumerate() {
        damage(&scene.entry());
        let again = scene.run(&[]);
        assert!(!again.cached && again.arcs == good.arcs, "damage {n}");
        assert_eq!(
            (mode(&scene.entry()), parts(&fs::read(scene.entry()).unwrap()) == parts(&whole)),
            (0o600, true),
            "damage {n}"
        );
        assert!(scene.run(&[]).cached, "damage {n}");
    }
    // An entry that cannot be replaced is no error either.
    let entry = scene.entry();
    fs::remove_file(&entry).unwrap();
    fs::create_dir_all(entry.join("full")).unwrap();
    let run = scene.run(&[]);
    assert!(!run.cached && run.said.contains("the plan is not kept in"), "{}", run.said);
    assert_eq!(scene.names().len(), 1, "nothing unfinished is left");
}

fn folders_that_others_can_enter_or_replace_are_not_used() {
    let scene = Scene::new();
    let unused = |why: &str| {
        let run = scene.run(&[]);
        assert!(!run.cached && run.said.contains("no plan cache") && run.said.contains(why), "{}", run.said);
        let quiet = finish(tool_quiet(&scene));
        assert_eq!(quiet.stderr_text(), "", "only -v says so");
    };
    scene.run(&[]);
    assert!(scene.run(&[]).cached);
    for wrong in [0o755, 0o770, 0o702] {
        fs::set_permissions(scene.folder(), fs::Permissions::from_mode(wrong)).unwrap();
        unused("other users may enter it");
    }
    fs::set_permissions(scene.folder(), fs::Permissions::from_mode(0o700)).unwrap();
    assert!(scene.run(&[]).cached);
    fs::set_permissions(&scene.caches, fs::Permissions::from_mode(0o777)).unwrap();
    unused("other users can replace what is in");
    fs::set_permissions(&scene.caches, fs::Permissions::from_mode(0o700)).unwrap();

    let elsewhere = scene.place.path("elsewhere");
    fs::rename(scene.folder(), &elsewhere).unwrap();
    symlink(&elsewhere, scene.folder()).unwrap();
    unused("");
    fs::remove_file(scene.folder()).unwrap();
    fs::write(scene.folder(), "no folder").unwrap();
    unused("");
    assert_eq!(fs::read(scene.folder()).unwrap(), b"no folder");
}

fn tool_quiet(scene: &Scene) -> Command {
    let mut command = Command::new(tool::gprofinject().unwrap());
    command.args(["-q", "-o", "profile", "./program"]).current_dir(scene.place.folder.path());
    command.env("XDG_CACHE_HOME", &scene.caches);
    command
}

/// As under `su` or `sudo -E`.
fn root_does_not_use_another_users_cache() {
    if !is_root("root_does_not_use_another_users_cache") {
        return;
    }
    let scene = Scene::new();
    let home = scene.caches.clone();
    fs::create_dir(&home).unwrap();
    chown(&home, Some(USER), Some(USER)).unwrap();
    let as_user = |user: u32| {
        for written in ["stats", "profile"] {
            let _ = fs::remove_file(scene.place.path(written));
        }
        fs::set_permissions(scene.place.folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        // With a sample in the dynamic linker or the C library, the names of its functions would be kept, too.
        let mut command = scene.command("./program", &["--rate", "0"]);
        command.env_remove("XDG_CACHE_HOME").env("HOME", &home).env_remove("XDG_RUNTIME_DIR");
        command.uid(user).gid(user);
        scene.judge(finish(command), &[])
    };
    let run = as_user(0);
    assert!(!run.cached && run.said.contains("belongs to user 65534"), "{}", run.said);
    assert_eq!(fs::read_dir(&home).unwrap().count(), 0, "root wrote there");

    // The user's own plans belong to the user.
    let runs = [as_user(USER), as_user(USER), as_user(0)];
    assert_eq!(runs.each_ref().map(|run| run.cached), [false, true, false], "{}", runs[0].said);
    let folder = home.join(".cache/gprofinject");
    let owners: Vec<u32> =
        fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap().uid()).collect();
    // The plan, and the program with what was found out about it.
    assert_eq!(owners, [USER, USER]);

    // A folder of the user inside one of root's is not used either.
    fs::create_dir(scene.place.path("roots")).unwrap();
    fs::rename(&folder, scene.place.path("roots/gprofinject")).unwrap();
    let mut command = scene.command("./program", &[]);
    command.env("XDG_CACHE_HOME", scene.place.folder.path().canonicalize().unwrap().join("roots"));
    fs::set_permissions(scene.place.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let run = scene.judge(finish(command), &[]);
    assert!(!run.cached && run.said.contains("it belongs to user 65534"), "{}", run.said);
}

fn without_a_place_for_it_there_is_no_cache() {
    let scene = Scene::new();
    let run = |change: &dyn Fn(&mut Command)| {
        let mut command = scene.command("./program", &[]);
        change(&mut command);
        scene.judge(finish(command), &[])
    };
    let none = run(&|command| {
        command.env_remove("XDG_CACHE_HOME").env_remove("HOME");
    });
    assert!(!none.cached && none.said.contains("neither XDG_CACHE_HOME nor HOME"), "{}", none.said);
    for path in ["/dev/null", "/proc/self/none", "/no/such/folder"] {
        let run = run(&|command| {
            command.env("XDG_CACHE_HOME", path);
        });
        let is_said = run.said.contains("no plan cache") || run.said.contains("the plan is not kept");
        assert!(!run.cached && is_said, "{path}: {}", run.said);
    }
    assert!(!Path::new("/no").exists());
}

fn runs_at_the_same_time_do_not_meet() {
    let scene = Scene::new();
    for round in 0..3 {
        let _ = fs::remove_dir_all(&scene.caches);
        let children: Vec<_> = (0..6)
            .map(|n| {
                let mut command = Command::new(tool::gprofinject().unwrap());
                command.args(["-q", "-o", &format!("profile.{n}"), "./program"]);
                command.current_dir(scene.place.folder.path()).env("XDG_CACHE_HOME", &scene.caches);
                command.stdout(Stdio::null()).spawn().unwrap()
            })
            .collect();
        for mut child in children {
            assert!(child.wait().unwrap().success());
        }
        let last = scene.run(&[]);
        assert!(last.cached, "round {round}");
        scene.entry();
        for n in 0..6 {
            let arcs = gprofdata::read(&scene.place.path(&format!("profile.{n}"))).unwrap().arcs;
            assert!(arcs == last.arcs, "round {round}, run {n}");
        }
    }
}

/// Root attaches to a process of another user, who cannot read the cache.
fn a_kept_plan_serves_another_users_process() {
    if !is_root("a_kept_plan_serves_another_users_process") {
        return;
    }
    let scene = Scene::fresh();
    let source = "#include <unistd.h>\n__attribute__((noinline)) int f(int x) { __asm__ volatile(\"\"); return x + 1; }\n\
        int main(void) { int x = 0; for (;;) { x = f(x); usleep(1000); } }\n";
    scene.place.c("program", source, &[]);
    settle();
    for _ in 0..3 {
        let mut program = Command::new(scene.place.path("program")).uid(USER).gid(USER).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let mut command = Command::new(tool::gprofinject().unwrap());
        command.args(["--pid", &program.id().to_string(), "--duration", "0.2", "-o", "profile"]);
        command.current_dir(scene.place.folder.path()).env("XDG_CACHE_HOME", &scene.caches);
        let outcome = finish(command);
        let maps = fs::read_to_string(format!("/proc/{}/maps", program.id())).unwrap();
        let lives = program.try_wait().unwrap().is_none();
        program.kill().unwrap();
        program.wait().unwrap();
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
        assert!(lives && !maps.contains("gprofinject"), "{maps}");
    }
    assert!(fs::read_dir(scene.folder()).unwrap().count() > 0);
}

/// The cache has at most as many bytes as the user says, and what was used last stays.
fn the_oldest_entries_go() {
    let scene = Scene::new();
    let run = |size: &str, options: &[&str]| {
        let mut command = scene.command("./program", options);
        command.env("GPROFINJECT_CACHE_SIZE", size);
        scene.judge(finish(command), options)
    };
    let bytes = || -> u64 {
        let entries = fs::read_dir(scene.folder()).unwrap();
        entries.map(|entry| entry.unwrap().metadata().unwrap().blocks() * 512).sum()
    };
    assert!(!run("1T", &[]).cached && run("", &[]).cached);
    let most = bytes();
    // There is room for one plan; the other mode's takes its place.
    std::thread::sleep(Duration::from_secs(2));
    assert!(!run(&most.to_string(), &["--hooks=entry"]).cached);
    assert!(bytes() <= most && run(&most.to_string(), &["--hooks=entry"]).cached);
    assert!(!run("0", &[]).cached);
    let odd = run("much", &["--hooks=entry"]);
    assert!(odd.said.contains("GPROFINJECT_CACHE_SIZE is 'much'"), "{}", odd.said);
}

fn executed_programs_are_cached_too() {
    let scene = Scene::new();
    let program = scene.place.path("program");
    let run = || {
        let mut command = scene.command("/bin/sh", &["--rate=0"]);
        command.args(["-c", &format!("'{0}' && '{0}'", program.display())]);
        finish(command)
    };
    let anew = run();
    assert_eq!(anew.stdout_text(), format!("{CALLS}\n{CALLS}\n"));
    assert!(anew.stderr_text().contains("kept for later runs"), "{}", anew.stderr_text());
    assert!(scene.run(&[]).cached);
    let entries = scene.names();
    let again = run();
    assert!(!again.stderr_text().contains("kept for later runs"), "{}", again.stderr_text());
    assert_eq!((again.stdout, scene.names()), (anew.stdout, entries));
}

/// Linux follows the hint for a mapping of a large file only if there is room for 2 MiB more; the thunks need less.
fn a_kept_plan_of_several_megabytes_finds_its_place() {
    const MANY: usize = 16_000;
    let mut source = String::from("asm(\".text\\n\"\n");
    for n in 0..MANY {
        writeln!(source, "\".type f{n}, @function\\nf{n}: .rept 20\\nnop\\n.endr\\nret\\n.size f{n}, . - f{n}\\n\"").unwrap();
    }
    source.push_str("\".type all, @function\\nall: push %rax\\n\"\n");
    for n in 0..MANY {
        writeln!(source, "\"call f{n}\\n\"").unwrap();
    }
    source.push_str("\"pop %rax\\nret\\n.size all, . - all\\n\");\nvoid all(void); int main(void) { all(); return 0; }\n");
    let scene = Scene::fresh();
    scene.place.c("large", &source, &["-Wl,--build-id=0x5678"]);
    settle();
    for cached in [false, true, true] {
        let outcome = finish(scene.command("./large", &["--times"]));
        let said = outcome.stderr_text();
        assert_eq!((outcome.code(), said.contains("for a plan from the cache")), (0, cached), "{said}");
        let calls: u64 = gprofdata::read(&scene.place.path("profile")).unwrap().arcs.values().sum();
        assert!((MANY as u64..MANY as u64 + 20).contains(&calls), "{calls} of {MANY}: {said}");
    }
    let len = fs::metadata(scene.entry()).unwrap().len();
    assert!(len > 4 << 20, "its plan has only {len} bytes");
}
