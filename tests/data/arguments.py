# Run by gdb: compares the arguments and results in a trace with what gdb knows of the same calls.
#
# TRACE names what `gmon trace --json` prints of a run of the program, MODE is `entry` for optimised code, whose parameters gdb knows
# at the first instruction, and `body` for other code, where it knows them after the instructions that store them. CALLS is
# how many calls of each function are compared. AGAIN names those of other runs, separated by colons: what differs between runs is not
# compared. COMPARED names the file to write.
#
# Addresses of the two runs differ by one number in each mapping, because what a process gets at its start is of another length.
# On the stack it varies by up to 64, because some functions align it.
import collections
import heapq
import json
import os
import sys

import gdb

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import printed
import values

MODE = os.environ["MODE"]
CALLS = int(os.environ.get("CALLS", "40"))


class Call:
    """A call of the trace, and what gdb knows of it."""

    def __init__(self, step):
        self.step = step
        # The same call in the other traces.
        self.others = []
        self.arguments = None
        self.result = None


class Function:
    def __init__(self, address, name, calls):
        self.address = address
        self.name = name
        self.calls = calls
        self.seen = 0


def read_trace(path):
    """Returns the first calls of each function, in the order in which they begin."""
    first = {}
    process = None
    with open(path) as file:
        # Each step is on a line, at its end.
        for number, line in enumerate(file):
            if not line.startswith("{") or '"address":' not in line:
                continue
            step, _ = json.JSONDecoder().raw_decode(line)
            process = step["pid"] if process is None else process
            if step["event"] not in ("call", "mark") or step["pid"] != process or program not in (step.get("module") or program):
                continue
            # Nothing is known of the function, and gdb may not know it either.
            if step.get("arguments") == "?" and step.get("result") is None:
                continue
            begin = step.get("begin_ns", step.get("time_ns"))
            calls = first.setdefault(step["address"], [])
            # The greatest one is on top.
            entry = (-begin, -step["depth"], number, step)
            if len(calls) < CALLS:
                heapq.heappush(calls, entry)
            else:
                heapq.heappushpop(calls, entry)
    return {address: [Call(entry[-1]) for entry in sorted(calls, reverse=True)] for address, calls in first.items()}


class Entry(gdb.Breakpoint):
    """The first instruction of a function."""

    def __init__(self, function, address, body):
        super().__init__("*%d" % address, gdb.BP_BREAKPOINT, internal=True)
        self.silent = True
        self.function = function
        self.body = body

    def stop(self):
        try:
            self.entered()
        except Exception as error:
            troubles["%s: %s" % (type(error).__name__, error)] += 1
        return False

    def entered(self):
        function = self.function
        if function.seen >= len(function.calls):
            if function.seen < CALLS:
                surplus.add(function.name)
            self.enabled = False
            return
        call = function.calls[function.seen]
        function.seen += 1
        frame = gdb.newest_frame()
        stack = int(frame.read_register("rsp"))
        if self.body is None:
            call.arguments = arguments(frame)
        else:
            self.body.waiting.append((stack, call))
        symbol = frame.function()
        ty = symbol.type.target() if symbol is not None else None
        if ty is not None and ty.strip_typedefs().code != gdb.TYPE_CODE_VOID and call.step.get("result") is not None:
            back = int.from_bytes(values.bytes_at(stack, 8), "little")
            if back not in returns:
                returns[back] = Return(back)
            returns[back].waiting.append((stack + 8, call, ty, int(frame.read_register("rdi")) if is_cpp(symbol) else None))
            if not returns[back].enabled:
                returns[back].enabled = True


class Body(gdb.Breakpoint):
    """The first instruction after those that store the parameters."""

    def __init__(self, address):
        super().__init__("*%d" % address, gdb.BP_BREAKPOINT, internal=True)
        self.silent = True
        self.waiting = []

    def stop(self):
        try:
            if self.waiting:
                _, call = self.waiting.pop()
                call.arguments = arguments(gdb.newest_frame())
            elif not self.entry.enabled:
                self.enabled = False
        except Exception as error:
            troubles["%s: %s" % (type(error).__name__, error)] += 1
        return False


class Return(gdb.Breakpoint):
    """The instruction after a call."""

    def __init__(self, address):
        super().__init__("*%d" % address, gdb.BP_BREAKPOINT, internal=True)
        self.silent = True
        self.waiting = []

    def stop(self):
        try:
            if not self.waiting:
                self.enabled = False
                return False
            stack = int(gdb.parse_and_eval("(unsigned long)$rsp"))
            # Those below have been left by a jump or an exception. Several are here if one has jumped to the other.
            while self.waiting and self.waiting[-1][0] <= stack:
                at, call, ty, first = self.waiting.pop()
                if at == stack:
                    call.result = values.result(ty, first if first is None else first & (1 << 64) - 1)
        except Exception as error:
            troubles["%s: %s" % (type(error).__name__, error)] += 1
        return False


def producer(symbol):
    """Returns the compiler that has made a function."""
    return getattr(symbol.symtab, "producer", None) or ""


def is_cpp(symbol):
    return "rustc" not in producer(symbol)


def is_stored(value, frame):
    """Whether a value is where gdb looks for it. In a function's frame, it is not before the function has stored it there, and
    the places that LLVM says relative to rsp are those after its first instructions."""
    if MODE == "body":
        return True
    is_reference = value.type.strip_typedefs().code in (gdb.TYPE_CODE_REF, gdb.TYPE_CODE_RVALUE_REF)
    if is_reference or value.address is None:
        return True
    distance = int(value.address) - int(frame.read_register("rsp"))
    is_gcc = "GNU" in producer(frame.function())
    return not (-(1 << 20) < distance < (0 if is_gcc else 1 << 16))


def arguments(frame):
    """Returns the parameters of a frame, in their order."""
    found = []
    block = frame.block()
    # The blocks of functions that have been inlined are inside.
    while block.superblock is not None and not block.superblock.is_static:
        block = block.superblock
    for symbol in block:
        if symbol.is_argument:
            try:
                value = symbol.value(frame)
                value = values.known(value) if is_stored(value, frame) else values.UNKNOWN
            except gdb.error as error:
                value = {"kind": "unknown", "why": str(error)}
            found.append((symbol.name, value))
    return found


def body_of(address):
    """Returns the address after the instructions that store a function's parameters: that of the second line in the table."""
    table = gdb.find_pc_line(address).symtab
    end = gdb.block_for_pc(address).function and gdb.block_for_pc(address).end
    if table is None or not end:
        return None
    lines = sorted({entry.pc for entry in table.linetable() if address < entry.pc < end})
    return lines[0] if lines else None


def ranges():
    with open("/proc/%d/maps" % gdb.selected_inferior().pid) as maps:
        for line in maps:
            words = line.split()
            low, high = (int(part, 16) for part in words[0].split("-"))
            mappings[low] = (high, words[5] if len(words) > 5 else "")


def mapping(address):
    for low, (high, name) in mappings.items():
        if low <= address < high:
            return name or "anonymous %x" % low
    # The stack grows, and others may have been unmapped.
    return "[stack]" if 0x7FFFFF000000 <= address < 0x800000000000 else "unmapped %x" % (address >> 20)


gdb.execute("set pagination off")
gdb.execute("set confirm off")
gdb.execute("set width 0")
gdb.execute("set breakpoint always-inserted on")
# Registers and types are named as in C++ in all programs.
gdb.execute("set language c++")
gdb.execute("set exec-wrapper env -i")
gdb.execute("starti", to_string=True)
program = gdb.current_progspace().filename
mappings, returns, surplus = {}, {}, set()
troubles = collections.Counter()
ranges()
base = min(low for low, (_, name) in mappings.items() if name == program)
header = values.bytes_at(base, 18)
is_fixed = header[16] == 2
low = 0 if is_fixed else base
functions = []
again = [read_trace(path) for path in os.environ["AGAIN"].split(":")]
for address, calls in read_trace(os.environ["TRACE"]).items():
    for other in again:
        for call, same in zip(calls, other.get(address, [])):
            call.others.append(same.step)
    if not any(call.step["arguments"] is not None or call.step.get("result") is not None for call in calls):
        continue
    function = Function(low + address, calls[0].step["function"], calls)
    body = None
    if MODE == "body":
        at = body_of(function.address)
        if at is None:
            continue
        body = Body(at)
    entry = Entry(function, function.address, body)
    if body is not None:
        body.entry = entry
    functions.append(function)
# Before the mappings have gone.
gdb.execute("catch syscall exit_group", to_string=True)
gdb.execute("continue", to_string=True)
ranges()
with open(os.environ["COMPARED"], "w") as out:
    is_same = printed.report(functions, mapping, troubles, surplus, int(os.environ.get("SHOWN", "60")), out)
gdb.execute("kill", to_string=True)
gdb.execute("quit %d" % (not is_same))
