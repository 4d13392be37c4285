# Calls, hashes and strings: work of a second or two.
def fib(n) = n < 2 ? n : fib(n - 1) + fib(n - 2)
puts fib(30)
counts = Hash.new(0)
2_000_000.times { |i| counts[(i % 5000).to_s] += i }
puts counts.values.sum
puts (1..600_000).map { |i| i.to_s.reverse }.sort.first
