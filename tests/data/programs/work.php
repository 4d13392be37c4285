<?php
// Calls, arrays and strings: work of a second or two.
function fib($n) { return $n < 2 ? $n : fib($n - 1) + fib($n - 2); }
echo fib(32), "\n";
$counts = [];
for ($i = 0; $i < 5000000; $i++) {
    $key = strval($i % 5000);
    $counts[$key] = ($counts[$key] ?? 0) + $i;
}
echo array_sum($counts), "\n";
$all = [];
for ($i = 0; $i < 500000; $i++) $all[] = strrev(strval($i));
sort($all);
echo $all[0], "\n";
