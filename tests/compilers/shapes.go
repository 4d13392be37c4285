// A program whose calls through an interface nearly all reach one method, and whose hot method is too large to be inlined without
// a profile.
package main

import "fmt"

type Shape interface{ Area(k int) int }

type Square struct{ side int }

type Rectangle struct{ a, b int }

func (s Square) Area(k int) int {
	area := s.side
	for i := 0; i < k&7; i++ {
		area = area*s.side + i
		if area > 1<<40 {
			area >>= 20
		}
		if area&15 == 3 {
			area ^= k << 2
		}
	}
	return area
}

func (r Rectangle) Area(k int) int { return r.a * r.b * k }

//go:noinline
func sum(n int, shapes []Shape) int {
	total := 0
	for i := 0; i < n; i++ {
		total += shapes[i%len(shapes)].Area(i)
	}
	return total
}

func main() {
	shapes := make([]Shape, 100)
	for i := range shapes {
		shapes[i] = Square{i}
	}
	shapes[99] = Rectangle{2, 3}
	fmt.Println(sum(60000000, shapes))
}
