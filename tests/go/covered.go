// Functions that `go test -covermode=count` counts as well.
package covered

import (
	"sort"
	"strings"
	"testing"
)

type item struct{ key, value int }
type items []item

//go:noinline
func (s items) Len() int { return len(s) }

//go:noinline
func (s items) Less(i, j int) bool { return s[i].key < s[j].key }

//go:noinline
func (s items) Swap(i, j int) { s[i], s[j] = s[j], s[i] }

//go:noinline
func fill(n int) items {
	s := make(items, n)
	for i := range s {
		s[i] = item{i * 7919 % n, i}
	}
	return s
}

//go:noinline
func words(n int) string {
	if n == 0 {
		return ""
	}
	return words(n-1) + strings.Repeat("x", n%3)
}

//go:noinline
func caught(n int) (failed bool) {
	defer func() { failed = recover() != nil }()
	return []bool{false}[n]
}

func TestAll(t *testing.T) {
	s := fill(2000)
	sort.Sort(s)
	if !sort.IsSorted(s) || len(words(300)) != 300 {
		t.Fatal("wrong")
	}
	for i := 0; i < 50; i++ {
		if caught(i) != (i > 0) {
			t.Fatal("not caught")
		}
	}
}
