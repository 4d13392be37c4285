#!/bin/bash
# times-error.sh [RUNS]: how far the times of several profilers are from the truth. Prints a table; docs/benchmarks.md, "Measured
# times", has the sums.
#
# The truth is the CPU time of the plain program, and the functions' shares by perf without hooks. Each tool's times are
# compared with both: their sum (in percent of the plain program's time), and the shares of the ten functions that perf finds
# most often (the greatest difference and the mean one, in percentage points). All tools run in turn, RUNS times (3 by
# default), and the medians count.
#
# Wall time is measured, so run it on a machine that does nothing else, or with a high priority (`nice -n -20`). Set
# GPROFINJECT and GMON for other builds, and ONLY for some of the programs.
set -euo pipefail
runs=${1:-3}
here=$(cd "$(dirname "$0")" && pwd)
target=${CARGO_TARGET_DIR:-$here/../target}
GPROFINJECT=$(realpath "${GPROFINJECT:-$target/release/gprofinject}")
GMON=$(realpath "${GMON:-$target/release/gmon}")
for tool in perf gprof uftrace python3; do
    command -v $tool >/dev/null || { echo "times-error.sh: needs $tool" >&2; exit 1; }
done
corpus=${GPROFINJECT_CORPUS:-$target/corpus}
sh "$here/corpus.sh" "$corpus" O2 pg
corpus=$(realpath "$corpus")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export GPROFINJECT GMON
python3 - "$runs" "$corpus" "$here" <<'PYTHON'
import json, os, re, statistics, subprocess, sys

runs, corpus, here = int(sys.argv[1]), sys.argv[2], sys.argv[3]
PROGRAMS = {
    "lua": ([f"{here}/data/bench.lua", "60"], [f"{here}/data/bench.lua", "4"]),
    "speedtest1": (["--size", "25", ":memory:"], ["--size", "2", ":memory:"]),
}
# What compilers add to the names of parts and clones.
SUFFIX = re.compile(r"(\.(cold|part|isra|constprop|lto_priv)[.0-9]*)+$")

def run(command):
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        sys.exit(f"times-error.sh: {command}: status {status}")
    return usage.ru_utime + usage.ru_stime

def out(command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout

def add(times, name, seconds):
    name = SUFFIX.sub("", name)
    times[name] = times.get(name, 0) + seconds

def by_perf(program, args):
    run(["perf", "record", "-q", "-e", "cpu-clock:u", "-F", "2000", "-o", "perf.data", "--", program, *args])
    times = {}
    for line in out(["perf", "script", "-i", "perf.data", "-F", "ip,sym,dso"]).splitlines():
        fields = line.split()
        if os.path.basename(program) in fields[-1]:
            add(times, fields[1].split("+")[0], 1 / 2000)
    return times

def by_us(program, args):
    run([os.environ["GPROFINJECT"], "-q", "--times", "--libs=none", "-o", "gmon.out", "--", program, *args])
    corrected, raw = {}, {}
    for row in json.loads(out([os.environ["GMON"], "flat", "--raw", "--json", "gmon.pb.gz"]))["rows"]:
        add(corrected, row["name"], row["self_ns"] / 1e9)
        add(raw, row["name"], row["self_raw_ns"] / 1e9)
    return corrected, raw

def by_uftrace(program, args):
    run(["uftrace", "record", "--no-pager", "--no-libcall", "-d", "trace", program, *args])
    times = {}
    units = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60}
    for line in out(["uftrace", "report", "-d", "trace", "--no-pager", "-f", "self"]).splitlines():
        found = re.match(r"\s*([\d.]+)\s+(us|ms|s|m)\s+(\S+)", line)
        if found:
            add(times, found[3], float(found[1]) * units[found[2]])
    return times

def by_gprof(program, args):
    run([program, *args])
    times = {}
    for line in out(["gprof", "-b", "-p", program, "gmon.out"]).splitlines():
        found = re.match(r"\s*[\d.]+\s+[\d.]+\s+([\d.]+)\s.*?(\S+)$", line)
        if found:
            add(times, found[2], float(found[1]))
    return times

def print_row(program, tool, truth, shares, measured):
    """Prints the error of a tool: `measured` has the times of each run, `truth` the CPU seconds of the plain program."""
    error = statistics.median(100 * (sum(times.values()) / truth - 1) for times in measured)
    ten = sorted(shares, key=shares.get, reverse=True)[:10]
    most, mean = [], []
    for times in measured:
        # perf sees no function in another that was inlined, and neither does anybody else.
        known = sum(times.get(name, 0) for name in shares) or 1
        off = [abs(100 * times.get(name, 0) / known - 100 * shares[name]) for name in ten]
        most.append(max(off))
        mean.append(sum(off) / len(off))
    print(f"| {program} | {tool} | {error:+.0f} % | {statistics.median(most):.1f} | {statistics.median(mean):.1f} |", flush=True)

print("| program | times by | sum | greatest difference of a share | mean difference |\n|---|---|---:|---:|---:|")
for name, (full, small) in PROGRAMS.items():
    if name not in os.environ.get("ONLY", name).split():
        continue
    plain, pg = f"{corpus}/{name}-O2", f"{corpus}/{name}-pg"
    cpu = {"full": [], "small": []}
    tools = {"gprofinject --times": [], "the same, raw": [], "gcc -pg, gprof": [], "uftrace, small": []}
    perf = []
    for _ in range(runs):
        cpu["full"].append(run([plain, *full]))
        cpu["small"].append(run([plain, *small]))
        perf.append(by_perf(plain, full))
        corrected, raw = by_us(plain, full)
        tools["gprofinject --times"].append(corrected)
        tools["the same, raw"].append(raw)
        tools["gcc -pg, gprof"].append(by_gprof(pg, full))
        tools["uftrace, small"].append(by_uftrace(pg, small))
    all_samples = sum(sum(times.values()) for times in perf)
    shares = {}
    for times in perf:
        for function, seconds in times.items():
            shares[function] = shares.get(function, 0) + seconds / all_samples
    print_row(name, "perf", statistics.median(cpu["full"]), shares, perf)
    for tool, measured in tools.items():
        truth = statistics.median(cpu["small" if "small" in tool else "full"])
        print_row(name, tool, truth, shares, measured)
PYTHON
