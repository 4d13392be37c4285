-- What scripts do: calls, strings, tables, closures, sorting, pattern matching, garbage.
-- Usage: lua bench.lua ROUNDS. The same work each time; no clock and no random numbers from outside.

local rounds = tonumber(arg[1]) or 1

local function fib(n)
  if n < 2 then return n end
  return fib(n - 1) + fib(n - 2)
end

local function strings(n)
  local parts = {}
  for i = 1, n do
    parts[#parts + 1] = string.format("%d:%s", i, ("x"):rep(i % 7))
  end
  local text = table.concat(parts, ",")
  local count = 0
  for number in text:gmatch("(%d+):") do
    count = count + tonumber(number) % 3
  end
  return count + #text:gsub("x", "yy"):upper()
end

local function sorting(n)
  local seed, values = 42, {}
  for i = 1, n do
    seed = (seed * 1103515245 + 12345) % 2147483648
    values[i] = seed
  end
  table.sort(values)
  table.sort(values, function(a, b) return a % 1000 < b % 1000 or (a % 1000 == b % 1000 and a < b) end)
  return values[1] + values[n]
end

local Point = {}
Point.__index = Point
Point.__add = function(a, b) return setmetatable({ x = a.x + b.x, y = a.y + b.y }, Point) end
local function objects(n)
  local sum = setmetatable({ x = 0, y = 0 }, Point)
  for i = 1, n do
    sum = sum + setmetatable({ x = i, y = -i }, Point)
  end
  return sum.x + sum.y
end

local function closures(n)
  local function counter()
    local c = 0
    return function() c = c + 1; return c end
  end
  local total = 0
  for _ = 1, n do
    local next_one = counter()
    next_one()
    total = total + next_one()
  end
  return total
end

local function coroutines(n)
  local co = coroutine.wrap(function() for i = 1, n do coroutine.yield(i) end return 0 end)
  local total = 0
  for _ = 1, n do total = total + co() end
  return total
end

local function errors(n)
  local caught = 0
  for i = 1, n do
    if not pcall(function() error("no " .. i) end) then caught = caught + 1 end
  end
  return caught
end

local total = 0
for _ = 1, rounds do
  total = total + fib(18) + strings(1500) + sorting(2000) + objects(4000) + closures(3000)
  total = total + coroutines(2000) + errors(500)
end
print(string.format("%d", total))
