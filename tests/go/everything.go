// Goroutines whose stacks grow, garbage collections, preempted loops, panics, selects. Each function counts its own calls.
package main

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Whether this is a build for the race detector, which does not preempt loops.
var racing = len(os.Args) > 2

var cnt [12]int64

//go:noinline
func work(n int) int { atomic.AddInt64(&cnt[0], 1); return n*7 + 1 }

//go:noinline
func deep(n int, pad [64]int) int {
	atomic.AddInt64(&cnt[1], 1)
	if n == 0 {
		return pad[3]
	}
	pad[n%64]++
	return deep(n-1, pad) + work(n)&1
}

type T struct{ l, r *T }

//go:noinline
func tree(n int) *T {
	atomic.AddInt64(&cnt[2], 1)
	if n == 0 {
		return &T{}
	}
	return &T{tree(n - 1), tree(n - 1)}
}

//go:noinline
func (t *T) count() int {
	atomic.AddInt64(&cnt[3], 1)
	if t.l == nil {
		return 1
	}
	return t.l.count() + t.r.count() + 1
}

//go:noinline
func guarded(n int) (s string) {
	atomic.AddInt64(&cnt[4], 1)
	defer func() {
		atomic.AddInt64(&cnt[5], 1)
		if r := recover(); r != nil {
			s = fmt.Sprint(r)
		}
	}()
	if n%2 == 0 {
		var t *T
		return fmt.Sprint(t.l.get())
	}
	return fmt.Sprint([]int{1}[n])
}

//go:noinline
func (t *T) get() *T { return t.r }

//go:noinline
func spin(stop *int32) (n int) {
	atomic.AddInt64(&cnt[6], 1)
	for atomic.LoadInt32(stop) == 0 {
		if racing {
			runtime.Gosched()
		}
		n++
	}
	return
}

//go:noinline
func tight(n int) (s int) {
	atomic.AddInt64(&cnt[7], 1)
	for i := 0; i < n; i++ {
		s += i * i
	}
	return
}

//go:noinline
func sel(a, b chan int, n int) (s int) {
	atomic.AddInt64(&cnt[8], 1)
	for i := 0; i < n; i++ {
		select {
		case x := <-a:
			s += x
		case x := <-b:
			s -= x
		}
	}
	return
}

//go:noinline
func names() string {
	atomic.AddInt64(&cnt[9], 1)
	pc := make([]uintptr, 20)
	frames := runtime.CallersFrames(pc[:runtime.Callers(0, pc)])
	var found []string
	for {
		f, more := frames.Next()
		found = append(found, f.Function)
		if !more {
			break
		}
	}
	return strings.Join(found, " ")
}

func main() {
	debug.SetGCPercent(1)
	var wg sync.WaitGroup
	sums := make([]int, 8)
	for i := range sums {
		wg.Add(1)
		go func(i int) {
			defer wg.Done()
			sums[i] = deep(500*i, [64]int{}) + tree(10).count()
		}(i)
	}
	wg.Wait()
	fmt.Println(sums)
	for i := 1; i < 200; i++ {
		if i < 4 {
			fmt.Println(guarded(i))
		} else {
			guarded(i)
		}
	}
	var stop int32
	for i := 0; i < 2; i++ {
		wg.Add(1)
		go func() { defer wg.Done(); spin(&stop) }()
	}
	x := 0
	for i := 0; i < 6; i++ {
		runtime.GC()
		x += tight(300000)
	}
	time.Sleep(5 * time.Millisecond)
	atomic.StoreInt32(&stop, 1)
	wg.Wait()
	a, b := make(chan int), make(chan int)
	wg.Add(2)
	go func() { defer wg.Done(); for i := 0; i < 1000; i++ { a <- work(i) } }()
	go func() { defer wg.Done(); for i := 0; i < 1000; i++ { b <- work(i) } }()
	fmt.Println(sel(a, b, 2000), x)
	wg.Wait()
	fmt.Println(names())
	buf := make([]byte, 1<<16)
	fmt.Println(bytes.Contains(buf[:runtime.Stack(buf, true)], []byte("main.main()")))
	f, _ := os.Create(os.Args[1])
	for i, n := range []string{"work", "deep", "tree", "(*T).count", "guarded", "guarded.func1", "spin", "tight", "sel", "names"} {
		fmt.Fprintln(f, "main."+n, cnt[i])
	}
	f.Close()
	os.Exit(3)
}
