// Go calls C, which calls Go, from stacks that have grown.
package main

/*
typedef int (*cb)(int);
extern int goCallback(int);
static int c_leaf(int x) { return x + 1; }
static int c_loop(int n) { int s = 0; for (int i = 0; i < n; i++) s += goCallback(i) + c_leaf(i); return s; }
*/
import "C"
import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
)

var cb, lf int64

//export goCallback
//go:noinline
func goCallback(x C.int) C.int {
	atomic.AddInt64(&cb, 1)
	if x%100 == 0 {
		runtime.GC()
	}
	return x * 2
}

//go:noinline
func deep(n int, pad [32]int) int {
	atomic.AddInt64(&lf, 1)
	if n == 0 {
		return int(C.c_loop(10))
	}
	return deep(n-1, pad) + pad[3]
}

func main() {
	var wg sync.WaitGroup
	for i := 0; i < 8; i++ {
		wg.Add(1)
		go func() { defer wg.Done(); deep(200, [32]int{}); C.c_loop(300) }()
	}
	wg.Wait()
	f, _ := os.Create(os.Args[1])
	fmt.Fprintln(f, "main.deep", lf)
	fmt.Fprintln(f, "main.goCallback", cb)
	f.Close()
	fmt.Println(lf, cb)
}
