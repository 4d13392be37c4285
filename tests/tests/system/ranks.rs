//! Parallel jobs: each process has files of its own, named by the rank that its launcher has given to it.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use gprofinject_skip as skip;
use gprofinject_tests::place::{HELLO, LIMIT, Place, complains, finish};
use gprofinject_tests::{compile, gprofdata, run, tool, view};

gprofinject_tests::trials! {
    together:
        each_rank_has_files_of_its_own,
        no_other_name_than_a_number,
        the_host_and_no_rank_at_all,
        what_all_ranks_share,
        open_mpi;
}

/// The variables in which launchers tell a rank.
const LAUNCHERS: [&str; 4] = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"];

/// Returns a command that is not part of a job that runs the tests.
fn command(place: &Place, args: &[&str]) -> Command {
    let mut command = place.command(args);
    for name in LAUNCHERS {
        command.env_remove(name);
    }
    command
}

/// Returns the names of the files in the folder that runs have left.
fn files(place: &Place) -> BTreeSet<String> {
    let names = fs::read_dir(place.folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.to_string_lossy().into_owned()).filter(|name| !name.starts_with("hello")).collect()
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// The profile and everything beside it, with `-o`, with GMON_OUT_PREFIX, and of children.
fn each_rank_has_files_of_its_own() {
    let place = Place::new();
    place.c("hello", HELLO, &[]);
    for (rank, launcher) in LAUNCHERS.iter().enumerate() {
        let mut job = command(&place, &["--times", "--stats", "stats", "./hello"]);
        job.env(launcher, rank.to_string());
        let outcome = finish(job);
        assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
        let said = outcome.stderr_text();
        assert!(said.contains(&format!("next: gmon flat gmon.rank{rank}.pb.gz")), "{said}");
        let calls = gprofdata::read(&place.path(&format!("gmon.out.rank{rank}"))).unwrap().calls();
        assert!(calls >= 101, "{calls}");
    }
    let expected: BTreeSet<String> = (0..LAUNCHERS.len())
        .flat_map(|rank| {
            [
                format!("gmon.out.rank{rank}"),
                format!("gmon.rank{rank}.pb.gz"),
                format!("stats.rank{rank}"),
            ]
        })
        .collect();
    assert_eq!(files(&place), expected);

    let place = Place::new();
    place.c("hello", HELLO, &[]);
    let job = |args: &[&str]| {
        let mut job = command(&place, args);
        job.env("PMIX_RANK", "12");
        job
    };
    assert_eq!(finish(job(&["-q", "--libs", "none", "-o", "run.out", "./hello"])).code(), 0);
    assert_eq!(files(&place), set(&["run.out.rank12", "run.out.rank12.pb.gz"]));
    // Another program of the rank.
    let names = ["-q", "--libs", "none", "-o", "run.out", "env", "./hello"];
    assert_eq!(finish(job(&names)).code(), 0);
    let recording = view::read(&place.path("run.out.rank12.pb.gz")).unwrap();
    assert!(recording.programs.iter().any(|program| program.name == "hello"), "{:?}", recording.programs);
    let mut prefixed = job(&["-q", "--libs", "none", "./hello"]);
    prefixed.env("GMON_OUT_PREFIX", place.path("mine"));
    assert_eq!(finish(prefixed).code(), 0);
    let numbered = |name: &String| name.strip_prefix("mine.rank12.").is_some_and(|n| n.parse::<u32>().is_ok());
    assert!(files(&place).iter().any(numbered), "{:?}", files(&place));
}

/// The value of a launcher's variable comes from the environment, and becomes a part of a file name.
fn no_other_name_than_a_number() {
    let place = Place::new();
    place.c("hello", HELLO, &[]);
    for value in ["../../rank", "1/../x", "-1", "+1", "", "99999999999999999999", "1\n"] {
        let mut job = command(&place, &["-q", "--libs", "none", "./hello"]);
        job.env("OMPI_COMM_WORLD_RANK", value);
        assert_eq!(finish(job).code(), 0);
        assert_eq!(files(&place), set(&["gmon.out", "gmon.pb.gz"]), "{value:?}");
    }
}

fn the_host_and_no_rank_at_all() {
    let place = Place::new();
    place.c("hello", HELLO, &[]);
    let job = |ranks: &str| {
        let mut job = command(&place, &["-q", "--libs", "none", "--ranks", ranks, "./hello"]);
        job.env("PMI_RANK", "3");
        assert_eq!(finish(job).code(), 0);
    };
    job("none");
    assert_eq!(files(&place), set(&["gmon.out", "gmon.pb.gz"]));
    job("host");
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let host: String =
        host.trim().chars().map(|c| if c.is_ascii_alphanumeric() || ".-_".contains(c) { c } else { '_' }).collect();
    let of_host = [format!("gmon.out.rank3.{host}"), format!("gmon.rank3.{host}.pb.gz")];
    assert_eq!(files(&place), set(&["gmon.out", "gmon.pb.gz", &of_host[0], &of_host[1]]));
    let wrong = run::run(command(&place, &["--ranks", "all", "./hello"]), None, LIMIT).unwrap();
    complains(&wrong, 125, "auto, host, none");
}

/// A device has no room for a rank in its name.
fn what_all_ranks_share() {
    let place = Place::new();
    place.c("hello", HELLO, &[]);
    let mut job = command(&place, &["-q", "--libs", "none", "-o", "/dev/null", "--stats", "-", "./hello"]);
    job.env("PMI_RANK", "3");
    let outcome = finish(job);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    assert!(outcome.stdout_text().contains("\"calls\""), "{}", outcome.stdout_text());
    assert!(files(&place).is_empty() && !fs::exists("/dev/null.rank3").unwrap(), "{:?}", files(&place));
}

/// Four ranks that do different amounts of work: each file has what its rank did, and `gmon flat --spread` says who did most.
fn open_mpi() {
    let place = Place::new();
    let source = "#include <mpi.h>\n\
        __attribute__((noinline)) void step(void) { asm volatile(\"\"); }\n\
        int main(int count, char **args) { int rank; MPI_Init(&count, &args);\n\
        MPI_Comm_rank(MPI_COMM_WORLD, &rank); for (int i = 0; i < 1000 * (rank + 1); i++) step();\n\
        MPI_Barrier(MPI_COMM_WORLD); return MPI_Finalize(); }\n";
    if !skip::have("mpirun") || !skip::have("mpicc") {
        return skip::skipped("open_mpi", "no mpirun and mpicc");
    }
    fs::write(place.path("hello.c"), source).unwrap();
    let mut compiler = Command::new("mpicc");
    compiler.args(["-O1", "-o"]).arg(place.path("hello")).arg(place.path("hello.c"));
    compile::compile(compiler).unwrap();
    let mut job = Command::new("mpirun");
    job.args(["--allow-run-as-root", "--oversubscribe", "-np", "4"]);
    job.arg(tool::gprofinject().unwrap()).args(["-q", "--libs", "none", "--no-cache", "./hello"]);
    job.current_dir(place.folder.path()).env_remove("GMON_OUT_PREFIX");
    for name in LAUNCHERS {
        job.env_remove(name);
    }
    let outcome = run::run(job, None, LIMIT).unwrap();
    assert!(!outcome.timed_out && outcome.code() == 0, "{}", outcome.stderr_text());
    let names = ["gmon.out.rank0", "gmon.out.rank1", "gmon.out.rank2", "gmon.out.rank3"];
    let recordings: Vec<String> = (0..4).map(|rank| format!("gmon.rank{rank}.pb.gz")).collect();
    let all: Vec<&str> = names.iter().copied().chain(recordings.iter().map(String::as_str)).collect();
    assert_eq!(files(&place), set(&all));

    let mut ranks = Command::new(tool::gmon().unwrap());
    ranks.args(["flat", "--spread", "--json", "hello"]).args(names).current_dir(place.folder.path());
    let table = ranks.output().unwrap();
    let table: serde_json::Value = serde_json::from_slice(&table.stdout).unwrap();
    let step = table["functions"].as_array().unwrap().iter().find(|row| row["name"] == "step").unwrap();
    let calls = &step["calls"];
    assert_eq!((calls["min"].as_u64(), calls["max"].as_u64()), (Some(1000), Some(4000)), "{calls}");
    assert_eq!((calls["mean"].as_f64(), calls["imbalance"].as_f64()), (Some(2500.0), Some(1.6)), "{calls}");
    assert_eq!(calls["max_rank"], "3", "{calls}");
}
