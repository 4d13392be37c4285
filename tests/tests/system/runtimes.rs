//! Programs whose runtimes use the stack in their own ways: Go, OCaml, GHC, node, Free Pascal. They behave as
//! they do alone, with the hooks that they allow. A missing compiler is reported.

use std::fs;
use std::process::Command;
use std::time::Duration;

use gprofinject_tests::place::Place;
use gprofinject_tests::run::{self, Outcome};
use gprofinject_skip as skip;
use gprofinject_tests::{compile, gprofdata, tool};

gprofinject_tests::trials! {
    together:
        go,
        ocaml,
        ghc,
        node,
        free_pascal,
        net;
}

const LIMIT: Duration = Duration::from_secs(120);
const MODES: [&str; 3] = ["--hooks=both", "--hooks=entry", "--hooks=none"];

/// Compiles `source` to the file `program` with `command`, which gets the source's name as its last argument.
fn made(place: &Place, name: &str, source: &str, command: &[&str]) {
    fs::write(place.path(name), source).unwrap();
    let (tool, args) = command.split_first().unwrap();
    let mut compiler = Command::new(tool);
    compiler.args(args).arg(name).current_dir(place.folder.path());
    // The folder in which go keeps its compiled library, whose compilation takes longer than all tests here.
    compiler.env("GOCACHE", tool::target_folder().join("go-cache")).env("GO111MODULE", "off");
    compile::compile(compiler).unwrap();
}

fn finish(mut command: Command, place: &Place) -> Outcome {
    command.current_dir(place.folder.path()).env_remove("GMON_OUT_PREFIX");
    let what = format!("{command:?}");
    let outcome = run::run(command, None, LIMIT).unwrap();
    assert!(!outcome.timed_out, "hangs: {what}");
    outcome
}

/// Runs a program alone and in each mode, with the same output and status. `note` is the message with
/// `--hooks both`, and `counts` says whether calls are counted.
fn runs_as_alone(place: &Place, words: &[&str], status: i32, note: Option<&str>, counts: bool) {
    let mut alone = Command::new(words[0]);
    alone.args(&words[1..]);
    let alone = finish(alone, place);
    let what = format!("{words:?}");
    assert_eq!(alone.code(), status, "{what}: {}", alone.stderr_text());
    for mode in MODES {
        let mut command = tool::uncached(tool::gprofinject().unwrap());
        command.args([mode, "-o", "profile"]).args(words);
        let run = finish(command, place);
        let said = run.stderr_text();
        assert_eq!((run.code(), run.stdout_text()), (status, alone.stdout_text()), "{what} {mode}: {said}");
        // What the program itself prints there is not changed.
        let (ours, own): (Vec<&str>, Vec<&str>) = said.lines().partition(|l| l.starts_with("gprofinject: "));
        let alone_said = alone.stderr_text();
        assert_eq!(own, alone_said.lines().collect::<Vec<_>>(), "{what} {mode}: {ours:?}");
        if mode == "--hooks=both" {
            assert!(note.is_none_or(|note| said.contains(note)), "{what}: {said}");
        }
        let calls = gprofdata::read(&place.path("profile")).map_or(0, |profile| profile.calls());
        assert_eq!(calls > 0, counts && mode != "--hooks=none", "{what} {mode}: {calls} calls, {said}");
        let _ = fs::remove_file(place.path("profile"));
    }
}

/// Goroutines whose stacks grow and so move, a panic that is recovered, garbage, a trace of the stack.
const GO: &str = r#"
package main

import ("fmt"; "os"; "runtime"; "strings"; "sync")

type node struct{ left, right *node }

func tree(n int) *node { if n == 0 { return nil }; return &node{tree(n - 1), tree(n - 1)} }
func (t *node) count() int { if t == nil { return 0 }; return 1 + t.left.count() + t.right.count() }

//go:noinline
func deep(n int, room [64]int) int { if n == 0 { return room[3] }; room[3]++; return deep(n-1, room) }

func guarded(n int) (result string) {
	defer func() { result = fmt.Sprint("recovered ", recover()) }()
	var list []int
	return fmt.Sprint(list[n])
}

func names() string {
	pcs := make([]uintptr, 20)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs)])
	var found []string
	for { frame, more := frames.Next(); found = append(found, frame.Function); if !more { break } }
	return strings.Join(found, " ")
}

func main() {
	var wait sync.WaitGroup
	sums := make([]int, 8)
	for i := range sums {
		wait.Add(1)
		go func(i int) { defer wait.Done(); sums[i] = deep(1000*i, [64]int{}) + tree(12).count() }(i)
	}
	wait.Wait()
	runtime.GC()
	fmt.Println(sums, guarded(3), names())
	os.Exit(3)
}
"#;

fn go() {
    if !skip::have("go") {
        return skip::skipped("go", "no go");
    }
    let place = Place::new();
    made(&place, "a.go", GO, &["go", "build", "-o", "static"]);
    let note = "its runtime (Go) relies on true return addresses: only entries are hooked";
    runs_as_alone(&place, &["./static"], 3, Some(note), true);
    let external = ["go", "build", "-ldflags=-linkmode=external", "-o", "dynamic"];
    made(&place, "a.go", GO, &external);
    runs_as_alone(&place, &["./dynamic"], 3, Some(note), true);
    made(&place, "a.go", GO, &[&external[..4], &["pie", "-buildmode=pie"]].concat());
    runs_as_alone(&place, &["./pie"], 3, Some(note), true);
}

/// Exceptions from deep recursion, an exception from a callback, garbage with a small heap, finalisers.
const OCAML: &str = r#"
exception Found of int
type tree = Leaf | Node of tree * tree
let rec make n = if n = 0 then Leaf else Node (make (n - 1), make (n - 1))
let rec count = function Leaf -> 0 | Node (l, r) -> 1 + count l + count r
let rec deep n = if n = 0 then raise (Found 7) else 1 + deep (n - 1)
let rec loop i sum = if i = 0 then sum else loop (i - 1) (sum + count (make 4))
let compare_or_raise a b = if a = 77 then raise (Found b) else compare a b
let () =
  Gc.set { (Gc.get ()) with Gc.minor_heap_size = 4096 };
  let finals = ref 0 in
  for _ = 1 to 100 do Gc.finalise (fun _ -> incr finals) (ref 0) done;
  Printf.printf "%d\n" (loop 20000 0);
  for i = 1 to 1000 do
    match deep (i * 10) with exception Found 7 -> () | _ -> print_endline "not raised"
  done;
  (match List.sort compare_or_raise (List.init 100 (fun i -> 99 - i)) with
   | exception Found _ -> print_endline "raised" | l -> Printf.printf "%d\n" (List.hd l));
  Gc.full_major ();
  Printf.printf "%b %s\n" (!finals > 50) (try string_of_int (int_of_string "x") with Failure f -> f);
  exit 3
"#;

fn ocaml() {
    if !skip::have("ocamlopt") {
        return skip::skipped("ocaml", "no ocamlopt");
    }
    let place = Place::new();
    let note = "its runtime (OCaml) relies on true return addresses: only entries are hooked";
    for flags in [&["-o", "program"][..], &["-g", "-inline", "0", "-o", "program"]] {
        made(&place, "a.ml", OCAML, &[&["ocamlopt"], flags].concat());
        runs_as_alone(&place, &["./program"], 3, Some(note), true);
    }
}

/// Laziness, pure and asynchronous exceptions, threads of its own, garbage.
const HASKELL: &str = r#"
import Control.Concurrent
import Control.Exception
import Control.Monad
import qualified Data.Map as M
import System.Exit

data Tree = Leaf | Node Tree Tree
make :: Int -> Tree
make 0 = Leaf
make n = Node (make (n - 1)) (make (n - 1))
count :: Tree -> Int
count Leaf = 0
count (Node l r) = 1 + count l + count r

primes :: [Int]
primes = sieve [2 ..] where sieve (p : xs) = p : sieve [x | x <- xs, x `mod` p /= 0]

main :: IO ()
main = do
  print (primes !! 500, sum (map (count . make) [1 .. 14]))
  r <- try (evaluate (foldr (\x s -> if x == 5000 then throw Overflow else x + s) 0 [1 .. 10000 :: Int]))
  print (either (\e -> show (e :: ArithException)) show r)
  done <- newEmptyMVar
  forM_ [1 .. 50 :: Int] $ \i -> forkIO (evaluate (M.size (M.fromList (zip [1 .. i * 20] [i ..]))) >>= putMVar done)
  sizes <- replicateM 50 (takeMVar done)
  print (sum sizes)
  t <- forkIO ((forever yield) `catch` \e -> putMVar done (if e == ThreadKilled then 1 else 0))
  yield >> killThread t
  takeMVar done >>= print
  exitWith (ExitFailure 3)
"#;

fn ghc() {
    if !skip::have("ghc") {
        return skip::skipped("ghc", "no ghc");
    }
    let place = Place::new();
    let note = "its runtime (GHC) relies on true return addresses: only entries are hooked";
    for flags in [&["-O1"][..], &["-O0", "-threaded"]] {
        made(&place, "a.hs", HASKELL, &[&["ghc", "-v0", "-fforce-recomp", "-o", "program"], flags].concat());
        runs_as_alone(&place, &["./program"], 3, Some(note), true);
    }
}

/// Functions that are optimised at run time, exceptions through native frames (the callbacks of sort and
/// replace), garbage, a worker.
const SCRIPT: &str = r#"
function fib(n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
function thrower(a, b) { if (a === 77) throw new RangeError('found ' + (b > 0)); return a - b; }
let caught = 0;
for (let i = 0; i < 2000; i++) {
    try { [...Array(100).keys()].sort(thrower); } catch (e) { if (e instanceof RangeError) caught++; }
}
let deep = 0;
(function down() { deep++; try { down(); } catch (e) { } })();
let lists = [];
for (let i = 0; i < 300; i++) lists[i % 10] = Array.from({ length: 5000 }, (_, j) => ({ j }));
console.log(fib(27), caught, deep > 1000, 'a-b'.replace(/-/, () => '+'), lists.length);
const { Worker, isMainThread } = require('worker_threads');
const worker = new Worker('require("worker_threads").parentPort.postMessage([1, 2, 3].map(x => x * 2).join())', { eval: true });
worker.on('message', m => { console.log(m); });
worker.on('exit', () => process.exit(3));
"#;

fn node() {
    if !skip::have("node") {
        return skip::skipped("node", "no node");
    }
    let place = Place::new();
    fs::write(place.path("a.js"), SCRIPT).unwrap();
    // Some distributions have V8 in a library, where nothing is hooked.
    let loaded = Command::new("sh").args(["-c", "ldd \"$(command -v node)\""]).output().unwrap();
    let library = String::from_utf8_lossy(&loaded.stdout).contains("libnode");
    let note = "its runtime (V8) relies on true return addresses: only entries are hooked";
    runs_as_alone(&place, &["node", "a.js"], 3, Some(note).filter(|_| !library), true);
}

/// Dynamic strings, exceptions from deep recursion, threads, a callback from the C library, and at the end an
/// exception that is not handled, whose backtrace is printed.
const PASCAL: &str = r#"
{$mode objfpc}{$H+}
program a;
uses {$ifdef threads}cthreads,{$endif} classes, sysutils, ctypes;
{$ifdef libc}{$linklib c}
type comparer = function(a, b: pcint): cint; cdecl;
procedure qsort(base: pointer; count, size: csize_t; compare: comparer); cdecl; external 'c';
function compare(a, b: pcint): cint; cdecl;
begin
  if a^ < b^ then result := -1 else result := ord(a^ > b^);
end;
{$endif}
{$ifdef threads}
type tworker = class(tthread) sum: int64; procedure execute; override; end;
procedure tworker.execute;
var i: longint; s: string;
begin
  s := '';
  for i := 1 to 20000 do begin s := s + chr(65 + i mod 26); if length(s) > 100 then s := copy(s, 50, 20); sum := sum + length(s) end;
end;
{$endif}
function deep(n: longint): longint;
begin
  if n = 0 then raise exception.create('found');
  result := deep(n - 1) + 1;
end;
function fib(n: longint): longint;
begin
  if n < 2 then result := n else result := fib(n - 1) + fib(n - 2);
end;
var
  i, caught: longint; s: string; list: tstringlist;
  {$ifdef libc}numbers: array[0..99] of cint;{$endif}
  {$ifdef threads}workers: array[0..3] of tworker; sum: int64;{$endif}
begin
  caught := 0;
  for i := 1 to 200 do
    try deep(i) except on e: exception do caught := caught + length(e.message) end;
  list := tstringlist.create;
  for i := 1 to 300 do list.add(inttostr(i * 7919 mod 1000));
  list.sort;
  s := list[0] + list[299];
  try s := s + inttostr(strtoint('x')) except on e: econverterror do s := s + ' not a number' end;
  writeln(caught, ' ', fib(20), ' ', s);
  {$ifdef libc}
  for i := 0 to 99 do numbers[i] := i * 37 mod 101;
  qsort(@numbers, 100, 4, @compare);
  writeln(numbers[0], ' ', numbers[99]);
  {$endif}
  {$ifdef threads}
  sum := 0;
  for i := 0 to 3 do workers[i] := tworker.create(false);
  for i := 0 to 3 do begin workers[i].waitfor; sum := sum + workers[i].sum; workers[i].free end;
  writeln(sum);
  {$endif}
  list.free;
  if paramcount = 0 then halt(3);
  deep(3);
end.
"#;

fn free_pascal() {
    // The packages fp-compiler and fp-units-rtl.
    if !skip::have("fpc") {
        return skip::skipped("free_pascal", "no fpc");
    }
    let place = Place::new();
    let note = "its runtime (Free Pascal) relies on true return addresses: only entries are hooked";
    for flags in [
        &["-O1", "-dlibc"][..],
        &["-O3", "-dlibc", "-dthreads"],
        &["-O2", "-dthreads"],
        &["-g", "-O-", "-dlibc"],
    ] {
        // With symbols, which the compiler's configuration on some distributions strips.
        made(&place, "a.pas", PASCAL, &[&["fpc", "-v0", "-Xs-", "-oprogram"], flags].concat());
        runs_as_alone(&place, &["./program"], 3, Some(note), true);
        runs_as_alone(&place, &["./program", "unhandled"], 217, Some(note), true);
    }
    // Without the C library the program is a standalone one.
    made(&place, "a.pas", PASCAL, &["fpc", "-v0", "-Xs-", "-oprogram"]);
    runs_as_alone(&place, &["./program"], 3, Some(note), true);
    runs_as_alone(&place, &["./program", "unhandled"], 217, Some(note), true);
}

/// As .NET's runtime, a library copies the code of one of its functions and executes the copy, and makes an exception of a fault between the ends
/// of another one.
const NET: &str = r#"
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

__attribute__((naked, noinline)) long barrier(long *to, long value) {
    __asm__("mov %rsi, (%rdi)\n mov %rsi, %rax\n add $1, %rax\n ret\n .globl barrier_end\n barrier_end:");
}
extern char barrier_end[];
static sigjmp_buf env;

static void handler(int signal, siginfo_t *info, void *context) {
    (void)signal; (void)info;
    long pc = ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    siglongjmp(env, pc >= (long)barrier && pc < (long)barrier_end ? 1 : 2);
}

int coreclr_initialize(void) {
    char *copy = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(copy, (char *)barrier, barrier_end - (char *)barrier);
    long there = 0;
    long result = ((long (*)(long *, long))copy)(&there, 6);
    struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO | SA_NODEFER };
    sigaction(SIGSEGV, &action, 0);
    int found = sigsetjmp(env, 1);
    if (!found) barrier(0, 1);
    return result == 7 && there == 6 ? found : 9;
}
"#;

fn net() {
    let place = Place::new();
    let program = "int coreclr_initialize(void); __attribute__((noinline)) int call(void) { return coreclr_initialize(); }\n\
                   int main(void) { int n = 0; for (int i = 0; i < 10; i++) n += call(); return n; }\n";
    made(&place, "net.c", NET, &["gcc", "-O1", "-shared", "-fPIC", "-o", "libnet.so"]);
    let link = ["gcc", "-O1", "-o", "uses", "-Wl,-rpath,$ORIGIN", "-L.", "-Wl,--no-as-needed", "-lnet", "-x", "c"];
    fs::write(place.path("empty"), "").unwrap();
    made(&place, "uses.c", program, &link);
    runs_as_alone(&place, &["./uses"], 10, None, true);
}
