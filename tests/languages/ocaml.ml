let c = ref 0
let rec fib n = incr c; if n < 2 then n else fib (n-1) + fib (n-2)
let rec deep n = if n = 0 then failwith "found" else deep (n-1) + 1
let () = let k = ref 0 in for i = 1 to 200 do (try ignore (deep i) with Failure _ -> incr k) done;
  let r = fib 20 in Gc.full_major (); Printf.printf "%d fib=%d %d\n" r !c !k
