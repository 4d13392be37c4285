#!/usr/bin/env escript
%% Calls, maps and lists: work of a second or two, compiled.
-mode(compile).

fib(N) when N < 2 -> N;
fib(N) -> fib(N - 1) + fib(N - 2).

main(_) ->
    io:format("~p~n", [fib(32)]),
    Map = lists:foldl(fun(I, A) -> maps:put(I rem 5000, I, A) end, #{}, lists:seq(1, 2000000)),
    io:format("~p~n", [maps:size(Map)]),
    io:format("~p~n", [length(lists:sort([integer_to_list(I) || I <- lists:seq(1, 500000)]))]).
