// Command words measures the names and the prose of Go source: how long the names of functions are, how many are a single
// word, how many comments use words that the style forbids, and which type names several packages share.
//
//	go run ./tools/words                     the whole repository
//	go run ./tools/words -by-package core    each package below core
//	go run ./tools/words -find core/route    where the words stand, and which functions have names of one word
//	go run ./tools/words -json
//
// It reads the files that are not tests, without build tags: all of them. With -tests it reads the tests instead.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
)

func main() {
	byPackage := flag.Bool("by-package", false, "one line for each package")
	find := flag.Bool("find", false, "list where the words stand")
	asJSON := flag.Bool("json", false, "print JSON")
	tests := flag.Bool("tests", false, "read the tests instead of the other files")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: words [-by-package] [-find] [-json] [-tests] [DIRECTORY...]")
		flag.PrintDefaults()
	}
	flag.Parse()
	roots := flag.Args()
	if len(roots) == 0 {
		roots = []string{"."}
	}
	m, err := measureTree(roots, *tests)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	switch {
	case *asJSON:
		e := json.NewEncoder(os.Stdout)
		e.SetIndent("", "  ")
		err = e.Encode(m.summarize())
	case *find:
		m.printFound(os.Stdout)
	default:
		m.printSummary(os.Stdout, *byPackage)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
