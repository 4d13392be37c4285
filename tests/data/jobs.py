"""Runs a command as a job of an interactive shell, in a terminal of its own: stops it, continues it, puts it into the background and into
the foreground, interrupts it. Prints the lines of the command that begin with @, and what the shell says of jobs and statuses.

    python3 jobs.py SHELL COMMAND...
"""
import os
import pty
import re
import select
import shlex
import sys
import time

shell, command = sys.argv[1], shlex.join(sys.argv[2:])
pid, terminal = pty.fork()
if pid == 0:
    os.environ["PS1"] = "% "
    os.environ["ENV"] = "/dev/null"
    os.environ["TERM"] = "dumb"
    options = ["--norc", "--noediting"] if shell.endswith("bash") else []
    os.execvp(shell, [shell, *options, "-i"])

seen = ""
# Whether what a signal has done is not the same in each run: a job in the background stops when it reads, before or after the next signal.
varies = False


def until(pattern, what):
    """Reads until the pattern comes. What was read up to its end is left out of later searches."""
    global seen
    deadline = time.monotonic() + 30
    while not (found := re.search(pattern, seen)):
        if time.monotonic() > deadline or not select.select([terminal], [], [], 30)[0]:
            print(f"{what}: {pattern!r} did not come, but {seen[-600:]!r}")
            sys.exit(1)
        try:
            seen += os.read(terminal, 4096).decode(errors="replace")
        except OSError:
            print(f"{what}: the terminal was closed after {seen[-600:]!r}")
            sys.exit(1)
    seen = seen[found.end():]
    print(what if varies else f"{what}: {found.group(0).strip()}")


def type_in(text):
    os.write(terminal, text.encode())


PROMPT = r"% "
until(PROMPT, "prompt")
type_in(command + " jobs\n")
until(r"@leads[^\r\n]*", "start")
until(r"@signals[^\r\n]*", "start")
type_in("one\n")
until(r"@one: [^\r\n]*", "question")
type_in("\x1a")
until(r"Stopped", "Ctrl-Z")
until(PROMPT, "Ctrl-Z")
type_in("fg\n")
until(r"@signal: [^\r\n]*", "fg")
type_in("two\n")
until(r"@two: [^\r\n]*", "question")
type_in("\x03")
until(r"@signal: [^\r\n]*", "Ctrl-C")
type_in("\x1a")
until(r"Stopped", "Ctrl-Z")
until(PROMPT, "Ctrl-Z")
varies = True
type_in("bg\n")
until(PROMPT, "bg")
type_in("kill -s TERM %1; fg\n")
until(r"(?s)ended 1", "kill")
type_in("three\n")
until(r"@three: [^\r\n]*", "question")
type_in("stop\n")
until(r"@stop: [^\r\n]*", "stops itself")
until(r"Stopped", "stops itself")
until(PROMPT, "stops itself")
type_in("fg\n")
until(r"@went on", "fg")
type_in("\x04")
until(r"@end: interrupted 1", "end of input")
until(PROMPT, "end")
type_in("echo status $?\n")
until(r"status 5", "status")
until(PROMPT, "status")
type_in("exit\n")
