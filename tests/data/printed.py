# Values as `gmon trace` prints them, and whether they are those that gdb knows. Used by arguments.py.
import collections
import os
import re
import struct

ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\", '"': '"', "'": "'"}
# What a trace keeps of a string and of an object.
TEXT = 96


class Parser:
    """Reads `a=1, b={x="s"}`."""

    def __init__(self, text):
        self.text = text
        self.at = 0

    def peek(self):
        return self.text[self.at] if self.at < len(self.text) else ""

    def fields(self, end):
        found = []
        while self.peek() not in (end, ""):
            name = None
            match = re.compile(r"[^=,{}\"'<]+(<[^=]*>)?=").match(self.text, self.at)
            if match:
                name = match.group()[:-1]
                self.at = match.end()
            found.append((name, self.value()))
            if self.text.startswith(", ", self.at):
                self.at += 2
        return found

    def value(self):
        first = self.peek()
        if first == "{":
            self.at += 1
            fields = self.fields("}")
            self.at += 1
            return ("structure", fields)
        if first in "\"'":
            text = self.quoted(first)
            if first == "'":
                return ("character", text)
            is_cut = self.text.startswith("...", self.at)
            self.at += 3 * is_cut
            return ("text", text, is_cut)
        start = self.at
        while self.peek() not in ("", "}") and not self.text.startswith(", ", self.at):
            self.at += 1
        word = self.text[start : self.at]
        if word == "?":
            return ("unknown",)
        if re.fullmatch("<0x[0-9a-f]+>", word):
            return ("unreadable", int(word[1:-1], 16))
        return ("word", word)

    def quoted(self, quote):
        self.at += 1
        found = b""
        while self.peek() not in (quote, ""):
            char = self.peek()
            self.at += 1
            if char != "\\":
                found += char.encode()
                continue
            kind = self.peek()
            self.at += 1
            if kind == "x":
                found += bytes([int(self.text[self.at : self.at + 2], 16)])
                self.at += 2
            elif kind == "u":
                end = self.text.index("}", self.at)
                found += chr(int(self.text[self.at + 1 : end], 16)).encode()
                self.at = end + 1
            else:
                found += ESCAPES[kind].encode()
        self.at += 1
        return found


def number_of(ours):
    """Returns the number that a text stands for."""
    if ours[0] == "character":
        text = ours[1]
        return text[0] if len(text) == 1 else ord(text.decode())
    if ours[0] != "word":
        return None
    word = ours[1]
    if word == "NULL":
        return 0
    if word in ("true", "false"):
        return int(word == "true")
    try:
        return int(word, 0)
    except ValueError:
        return None


class Comparison:
    """Compares values, and keeps the addresses for later."""

    def __init__(self, mapping):
        self.mapping = mapping
        self.addresses = collections.defaultdict(list)

    def compare(self, ours, theirs, where):
        """Returns `same`, `different`, `theirs` or `ours` if the other one does not know it, or `neither`."""
        kind = theirs["kind"]
        if ours[0] == "unknown":
            return "neither" if kind in ("unknown", "other") else "theirs"
        if kind in ("unknown", "other"):
            return "ours"
        same = self.is_same(ours, theirs, where)
        return "neither" if same is None else "same" if same else "different"

    def is_same(self, ours, theirs, where):
        kind = theirs["kind"]
        if kind == "pointer":
            return self.is_same_pointer(ours, theirs, where)
        if kind == "text":
            return self.is_same_text(ours, theirs["text"])
        if kind in ("structure", "array"):
            return self.is_same_structure(ours, theirs, where)
        if kind == "float":
            if ours[0] != "word":
                return False
            mine = float(ours[1])
            if theirs["size"] == 4:
                mine = struct.unpack("f", struct.pack("f", mine))[0]
            return mine == theirs["value"] or (mine != mine and theirs["value"] != theirs["value"])
        if kind == "enum" and ours[0] == "word" and number_of(ours) is None:
            return theirs["text"].split("::")[-1] == ours[1].split("::")[-1]
        mine = number_of(ours)
        if mine is None:
            return False
        bits = 8 * theirs.get("size", 1)
        return (mine - theirs["value"]) % (1 << bits) == 0

    def is_same_text(self, ours, text):
        if text is None:
            return ours[0] == "unreadable"
        if ours[0] == "word" and ours[1] == "NULL":
            return not text
        if ours[0] != "text":
            return False
        # A character is not cut in two.
        return ours[1] == text if not ours[2] else text.startswith(ours[1]) and len(ours[1]) > TEXT - 4

    def is_same_pointer(self, ours, theirs, where):
        address = theirs["address"]
        if ours[0] == "text":
            return self.is_same_text(ours, theirs.get("text"))
        mine = ours[1] if ours[0] == "unreadable" else number_of(ours)
        if mine is None:
            return False
        if address < 1 << 16:
            return mine == address
        self.addresses[self.mapping(address)].append((mine - address, where, mine, address))
        return True

    def is_same_structure(self, ours, theirs, where):
        if ours[0] == "text":
            return None
        if ours[0] != "structure":
            return False
        if theirs["kind"] == "array":
            pairs = [(mine, other, False) for (_, mine), other in zip(ours[1], theirs["elements"])]
        else:
            if len(ours[1]) != len(theirs["fields"]):
                # Fields beyond what is kept are left out.
                pass
            pairs = []
            for (name, mine), (other_name, other, is_bits) in zip(ours[1], theirs["fields"]):
                if (name or "").split("<")[0] != other_name.split("<")[0]:
                    return False
                pairs.append((mine, other, is_bits))
        outcomes = [self.compare(mine, other, where) for mine, other, is_bits in pairs]
        if "different" in outcomes:
            return False
        return True if "same" in outcomes or not pairs else None

    def moved(self):
        """Returns the addresses that differ by another number than most of their mapping, and those numbers."""
        wrong, by = [], {}
        for name, found in self.addresses.items():
            most = collections.Counter(delta for delta, *_ in found).most_common(1)[0]
            play = 64 if name == "[stack]" else 0
            others = [(name, *rest) for delta, *rest in found if abs(delta - most[0]) > play]
            by[name] = (most[0], len(found) - len(others), len(found))
            wrong += others
        return wrong, by


def numbered(found):
    """Returns values by their names and their numbers among those with the same name."""
    counts = collections.Counter()
    by = {}
    for name, value in found:
        by[name, counts[name]] = value
        counts[name] += 1
    return by


def report(functions, mapping, troubles, surplus, shown, out):
    """Prints what is the same and what is not, and returns whether nothing is different."""
    comparison = Comparison(mapping)
    excepted = os.environ.get("EXCEPT")
    counts = collections.Counter()
    lines = collections.defaultdict(list)

    def count(what, outcome, line):
        counts[what, outcome] += 1
        if outcome in ("different", "ours", "theirs"):
            lines[what, outcome].append(line)

    for function in functions:
        for number, call in enumerate(function.calls[: function.seen]):
            step = call.step
            name = f"{function.name} #{number}"
            mine = Parser(step["arguments"] or "").fields("")
            again = [Parser(other["arguments"] or "").fields("") for other in call.others]
            # Several have one name if the source has `args...`.
            theirs = numbered(call.arguments or [])
            mine = numbered(mine).items()
            for index, (parameter, value) in enumerate(mine):
                if parameter not in theirs:
                    counts["arguments", "not compared"] += 1
                    continue
                line = f"{name}: {parameter[0]}={value} gdb {theirs[parameter]}"
                if excepted and re.search(excepted, f"{function.name}: {parameter[0]}"):
                    count("arguments", "excepted", line)
                elif any(index >= len(other) or other[index][1] != value for other in again):
                    count("arguments", "varies", line)
                else:
                    count("arguments", comparison.compare(value, theirs[parameter], ("arguments", line)), line)
            mentioned = {parameter for parameter, _ in mine}
            for parameter, value in theirs.items():
                if parameter not in mentioned and value["kind"] not in ("unknown", "other"):
                    count("arguments", "theirs", f"{name}: {parameter[0]} is not shown; gdb {value}")
            if call.result is not None:
                value = Parser(step["result"]).value()
                line = f"{name}: ={value} gdb {call.result}"
                if excepted and re.search(excepted, f"{function.name}:"):
                    count("results", "excepted", line)
                elif any(other.get("result") != step["result"] for other in call.others):
                    count("results", "varies", line)
                else:
                    count("results", comparison.compare(value, call.result, ("results", line)), line)
    wrong, by = comparison.moved()
    for mapping_name, (what, line), mine, address in wrong:
        counts[what, "moved"] += 1
        lines[what, "moved"].append(f"{mapping_name} {mine:#x} {address:#x} {line}")
    for key, found in lines.items():
        print(*key, len(found), file=out)
        seen = collections.Counter()
        for line in found:
            seen[line.split(" #")[0]] += 1
            if seen[line.split(" #")[0]] <= 2 and len(seen) <= shown:
                print("   ", line[:600], file=out)
    for name, (delta, most, total) in sorted(by.items()):
        print(f"addresses of {name}: {most} of {total} moved by {delta:#x}", file=out)
    for trouble, times in troubles.most_common(10):
        print("trouble", times, trouble, file=out)
    if surplus:
        print("more calls than in the trace:", len(surplus), sorted(surplus)[:5], file=out)
    calls = sum(function.seen for function in functions)
    print("functions", sum(function.seen > 0 for function in functions), "calls", calls, file=out)
    for key in sorted(counts):
        print(*key, counts[key], file=out)
    return not any(outcome in ("different", "moved") for _, outcome in counts)
