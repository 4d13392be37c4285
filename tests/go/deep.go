// Processes from many threads at once, at every depth of the stack, so that some have little of it left. Threads end, and others begin.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
)

// Executes the program itself with depth more frames on the stack, and returns how many of the frames and results are wrong.
//
//go:noinline
func descend(depth int, frame [64]byte) int {
	if depth == 0 {
		out, err := exec.Command(os.Args[0], "child").CombinedOutput()
		if err != nil || string(out) != "child\n" {
			fmt.Printf("%q %v\n", out, err)
			return 1
		}
		return 0
	}
	frame[depth%64]++
	wrong := descend(depth-1, frame)
	if frame[depth%64] != 1 {
		wrong++
	}
	return wrong
}

func work(routine int) int {
	wrong := 0
	for i := 0; i < 30; i++ {
		wrong += descend((routine*30+i)%60, [64]byte{})
	}
	return wrong
}

func main() {
	if len(os.Args) > 1 {
		fmt.Println("child")
		return
	}
	var wait sync.WaitGroup
	results := make([]int, 8)
	for i := range results {
		wait.Add(1)
		go func(i int) {
			defer wait.Done()
			if i%2 == 0 {
				// The thread ends with the goroutine.
				runtime.LockOSThread()
			}
			results[i] = work(i)
		}(i)
	}
	wait.Wait()
	fmt.Println(results)
}
