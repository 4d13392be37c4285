# Run by gdb: writes a line "TID DEPTH NAME" for each call of a function, DEPTH being the number of the program's functions
# whose calls are below. ENTRIES names the file to write, and FUNCTIONS one with a line "ADDRESS NAME" for each function.
import os

import gdb


def called(pc):
    """Returns the address to which the direct call before a return address leads."""
    code = gdb.selected_inferior().read_memory(pc - 5, 5).tobytes()
    return pc + int.from_bytes(code[1:], "little", signed=True) if code[0] == 0xE8 else None


class Entry(gdb.Breakpoint):
    def __init__(self, address, name):
        super().__init__("*%d" % address, gdb.BP_BREAKPOINT, internal=True)
        self.silent = True
        self.function = name

    def stop(self):
        depth = 0
        was_inside = True
        frame = gdb.newest_frame().older()
        while frame is not None and frame.is_valid():
            # gdb also shows inlined functions, and those that have left by a tail call, as frames. Nobody calls the entry point,
            # below which there are none.
            is_real = frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME)
            is_real = is_real and frame.unwind_stop_reason() != gdb.FRAME_UNWIND_OUTERMOST
            if is_real:
                is_inside = low <= frame.pc() < high
                # A call of a function of the program leads to a library, so the function has jumped there: its call has not ended.
                depth += is_inside and not was_inside and called(frame.pc()) in addresses
                depth += is_inside
                was_inside = is_inside
            frame = frame.older()
        out.write("%d %d %s\n" % (gdb.selected_thread().ptid[1], depth, self.function))
        return False


out = open(os.environ["ENTRIES"], "w")
gdb.execute("set pagination off")
gdb.execute("set confirm off")
gdb.execute("set breakpoint always-inserted on")
# The program has the environment that it has without gdb.
gdb.execute("set startup-with-shell off")
for name in ["LINES", "COLUMNS", "ENTRIES", "FUNCTIONS"]:
    gdb.execute("unset environment " + name)
gdb.execute("starti", to_string=True)
program = gdb.current_progspace().filename
with open("/proc/%d/maps" % gdb.selected_inferior().pid) as maps:
    ranges = [line.split()[0].split("-") for line in maps if line.rstrip().endswith(program)]
addresses = set()
low, high = int(ranges[0][0], 16), int(ranges[-1][1], 16)
with open(os.environ["FUNCTIONS"]) as functions:
    for line in functions:
        address, name = line.split()
        addresses.add(low + int(address, 16))
        Entry(low + int(address, 16), name)
gdb.execute("continue")
out.close()
