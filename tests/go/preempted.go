// Goroutines that are preempted in loops at the start of a function, again and again. The garbage collector waits for each
// of them.
package main

import (
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
)

//go:noinline
func sum(n uint64) (sum uint64) {
	for n != 0 {
		sum += n
		n--
	}
	return sum
}

//go:noinline
func wait(stop *uint32) {
	for atomic.LoadUint32(stop) == 0 {
	}
}

//go:noinline
func increment(stop *uint32, x *uint64) {
	for atomic.LoadUint32(stop) == 0 {
		*x++
	}
}

//go:noinline
func forever() {
	for {
	}
}

func main() {
	const n, sums, collections = 40_000_000, 2, 6
	var stop uint32
	var x uint64
	done := make(chan uint64)
	go wait(&stop)
	go forever()
	go func() {
		increment(&stop, &x)
		done <- 0
	}()
	for i := 0; i < sums; i++ {
		go func() { done <- sum(n) }()
	}
	for i := 0; i < collections; i++ {
		runtime.GC()
	}
	wrong := 0
	for i := 0; i < sums; i++ {
		if <-done != n*(n+1)/2 {
			wrong++
		}
	}
	atomic.StoreUint32(&stop, 1)
	<-done
	fmt.Println(wrong, "wrong", x > 0)
	text := fmt.Sprintf("main.sum %d\nmain.wait 1\nmain.increment 1\nmain.forever 1\n", sums)
	if err := os.WriteFile(os.Args[1], []byte(text), 0o600); err != nil {
		panic(err)
	}
}
