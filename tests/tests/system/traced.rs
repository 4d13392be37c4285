//! Traces: programs that keep a log of their own calls, and what a trace of the same run says; the last part of a trace after a crash;
//! what is left out.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use gprofinject_tests::place::{self, Place};
use gprofinject_tests::traced::{Line, lines, rows, shown, stats, traced};
use gprofinject_tests::tool;

gprofinject_tests::trials! {
    together:
        the_sequence_is_that_of_the_programs_log,
        exceptions_are_told_apart_from_returns,
        what_is_newest_is_right,
        what_is_kept_is_right,
        only_the_outer_calls,
        coroutines_after_signals,
        only_the_long_calls,
        what_led_to_a_crash,
        what_led_to_a_call,
        what_was_lost_is_said,
        a_truncated_trace_is_read_up_to_its_end,
        static_programs_are_traced,
        arguments_and_results,
        options_that_do_not_fit;
}

const LOGGED: &str = include_str!("../../data/logged.c");

/// What happens in these functions on each thread: `> name` and `< name`, and `! name` if a call was left otherwise.
fn happenings(place: &Place, file: &str, names: &[&str]) -> BTreeMap<u32, Vec<String>> {
    let mut all: BTreeMap<u32, Vec<String>> = BTreeMap::new();
    for Line { tid, text, .. } in lines(&shown(place, file, &["--fields", "tid"])) {
        let left = text.contains("left by");
        let (begins, ends, name) = match text.strip_prefix("} /* ") {
            Some(rest) => (false, true, rest),
            None => (true, text.contains(';'), text.as_str()),
        };
        let name = name.split([' ', '(', ':', ';', '.']).next().unwrap_or_default();
        // What a child has inherited is not its own call.
        if !names.contains(&name) || text.contains("open") {
            continue;
        }
        let here = all.entry(tid).or_default();
        if begins {
            here.push(format!("> {name}"));
        }
        if ends {
            here.push(format!("{} {name}", if left { '!' } else { '<' }));
        }
    }
    all
}

const LOGGED_NAMES: [&str; 7] = ["leaf", "work", "deep", "handler", "thread", "child", "main"];

fn the_sequence_is_that_of_the_programs_log() {
    for flags in [&["-O0"][..], &["-O2"], &["-O2", "-fno-pie", "-no-pie"]] {
        let place = Place::new();
        place.c("prog", LOGGED, &[flags, &["-pthread", "-fno-optimize-sibling-calls"]].concat());
        let outcome = traced(&place, &["-q"], &["./prog"], 0);
        let mut log: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for line in outcome.stdout_text().lines() {
            let (tid, what) = line.split_once(' ').unwrap();
            log.entry(tid.parse().unwrap()).or_default().push(what.to_owned());
        }
        // The calls that the jump leaves say nothing themselves.
        for here in log.values_mut() {
            if let Some(last) = here.iter().rposition(|what| what == "> deep") {
                let left = here.iter().filter(|what| *what == "> deep").count();
                here.splice(last + 1..last + 1, std::iter::repeat_n("! deep".to_owned(), left));
            }
        }
        let found = happenings(&place, "trace", &LOGGED_NAMES);
        assert_eq!(found, log, "{flags:?}");
    }
}

fn exceptions_are_told_apart_from_returns() {
    const THROWING: &str = r#"
#include <cstdio>
struct Guard { ~Guard(); };
__attribute__((noinline)) void closed(int x) { __asm__ volatile("" : : "r"(x)); }
Guard::~Guard() { closed(1); }
__attribute__((noinline)) int inner(int n) { if (n % 3 == 0) throw n; return n; }
__attribute__((noinline)) int middle(int n) { Guard guard; return inner(n) + 1; }
__attribute__((noinline)) int outer(int n) { try { return middle(n); } catch (int x) { return -x; } }
int main() { int s = 0; for (int i = 1; i <= 3; i++) s += outer(i); std::printf("%d\n", s); return 0; }
"#;
    let place = Place::new();
    place.compile("g++", "prog", THROWING, &["-O1", "-fno-optimize-sibling-calls", "-fno-inline"]).unwrap();
    traced(&place, &["-q"], &["./prog"], 0);
    let found = happenings(&place, "trace", &["inner", "middle", "outer"]);
    let returns = ["> outer", "> middle", "> inner", "< inner", "< middle", "< outer"];
    let throws = ["> outer", "> middle", "> inner", "! inner", "! middle", "< outer"];
    let expected: Vec<String> = [returns, returns, throws].concat().iter().map(|&what| what.to_owned()).collect();
    assert_eq!(found.into_values().collect::<Vec<_>>(), [expected]);
}

/// With gprofinject stopped, a thread writes over its events many times. What is left is what is newest, and each call in it is
/// within those within which it was made, which were open when the events were lost.
fn what_is_newest_is_right() {
    const DEPTH: usize = 300;
    let source = format!(
        r#"
#include <stdio.h>
#include <unistd.h>
#define F __attribute__((noinline)) static
F int c(int x) {{ __asm__ volatile("" : "+r"(x)); return x; }}
F int b(int x) {{ int s = c(x); s += c(s); __asm__ volatile("" : "+r"(s)); return s; }}
F int a(int x) {{ int s = b(x); s += b(s); __asm__ volatile("" : "+r"(s)); return s; }}
F int last(int x) {{ int s = c(x); __asm__ volatile("" : "+r"(s)); return s; }}
F int deep(int n) {{
    int s = 0;
    if (n > 0) s = deep(n - 1);
    else {{
        puts("ready"); fflush(stdout);
        char line[10];
        if (!fgets(line, sizeof line, stdin)) return 1;
        for (int i = 0; i < 1000000; i++) s += a(i);
        puts("done"); fflush(stdout);
        if (!fgets(line, sizeof line, stdin)) return 1;
        for (int i = 0; i < 1000; i++) s += last(i);
    }}
    __asm__ volatile("" : "+r"(s));
    return s;
}}
int main(void) {{ return deep({DEPTH}) == 7; }}
"#
    );
    let place = Place::new();
    place.c("prog", &source, &["-O1", "-fno-optimize-sibling-calls"]);
    let options = ["-q", "--rate=0", "--libs=none", "--stats=stats", "--trace", "trace", "--trace-full", "drop-old"];
    let mut command = tool::command(&options, &place.path("gmon.out"), &place.path("prog"), &[]).unwrap();
    command.current_dir(place.path("")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut injector = command.spawn().unwrap();
    let pid = injector.id().to_string();
    let (mut stdin, stdout) = (injector.stdin.take().unwrap(), injector.stdout.take().unwrap());
    let mut said = BufReader::new(stdout).lines();
    assert_eq!(said.next().unwrap().unwrap(), "ready");
    let send = |signal: &str| assert!(Command::new("kill").arg(signal).arg(&pid).status().unwrap().success());
    send("-STOP");
    stdin.write_all(b"go\n").unwrap();
    assert_eq!(said.next().unwrap().unwrap(), "done");
    send("-CONT");
    // gprofinject reads what is newest in the ring meanwhile. It takes some ten milliseconds where nothing else runs.
    std::thread::sleep(Duration::from_secs(3));
    stdin.write_all(b"go\n").unwrap();
    assert!(injector.wait().unwrap().success());
    assert!(stats(&place)["trace"]["lost"].as_u64().unwrap() > 10_000_000, "{}", stats(&place));
    let text = shown(&place, "trace", &["--json"]);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let mut found: BTreeMap<String, u64> = BTreeMap::new();
    for step in json["steps"].as_array().unwrap() {
        let name = step["function"].as_str().unwrap_or_default();
        assert_ne!(step["event"], "end", "{step}");
        let beyond = match name {
            "a" | "last" => 0,
            "b" => 1,
            // That within `last` is one further out.
            "c" if step["depth"] == DEPTH + 3 => 1,
            "c" => 2,
            _ => continue,
        };
        // main, and DEPTH + 1 calls of `deep`.
        assert_eq!(step["depth"], DEPTH + 2 + beyond, "{step}");
        *found.entry(name.to_owned()).or_default() += 1;
    }
    assert_eq!(found["last"], 1000);
    // Most of a ring of 262,144 events of 7 calls each.
    assert!(found["a"] > 150_000 / 14 && found["a"] < 262_144 / 14 + 2, "{found:?}");
}

/// With gprofinject stopped now and then, a thread that does not wait for it loses events in the midst of calls, of which some begin
/// and others end meanwhile. Each call that is kept is within as many others as its name says.
fn what_is_kept_is_right() {
    const DEPTH: usize = 13;
    // `f<n>` calls the next one twice. The last one ends with a jump to `jumper`, and that with one to `landing`.
    let inner: String = (0..DEPTH)
        .rev()
        .map(|n| {
            let next = n + 1;
            format!("F f{n}(int x) {{ int s = f{next}(x); s += f{next}(s); __asm__ volatile(\"\" : \"+r\"(s)); return s; }}\n")
        })
        .collect();
    let source = format!(
        r#"
#define F __attribute__((noinline, noclone)) static int
F landing(int x) {{ __asm__ volatile("" : "+r"(x)); return x; }}
F jumper(int x) {{ __asm__ volatile("" : "+r"(x)); return landing(x); }}
F f{DEPTH}(int x) {{ __asm__ volatile("" : "+r"(x)); return jumper(x); }}
{inner}
int main(void) {{
    int s = 0;
    for (int i = 0; i < 60; i++) s += f0(i);
    return s == 7;
}}
"#
    );
    let place = Place::new();
    place.c("prog", &source, &["-O1", "-foptimize-sibling-calls"]);
    let options = ["-q", "--rate=0", "--libs=none", "--stats=stats", "--trace", "trace", "--trace-full", "drop-new"];
    let mut command = tool::command(&options, &place.path("gmon.out"), &place.path("prog"), &[]).unwrap();
    let mut injector = command.current_dir(place.path("")).spawn().unwrap();
    let pid = injector.id().to_string();
    let mut signals = ["-STOP", "-CONT"].into_iter().cycle();
    let status = loop {
        if let Some(status) = injector.try_wait().unwrap() {
            break status;
        }
        let _ = Command::new("kill").args([signals.next().unwrap(), &pid]).stderr(Stdio::null()).status();
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success());
    let lost = stats(&place)["trace"]["lost"].as_u64().unwrap();
    assert!(lost > 100_000, "{lost}");
    let mut command = Command::new(tool::gmon().unwrap());
    command.args(["trace", "--fields", "tid"]).arg(place.path("trace"));
    let text = place::finish(command).stdout_text();
    let losses = text.lines().filter(|line| line.contains("events are lost")).count();
    assert!(losses > 3, "{losses}");
    let (mut found, mut wrong) = ([0_u64; DEPTH + 3], 0);
    for Line { depth, text, .. } in lines(&text) {
        let name = text.split('(').next().unwrap_or_default();
        let known = match name {
            "jumper" => Some(DEPTH + 1),
            "landing" => Some(DEPTH + 2),
            _ => name.strip_prefix('f').and_then(|number| number.parse().ok()),
        };
        if let Some(known) = known {
            found[known] += 1;
            // main is around them.
            wrong += u64::from(depth != known + 1);
        }
    }
    assert_eq!(wrong, 0, "of {found:?}, with {losses} losses");
    assert!(found.iter().all(|&count| count > 0), "{found:?}");
}

/// `f(n)` calls `f(n - 1)` twice.
const TREE: &str = r#"
#include <stdlib.h>
__attribute__((noinline)) static int f(int n) { __asm__ volatile(""); return n == 0 ? 1 : f(n - 1) + f(n - 1); }
int main(int argc, char **argv) { return f(atoi(argv[argc - 1])) != 1 << atoi(argv[1]); }
"#;

fn only_the_outer_calls() {
    let place = Place::new();
    place.c("prog", TREE, &["-O1", "-fno-optimize-sibling-calls", "-fno-inline"]);
    for depth in [1_u32, 2, 5, 9] {
        traced(&place, &["-q", "--trace-depth", &depth.to_string()], &["./prog", "9"], 0);
        let text = shown(&place, "trace", &["--fields", "tid"]);
        let calls = lines(&text).iter().filter(|line| line.text.starts_with("f(")).count() as u32;
        // main is one of the open calls, and f(9) the next one.
        assert_eq!(calls, (1 << (depth - 1)) - 1, "{depth}: {text}");
    }
}

/// Four times, a signal comes on a stack of its own, and then a coroutine goes on, whose stack is another one. Both call `inner`, as
/// the function that resumes the coroutine does.
const RESUMING: &str = r#"
#include <signal.h>
#include <stdlib.h>
#include <ucontext.h>
#define F __attribute__((noinline)) static
static ucontext_t outside, inside;
static volatile int sum;
F void leaf(void) { sum++; __asm__ volatile(""); }
F void inner(void) { leaf(); leaf(); sum++; }
F void handler(int s) { inner(); sum += s; }
F void body(void) { for (;;) { inner(); swapcontext(&inside, &outside); } }
F void resume(void) { inner(); raise(SIGUSR1); swapcontext(&outside, &inside); leaf(); sum++; }
int main(void) {
    stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    if (sigaltstack(&stack, 0) || sigaction(SIGUSR1, &action, 0)) return 1;
    getcontext(&inside);
    inside.uc_stack.ss_size = 1 << 16;
    inside.uc_stack.ss_sp = malloc(1 << 16);
    makecontext(&inside, body, 0);
    for (int i = 0; i < 4; i++) resume();
    return 0;
}
"#;

fn coroutines_after_signals() {
    let place = Place::new();
    place.c("prog", RESUMING, &["-O2"]);
    // How deep each call is: `body` is the outermost one of its stack.
    let round: &[(usize, &str)] = &[
        (1, "resume"),
        (2, "inner"),
        (3, "leaf"),
        (3, "leaf"),
        (2, "handler"),
        (3, "inner"),
        (4, "leaf"),
        (4, "leaf"),
        (0, "body"),
        (1, "inner"),
        (2, "leaf"),
        (2, "leaf"),
        (2, "leaf"),
    ];
    let begins_once = |n: usize, name: &str| n == 0 || name != "body";
    let mut all = vec![(0, "main")];
    all.extend((0..4).flat_map(|n| round.iter().copied().filter(move |(_, name)| begins_once(n, name))));
    let names: Vec<&str> = all.iter().map(|&(_, name)| name).collect();
    for depth in [1, 2, 3, 4, 9] {
        traced(&place, &["-q", "--trace-depth", &depth.to_string()], &["./prog"], 0);
        let text = shown(&place, "trace", &["--fields", "tid"]);
        let all_lines = lines(&text);
        let begun = all_lines.iter().filter_map(|line| Some((line.depth, line.text.split_once('(')?.0)));
        let seen: Vec<(usize, &str)> = begun.filter(|(_, name)| names.contains(name)).collect();
        let expected: Vec<_> = all.iter().copied().filter(|&(at, _)| at < depth).collect();
        assert_eq!(seen, expected, "{depth}: {text}");
    }
}

fn only_the_long_calls() {
    const SLEEPING: &str = r#"
#include <time.h>
__attribute__((noinline)) static int quick(int n) { __asm__ volatile("" : "+r"(n)); return n; }
__attribute__((noinline)) static void slow(void) { quick(1); nanosleep(&(struct timespec){0, 20000000}, 0); quick(2); }
__attribute__((noinline)) static void some(void) { quick(3); slow(); quick(4); }
int main(void) { for (int i = 0; i < 100; i++) quick(i); some(); for (int i = 0; i < 100; i++) quick(i); slow(); return 0; }
"#;
    let place = Place::new();
    place.c("prog", SLEEPING, &["-O1", "-fno-optimize-sibling-calls"]);
    for clock in ["auto", "gettime"] {
        traced(&place, &["-q", "--trace-min-time", "15000", "--clock", clock], &["./prog"], 0);
        let found = happenings(&place, "trace", &["quick", "slow", "some", "main"]);
        let expected = ["> main", "> some", "> slow", "< slow", "< some", "> slow", "< slow", "< main"];
        assert_eq!(found.into_values().collect::<Vec<_>>(), [expected.map(str::to_owned)], "{clock}");
    }
}

/// Makes many calls, and then ends as its argument says, four calls deep.
const CRASHING: &str = include_str!("../../data/crashing.c");

fn what_led_to_a_crash() {
    let place = Place::new();
    place.c("prog", CRASHING, &["-O1", "-fno-optimize-sibling-calls"]);
    for (how, status) in [("0", 139), ("1", 134), ("2", 137), ("3", 7)] {
        let _ = std::fs::remove_file(place.path("trace"));
        traced(&place, &["-q", "--rate=0", "--trace-size", "1"], &["./prog", how], status);
        let len = std::fs::metadata(place.path("trace")).unwrap().len();
        assert!(len <= 1 << 20, "{how}: {len} bytes");
        let text = shown(&place, "trace", &["--fields", "tid"]);
        let last: Vec<String> = lines(&text).into_iter().map(|line| line.text).collect();
        let from = last.iter().rposition(|text| text.starts_with("first(")).unwrap_or_else(|| panic!("{how}: {text}"));
        let begun: Vec<&str> = last[from..].iter().map(|text| text.split('(').next().unwrap()).take(5).collect();
        assert_eq!(begun, ["first", "many", "second", "many", "third"], "{how}");
        // What the debugger would call the backtrace.
        let open = last[from..].iter().filter(|text| text.starts_with('}') && text.contains("open")).count();
        let left = last[from..].iter().filter(|text| text.contains("left by") || text.contains("open")).count();
        assert!(open >= 1 || left >= 3, "{how}: {:?}", &last[from..]);
    }
}

fn what_led_to_a_call() {
    let place = Place::new();
    place.c("prog", CRASHING, &["-O1", "-fno-optimize-sibling-calls"]);
    let outcome = place.run(&["--trace", "trace", "--trace-size", "1", "--trace-trigger", "second", "./prog", "9"]);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    let found = happenings(&place, "trace", &["first", "second", "third"]).into_values().next().unwrap();
    assert_eq!(found[..2], ["> first", "> second"], "{found:?}");
    assert!(!place.path("trace.2").exists());
    let outcome = place.run(&["--trace", "other", "--trace-size", "1", "--trace-trigger", "nothing", "./prog", "9"]);
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr_text());
    // Without a call of such a function, the end of the program is what counts.
    assert!(place.path("other").exists());
}

fn what_was_lost_is_said() {
    let place = Place::new();
    place.c("prog", TREE, &["-O1", "-fno-optimize-sibling-calls", "-fno-inline"]);
    for full in ["drop-new", "drop-old"] {
        let outcome =
            traced(&place, &["--stats=stats", "--rate=0", "--trace-full", full], &["./prog", "23"], 0);
        let stats = stats(&place);
        let [traced, lost, events] = ["calls", "lost", "events"].map(|field| stats["trace"][field].as_u64().unwrap());
        let counted = stats["calls"].as_u64().unwrap();
        assert!(traced <= counted, "{full}: {traced} of {counted}");
        assert!(events > 0, "{full}");
        assert_eq!(outcome.stderr_text().contains("the trace lacks"), lost > 0, "{full}: {}", outcome.stderr_text());
        // Whatever is lost, what is there can be read.
        let mut command = Command::new(tool::gmon().unwrap());
        command.args(["trace", "--stats", "--json"]).arg(place.path("trace"));
        let outcome = place::finish(command);
        assert_eq!(outcome.code(), 0, "{full}: {}", outcome.stderr_text());
        let said = if lost > 0 { format!("{lost} event") } else { String::new() };
        assert!(outcome.stderr_text().contains(&said), "{full}: {lost}: {}", outcome.stderr_text());
        assert_eq!(outcome.stderr_text().is_empty(), lost == 0, "{full}: {}", outcome.stderr_text());
        let rows = rows(&outcome.stdout_text());
        let shown: u64 = rows.values().map(|row| row["calls"].as_u64().unwrap()).sum();
        assert!(shown <= counted && shown >= traced / 2, "{full}: {shown}, {traced} of {counted}");
    }
}

fn a_truncated_trace_is_read_up_to_its_end() {
    let place = Place::new();
    place.c("prog", TREE, &["-O1", "-fno-optimize-sibling-calls", "-fno-inline"]);
    traced(&place, &["-q"], &["./prog", "18"], 0);
    let whole = std::fs::read(place.path("trace")).unwrap();
    std::fs::write(place.path("cut"), &whole[..whole.len() * 2 / 3]).unwrap();
    let mut command = Command::new(tool::gmon().unwrap());
    command.args(["trace", "--stats", "--json"]).arg(place.path("cut"));
    let outcome = place::finish(command);
    let calls: u64 = rows(&outcome.stdout_text()).values().map(|row| row["calls"].as_u64().unwrap()).sum();
    assert!(calls > 1000 && calls < 1 << 19, "{calls}");
    assert!(outcome.stderr_text().contains("cut"), "{}", outcome.stderr_text());
}

fn static_programs_are_traced() {
    let place = Place::new();
    place.c("prog", TREE, &["-O1", "-static", "-fno-optimize-sibling-calls", "-fno-inline"]);
    traced(&place, &["-q", "--stats=stats"], &["./prog", "7"], 0);
    let stats = stats(&place);
    assert_eq!(stats["trace"]["calls"], stats["calls"]);
    let text = shown(&place, "trace", &["--fields", "tid", "-f", "f"]);
    assert_eq!(lines(&text).iter().filter(|line| line.text.starts_with("f(")).count(), 255, "{text}");
}

fn arguments_and_results() {
    const CALLED: &str = r#"
#include <cstdio>
#include <cstring>
#include <string>
struct Point { int x, y; };
enum Colour { RED, GREEN = 5 };
#define HERE __asm__ volatile("")
__attribute__((noinline)) int add(int a, long b, const char *s) { HERE; return a + b + strlen(s); }
__attribute__((noinline)) double half(double d, float f) { HERE; return d / 2 + f; }
__attribute__((noinline)) Point move(Point p, Colour c, bool b) { HERE; p.x += c; p.y += b; return p; }
__attribute__((noinline)) size_t length(const std::string &s, std::string v) { HERE; return s.size() + v.size(); }
__attribute__((noinline)) const char *bad(const char *p, int *q) { HERE; (void)q; return p; }
int main() {
  std::printf("%d %g %d %zu\n", add(1, -2, "hello"), half(3.5, 1.25f), move({3, 4}, GREEN, true).x, length("short", std::string(40, 'x')));
  bad((const char *)8, nullptr);
  return 0;
}
"#;
    let place = Place::new();
    let expected = [
        "add(a=1, b=-2, s=\"hello\") = 4;",
        "half(d=3.5, f=1.25) = 3.0;",
        "move(p={x=3, y=4}, c=GREEN, b=true) = {x=8, y=5};",
        "length(s=\"short\", v=\"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\") = 45;",
        "bad(p=<0x8>, q=NULL) = <0x8>;",
    ];
    for (flags, clock) in [("-O0", "auto"), ("-O1", "gettime"), ("-O2", "auto")] {
        place.compile("g++", "prog", CALLED, &["-g", "-w", flags]).unwrap();
        let plain = place::finish(Command::new(place.path("prog")));
        let outcome = traced(&place, &["-q", "--args", "auto", "--clock", clock], &["./prog"], 0);
        assert_eq!(outcome.stdout, plain.stdout);
        let found: Vec<String> = lines(&shown(&place, "trace", &["--fields", "tid"])).into_iter().map(|line| line.text).collect();
        for line in expected {
            // At -O0, functions of the library's templates are called in between.
            let begins = line.split(") = ").next().unwrap();
            let is_there = found.iter().any(|found| found.starts_with(begins));
            assert!(is_there, "{flags}: {line}: {found:#?}");
            assert!(flags == "-O0" || found.iter().any(|found| found == line), "{flags}: {line}: {found:#?}");
        }
    }
    // Without debug information, the user says what there is.
    place.c(
        "bare",
        "#include <stdio.h>\n__attribute__((noinline)) int f(int a, const char *s, double d) { __asm__ volatile(\"\"); return a + s[0] + d; }\n\
         int main(void) { printf(\"%d\\n\", f(3, \"abc\", 0.5)); return 0; }",
        &["-O1"],
    );
    traced(&place, &["-q", "--args", "f@arg1/i32,arg2/s,fparg1/64,retval/i32"], &["./bare"], 0);
    let text = shown(&place, "trace", &["--fields", "tid", "-f", "f"]);
    assert!(text.contains("f(3, \"abc\", 0.5) = 100;"), "{text}");
    let outcome = place.run(&["--trace", "t", "--args", "auto", "./bare"]);
    assert!(outcome.stderr_text().contains("bare has no debug information"), "{}", outcome.stderr_text());
    let outcome = place.run(&["--trace", "t", "--args", "f@arg1/e:colour", "./bare"]);
    assert!(outcome.stderr_text().contains("has no enumeration colour"), "{}", outcome.stderr_text());
    let outcome = place.run(&["--trace", "t", "--args", "f@arg1/q", "./bare"]);
    assert_ne!(outcome.code(), 0);
    assert!(outcome.stderr_text().contains("--args takes"), "{}", outcome.stderr_text());
}

fn options_that_do_not_fit() {
    let place = Place::new();
    place.c("prog", "int main(void) { return 0; }", &[]);
    for (options, about) in [
        (&["--trace-depth", "3", "./prog"][..], "add --trace FILE"),
        (&["--trace", "t", "--trace-trigger", "f", "./prog"], "--trace-size"),
        (&["--trace", "t", "--hooks", "entry", "./prog"], "--hooks both"),
        (&["--trace", "t", "--trace-min-time", "0", "./prog"], "more than 0"),
        (&["--trace", "no/such/folder/t", "./prog"], "no/such/folder/t"),
    ] {
        let outcome = place.run(options);
        assert_ne!(outcome.code(), 0, "{options:?}");
        assert!(outcome.stderr_text().contains(about), "{options:?}: {}", outcome.stderr_text());
        assert!(!Path::new(&place.path("gmon.out")).exists(), "{options:?}");
    }
}
