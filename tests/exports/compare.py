"""Compares what other tools read in exports with the JSON export of the same run, for each function and each arc.

compare.py NAME: reads NAME.json, NAME.callgrind, NAME.pprof, and prints a line for each reader with the numbers compared. Exits with 1
if any of them differs. tests/exports.sh runs it.
"""

import collections
import json
import os
import re
import subprocess
import sys


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, errors="surrogateescape", check=False, cwd="/")
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def names_of(model):
    """The name of each function as callgrind's export has it: distinct, without control characters."""
    functions = model["functions"]
    modules, times = collections.defaultdict(set), collections.Counter()
    # Readers see one line without spaces at its ends.
    clean = lambda name: "".join(" " if ord(c) < 32 or 127 <= ord(c) < 160 else c for c in name).strip()
    plain = [clean(function["demangled"]) or f"{function['address']:#x}" for function in functions]
    for function, name in zip(functions, plain):
        modules[name].add(function["module"])
        times[function["module"], name] += 1
    names = []
    for function, name in zip(functions, plain):
        module, shown = function["module"], name
        if module not in (0, None) and len(modules[name]) > 1:
            shown += f" [{model['modules'][module]['path'].rsplit('/', 1)[-1]}]"
        if times[module, name] > 1:
            shown += f" [{function['address']:#x}]"
        names.append(shown)
    assert len(set(names)) == len(names)
    return names


class Check:
    """Counts what is equal and prints what is not."""

    def __init__(self, reader):
        self.reader, self.compared, self.wrong = reader, collections.Counter(), 0

    def equal(self, kind, key, ours, theirs, within=0):
        self.compared[kind] += 1
        if ours is None or theirs is None or abs(ours - theirs) > within:
            self.wrong += 1
            if self.wrong <= 5:
                print(f"  {self.reader}: {kind} of {key}: ours {ours}, read {theirs}")

    def all(self, kind, ours, theirs):
        for key in ours.keys() | theirs.keys():
            if ours.get(key, 0) or theirs.get(key, 0):
                self.equal(kind, key, ours.get(key, 0), theirs.get(key, 0))

    def report(self, run_name):
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.compared.items()))
        print(f"{run_name}: {self.reader}: {kinds}: {self.wrong} differ", flush=True)
        return self.wrong


def expected(model):
    """Own cost, calls and cost of arcs by the names of callgrind's export. A cost is a time, or a call where there are no times."""
    names, functions = names_of(model), model["functions"]
    timed = model["time"] != "none"
    own = {name: f["self_ns"] if timed else f["calls"] for name, f in zip(names, functions)}
    calls, cost = collections.Counter(), collections.Counter()
    for arc in model["arcs"]:
        key = ("[not hooked]" if arc["caller"] is None else names[arc["caller"]], names[arc["callee"]])
        calls[key] += arc["calls"]
        cost[key] += arc["inclusive_ns"] if timed else arc["calls"]
    return own, calls, cost


def callgrind_annotate(model, path):
    check = Check("callgrind_annotate")
    own, calls, cost = expected(model)
    known = own.keys() | {"[not hooked]"}

    def function_of(place):
        # The object is behind the name, unless it is that of the file's first function.
        for text in (place, re.sub(r" \[[^][]*\]$", "", place)):
            for at in (m.end() for m in re.finditer(":", text)):
                if text[at:] in known:
                    return text[at:]
        sys.exit(f"unknown function in {place!r}")

    number = lambda text: int(text.replace(",", ""))
    base = ["callgrind_annotate", "--threshold=100", "--auto=no", "--show-percs=no"]
    read = collections.Counter()
    for line in run(*base, "--tree=none", path).split("file:function")[1].splitlines()[2:]:
        if match := re.match(r"\s*([\d,]+)\s+(.*)$", line):
            read[function_of(match[2])] += number(match[1])
    check.all("own costs", own, read)
    read_calls, read_cost, callers = collections.Counter(), collections.Counter(), []
    into_calls, into_cost, into = collections.Counter(), collections.Counter(), []
    for line in run(*base, "--tree=both", "--inclusive=yes", path).split("file:function")[1].splitlines()[2:]:
        if not (match := re.match(r"\s*([\d,.]+)\s+([*<>])\s+(.*)$", line)):
            continue
        value, kind, place = 0 if match[1] == "." else number(match[1]), match[2], match[3]
        if kind == "*":
            function = function_of(place)
            for other, count, share in into:
                into_calls[other, function] += count
                into_cost[other, function] += share
            into = []
            callers.append(function)
            continue
        parts = re.match(r"(.*) \(([\d,]+)x\)( \[.*\])?$", place)
        other = function_of(parts[1])
        if kind == ">":
            read_calls[callers[-1], other] += number(parts[2])
            read_cost[callers[-1], other] += value
        else:
            into.append((other, number(parts[2]), value))
    # What costs nothing at all is not in callgrind_annotate's list.
    shown = {function for function in callers}
    out = lambda arcs: {key: value for key, value in arcs.items() if key[0] in shown}
    ins = lambda arcs: {key: value for key, value in arcs.items() if key[1] in shown}
    check.all("calls of arcs", out(calls), out(read_calls))
    check.all("costs of arcs", out(cost), out(read_cost))
    check.all("calls of arcs by callee", ins(calls), into_calls)
    check.all("costs of arcs by callee", ins(cost), into_cost)
    return check


def gprof2dot(model, path):
    import gprof2dot as tool

    check = Check("gprof2dot")
    own, calls, cost = expected(model)
    with open(path, encoding="utf-8") as file:
        profile = tool.CallgrindParser(file).parse()
    name = {key: function.name for key, function in profile.functions.items()}
    read_calls, read_cost = collections.Counter(), collections.Counter()
    for key, function in profile.functions.items():
        for call in function.calls.values():
            read_calls[name[key], name[call.callee_id]] += call[tool.CALLS]
            read_cost[name[key], name[call.callee_id]] += int(call[tool.SAMPLES2])
    check.all("calls of arcs", calls, read_calls)
    check.all("costs of arcs", cost, read_cost)
    read = collections.Counter()
    for key, function in profile.functions.items():
        read[name[key]] += int(function[tool.SAMPLES])
    check.all("own costs", own, read)
    return check


def pprof(model, path):
    check = Check("go tool pprof -raw")
    raw = run("go", "tool", "pprof", "-symbolize=none", "-raw", path)
    head, rest = raw.split("\nSamples:\n")
    samples, rest = rest.split("\nLocations\n")
    kinds = [kind.split("/")[0] for kind in samples.splitlines()[0].replace("[dflt]", "").split()]
    locations = {}
    for line in rest.split("\nMappings\n")[0].splitlines():
        if match := re.match(r"\s+(\d+): (0x[0-9a-f]+ )?(M=\d+ )?(.*)$", line):
            last, text = int(match[1]), match[4]
        else:
            text = line.strip()
        # The last line of a location is the function that contains the inlined ones.
        locations[last] = re.sub(r" [^ ]*:\d+(?::\d+)? s=\d+(?:\(.*\))?$", "", text)
    functions = collections.defaultdict(collections.Counter)
    arcs = collections.Counter()
    for line in samples.splitlines()[1:]:
        match = re.match(r"\s*([\d ]+): ([\d ]+)$", line)
        if not match:
            continue
        values = [int(value) for value in match[1].split()]
        stack = [int(location) for location in match[2].split()]
        for kind, value in zip(kinds, values):
            functions[kind][stack[0]] += value
        arcs[(stack[1] if len(stack) > 1 else None), stack[0]] += values[0]
    for kind, field in (("calls", "calls"), ("time", "self_ns"), ("samples", "samples")):
        if kind not in kinds:
            continue
        ours, theirs = collections.Counter(), collections.Counter()
        if model["nodes"] and kind == "time":
            # A node's time has been corrected for gprofinject's own by itself, and their sum differs from the function's.
            for node in model["nodes"]:
                name = "[other calls]" if node["function"] is None else model["functions"][node["function"]]["demangled"]
                ours[name] += node["self_ns"]
        else:
            for function in model["functions"]:
                ours[function["demangled"]] += function[field]
        for location, value in functions[kind].items():
            theirs[locations[location]] += value
        check.all(f"functions' {kind}", ours, theirs)
    if model["nodes"]:
        # Recursion is folded in paths, so that neighbours in a stack are not always caller and callee.
        return check
    ours, theirs = collections.Counter(), collections.Counter()
    name = [function["demangled"] for function in model["functions"]]
    for arc in model["arcs"]:
        ours[None if arc["caller"] is None else name[arc["caller"]], name[arc["callee"]]] += arc["calls"]
    for (caller, callee), value in arcs.items():
        theirs[None if caller is None else locations[caller], locations[callee]] += value
    check.all("calls of arcs", ours, theirs)
    return check


def main():
    base = sys.argv[1]
    with open(base + ".json", encoding="utf-8") as file:
        model = json.load(file)
    wrong = 0
    base = os.path.abspath(base)
    for reader, suffix in ((callgrind_annotate, "callgrind"), (gprof2dot, "callgrind"), (pprof, "pprof")):
        wrong += reader(model, f"{base}.{suffix}").report(os.path.basename(base))
    sys.exit(wrong > 0)


main()
