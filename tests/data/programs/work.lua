-- Calls, strings, tables and numbers: work of some seconds for LuaJIT.
local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end
local t = {}
for i = 1, 3e6 do t[i % 1000] = tostring(i):sub(1, 3) .. i end
local s = 0
for i = 1, 2e8 do s = s + i % 7 end
print(fib(34), s, #t)
local k = {}
for i = 1, 2e6 do k[#k + 1] = math.sin(i) end
table.sort(k)
print(k[1])
