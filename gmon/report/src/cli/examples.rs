//! The examples at the end of each subcommand's `--help`, and of the man page.

pub(crate) const GMON: &str = "\
Examples:
  gmon                                        # the run in gmon.pb.gz
  gmon flat --sort p99                        # after gprofinject --times ./prog
  gmon lines                                  # after gprofinject --count lines ./prog
  gmon merge -o all.out gmon.out.rank*
  gmon push http://localhost:4040 -l region=eu
  gmon --generate complete-bash > ~/.local/share/bash-completion/completions/gmon

Exit status: 0; 1 if gmon check found an error, or gmon diff or a budget something worse; 2 if gmon could not do what it was asked.

See also: gprofinject(1), gprof(1)";

pub(crate) const MERGE: &str = "\
Examples:
  gmon merge -o all.out run1.out run2.out
  gmon merge -o all.out gmon.out.rank*        # 10,000 ranks, on all processors
  gmon merge -o all.pb.gz gmon.rank*.pb.gz && gmon flat all.pb.gz
  gmon merge -o all.pb.gz folder              # all *.pb.gz in it
  gmon merge --program prog -o all.out a.out b.out   # with counts of basic blocks";

pub(crate) const REPORT: &str = "\
Examples:
  gmon                                        # the newest run here
  gmon report old.pb.gz
  gmon report --program cc1 --source-dir ~/gcc

Keys: 1 to 6 or Tab: views; Enter, Backspace: forth and back; /: search; s: sort; ?: all keys; q: quit";

pub(crate) const FLAT: &str = "\
Examples:
  gmon flat                                   # the newest run here: all of its programs and libraries
  gmon flat -n 20 --program cc1
  gmon flat --by thread                       # after gprofinject --times ./prog
  gmon flat -f 'json::*' --raw
  gmon flat --spread prog gmon.out.rank*      # of a parallel job: how unevenly its processes have worked
  gmon flat prog gmon.out                     # the program's own view, as gprof has it";

pub(crate) const GRAPH: &str = "\
Examples:
  gmon graph
  gmon graph -f parse                         # who called it, and whom it called
  gmon graph prog gmon.out";

pub(crate) const VALUES: &str = "\
Examples:
  gprofinject --values 'malloc@arg1/u64' ./prog && gmon values
  gmon values -f malloc --histogram -n 20
  gmon values --json > values.json";

pub(crate) const GPROF: &str = "\
Examples:
  gmon gprof | less
  gmon gprof gmon.pb.gz -b -p                 # with options of gprof
  gmon gprof --program cc1";

pub(crate) const EXPORT: &str = "\
Examples:
  gmon export --to callgrind -o callgrind.out.1 prog gmon.out && kcachegrind callgrind.out.1
  gmon export --to speedscope -o run.json
  gmon export --to gprof -o view && gprof view.syms view.whole
  gmon export --to dot prog gmon.out | dot -Tsvg > graph.svg";

pub(crate) const DIFF: &str = "\
Examples:
  gmon diff prog old.out prog new.out
  gmon diff old.pb.gz new.pb.gz";

pub(crate) const HTML: &str = "\
Examples:
  gmon html -o report.html gmon.pb.gz
  gmon html -o report.html prog gmon.out";

pub(crate) const PUSH: &str = "\
Examples:
  gmon push http://localhost:4040
  gmon push --name web --label region=eu --label version=1.2 http://localhost:4040 gmon.pb.gz
  gmon push --user 1234 --password-file key https://profiles.example.org gmon.rank*.pb.gz
  GMON_PUSH_TOKEN=$(cat key) gmon push https://profiles.example.org";

pub(crate) const CHECK: &str = "\
Examples:
  gmon check --program prog gmon.out
  gmon check --records --json gmon.out | jq '.arcs | length'
  gprofinject --clock instructions ./prog && gmon check --budget budget.toml

A budget, in budget.toml; docs/ci.md has all keys:
  [[budget]]
  function = 'parse_*'
  calls = 10_000
  instructions = 5_000_000";

pub(crate) const LINES: &str = "\
Examples:
  gprofinject --count lines ./prog && gmon lines
  gmon lines --apart -F parse.c
  gmon lines -m libparse.so                   # one module of the run, or: gmon lines ./libparse.so
  gmon lines --by function --sort calls -n 20 -f 'parse_*'
  gmon lines --by file
  gmon lines --coverage a.pb.gz b.pb.gz
  gmon lines --lcov cov.info && genhtml -o html cov.info
  gmon lines --substitute-path /build=. prog a.out b.out";

pub(crate) const ASM: &str = "\
Examples:
  gmon asm -f main
  gmon asm --syntax intel -m libparse.so
  gmon asm --blocks --sort count -n 20
  gmon asm -f main prog gmon.out";

pub(crate) const PATHS: &str = "\
Examples:
  gprofinject --paths ./prog && gmon paths
  gmon paths -f parse --min-percent 2
  gprofinject --paths --libs all ./server && gmon paths --waits    # who waits for what
  gprofinject --slow handle ./server && gmon paths --slow -n 3
  gmon paths --folded | flamegraph.pl > flame.svg";

pub(crate) const TRACE: &str = "\
Examples:
  gprofinject --trace run.trace ./prog && gmon trace run.trace | less -S
  gmon trace -f 'parse_*' --from 10ms --to 20ms run.trace
  gmon trace --stats -n 20 run.trace
  gmon trace --perfetto run.perfetto run.trace     # then open it in ui.perfetto.dev";
