// Command rename renames identifiers, files and packages of a Go module in bulk. It loads the tree once for each build
// configuration, resolves a table of old and new names, and writes nothing if a name conflicts or an interface would break.
//
//	rename -dir . table.tsv...          rename
//	rename -dir . -check table.tsv...   report conflicts only
//
// A table has one renaming in a line, with tabs between the fields. Lines that are empty or begin with # are skipped.
//
//	core/route.choose	pickCandidate         a function, type, variable or constant at package level
//	core/route.Router.note	recordPlacement   a method, or a field; `Type.mu.n` reaches into a struct without a name
//	core/route_test.mk	newTestRouter         of the external test package
//	file core/route/busy.go	core/route/threshold.go
//	package core/activeseq	core/activeseq        a directory, its package clause, its imports and qualifiers
//
// A method of an interface is renamed with all methods of the module that implement it. A method that an interface of another
// module asks for is refused; a ! before the new name overrides this.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	dir := flag.String("dir", ".", "root of the module")
	check := flag.Bool("check", false, "report conflicts and write nothing")
	more := flag.String("modules", "", "comma-separated directories of further modules that use this one")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: rename [-dir DIR] [-check] [-modules DIRS] TABLE...")
		os.Exit(2)
	}
	if err := run(*dir, *more, *check, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(dir, more string, check bool, files []string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	t, err := readTable(files)
	if err != nil {
		return err
	}
	loads, err := loadConfigurations(dir, more)
	if err != nil {
		return err
	}
	r := newRenamer(dir, t, loads)
	r.resolveTable()
	r.linkInterfaces()
	r.renameEmbeddedFields()
	r.checkConflicts()
	if len(r.problems) > 0 {
		r.printProblems(os.Stderr)
		return errors.New("nothing was renamed")
	}
	if check {
		fmt.Printf("%d objects can be renamed\n", len(r.newNames))
		return nil
	}
	return r.apply()
}
