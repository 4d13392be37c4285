// A fault in a later one of the instructions that a hook relocates. It belongs to an inlined function, and so does its line.
package main

//go:noinline
func outer() int { return inner() }

func inner() int {
	var numbers *[4]int
	numbers[1] = 7
	return numbers[2]
}

func main() { println(outer()) }
