# Run by gdb: writes a line "TID DEPTH NAME" for each call of a function, DEPTH being the number of the program's functions
# whose frames are below. ENTRIES names the file to write, and FUNCTIONS one with a line "ADDRESS NAME" for each function.
import os

import gdb


class Entry(gdb.Breakpoint):
    def __init__(self, address, name):
        super().__init__("*%d" % address, gdb.BP_BREAKPOINT, internal=True)
        self.silent = True
        self.function = name

    def stop(self):
        depth = 0
        frame = gdb.newest_frame().older()
        while frame is not None and frame.is_valid():
            # gdb also shows inlined functions, and those that have left by a tail call, as frames.
            is_real = frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME)
            depth += is_real and low <= frame.pc() < high
            frame = frame.older()
        out.write("%d %d %s\n" % (gdb.selected_thread().ptid[1], depth, self.function))
        return False


out = open(os.environ["ENTRIES"], "w")
gdb.execute("set pagination off")
gdb.execute("set confirm off")
gdb.execute("set breakpoint always-inserted on")
gdb.execute("starti", to_string=True)
program = gdb.current_progspace().filename
with open("/proc/%d/maps" % gdb.selected_inferior().pid) as maps:
    ranges = [line.split()[0].split("-") for line in maps if line.rstrip().endswith(program)]
low, high = int(ranges[0][0], 16), int(ranges[-1][1], 16)
with open(os.environ["FUNCTIONS"]) as functions:
    for line in functions:
        address, name = line.split()
        Entry(low + int(address, 16), name)
gdb.execute("continue")
out.close()
