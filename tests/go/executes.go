// Processes from many threads at once, with little stack, and one that cannot be executed.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
)

func main() {
	if len(os.Args) > 1 {
		fmt.Println("child", os.Args[1])
		os.Exit(len(os.Args[1]))
	}
	var wait sync.WaitGroup
	results := make([]string, 8)
	for i := range results {
		wait.Add(1)
		go func(i int) {
			defer wait.Done()
			out, err := exec.Command("./executes", "abcdefgh"[:i]+"x").CombinedOutput()
			results[i] = fmt.Sprintf("%s%v", out, err)
		}(i)
	}
	wait.Wait()
	_, err := exec.Command("./missing").Output()
	fmt.Println(results, err)
}
