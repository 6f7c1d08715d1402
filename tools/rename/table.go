package main

import (
	"bufio"
	"fmt"
	"go/token"
	"os"
	"strings"
)

// An entry renames one identifier.
type entry struct {
	where    string // file:line of the table
	pkg      string // directory inside the module; _test is the external test package
	path     []string
	newName  string
	override bool // also if an interface of another module asks for it
}

// A move renames a file or a package's directory.
type move struct{ where, from, to string }

// A table is what to rename.
type table struct {
	entries  []entry
	files    []move
	packages []move
}

func readTable(files []string) (*table, error) {
	t := new(table)
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		s := bufio.NewScanner(f)
		for n := 1; s.Scan(); n++ {
			line := strings.TrimRight(s.Text(), " \t\r")
			if i := strings.Index(line, "\t#"); i >= 0 {
				line = strings.TrimRight(line[:i], " \t")
			}
			if line == "" || line[0] == '#' {
				continue
			}
			if err := t.addLine(fmt.Sprintf("%s:%d", name, n), line); err != nil {
				f.Close()
				return nil, err
			}
		}
		f.Close()
		if err := s.Err(); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (t *table) addLine(where, line string) error {
	fields := strings.Fields(line)
	if len(fields) == 3 && (fields[0] == "file" || fields[0] == "package") {
		m := move{where, fields[1], fields[2]}
		if fields[0] == "file" {
			t.files = append(t.files, m)
		} else {
			t.packages = append(t.packages, m)
		}
		return nil
	}
	if len(fields) < 2 {
		return fmt.Errorf("%s: want an old and a new name: %q", where, line)
	}
	old, name := fields[0], fields[1]
	slash := strings.LastIndexByte(old, '/') + 1
	pkg, path, ok := strings.Cut(old[slash:], ".")
	name, override := strings.CutPrefix(name, "!")
	if !ok || !token.IsIdentifier(name) {
		return fmt.Errorf("%s: %q is not directory.Name, or %q is no identifier", where, old, name)
	}
	t.entries = append(t.entries, entry{where, old[:slash] + pkg, strings.Split(path, "."), name, override})
	return nil
}
