// A server that runs all the time: goroutines that grow their stacks, are preempted in loops, wait for each other, send over
// connections and collect garbage. On each line of input it calls step so many times. The calls of outer and inner are counted in the
// file "counters".
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

var counters *[3]uint64
var sink int

//go:noinline
func step(x int) int {
	sink += x
	return sink
}

//go:noinline
func inner(x int) int {
	atomic.AddUint64(&counters[1], 1)
	return x + 1
}

//go:noinline
func outer(x int) int {
	atomic.AddUint64(&counters[0], 1)
	return inner(inner(inner(x)))
}

//go:noinline
func deep(n int) int {
	var room [40]int
	room[n%40] = n
	if n == 0 {
		return outer(0)
	}
	return deep(n-1) + room[n%40] - n + 1
}

func check(is, want int) {
	if is != want {
		fmt.Println("wrong:", is, want)
		os.Exit(4)
	}
}

//go:noinline
func spin(n int) int {
	sum := 0
	for i := 0; i < n; i++ {
		sum += i & 3
	}
	return sum
}

func calls() {
	for i := 0; ; i++ {
		check(outer(i), i+3)
		if i%100 == 0 {
			runtime.Gosched()
		}
	}
}

// A new goroutine begins with a small stack.
func grows() {
	for i := 0; ; i++ {
		done := make(chan int)
		n := i % 3000
		go func() { done <- deep(n) }()
		check(<-done, n+3)
	}
}

func loops() {
	for {
		check(spin(4000000), 6000000)
	}
}

func garbage() {
	for i := 0; ; i++ {
		text := strings.Repeat("x", 1+i%1000)
		check(outer(len(text)), len(text)+3)
		if i%5000 == 0 {
			runtime.GC()
		}
	}
}

func panics() {
	for i := 0; ; i++ {
		func() {
			defer func() { check(recover().(int), i+3) }()
			panic(outer(i))
		}()
		time.Sleep(50 * time.Microsecond)
	}
}

func serves() {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				panic(err)
			}
			go io.Copy(connection, connection)
		}
	}()
	for i := 0; ; i++ {
		connection, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			panic(err)
		}
		for n := 0; n < 50; n++ {
			fmt.Fprintf(connection, "%8d", outer(n))
			answer := make([]byte, 8)
			io.ReadFull(connection, answer)
			number, _ := strconv.Atoi(strings.TrimSpace(string(answer)))
			check(number, n+3)
		}
		connection.Close()
	}
}

func main() {
	file, _ := os.Create("counters")
	file.Truncate(24)
	memory, err := syscall.Mmap(int(file.Fd()), 0, 24, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		panic(err)
	}
	counters = (*[3]uint64)(unsafe.Pointer(&memory[0]))
	work := map[rune]func(){'c': calls, 'g': grows, 'l': loops, 'm': garbage, 'p': panics, 's': serves}
	for _, kind := range os.Args[1] {
		go work[kind]()
	}
	fmt.Println("ready")
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		n, _ := strconv.Atoi(input.Text())
		for i := 0; i < n; i++ {
			step(i)
		}
		fmt.Println("done")
	}
	os.Exit(3)
}
