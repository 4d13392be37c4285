// A fault in the first instruction of a function that does not look at its stack.
package main

type T struct{ a, b int }

//go:noinline
func (t *T) get() int { return t.b }

func main() {
	var t *T
	println(t.get())
}
