# Run by gdb on a core or on a process that stands still: writes to the file that BACKTRACE names a line "frame call PC" or
# "frame signal PC" for each frame of the selected thread, the innermost one first, and then what gdb knows of the mappings.
# A frame of a signal is the one that the kernel has made.
import os

import gdb

gdb.execute("set pagination off")
gdb.execute("set backtrace past-main on")
out = open(os.environ["BACKTRACE"], "w")
frame = gdb.newest_frame()
while frame is not None and frame.is_valid():
    # gdb also shows inlined functions, and those that have left by a tail call, as frames.
    if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
        kind = "signal" if frame.type() == gdb.SIGTRAMP_FRAME else "call"
        out.write("frame %s %#x\n" % (kind, frame.pc()))
    frame = frame.older()
out.write(gdb.execute("info proc mappings", to_string=True))
out.close()
