// compare COVER SYMBOLS ARCS: compares the calls of functions that a profile has with those that `go test -covermode` counted
// in the same run, and prints how many functions were compared and how many differ; the latter also by name, to standard error.
//
// COVER is the profile that -test.coverprofile wrote, SYMBOLS the output of nm, and ARCS that of `gmon check --records --json`.
// The first block of a function begins at the brace that opens its body, so its count is the number of calls. Functions
// that are compiled under several names (generic ones, and those of a file that declares init several times) are left out.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

func lines(name string) []string {
	file, err := os.Open(name)
	check(err)
	defer file.Close()
	var all []string
	scanner := bufio.NewScanner(file)
	scanner.Buffer(nil, 1<<26)
	for scanner.Scan() {
		all = append(all, scanner.Text())
	}
	check(scanner.Err())
	return all
}

// begins returns the counts of blocks, by "FILE:LINE.COLUMN" of where they begin.
func begins(cover string) map[string]uint64 {
	counts := map[string]uint64{}
	for _, line := range lines(cover)[1:] {
		var rest, statements, count = "", 0, uint64(0)
		at, rest, _ := strings.Cut(line, ",")
		_, err := fmt.Sscanf(rest[strings.Index(rest, " "):], "%d %d", &statements, &count)
		check(err)
		counts[at] = count
	}
	return counts
}

// receiver returns the name of a method's type as it is in symbols, or "" for a generic type.
func receiver(field ast.Expr) string {
	switch of := field.(type) {
	case *ast.Ident:
		return of.Name
	case *ast.StarExpr:
		if name := receiver(of.X); name != "" {
			return "(*" + name + ")"
		}
	case *ast.ParenExpr:
		return receiver(of.X)
	}
	return ""
}

// expected returns the calls of each function, by the name of its symbol.
func expected(counts map[string]uint64) map[string]uint64 {
	files := map[string]bool{}
	for at := range counts {
		files[at[:strings.LastIndex(at, ":")]] = true
	}
	calls := map[string]uint64{}
	for file := range files {
		path := filepath.ToSlash(filepath.Dir(file))
		found, err := build.Default.Import(path, ".", build.FindOnly)
		check(err)
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, filepath.Join(found.Dir, filepath.Base(file)), nil, 0)
		check(err)
		for _, decl := range parsed.Decls {
			function, ok := decl.(*ast.FuncDecl)
			if !ok || function.Body == nil || function.Name.Name == "_" || function.Name.Name == "init" || function.Type.TypeParams != nil {
				continue
			}
			name := function.Name.Name
			if function.Recv != nil {
				of := receiver(function.Recv.List[0].Type)
				if of == "" {
					continue
				}
				name = of + "." + name
			}
			// The linker escapes the dots of the last element of a path.
			folder, last := filepath.Split(path)
			symbol := folder + strings.ReplaceAll(last, ".", "%2e") + "." + name
			place := set.Position(function.Body.Lbrace)
			if count, ok := counts[fmt.Sprintf("%s:%d.%d", file, place.Line, place.Column)]; ok {
				calls[symbol] = count
			}
		}
	}
	return calls
}

// profiled returns the calls of each function in the profile, by the name of its symbol, and all names.
func profiled(symbols, arcs string) (map[string]uint64, map[string]bool) {
	names, all := map[uint64]string{}, map[string]bool{}
	for _, line := range lines(symbols) {
		words := strings.SplitN(line, " ", 3)
		if len(words) == 3 && (words[1] == "t" || words[1] == "T") {
			var address uint64
			_, err := fmt.Sscanf(words[0], "%x", &address)
			check(err)
			name := strings.TrimSuffix(words[2], ".abi0")
			names[address] = name
			all[name] = true
		}
	}
	var profile struct {
		Arcs []struct {
			Callee uint64 `json:"to"`
			Count  uint64 `json:"count"`
		}
	}
	text, err := os.ReadFile(arcs)
	check(err)
	check(json.Unmarshal(text, &profile))
	calls := map[string]uint64{}
	for _, arc := range profile.Arcs {
		calls[names[arc.Callee]] += arc.Count
	}
	return calls, all
}

func main() {
	found, all := profiled(os.Args[2], os.Args[3])
	compared, called := 0, 0
	var wrong []string
	for name, count := range expected(begins(os.Args[1])) {
		// The linker leaves out functions that nothing calls.
		if !all[name] && count == 0 {
			continue
		}
		compared++
		if count > 0 {
			called++
		}
		if found[name] != count {
			wrong = append(wrong, fmt.Sprintf("%s: %d, not %d", name, found[name], count))
		}
	}
	sort.Strings(wrong)
	for _, line := range wrong {
		fmt.Fprintln(os.Stderr, line)
	}
	fmt.Println(compared, called, len(wrong))
}
