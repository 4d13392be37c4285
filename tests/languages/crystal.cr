class G; class_property c = 0; end
@[NoInline]
def fib(n : Int32) : Int32
  G.c += 1
  n < 2 ? n : fib(n - 1) + fib(n - 2)
end
@[NoInline]
def deep(n : Int32) : Int32
  raise "found" if n == 0
  deep(n - 1) + 1
end
caught = 0
(1..200).each { |i| begin; deep(i); rescue; caught += 1; end }
r = fib(20)
ch = Channel(Int32).new
4.times { |i| spawn { ch.send(i) } }
s = 0
4.times { s += ch.receive }
GC.collect
puts "#{r} fib=#{G.c} #{caught} #{s}"
