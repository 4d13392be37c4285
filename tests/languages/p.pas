{$mode objfpc}
program p;
uses sysutils;
var c: longint = 0; k: longint = 0; i, r: longint;
function fib(n: longint): longint; begin inc(c); if n < 2 then fib := n else fib := fib(n-1) + fib(n-2) end;
function deep(n: longint): longint; begin if n = 0 then raise exception.create('found'); deep := deep(n-1) + 1 end;
begin
  for i := 1 to 200 do try deep(i) except on e: exception do inc(k) end;
  r := fib(20);
  writeln(r, ' fib=', c, ' ', k)
end.
