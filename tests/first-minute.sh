#!/usr/bin/env bash
# first-minute.sh: what a user meets first, on a terminal of 80 columns: the end of a run of each of eleven kinds of programs, and the
# head of the table to which it leads. Prints text as docs/first-minute.md has it. GPROFINJECT and GMON name other commands.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
target=$(cd "$root" && cargo metadata --format-version 1 --no-deps | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
export GPROFINJECT=${GPROFINJECT:-$target/release/gprofinject} GMON=${GMON:-$target/release/gmon} NO_COLOR=1
for tool in gcc g++ rustc git make python3 script; do
    command -v "$tool" >/dev/null || { echo "first-minute.sh: needs $tool" >&2; exit 1; }
done
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
cd "$place"

cp "$root/tests/demo/words.c" .
gcc -O2 -fno-inline -g -o words words.c
cat >inventory.cc <<'EOF'
#include <algorithm>
#include <iostream>
#include <map>
#include <string>
#include <vector>
int main() {
    std::map<std::string, std::vector<int>> parts;
    for (long i = 0; i < 400000; i++) parts["part " + std::to_string(i * 7919 % 5003)].push_back(static_cast<int>(i % 97));
    long sum = 0;
    for (auto &[name, sizes] : parts) {
        std::sort(sizes.begin(), sizes.end());
        sum += sizes[sizes.size() / 2] + static_cast<long>(name.size());
    }
    std::cout << sum << '\n';
}
EOF
g++ -O2 -g -o inventory inventory.cc
cat >sums.rs <<'EOF'
use std::collections::HashMap;
fn main() {
    let mut sums: HashMap<String, u64> = HashMap::new();
    for i in 0..400_000_u64 {
        *sums.entry(format!("key {}", i * 7919 % 5003)).or_default() += i;
    }
    let mut list: Vec<_> = sums.into_iter().collect();
    list.sort();
    println!("{:?}", list[0]);
}
EOF
rustc -O -g -o sums sums.rs
git init -q repository
for i in $(seq 400); do echo "file $i" >"repository/$i"; done
git -C repository add . && git -C repository -c user.name=a -c user.email=a@b commit -qm all
mkdir tree
for i in 1 2 3 4 5 6; do printf '#include <stdio.h>\nint f%d(void) { return printf("%d"); }\n' "$i" "$i" >"tree/$i.c"; done
printf 'all: 1.o 2.o 3.o 4.o 5.o 6.o\n%%.o: %%.c\n\tgcc -O2 -c $<\n' >tree/Makefile
cat >script.py <<'EOF'
import json
data = [{"name": f"n{i}", "values": list(range(i % 50))} for i in range(20000)]
text = json.dumps(data)
print(len(text), sum(len(entry["values"]) for entry in json.loads(text)))
EOF
printf 'int f(int *p) { return *p; }\nint main(int c, char **v) { return f(c > 9 ? &c : 0); }\n' >crash.c
gcc -O1 -fno-inline -g -o crash crash.c
printf 'int main(void) { return 0; }\n' >short.c
gcc -O2 -o short short.c

# Runs a command under gprofinject in a folder, and shows its last lines and the head of the table.
run() {
    local title=$1 folder=$2 command=$3
    printf '\n## %s\n\n    $ gprofinject %s\n' "$title" "$command"
    # The first run of a build plans it.
    for _ in 1 2; do
        (cd "$folder" && script -qec "stty cols 80 rows 24; $GPROFINJECT $command" /dev/null) >said </dev/null || true
    done
    tr -d '\r' <said | grep -a '^gprofinject: ' | sed 's/^/    /'
    if [ -f "$folder/gmon.pb.gz" ]; then
        printf "\n    $ gmon flat -n 3\n"
        (cd "$folder" && GMON_PAGER=cat script -qec "stty cols 80 rows 24; $GMON flat -n 3" /dev/null </dev/null) |
            tr -d '\r' | sed 's/^/    /' || true
        rm -f "$folder"/gmon.*
    fi
}

run 'A C program' . './words'
run 'A C++ program with the STL' . './inventory'
run 'A Rust program' . './sums'
run 'A stripped `ls`' . 'ls -lR /usr/share/doc'
run '`git status`' repository 'git status --short'
run '`make -j2` of six files' tree 'make -B -j2'
run 'Python' . 'python3 script.py'
run '`sh -c`' . "sh -c './sums; ./words'"
if command -v sudo >/dev/null; then run '`sudo`' . 'sudo -n ./words'; fi
run 'A crash' . './crash'
run 'A program of two milliseconds' . './short'
