const std = @import("std");
var c: u32 = 0;
noinline fn fib(n: u32) u32 { c += 1; return if (n < 2) n else fib(n - 1) + fib(n - 2); }
noinline fn deep(n: u32) !u32 { if (n == 0) return error.Found; return (try deep(n - 1)) + 1; }
fn work(x: *u32) void { var i: u32 = 0; while (i < 1000) : (i += 1) _ = @atomicRmw(u32, x, .Add, 1, .seq_cst); }
pub fn main() !void {
    var caught: u32 = 0; var i: u32 = 1;
    while (i < 200) : (i += 1) { _ = deep(i) catch { caught += 1; continue; }; }
    const r = fib(20); var x: u32 = 0;
    var ts: [4]std.Thread = undefined;
    for (&ts) |*t| t.* = try std.Thread.spawn(.{}, work, .{&x});
    for (ts) |t| t.join();
    std.debug.print("{} fib={} {} {}\n", .{ r, c, caught, x });
}
