with Ada.Text_IO; use Ada.Text_IO;
procedure a is
  C : Integer := 0; Caught : Integer := 0; Found : exception; R : Integer;
  function Fib (N : Integer) return Integer is
  begin C := C + 1; if N < 2 then return N; else return Fib (N - 1) + Fib (N - 2); end if; end Fib;
  function Deep (N : Integer) return Integer is
  begin if N = 0 then raise Found; end if; return Deep (N - 1) + 1; end Deep;
  task type W is entry Go (X : in out Integer); end W;
  task body W is begin accept Go (X : in out Integer) do X := X + 1; end Go; end W;
  Ws : array (1 .. 4) of W;
begin
  for I in 1 .. 200 loop
    begin R := Deep (I); exception when Found => Caught := Caught + 1; end;
  end loop;
  R := Fib (20);
  for I in Ws'Range loop Ws (I).Go (Caught); end loop;
  Put_Line (R'Image & " fib=" & C'Image & Caught'Image);
end a;
