// The program's own profile has samples in a function of a few instructions.
package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime/pprof"
	"time"
)

//go:noinline
func tiny(n int) int { return n*3 + 1 }

//go:noinline
func busy(n int) (s int) {
	for i := 0; i < n; i++ {
		s += tiny(i) ^ s
	}
	return
}

func main() {
	var b bytes.Buffer
	if err := pprof.StartCPUProfile(&b); err != nil {
		panic(err)
	}
	s := 0
	for end := time.Now().Add(400 * time.Millisecond); time.Now().Before(end); {
		s += busy(100000)
	}
	pprof.StopCPUProfile()
	os.WriteFile(os.Args[1], b.Bytes(), 0o666)
	fmt.Println(s != 0)
}
